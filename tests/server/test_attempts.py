"""Attempts of a run at the doors of a server: REST, the page, `show` and `attempts`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Retry, attempt, task, workflow
from perdure.core.invariants import Tally
from perdure.core.limits import TRACEBACK_CHARS_MAX
from perdure.store.verify import verify
from tests.cli.live import perdure as command
from tests.fakes.waiting import busy, busy_thread, until
from tests.server.rest_live import WORKFLOWS, Live, live

broken: set[str] = set()


@task(name="tried_async", retry=Retry(3, delay="10ms"))
async def tried_async(failures: int) -> int:
    print(f"number {attempt().number}")
    sum(range(200_000))
    await busy(0.001)
    if attempt().number <= failures:
        raise ConnectionError("the card service is away")
    return failures


@task(name="tried_plain", retry=Retry(2, delay="10ms"))
def tried_plain(failures: int) -> int:
    busy_thread(0.02)
    if attempt().number <= failures or "plain" in broken:
        raise LookupError("x" * (2 * TRACEBACK_CHARS_MAX))
    return failures


@task(name="tried_slow", retry=Retry(2, delay="10ms"), timeout="200ms")
async def tried_slow() -> int:
    if attempt().number == 1:
        await asyncio.Event().wait()
    return 1


@workflow(name="tried")
async def tried(failures: int, more: int = 0) -> int:
    return await tried_async(failures) + await tried_plain(more)


@workflow(name="tried_in_time")
async def tried_in_time() -> int:
    return await tried_slow()


@pytest.fixture
async def api(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    broken.clear()
    monkeypatch.setattr("tests.server.rest_live.WORKFLOWS", (*WORKFLOWS, tried, tried_in_time))
    async with live(dsn) as one:
        yield one


def told(items: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(a["seq"], a["attempt"], a["outcome"], a["is_last"]) for a in items]


async def written(api: Live, run: dict[str, Any], lines: int) -> list[dict[str, Any]]:
    """The attempts of a run, once what they printed is stored."""
    items: list[dict[str, Any]] = []

    async def are_there() -> bool:
        items[:] = (await api.get(f"/runs/{run['id']}/attempts"))["items"]
        return sum(a["logs"]["lines"] for a in items if a["logs"]) == lines

    await until(are_there)
    return items


async def numbered(dsn: str) -> Tally:
    return next(t for t in await verify(dsn) if t.number == 25)


async def test_every_attempt_is_listed_with_its_worker_its_error_and_its_cost(api: Live, dsn: str) -> None:
    run = await api.ended("tried", input={"failures": 2})
    assert run["status"] == "success"
    items = await written(api, run, lines=3)
    assert told(items) == [
        (0, 1, "error", False),
        (0, 2, "error", False),
        (0, 3, "success", True),
        (1, 1, "success", True),
    ]
    first, last, plain = items[0], items[2], items[3]
    assert first["name"] == "tried_async" and first["worker"] == last["worker"] == api.perdure.worker.name
    assert first["error"]["type"] == "ConnectionError" and "test_attempts.py" in first["error"]["traceback"]
    assert first["error"]["code"] == "task_failed" and last["error"] is None
    assert (
        0 < first["cpu_s"] <= first["wall_s"] + 0.01 and first["started_at"] < first["finished_at"] < last["started_at"]
    )
    assert 0 < plain["cpu_s"] < plain["wall_s"]
    assert [a["logs"]["lines"] for a in items[:3]] == [1, 1, 1] and plain["logs"] is None
    one = await api.get(f"/runs/{run['id']}/tasks/0/attempts")
    assert one["items"] == items[:3] and one["next"] is None
    assert (await api.get(f"/runs/{run['id']}/tasks/tried_plain/attempts"))["items"] == items[3:]
    assert (await api.get(f"/runs/{run['id']}/attempts", unsuccessful="true"))["items"] == items[:2]
    assert (await numbered(dsn)).violations == 0


async def test_the_worker_shows_what_it_did(api: Live) -> None:
    await api.ended("tried", input={"failures": 2})
    found: dict[str, Any] = {}

    async def is_counted() -> bool:
        found.update((await api.get("/workers"))["items"][0])
        return bool(found["ended"])

    api.perdure.engine.telemetry.wake()
    await until(is_counted, "the load of the worker is written", 30)
    assert (found["ended"], found["failed"]) == (4, 2) and found["per_s"] > 0
    assert 0 < found["p50_s"] <= found["p95_s"] <= found["p99_s"] < 10


async def test_pages_of_attempts_have_each_of_them_once(api: Live) -> None:
    run = await api.ended("tried", input={"failures": 2, "more": 1})
    whole = await written(api, run, lines=3)
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = await api.get(f"/runs/{run['id']}/attempts", limit=2, **cursor)
        found += page["items"]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert found == whole and len(whole) == 5
    assert (await api.get(f"/runs/{run['id']}/tasks/nothing/attempts", 404))["code"] == "not_found"


async def test_an_attempt_that_took_too_long_is_a_timeout(api: Live) -> None:
    run = await api.ended("tried_in_time")
    items = (await api.get(f"/runs/{run['id']}/attempts"))["items"]
    assert [a["outcome"] for a in items] == ["timeout", "success"]
    assert items[0]["error"]["code"] == "task_timeout" and items[0]["cpu_s"] is None and items[0]["wall_s"] >= 0.2


async def test_a_retry_of_the_run_keeps_the_attempts_before_it(api: Live, dsn: str) -> None:
    broken.add("plain")
    run = await api.ended("tried", input={"failures": 1})
    assert run["status"] == "failed"
    before = await written(api, run, lines=2)
    assert told(before)[2:] == [(1, 1, "error", False), (1, 2, "error", True)]
    assert len(before[3]["error"]["traceback"]) <= TRACEBACK_CHARS_MAX
    broken.clear()
    await api.post(f"/runs/{run['id']}/retry", status=202)
    await api.get(f"/runs/{run['id']}/result", wait=60)
    after = (await api.get(f"/runs/{run['id']}/attempts"))["items"]
    assert [a["outcome"] for a in after] == ["error", "success", "error", "error", "success"]
    assert after[4]["attempt"] == 1 and after[4]["epoch"] > after[3]["epoch"], "counted from 1 again, in a later epoch"
    assert {**before[3], "is_last": False} == after[3]
    tally = await numbered(dsn)
    assert tally.examined >= 3 and tally.violations == 0


async def test_verify_misses_a_record_that_is_gone(api: Live, dsn: str) -> None:
    await api.ended("tried", input={"failures": 2})
    c = await asyncpg.connect(dsn)
    await c.execute("delete from perdure.task_attempt where attempt = 1")
    await c.close()
    tally = await numbered(dsn)
    assert tally.violations == 1 and "it ended with attempt 3" in tally.examples[0].what


async def test_the_commands_show_failed_attempts(api: Live) -> None:
    run = await api.ended("tried", input={"failures": 1})
    shown = await asyncio.to_thread(command, "show", run["id"], tty=True, PERDURE_URL=api.url)
    assert shown.code == 0 and "attempt 1  error after" in shown.out and "the card service is away" in shown.out
    plain = await asyncio.to_thread(command, "show", run["id"], PERDURE_URL=api.url)
    assert [line[:4] for line in plain.lines if line[0] == "attempt"] == [["attempt", "0", "1", "error"]]
    listed = await asyncio.to_thread(command, "attempts", run["id"], "0", "-o", "json", PERDURE_URL=api.url)
    assert [a["outcome"] for a in json.loads(listed.out)] == ["error", "success"]
    failed = await asyncio.to_thread(command, "attempts", run["id"], "--failed", tty=True, PERDURE_URL=api.url)
    assert failed.code == 0 and "ConnectionError" in failed.out and "success" not in failed.out
