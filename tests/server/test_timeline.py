"""A run over time at the REST door: lanes, attempts, waits, idle times, and many tasks in one lane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from perdure import Promise, Retry, attempt, task, wf, workflow
from tests.fakes.waiting import busy, until
from tests.server.rest_live import WORKFLOWS, Live, live, sum_

stamped = Promise("timeline_stamp", int)


@task(name="timeline_flaky", retry=Retry(3, delay="30ms"))
async def flaky(failures: int) -> int:
    await busy(0.01)
    if attempt().number <= failures:
        raise ConnectionError("the registry is away")
    return failures


@task(name="timeline_item", retry=Retry(2, delay="10ms"))
async def item(n: int) -> int:
    if n % 500 == 7 and attempt().number == 1:
        raise LookupError(f"no item {n}")
    return n


@task(name="timeline_broken", retry=Retry(1))
async def broken() -> None:
    raise ValueError("it is broken")


@workflow(name="timeline_code")
async def code() -> int:
    first = await flaky(1)
    many = await wf.map(item, list(range(20)))
    return first + sum(many) + await sum_(1, 2) + await stamped.wait()


@workflow(name="timeline_wide")
async def wide(n: int) -> int:
    await flaky(0)
    return sum(await wf.map(item, list(range(n))))


@workflow(name="timeline_fails")
async def fails() -> None:
    await flaky(0)
    await broken()


@task(name="timeline_uneven", retry=Retry(2, delay="10ms"))
async def uneven(n: int) -> int:
    await busy(0.003 * n)
    if n in (3, 5):
        raise LookupError(f"no item {n}")
    return n


@workflow(name="timeline_tolerant")
async def tolerant(n: int) -> int:
    await flaky(0)
    return len(await asyncio.gather(*(uneven(i) for i in range(n)), return_exceptions=True))


FLOW = """
flow: timeline_flow
input:
  numbers: {type: array, items: {type: integer}}
tasks:
  before: {python: rest_double, with: {x: 1}}
  hold: {depends_on: before, sleep: 50ms}
  each:
    depends_on: hold
    python: rest_double
    foreach: input.numbers
    with: {x: "${item}"}
  enough:
    depends_on: each
    choice:
      - {when: "size(each) > 2", then: ask}
      - {else: few}
  ask: {approval: {title: Really?}}
  few: {value: 0}
  body:
    depends_on: ask
    tasks:
      inside: {python: rest_double, with: {x: 1}}
