"""Numbers of runs at the doors of a server: the histogram, statistics of a workflow, usual durations, counts, and the stream of counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.core.errors import Unavailable
from perdure.core.limits import HISTOGRAM_BINS_MAX
from perdure.engine.api import statistics
from perdure.engine.counters import Histogram
from perdure.server.rest import stream, stream_counts
from tests.fakes.waiting import holds, until
from tests.server.rest_live import Live, live
from tests.server.test_rest_stream import Listener

NONE = {"success": 0, "failed": 0, "cancelled": 0, "running": 0, "pending": 0}


@pytest.fixture
async def api(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    monkeypatch.setattr(stream, "POLL_S", 0.1)
    monkeypatch.setattr(stream_counts, "COUNTS_POLL_S", 0.1)
    async with live(dsn) as one:
        yield one


async def three_kinds(api: Live) -> dict[str, Any]:
    """Two successes, a failure and a run that waits, which is returned."""
    for x in (1, 2):
        await api.ended("rest_sum", input={"x": x})
    await api.ended("rest_fail", input={"why": "broken"})
    run: dict[str, Any] = await api.start("rest_listen")
    await until(lambda: _is_running(api, run["id"]))
    return run


async def _is_running(api: Live, run: str) -> bool:
    return bool((await api.get(f"/runs/{run}"))["status"] == "running")


async def test_the_histogram_counts_runs_by_time_of_creation(api: Live) -> None:
    run = await three_kinds(api)
    found = await api.get("/runs/histogram")
    assert (found["bin_s"], len(found["bins"]), found["capped"]) == (900, 96, False)
    assert found["totals"] == NONE | {"success": 2, "failed": 1, "running": 1}
    begin, end = (datetime.fromisoformat(found[name]) for name in ("from", "to"))
    assert end - begin == timedelta(days=1) and end - timedelta(minutes=15) <= datetime.now(UTC) < end
    assert all(sum(b[status] for status in NONE) == 0 for b in found["bins"][:-2])
    one = await api.get("/runs/histogram", workflow="rest_sum", since="7d", bins=24)
    assert one["totals"] == NONE | {"success": 2} and one["bin_s"] == 12 * 3600 and len(one["bins"]) <= 24
    assert (await api.get("/runs/histogram", workflow="nothing"))["totals"] == NONE
    await api.post(f"/runs/{run['id']}/signals/rest_word", "x", 202)
    await api.get(f"/runs/{run['id']}/result", wait=60)
    assert (await api.get("/runs/histogram"))["totals"] == NONE | {"success": 3, "failed": 1}
    before = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    assert (await api.get("/runs/histogram", since="12h", until=before))["totals"] == NONE


async def test_a_histogram_that_makes_no_sense_is_refused(api: Live) -> None:
    for wrong in ({"since": "1h", "until": "2h"}, {"since": "soon"}, {"bins": 0}, {"bins": HISTOGRAM_BINS_MAX + 1}):
        assert (await api.get("/runs/histogram", 422, **wrong))["code"] == "invalid_input"
    assert (await api.get("/workflows/rest_sum/stats", 422, days=0))["code"] == "invalid_input"
    assert (await api.get("/workflows/nowhere/stats", 404))["code"] == "not_registered"


async def test_statistics_of_a_workflow(api: Live) -> None:
    await three_kinds(api)
    found = await api.get("/workflows/rest_sum/stats", days=7)
    assert [d["day"] for d in found["days"]] == [
        (datetime.now(UTC) - timedelta(days=n)).date().isoformat() for n in reversed(range(7))
    ]
    today = found["days"][-1]
    assert (today["started"], today["success"], today["failed"], today["cancelled"]) == (2, 2, 0, 0)
    assert 0 < today["p50_s"] <= today["p95_s"] < 30 and found["p50_s"] == today["p50_s"]
    assert found["success_rate"] == 1.0 and found["days"][0]["p50_s"] is None
    assert len(found["versions"]) == 1
    broken = await api.get("/workflows/rest_fail/stats")
    assert len(broken["days"]) == 30 and broken["success_rate"] == 0.0 and broken["p50_s"] is None
    waiting = await api.get("/workflows/rest_listen/stats", days=1)
    assert waiting["days"][0]["started"] == 1 and waiting["success_rate"] is None


async def test_usual_durations_are_those_of_runs_that_succeeded(api: Live) -> None:
    await three_kinds(api)
    (one,) = (await api.get("/workflow-durations"))["items"]
    assert (one["workflow"], one["runs"]) == ("rest_sum", 2) and 0 < one["p50_s"] <= one["p95_s"]


async def test_counts_of_the_namespace(api: Live) -> None:
    await three_kinds(api)
    found = await api.get("/counts")
    assert found["commit_p50_ms"] > 0
    assert found | {"commit_p50_ms": None} == {
        "active": 1,
        "pending": 0,
        "failed_24h": 1,
        "approvals": 0,
        "dead_letters": 1,
        "workers": found["workers"],
        "engines": 1,
        "commit_p50_ms": None,
        "capped": False,
    }
    failed = (await api.get("/runs", status="failed"))["items"][0]["id"]
    await api.http.delete(f"/runs/{failed}")
    assert ((await api.get("/counts"))["failed_24h"], (await api.get("/counts"))["dead_letters"]) == (0, 0)


# -- the stream --------------------------------------------------------------------------------------------------------


def feeds() -> list[asyncio.Task[Any]]:
    return [t for t in asyncio.all_tasks() if t.get_name().startswith("perdure-counts-feed")]


async def test_counts_are_sent_at_once_and_when_they_change(api: Live) -> None:
    listener = Listener(api, "counts=1")
    first = await listener.until(lambda kind, d: kind == "counts")
    assert (first["active"], first["capped"]) == (0, False)
    run = await api.start("rest_listen")
    await listener.until(lambda _, d: d["active"] == 1)
    late = Listener(api, "counts=1&runs=1")
    await late.until(lambda kind, d: kind == "counts" and d["active"] == 1)
    await api.post(f"/runs/{run['id']}/signals/rest_word", "x", 202)
    for one in (listener, late):
        await one.until(lambda kind, d: kind == "counts" and d["active"] == 0 and d is not first)
    quiet = len(listener.events)
    await holds(lambda: len(listener.events) <= quiet + 1, 1.0)  # the median of commits may still have moved
    await listener.close()
    await late.close()


async def test_one_poller_reads_the_counts_for_all_and_stops_with_the_last(api: Live) -> None:
    listeners = [Listener(api, "counts=1") for _ in range(4)]
    for one in listeners:
        await one.until(lambda kind, _: kind == "counts")
    (feed,) = feeds()
    for one in listeners:
        await one.close()
    await until(feed.done)


async def test_a_poller_survives_a_database_that_is_away(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, asked = api.server.api.ports.reads, 0
    original = reads.counts

    async def away(ns: int) -> Any:
        nonlocal asked
        asked += 1
        if asked <= 2:
            raise Unavailable("away")
        return await original(ns)

    monkeypatch.setattr(reads, "counts", away)
    listener = Listener(api, "counts=1")
    await listener.until(lambda kind, _: kind == "counts")
    assert asked >= 3
    await listener.close()


async def test_the_cursor_may_come_as_a_parameter(api: Live) -> None:
    listener = Listener(api, "runs=1")
    await listener.opened.wait()
    first = await api.ended("rest_sum", input={"x": 1})
    await listener.until(lambda _, d: d["id"] == first["id"] and d["status"] == "success")
    last = listener.ids[-1]
    await listener.close()
    second = await api.ended("rest_sum", input={"x": 2})
    again = Listener(api, f"runs=1&last_event_id={last}")
    await again.until(lambda _, d: d["id"] == second["id"] and d["status"] == "success")
    await again.close()
    assert (await api.get("/stream", 422, runs=1, last_event_id="nonsense"))["code"] == "invalid_input"


def test_the_median_of_a_histogram_lies_within_its_bucket() -> None:
    measured = Histogram()
    assert statistics.median(measured) is None
    measured.add_all([0, 0, 0])
    assert statistics.median(measured) == 0
    measured = Histogram()
    measured.add_all([1000] * 50 + [5000] * 50 + [100_000])
    assert 4096 <= (statistics.median(measured) or 0) < 8192
