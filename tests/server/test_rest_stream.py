"""The event stream: what happens arrives, once, and nothing is missed by those who come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from perdure.core import ids
from perdure.server.rest import stream, stream_client
from tests.fakes.waiting import holds, until
from tests.server.rest_live import Live, live


@pytest.fixture
async def api(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    monkeypatch.setattr(stream, "POLL_S", 0.1)
    async with live(dsn) as one:
        yield one


class Listener:
    """Reads one stream in the background."""

    def __init__(self, api: Live, query: str, last: str | None = None) -> None:
        self._api, self._query, self._last = api, query, last
        self.events: list[tuple[str, Any]] = []
        self.ids: list[str] = []
        self.comments = 0
        self.opened = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        headers = {"Last-Event-ID": self._last} if self._last else {}
        async with self._api.http.stream("GET", f"/stream?{self._query}", headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            event = ident = ""
            async for line in answer.aiter_lines():
                field, _, value = line.partition(": ")
                if line.startswith(":"):
                    self.comments += 1
                    self.opened.set()
                elif field == "id":
                    ident = value
                elif field == "event":
                    event = value
                elif field == "data":
                    self.ids.append(ident)
                    self.events.append((event, json.loads(value)))

    async def until(self, wanted: Callable[[str, Any], bool]) -> Any:
        """The data of the first event that is wanted."""
        return (await until(lambda: self._found(wanted)))[0]

    def _found(self, wanted: Callable[[str, Any], bool]) -> list[Any]:
        found = [data for kind, data in self.events if wanted(kind, data)]
        assert found or not self.task.done(), self.task
        return found

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_runs_arrive_as_they_start_and_end(api: Live) -> None:
    listener = Listener(api, "runs=1")
    await listener.opened.wait()
    run = await api.start("rest_listen")
    await listener.until(
        lambda kind, d: kind == "run" and d["id"] == run["id"] and d["status"] in ("pending", "running")
    )
    await api.post(f"/runs/{run['id']}/signals/rest_word", "x", 202)
    await listener.until(lambda kind, d: d["id"] == run["id"] and d["status"] == "success")
    await holds(lambda: [d["status"] for _, d in listener.events].count("success") == 1, 1.0)
    await listener.close()


async def test_who_comes_back_misses_nothing(api: Live) -> None:
    listener = Listener(api, "runs=1")
    await listener.opened.wait()
    first = await api.ended("rest_sum", input={"x": 1})
    await listener.until(lambda _, d: d["id"] == first["id"] and d["status"] == "success")
    last = listener.ids[-1]
    await listener.close()
    second = await api.ended("rest_sum", input={"x": 2})
    third = await api.start("rest_listen")
    again = Listener(api, "runs=1", last)
    await again.until(lambda _, d: d["id"] == second["id"] and d["status"] == "success")
    await again.until(lambda _, d: d["id"] == third["id"])
    await again.close()


async def test_a_history_is_followed_exactly(api: Live) -> None:
    run = await api.start("rest_listen", input={"count": 3})
    listener = Listener(api, f"run={run['id']}")
    await api.post(f"/runs/{run['id']}/signals/rest_word", "1", 202)
    await listener.until(lambda kind, d: kind == "history" and d["type"] == "SignalReceived")
    last, seen = listener.ids[-1], listener.events[-1][1]["seq"]
    await listener.close()
    await api.post(f"/runs/{run['id']}/signals/rest_word", "2", 202)
    await api.post(f"/runs/{run['id']}/signals/rest_word", "3", 202)
    again = Listener(api, f"run={run['id']}", last)
    await again.until(lambda _, d: d["type"] == "RunSucceeded")
    numbers = [d["seq"] for _, d in again.events]
    assert numbers == list(range(seen + 1, seen + 1 + len(numbers)))
    whole = Listener(api, f"run={run['id']}")
    end = await whole.until(lambda _, d: d["type"] == "RunSucceeded")
    assert [d["seq"] for _, d in whole.events] == list(range(1, end["seq"] + 1))
    await again.close()
    await whole.close()


async def test_a_page_that_has_read_the_past_follows_what_comes_after(api: Live) -> None:
    run = await api.start("rest_listen", input={"count": 2})
    await api.post(f"/runs/{run['id']}/signals/rest_word", "1", 202)
    first = Listener(api, f"run={run['id']}")
    read = (await first.until(lambda _, d: d["type"] == "SignalReceived"))["seq"]
    await first.close()
    listener = Listener(api, f"run={run['id']}&after={read}&logs={run['id']}&since=1h")
    await listener.opened.wait()
    await api.post(f"/runs/{run['id']}/signals/rest_word", "2", 202)
    end = await listener.until(lambda kind, d: kind == "history" and d["type"] == "RunSucceeded")
    assert [d["seq"] for kind, d in listener.events if kind == "history"] == list(range(read + 1, end["seq"] + 1))
    await listener.close()


async def test_log_lines_are_followed_even_when_they_arrive_late(api: Live) -> None:
    run = await api.start("rest_listen")
    run_id = ids.parse(run["id"])
    now_us = await api.server.api.ports.reads.clock_us()

    async def wrote(n: int, at_us: int, text: str) -> None:
        async with api.perdure.store.pool.take() as c:
            await c.execute(
                "insert into perdure.task_log (run_id, seq, attempt, n, ns, at, lines, body) values ($1, 0, 1, $2, 1, $3, 1, $4)",
                run_id,
                n,
                at_us,
                json.dumps([[at_us, "stdout", "info", text]]).encode(),
            )

    await wrote(0, now_us, "one")
    listener = Listener(api, f"logs={run['id']}")
    await listener.until(lambda kind, d: kind == "log" and d["text"] == "one")
    await wrote(2, now_us + 1_000, "three")
    await listener.until(lambda _, d: d["text"] == "three")
    await wrote(1, now_us - 1_000_000, "two, committed late")
    await listener.until(lambda _, d: d["text"].startswith("two"))
    assert len(listener.events) == 3
    last = listener.ids[-1]
    await listener.close()
    await wrote(3, now_us + 2_000, "four")
    again = Listener(api, f"logs={run['id']}", last)
    await again.until(lambda _, d: d["text"] == "four")
    places = [d["place"] for _, d in again.events]
    assert len(places) == len(set(places))
    await again.close()


async def test_one_stream_carries_all_topics(api: Live) -> None:
    run = await api.start("rest_listen")
    listener = Listener(api, f"runs=true&run={run['id']}&logs=@last")
    await listener.until(lambda kind, _: kind == "history")
    other = await api.start("rest_sum", input={"x": 1})
    await listener.until(lambda kind, d: kind == "run" and d["id"] == other["id"])
    await listener.close()


async def test_a_stream_beats_while_nothing_happens(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT_S", 0.2)
    listener = Listener(api, "runs=1")
    await until(lambda: listener.comments >= 4)
    await listener.close()


def runs_feeds() -> list[asyncio.Task[Any]]:
    return [t for t in asyncio.all_tasks() if t.get_name().startswith("perdure-runs-feed")]


async def test_the_poller_stops_with_the_last_listener(api: Live) -> None:
    listeners = [Listener(api, "runs=1") for _ in range(3)]
    for one in listeners:
        await one.opened.wait()
    (feed,) = feeds = await until(runs_feeds)
    await holds(lambda: runs_feeds() == feeds, 0.3)
    for one in listeners:
        await one.close()
    await until(feed.done)


async def test_what_cannot_be_followed_is_refused(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await api.get("/stream", 422))["code"] == "invalid_input"
    assert (await api.get("/stream", 404, run="00000000"))["code"] == "not_found"
    answer = await api.http.get("/stream", params={"runs": 1}, headers={"Last-Event-ID": "nonsense"})
    assert answer.status_code == 422
    monkeypatch.setattr(stream, "STREAMS_PER_PRINCIPAL_MAX", 1)
    listener = Listener(api, "runs=1")
    await listener.opened.wait()
    answer = await api.http.get("/stream", params={"runs": 1})
    assert answer.status_code == 429 and answer.json()["code"] == "too_many_streams" and answer.headers["retry-after"]
    await listener.close()


async def test_a_client_that_does_not_keep_up_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_client, "QUEUE_MESSAGES_MAX", 3)
    client = stream_client.StreamClient(stream_client.Cursor())
    for n in range(4):
        client.cursor.history = n
        client.put("history", {"n": n})
    assert client.is_cut
    sent = await client.take(1)
    assert sent.count(b"event: history") == 3


async def test_who_was_away_for_long_catches_up_at_its_own_pace(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """More changes than a client's queue holds, and more than one look takes in."""
    monkeypatch.setattr(stream_client, "QUEUE_MESSAGES_MAX", 20)
    monkeypatch.setattr(stream_client, "PAGE_ROWS", 10)
    monkeypatch.setattr(stream, "POLL_ROWS_MAX", 30)
    monkeypatch.setattr(stream, "OVERLAP_US", 50_000)
    since = await api.server.api.ports.reads.clock_us()
    wanted = set()
    for _ in range(5):
        runs = await asyncio.gather(*(api.start("rest_sum", input={"x": 1}) for _ in range(20)))
        wanted |= {run["id"] for run in runs}
        await asyncio.gather(*(api.get(f"/runs/{run['id']}/result", wait=60) for run in runs))
    listener = Listener(api, "runs=1", stream_client.write_cursor(stream_client.Cursor(runs_us=since)))
    await until(
        lambda: listener.task.done() or {d["id"] for _, d in listener.events if d["status"] == "success"} == wanted
    )
    assert not listener.task.done()
    assert len(listener.events) == len(wanted)
    await listener.close()


def test_a_position_in_one_run_says_nothing_about_another() -> None:
    cursor = stream_client.Cursor(runs_us=5, run="aa", history=7)
    assert cursor.about(b"\xbb", None).history == 0
    assert cursor.about(b"\xbb", None) == stream_client.Cursor(runs_us=5, run="bb")


def test_a_cursor_survives_the_journey() -> None:
    cursor = stream_client.Cursor(runs_us=5, history=7)
    assert stream_client.read_cursor(stream_client.write_cursor(cursor)) == cursor


def test_a_position_that_was_reached_is_not_given_up_for_an_earlier_one() -> None:
    cursor = stream_client.Cursor(run="aa", history=9)
    cursor.begin(4, 1_000)
    assert cursor.history == 9
    assert cursor.logs is not None and cursor.logs.at_us == 1_000
    cursor.begin(12, 2_000)
    assert cursor.history == 12
    assert cursor.logs.at_us == 1_000