"""


@pytest.fixture
async def api(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    monkeypatch.setattr("tests.server.rest_live.WORKFLOWS", (*WORKFLOWS, code, wide, fails, tolerant))
    async with live(dsn) as one:
        yield one


def by_node(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {n["node"]: n for n in found["nodes"]}


def kinds(node: dict[str, Any]) -> list[str]:
    return [s["kind"] for s in node["segments"] if s["kind"] != "queued"]


async def test_code_has_a_lane_for_each_task_child_and_promise(api: Live) -> None:
    run = await api.start("timeline_code")

    async def waits() -> bool:
        found = await api.get(f"/runs/{run['id']}/timeline")
        return "timeline_stamp" in by_node(found)

    await until(waits)
    found = await api.get(f"/runs/{run['id']}/timeline")
    lanes = by_node(found)
    assert list(lanes) == ["timeline_flaky", "timeline_item", "rest_sum", "timeline_stamp"]
    assert [n["kind"] for n in lanes.values()] == ["task", "fanout", "child", "promise"]
    assert [n["status"] for n in lanes.values()] == ["success"] * 3 + ["running"]
    assert found["total"] == 21 and found["counts"] == {"success": 21} and not found["ended"]
    flaky_lane = lanes["timeline_flaky"]
    assert kinds(flaky_lane) == ["failed", "backoff", "success"] and flaky_lane["attempts"] == 2
    assert [s["attempt"] for s in flaky_lane["segments"] if s["kind"] in ("failed", "success")] == [1, 2]
    assert flaky_lane["seq"] == 0 and flaky_lane["bins"] is None
    many = lanes["timeline_item"]
    assert many["tasks"] == 20 and many["attempts"] == 2 and many["segments"] == [] and many["seq"] is None
    assert many["after"] == ["timeline_flaky"]
    assert sum(many["bins"]["failed"]) == 1 and max(many["bins"]["running"]) >= 1
    assert sum(many["durations"]["bars"]) == 20 and many["durations"]["p50_s"] <= many["durations"]["max_s"]
    assert kinds(lanes["rest_sum"]) == ["success"]
    assert kinds(lanes["timeline_stamp"]) == ["waiting"]
    child = await api.get(f"/runs/{lanes['rest_sum']['child_run']}")
    assert child["workflow"] == "rest_sum" and child["parent_id"] == run["id"]

    await api.post(f"/runs/{run['id']}/promises/timeline_stamp", 1, 202)
    await api.get(f"/runs/{run['id']}/result", wait=60)
    found = await api.get(f"/runs/{run['id']}/timeline")
    assert found["ended"] and by_node(found)["timeline_stamp"]["status"] == "success"
    for lane in found["nodes"]:
        for segment in lane["segments"]:
            begin, end = (datetime.fromisoformat(segment[k]) for k in ("from", "to"))
            assert datetime.fromisoformat(found["from"]) <= begin <= end


async def test_the_lanes_of_a_flow_are_its_nodes_run_or_not(api: Live) -> None:
    await api.post("/workflows/deploy", {"source": FLOW}, 201)
    run = await api.start("timeline_flow", input={"numbers": [1, 2, 3]})

    async def asks() -> bool:
        return by_node(await api.get(f"/runs/{run['id']}/timeline"))["ask"]["status"] == "running"

    await until(asks)
    lanes = by_node(await api.get(f"/runs/{run['id']}/timeline"))
    assert {name: (n["kind"], n["status"]) for name, n in lanes.items()} == {
        "before": ("task", "success"),
        "hold": ("timer", "success"),
        "each": ("fanout", "success"),
        "enough": ("choice", "success"),
        "ask": ("approval", "running"),
        "few": ("task", "skipped"),
        "body.inside": ("task", "pending"),
    }
    assert lanes["each"]["after"] == ["hold"] and lanes["ask"]["after"] == ["enough"]
    assert lanes["body.inside"]["after"] == ["ask"] and lanes["each"]["tasks"] == 3
    assert kinds(lanes["hold"]) == ["timer"] and kinds(lanes["ask"]) == ["waiting"]


async def test_what_a_node_took_before_is_expected_again(api: Live) -> None:
    first = await api.start("timeline_code")
    await until_waiting(api, first["id"])
    await api.post(f"/runs/{first['id']}/promises/timeline_stamp", 1, 202)
    await api.get(f"/runs/{first['id']}/result", wait=60)
    second = await api.start("timeline_code")
    await until_waiting(api, second["id"])
    lanes = by_node(await api.get(f"/runs/{second['id']}/timeline"))
    assert 0.01 <= lanes["timeline_flaky"]["expected_s"] < 20 and lanes["timeline_stamp"]["expected_s"] is None


async def until_waiting(api: Live, run: str) -> None:
    async def waits() -> bool:
        return "timeline_stamp" in by_node(await api.get(f"/runs/{run}/timeline"))

    await until(waits)


async def test_many_tasks_are_one_lane_with_counts(api: Live) -> None:
    run = await api.ended("timeline_wide", input={"n": 3_000})
    found = await api.get(f"/runs/{run['id']}/timeline", bins=60)
    lane = by_node(found)["timeline_item"]
    assert (lane["kind"], lane["status"], lane["tasks"]) == ("fanout", "success", 3_000)
    assert found["counts"] == {"success": 3_001} and not found["truncated"]
    assert lane["attempts"] == 2 and sum(lane["bins"]["failed"]) == 6
    assert len(lane["bins"]["running"]) <= 60 and max(lane["bins"]["running"]) >= 1
    assert sum(lane["durations"]["bars"]) == 3_000
    assert lane["durations"]["p50_s"] <= lane["durations"]["p95_s"] <= lane["durations"]["max_s"]


async def test_a_failed_task_says_why_and_a_retry_goes_on_in_its_lane(api: Live) -> None:
    run = await api.ended("timeline_fails")
    lane = by_node(await api.get(f"/runs/{run['id']}/timeline"))["timeline_broken"]
    assert lane["status"] == "failed" and "it is broken" in lane["error"] and kinds(lane) == ["failed"]
    await api.post(f"/runs/{run['id']}/retry", None, 202)

    async def failed_again() -> bool:
        return (await api.get(f"/runs/{run['id']}"))["status"] == "failed"

    await until(failed_again)
    found = await api.get(f"/runs/{run['id']}/timeline")
    assert kinds(by_node(found)["timeline_broken"]) == ["failed", "failed"]
    assert by_node(found)["timeline_flaky"]["status"] == "success"


async def test_an_unknown_run_has_no_timeline(api: Live) -> None:
    await api.get("/runs/0192a6f0-5c1e-7000-8123-0123456789ab/timeline", 404)


# -- lists of runs and tasks ---------------------------------------------------------------------------------------


async def test_a_list_says_what_active_runs_wait_for_and_how_often_tasks_were_tried(api: Live) -> None:
    waiting = await api.start("timeline_code")
    plain = await api.ended("rest_sum", input={"x": 1, "y": 2})
    await until_waiting(api, waiting["id"])

    async def listed() -> dict[str, Any]:
        found = await api.get("/runs", waits="true")
        return {r["id"]: r for r in found["items"]}

    async def told() -> bool:
        return (await listed())[waiting["id"]]["waiting"] is not None

    await until(told)
    found = await listed()
    assert found[waiting["id"]]["waiting"]["on"] == "promise" and found[waiting["id"]]["attempts"] == 2
    assert found[plain["id"]]["waiting"] is None and found[plain["id"]]["attempts"] == 1
    assert {r["attempts"] for r in (await api.get("/runs"))["items"]} == {None}


async def test_matching_runs_are_counted(api: Live) -> None:
    for n in range(3):
        await api.ended("rest_sum", input={"x": n, "y": 2})
    await api.ended("rest_fail", input={"why": "no reason"})
    waiting = await api.start("timeline_code")
    await until_waiting(api, waiting["id"])
    assert await api.get("/runs/count", workflow="rest_sum", status="success") == {"count": 4, "exact": True}
    assert await api.get("/runs/count", query="status = failed") == {"count": 1, "exact": True}
    assert await api.get("/runs/count", status="running") == {"count": 1, "exact": True}
    assert await api.get("/runs/count") == {"count": 6, "exact": True}

    async def waits() -> bool:
        return await api.get("/runs/count", waiting_on="promise") == {"count": 1, "exact": True}

    await until(waits)
    await api.get("/runs/count", 422, query="stauts = failed")


async def test_a_count_that_sees_too_many_runs_is_a_lower_bound(api: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.run_lists.RUN_COUNT_ROWS_MAX", 2)
    for n in range(3):
        await api.ended("rest_sum", input={"x": n, "y": 2})
    assert await api.get("/runs/count") == {"count": 2, "exact": False}


async def test_tasks_of_one_node_come_in_order_or_the_notable_ones_first(api: Live) -> None:
    run = await api.ended("timeline_tolerant", input={"n": 12})
    path = f"/runs/{run['id']}/tasks"
    found = (await api.get(path, node="timeline_uneven"))["items"]
    assert [t["seq"] for t in found] == list(range(1, 13))
    notable, cursor = list[dict[str, Any]](), None
    while True:
        params = {"node": "timeline_uneven", "order": "notable", "limit": 5} | ({"cursor": cursor} if cursor else {})
        page = await api.get(path, **params)
        notable += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    assert sorted(t["seq"] for t in notable) == list(range(1, 13))
    assert [t["status"] for t in notable] == ["failed"] * 2 + ["success"] * 10

    def took(t: dict[str, Any]) -> float:
        return (datetime.fromisoformat(t["finished_at"]) - datetime.fromisoformat(t["started_at"])).total_seconds()

    times = [took(t) for t in notable[2:]]
    assert times == sorted(times, reverse=True)
    assert [t["status"] for t in (await api.get(path, node="timeline_uneven", status="failed"))["items"]] == [
        "failed"
    ] * 2
    assert (await api.get(path, node="nothing", order="notable"))["items"] == []
    assert [s["kind"] for s in notable[0]["segments"] if s["kind"] != "queued"] == ["failed", "backoff", "failed"]
    await api.get(path, 422, order="notable", cursor="nonsense")
