"""Reads for pages at the REST door: grid, errors and inputs of a workflow, one worker, limits in use, signals in bulk; and counts by node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Limit, Retry, attempt, task, wf, workflow
from perdure.core.durations import us_of
from perdure.core.timeline.bins import age_bin
from perdure.core.timeline.spans import duration_class
from tests.fakes.waiting import until
from tests.server.rest_live import WORKFLOWS, Live, live

broken: set[str] = set()
held = asyncio.Event()


@task(name="reads_step", retry=Retry(2, delay="10ms"))
async def step(n: int) -> int:
    if n % 400 == 7 and (attempt().number == 1 or "step" in broken) or (n == 1_207 and "late" in broken):
        raise LookupError(f"no item {n} in 'stock'")
    return n


@workflow(name="reads_flow")
async def flow(n: int) -> int:
    return sum(await wf.map(step, list(range(n))))


@task(name="reads_limited", limit=Limit(1, key="reads"))
async def limited() -> None:
    await held.wait()


@workflow(name="reads_waits")
async def waits() -> None:
    await asyncio.gather(limited(), limited(), limited())


@pytest.fixture
async def api(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    broken.clear()
    held.clear()
    monkeypatch.setattr("tests.server.rest_live.WORKFLOWS", (*WORKFLOWS, flow, waits))
    async with live(dsn) as one:
        yield one
        held.set()


# -- the latest runs of a workflow -----------------------------------------------------------------------------------


async def test_a_grid_has_the_latest_runs_newest_last(api: Live) -> None:
    for n in (1, 2, 9):
        await api.ended("reads_flow", input={"n": n})
    found = await api.get("/workflows/reads_flow/grid", runs=2)
    assert found["nodes"] == ["reads_step"]
    assert [r["cells"]["reads_step"]["tasks"] for r in found["runs"]] == [2, 9]
    cell = found["runs"][-1]["cells"]["reads_step"]
    assert cell == {"status": "success", "tasks": 9, "done": 9, "failed": 0, "attempts": 2}
    assert found["runs"][-1]["duration_s"] > 0
    await api.get("/workflows/nothing/grid", 404)


async def test_errors_of_one_cause_are_together(api: Live) -> None:
    broken.add("step")
    runs = [await api.ended("reads_flow", input={"n": n}) for n in (8, 500)]
    own = await api.ended("rest_fail", input={"why": "no reason"})
    found = await api.get("/workflows/reads_flow/errors", days=3)
    (cause,) = found["items"]
    assert (cause["type"], cause["message"], cause["task"]) == ("LookupError", "no item # in '…'", "reads_step")
    assert cause["count"] == 2 and cause["days"] == [0, 0, 2] and cause["sample_run"] == runs[-1]["id"]
    assert found["scanned"] == 2 and not found["capped"]
    (cause,) = (await api.get("/workflows/rest_fail/errors"))["items"]
    assert cause["sample_run"] == own["id"] and len(cause["days"]) == 15


async def test_inputs_are_the_latest_different_ones(api: Live) -> None:
    for x in (1, 2, 1, 3, 3):
        last = await api.ended("rest_sum", input={"x": x})
    found = (await api.get("/workflows/rest_sum/inputs"))["items"]
    assert [i["input"] for i in found] == [{"x": 3}, {"x": 1}, {"x": 2}] and found[0]["run_id"] == last["id"]


async def test_a_workflow_says_what_it_takes(api: Live) -> None:
    schema = (await api.get("/workflows/rest_sum"))["input_schema"]
    assert list(schema["properties"]) == ["x", "y"] and schema["required"] == ["x"]
    source = "flow: reads_schema\ninput:\n  day: {type: string}\ntasks:\n  a: {value: 1}\n"
    await api.post("/workflows/deploy", {"source": source}, 201)
    schema = (await api.get("/workflows/reads_schema"))["input_schema"]
    assert schema["properties"]["day"]["type"] == "string"


async def test_the_graph_of_a_run_counts_the_tasks_of_each_node(api: Live) -> None:
    source = (
        "flow: reads_graph\ntasks:\n  each: {python: rest_double, foreach: input.xs, with: {x: '${item}'}}\n"
        "  last: {depends_on: each, value: 1}\n"
    )
    await api.post("/workflows/deploy", {"source": source}, 201)
    run = await api.ended("reads_graph", input={"xs": [1, 2, 3]})
    nodes = {n["key"]: n for n in (await api.get(f"/runs/{run['id']}/graph"))["nodes"]}
    assert nodes["each"]["tasks"] == 3 and nodes["each"]["counts"] == {"success": 3}
    assert nodes["last"]["tasks"] == 0 and nodes["last"]["counts"] == {}


# -- counts by node ---------------------------------------------------------------------------------------------------


async def counted(dsn: str, run: str) -> dict[tuple[str, str, int], int]:
    c = await asyncpg.connect(dsn)
    try:
        rows = await c.fetch("select node, what, bin, n from perdure.node_count where run_id = $1 and n <> 0", run)
    finally:
        await c.close()
    return {(r["node"], r["what"], r["bin"]): r["n"] for r in rows}


async def expected(dsn: str, run: str) -> dict[tuple[str, str, int], int]:
    """The same from the rows of the tasks."""
    c = await asyncpg.connect(dsn)
    try:
        rows = await c.fetch("select * from perdure.task where run_id = $1 and seq >= 1000", run)
    finally:
        await c.close()
    base = int(run.replace("-", "")[:12], 16) * 1_000
    found: dict[tuple[str, str, int], int] = {}

    def add(what: str, number: int) -> None:
        found["reads_step", what, number] = found.get(("reads_step", what, number), 0) + 1

    for r in rows:
        end = age_bin(us_of(r["finished_at"]) - base)
        add(r["status"], end if r["status"] == "failed" else 0)
        add("attempts", r["attempts"])
        if r["started_at"] is not None:
            add("start", age_bin(us_of(r["started_at"]) - base))
            add("end", end)
            if r["status"] == "success":
                add("duration", duration_class(us_of(r["finished_at"]) - us_of(r["started_at"])))
    return found


async def agree(api: Live, dsn: str, run: str) -> dict[tuple[str, str, int], int]:
    """The counts, if they are those of the rows, and so are the numbers that the run shows."""
    found = await counted(dsn, run)
    assert found == await expected(dsn, run)
    c = await asyncpg.connect(dsn)
    try:
        rows = await c.fetch("select status, count(*) from perdure.task where run_id = $1 group by status", run)
    finally:
        await c.close()
    shown = (await api.get(f"/runs/{run}"))["tasks"]
    assert {status: n for status, n in shown.items() if n} == {r["status"]: r["count"] for r in rows}
    return found


async def test_counts_by_node_are_those_of_the_tasks_also_after_a_retry_and_in_a_fork(api: Live, dsn: str) -> None:
    few = await api.ended("reads_flow", input={"n": 999})
    assert await counted(dsn, few["id"]) == {}
    broken.add("late")
    run = await api.ended("reads_flow", input={"n": 1_300})
    assert run["status"] == "failed"
    before = await agree(api, dsn, run["id"])
    assert sum(n for (_, what, _), n in before.items() if what == "failed") == 1
    broken.clear()
    await api.post(f"/runs/{run['id']}/retry", None, 202)
    await api.get(f"/runs/{run['id']}/result", wait=60)
    after = await agree(api, dsn, run["id"])
    assert sum(n for (_, what, _), n in after.items() if what == "success") == 300
    assert not any(what in ("failed", "cancelled") for _, what, _ in after)
    events = (await api.get(f"/runs/{run['id']}"))["events"]
    forked = await api.post(f"/runs/{run['id']}/fork", {"at": events - 1}, 201)
    await api.get(f"/runs/{forked['id']}/result", wait=60)
    await agree(api, dsn, forked["id"])
    grid = await api.get("/workflows/reads_flow/grid")
    cells = {r["id"]: r["cells"]["reads_step"]["tasks"] for r in grid["runs"]}
    assert cells == {few["id"]: 999, run["id"]: 1_300, forked["id"]: 1_300}


# -- workers and limits -------------------------------------------------------------------------------------------------


async def test_limits_say_who_holds_them_and_how_many_wait(api: Live) -> None:
    await api.ask("PUT", "/limits/task/reads_limited", 200, json={"concurrency": 1})
    run = await api.start("reads_waits")

    async def in_use() -> bool:
        found = {u["key"]: u for u in (await api.get("/limit-use"))["items"]}
        return sum(u["held"] for u in found.values()) >= 2 and any(u["waiting"] == 2 for u in found.values())

    await until(in_use)
    used = {u["key"]: u for u in (await api.get("/limit-use"))["items"]}
    assert "task/reads_limited" in used and any(u["scope"] == "key" for u in used.values())
    (rule,) = (await api.get("/limits"))["items"]
    assert (rule["kind"], rule["limit"], rule["held"]) == ("concurrency", 1, 1)
    assert rule["holders"] == [{"run_id": run["id"], "workflow": "reads_waits", "held": 1}]
    held.set()


async def test_an_unknown_worker_is_not_found(api: Live) -> None:
    await api.get("/workers/0192a6f0-5c1e-7000-8123-0123456789ab", 404)
    await api.get("/workers/nobody", 404)


# -- signals in bulk ------------------------------------------------------------------------------------------------------


async def test_a_signal_is_sent_to_every_run_that_matches_and_the_job_is_followed(api: Live) -> None:
    runs = [await api.start("rest_listen", input={"count": 1}) for _ in range(5)]
    done = await api.ended("rest_sum", input={"x": 1})
    query = "workflow in (rest_listen, rest_sum)"
    body = {"action": "signal", "query": query, "signal": "rest_word", "payload": "hello"}
    job = await api.post("/bulk-jobs", body, 202)
    assert job["signal"] == "rest_word"
    seen: list[dict[str, Any]] = []
    async with api.http.stream("GET", "/stream", params={"bulk": job["id"]}) as answer:
        assert answer.status_code == 200
        event = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: ") and event == "bulk":
                seen.append(json.loads(line.removeprefix("data: ")))
                if seen[-1]["finished_at"] is not None:
                    break
    assert (seen[-1]["status"], seen[-1]["done"], seen[-1]["skipped"]) == ("success", 5, 1)
    for run in runs:
        assert (await api.get(f"/runs/{run['id']}/result", wait=60))["result"] == ["hello"]
    outcomes = (await api.get(f"/bulk-jobs/{job['id']}/runs"))["items"]
    assert {o["run_id"]: o["outcome"] for o in outcomes} == {r["id"]: "done" for r in runs} | {done["id"]: "skipped"}
    await api.get("/stream", 404, bulk="0192a6f0-5c1e-7000-8123-0123456789ab")


@pytest.mark.parametrize(
    "body",
    [
        {"action": "signal", "query": "status = running"},
        {"action": "cancel", "query": "status = running", "signal": "rest_word"},
        {"action": "cancel", "query": "status = running", "payload": 1},
    ],
)
async def test_a_signal_needs_its_action_and_a_name(api: Live, body: dict[str, Any]) -> None:
    await api.post("/bulk-jobs", body, 422)


async def test_a_program_sends_a_signal_to_many_runs(api: Live) -> None:
    handles = [await api.start("rest_listen", input={"count": 1}) for _ in range(3)]
    job = await api.perdure.bulk("signal", "workflow = rest_listen", signal="rest_word", payload="on")
    assert (await job.wait("30s")).done == 3
    for run in handles:
        assert (await api.get(f"/runs/{run['id']}/result", wait=60))["result"] == ["on"]
