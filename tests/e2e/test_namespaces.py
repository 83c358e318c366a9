"""A namespace never sees another's runs: not by claiming, not by reading, not by waiting."""

from __future__ import annotations

import pytest

from perdure import EngineSettings, Handle, Perdure, Signal, wf, workflow
from perdure.core import ids
from perdure.errors import NotFound
from tests.fakes.waiting import until

go = Signal("go", str)


@workflow(name="namespaced")
async def namespaced(x: int) -> str:
    return f"{x} {await go.next()}"


@workflow(name="namespaced_nap")
async def nap(x: int) -> int:
    await wf.sleep("100ms")
    return x


async def test_an_engine_claims_only_runs_of_its_own_namespace(dsn: str) -> None:
    async with Perdure(dsn, worker=False, settings=EngineSettings(namespace="shop")) as shop:
        handle = await shop.start(nap, 1)
        async with Perdure(dsn, settings=EngineSettings(namespace="other")) as other:
            other.serve(nap)
            assert await (await other.start(nap, 2)).result() == 2
            polls = other.engine.counters.polls
            await until(lambda: other.engine.counters.polls > polls + 1, "the engine has looked for work by itself")
            assert other.engine.counters.runs_claimed == 0
            assert await handle.status() == "pending"
        async with Perdure(dsn, settings=EngineSettings(namespace="shop")) as second:
            second.serve(nap)
            assert await handle.result("3m") == 1


async def test_a_foreign_run_cannot_be_found_read_or_written(dsn: str) -> None:
    async with Perdure(dsn, settings=EngineSettings(namespace="shop")) as shop:
        mine = await shop.start(namespaced.options(key="order-1"), 1)
        async with Perdure(dsn, settings=EngineSettings(namespace="other")) as other:
            with pytest.raises(NotFound):
                await other.get(mine.id)
            foreign = Handle(other._backend, ids.parse(mine.id), namespaced.decode_result)
            with pytest.raises(NotFound):
                await foreign.describe()
            with pytest.raises(NotFound):
                await foreign.result("5s")
            with pytest.raises(NotFound):
                await foreign.cancel()
            with pytest.raises(NotFound):
                await go.send(mine.id, "hello")
            with pytest.raises(NotFound):
                await other.get(key="order-1")
            with pytest.raises(NotFound):
                await foreign.history()
        await (await shop.get(key="order-1", workflow=namespaced)).cancel()
