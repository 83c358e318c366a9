"""What the row of a run says is right from its first commit on: its version, and what it waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import EngineSettings, Handle, Perdure, Signal, task, workflow
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.placement import Placement
from perdure.core.work import StartRequest
from perdure.store.reads import PostgresReads
from perdure.store.verify import verify
from perdure.store.wait_reasons import waiting_on
from tests.fakes.waiting import until

go = Signal("rec_go", bool)


@task(name="rec_one")
async def one() -> int:
    return 1


@workflow(name="rec_listening")
async def listening() -> int:
    await go.next(timeout="1h")
    await one()
    await asyncio.sleep(3600)
    return 1


@workflow(name="rec_versioned")
async def starters() -> int:
    return 1


@workflow(name="rec_versioned")
async def workers() -> int:
    await one()
    return 2


async def has(handle: Handle[Any], event: str) -> bool:
    return any(type(r.event).__name__ == event for r in await handle.history())


async def test_a_signal_with_a_timeout_is_never_reported_as_a_timer(dsn: str) -> None:
    reads = PostgresReads(dsn)
    await reads.open()
    settings = EngineSettings(
        placement=Placement(idle_s=3600.0)
    )  # it stays in memory: nothing is written by letting it go
    async with Perdure(dsn, settings=settings) as client:
        handle = await listening.start()
        ns, run_id = client.engine.ns, ids.parse(handle.id)
        await until(lambda: has(handle, "TimerStarted"))
        detail = await reads.detail(ns, run_id)
        assert detail is not None
        assert [w.on for w in detail.waits] == ["signal", "timer"]
        async with client.store.pool.take() as c:
            assert await waiting_on(c, ns, "signal", bytes(16), b"\xff" * 16, 10) == ([run_id], None)
        await go.send(handle.id, True)
        await until(lambda: has(handle, "TasksSucceeded"))
        await until(lambda: _second_timer(handle))
        detail = await reads.detail(ns, run_id)
        assert detail is not None
        assert [w.on for w in detail.waits] == ["timer"], "it does not wait for the signal any more"
    await reads.close()


async def _second_timer(handle: Handle[Any]) -> bool:
    return sum(type(r.event).__name__ == "TimerStarted" for r in await handle.history()) == 2


@pytest.mark.parametrize("own", [True, False], ids=["started where it runs", "started elsewhere"])
async def test_the_version_of_a_run_is_that_of_the_code_that_executes_it(dsn: str, own: bool) -> None:
    assert starters.version != workers.version
    asked = StartRequest(workflow="rec_versioned", version=starters.version, input=b"{}")
    if not own:
        async with Perdure(dsn, worker=False) as client:
            run_id = (await client._backend.call(runs.START, asked)).run_id
            assert (await (await client.get(ids.text(run_id))).describe()).version == starters.version, (
                "it has not begun"
            )
    executing = Perdure(dsn)
    assert executing.worker is not None
    executing.worker.adopt(workers)
    async with executing as client:
        if own:
            run_id = (await client._backend.call(runs.START, asked)).run_id
        handle = await client.get(ids.text(run_id), workflow=workers)
        assert await handle.result("3m") == 2
        assert (await handle.describe()).version == workers.version
        assert (type((await handle.history())[1].event).__name__ == "RunBegan") is not own, (
            "own: it was started with it"
        )
        same = await workers.start()
        assert await same.result("3m") == 2
        assert not await has(same, "RunBegan"), "nothing to tell"
    assert not [(t.number, t.examples) for t in await verify(dsn, at_rest=True) if t.violations]
