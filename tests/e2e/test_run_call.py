"""`workflow.run(...)`: start and result in one call, with the same guarantees as the two."""

from __future__ import annotations

import asyncio

import pytest

from perdure import EngineSettings, Perdure, task, wf, workflow
from perdure.engine.commits.store import Poison
from perdure.errors import PayloadTooLarge, RunAlreadyExists, RunFailed, Unavailable
from tests.fakes.waiting import turns


@task(name="run_call_add")
async def add(n: int) -> int:
    return n + 1


@workflow(name="run_call_flow")
async def flow(n: int) -> int:
    return await add(n)


@workflow(name="run_call_bad")
async def bad(n: int) -> int:
    raise ValueError(f"bad {n}")


@workflow(name="run_call_again")
async def again(n: int) -> int:
    if n > 0:
        wf.continue_as_new(n - 1)
    return 99


async def test_run_gives_results_raises_failures_and_follows_successors(dsn: str) -> None:
    async with Perdure(dsn):
        assert await flow.run(1) == 2
        with pytest.raises(RunFailed, match="bad 3"):
            await bad.run(3)
        assert await again.run(2) == 99


async def test_run_under_an_id_contends_for_it_like_start(dsn: str) -> None:
    async with Perdure(dsn):
        assert await flow.options(key="one").run(1) == 2
        with pytest.raises(RunAlreadyExists):
            await flow.options(key="one").run(1)
        assert await flow.options(key="one", on_conflict="attach").run(1) == 2


async def test_run_that_another_engine_executes_is_answered_too(dsn: str) -> None:
    async with Perdure(dsn):
        async with Perdure(dsn, worker=False):
            assert await asyncio.wait_for(flow.run(5), 20) == 6


async def test_a_run_that_the_database_refuses_is_an_error_not_a_wait_for_ever(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Perdure(dsn) as client:
        commit = client.store.commit

        async def refuse_starts(session: int, number: int, batch: object) -> object:
            if len(batch.starts):  # type: ignore[attr-defined]
                raise Poison("refused for the test")
            return await commit(session, number, batch)  # type: ignore[arg-type]

        monkeypatch.setattr(client.store, "commit", refuse_starts)
        with pytest.raises(Unavailable, match="refused for the test"):
            await asyncio.wait_for(flow.run(1), 10)


async def test_a_cancelled_wait_leaves_the_run_alone(dsn: str) -> None:
    async with Perdure(dsn, settings=EngineSettings()) as client:
        waiting = asyncio.create_task(flow.run(1))
        await turns(2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await flow.run(2) == 3
        assert not client.engine.waiters._futures


async def test_input_over_the_limit_is_refused_before_anything_is_written(dsn: str) -> None:
    @workflow(name="run_call_text")
    async def text(s: str) -> int:
        return len(s)

    async with Perdure(dsn, settings=EngineSettings(payload_bytes_max=200_000)) as client:
        with pytest.raises(PayloadTooLarge):
            await text.run("x" * 300_000)
        assert await client.list(workflow="run_call_text") == []


async def test_run_inside_a_workflow_points_to_child_runs(dsn: str) -> None:
    @workflow(name="run_call_nested")
    async def nested(n: int) -> int:
        return await flow.run(n)

    async with Perdure(dsn):
        with pytest.raises(RunFailed, match="child run"):
            await nested.run(1)


async def test_the_first_starts_of_a_workflow_register_it_once(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow(name="rc_registered_once")
    async def one(n: int) -> int:
        return n

    async with Perdure(dsn, tune_gc=False) as client:
        registered: list[None] = []
        refresh = client.engine.refresh

        async def counted() -> None:
            registered.append(None)
            await refresh()

        monkeypatch.setattr(client.engine, "refresh", counted)
        handles = await asyncio.gather(*(client.start(one, n) for n in range(50)))
        assert [await handle.result() for handle in handles] == list(range(50))
        assert len(registered) == 1
