"""Sync code gets the same runs through a thin facade."""

from __future__ import annotations

import pytest

from perdure import Promise, Signal, State, SyncPerdure, task, wf, workflow
from perdure.errors import RunCancelled, RunFailed

name = Signal("sync_name", str)
ok = Promise("sync_ok", bool)
seen = State("sync_seen", 0)


@task(name="sync_double")
def double(x: int) -> int:
    return 2 * x


@workflow(name="sync_flow")
async def flow(x: int) -> int:
    return await double(x) + 1


@workflow(name="sync_talk")
async def talk(x: int) -> str:
    who = await name.next()
    seen.set(1)
    return f"{who} {await ok.wait()}"


@workflow(name="sync_bad")
async def bad(x: int) -> int:
    raise ValueError("no")


def test_sync_code_runs_workflows_and_talks_to_them(dsn: str) -> None:
    with SyncPerdure(dsn) as p:
        assert p.run(flow, 20) == 41
        handle = p.start(talk, 1)
        p.signal(name, handle.id, "ann")
        p.resolve(ok, handle.id, True)
        assert handle.result("10s") == "ann True"
        assert p.query(seen, handle.id) == 1
        assert handle.status() == "success"


def test_sync_code_finds_runs_by_a_query(dsn: str) -> None:
    with SyncPerdure(dsn) as p:
        for n in range(3):
            p.start(flow.options(attributes={"n": n}), n).result("10s")
        assert [run.attributes["n"] for run in p.runs("attr.n >= 1")] == [2, 1]
        assert [run.attributes["n"] for run in p.runs("attr.n >= 1", limit=1)] == [2]


def test_sync_code_pauses_terminates_and_deletes_runs_one_and_many(dsn: str) -> None:
    with SyncPerdure(dsn) as p:
        handles = [p.start(talk, n) for n in range(4)]
        handles[0].pause("night")
        assert [run.id for run in p.runs("paused")] == [handles[0].id]
        handles[0].resume()
        handles[0].terminate("wrong")
        assert handles[0].status() == "cancelled"
        handles[0].delete()
        done = p.bulk("terminate", "workflow = sync_talk", reason="all of them").wait()
        assert (done.status, done.matched, done.done) == ("success", 3, 3)


def test_sync_code_sees_failures_timeouts_and_cancellations(dsn: str) -> None:
    with SyncPerdure(dsn) as p:
        with pytest.raises(RunFailed, match="no"):
            p.run(bad, 1)
        waiting = p.start(talk, 1)
        with pytest.raises(TimeoutError):
            waiting.result("100ms")
        waiting.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            waiting.result("10s")


def test_a_sync_client_that_cannot_connect_says_so_and_leaves_no_thread() -> None:
    import threading

    from perdure.errors import Unavailable

    before = threading.active_count()
    with pytest.raises(Unavailable), SyncPerdure("postgresql://nobody@127.0.0.1:1/nowhere"):
        raise AssertionError("not reached")
    assert threading.active_count() == before


def test_wf_functions_outside_a_workflow_say_where_they_belong() -> None:
    from perdure.errors import PerdureError

    with pytest.raises(PerdureError, match="inside a workflow only"):
        wf.now()
