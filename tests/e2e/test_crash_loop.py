"""Workflow code that ends every worker it runs on: the run is stuck after some of them, and can be ended at any time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.crashing import crashing, neighbour, settled
from harness.fleet import EngineProcess, violated
from harness.servers import Servers

from perdure import Client, Handle
from perdure.errors import RunCancelled, RunFailed, Stuck
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

LEASE_S = 3.0


@asynccontextmanager
async def crashing_workers(tmp_path: Path, dsn: str) -> AsyncIterator[tuple[Servers, list[EngineProcess]]]:
    """A server, and a worker that is started again whenever it has ended."""
    with Servers(tmp_path, dsn, 1, lease_s=LEASE_S) as fleet:
        server = fleet.server(0)
        await until(lambda: fleet.is_up(server, "ready"), "the server is up", 60)
        workers: list[EngineProcess] = []

        def restart() -> bool:
            if not workers or workers[-1].process.poll() is not None:
                workers.append(fleet.worker(fleet.addresses, module="harness.crashing"))
            return False

        supervisor = asyncio.create_task(until(restart, "the test ends", 600))
        try:
            yield fleet, workers
        finally:
            supervisor.cancel()
            await asyncio.gather(supervisor, return_exceptions=True)


async def is_stuck(handle: Handle[Any]) -> bool:
    return (await handle.describe()).stuck is not None


async def has_ended(handle: Handle[Any]) -> bool:
    return (await handle.describe()).finished_us is not None


async def test_code_that_ends_its_workers_is_stuck_and_its_run_can_be_ended(dsn: str, tmp_path: Path) -> None:
    async with crashing_workers(tmp_path, dsn) as (fleet, workers), Client(fleet.addresses[0]):
        other = await neighbour.start()
        late = await crashing.options(timeout="2s").start()  # a fast machine loses CODE_CRASHES_MAX workers in 4 s
        with pytest.raises(RunFailed, match="did not end before its deadline"):
            await late.result("3m")
        assert workers, "its code ran"
        terminated, cancelled, looping = await crashing.start(), await crashing.start(), await crashing.start()
        await terminated.terminate("enough")
        await cancelled.cancel("enough")
        await until(lambda: is_stuck(looping), "it is stuck", 120)
        with pytest.raises(Stuck, match="CODE_CRASHES_MAX"):
            await looping.result("5s")
        await until(lambda: has_ended(cancelled), "the engine ended it, because it is stuck too", 60)
        with pytest.raises(RunCancelled, match="enough"):
            await cancelled.result("5s")
        await looping.pause()
        await looping.terminate()
        await settled.send(other.id, "fine")
        assert await other.result("3m") == "fine", "its neighbour goes on"
        assert not violated(fleet.verify())
