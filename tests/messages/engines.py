"""Two engines on one database, in this process, each with a server. Either can be killed: it says nothing more, and another one takes its
place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from perdure import Perdure
from perdure.core import ids
from perdure.core.api import versions
from perdure.errors import Unavailable
from perdure.sdk.client.handles import Handle
from perdure.testing.mortal import EXPIRED_S, settle_lost
from tests.messages.doors import CALL_S, SQL_S, Door, Front
from tests.messages.programs import DAG, GRAPH, reader


class Lost(Exception):
    """There is no answer, and whether it was done is unknown."""


class MortalEngine(Perdure):
    died: asyncio.Future[None]
    front: Front

    async def die(self) -> None:
        self.died.set_result(None)
        self._backend.close()
        stopped = self.engine.abandon()
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.gather(*stopped, return_exceptions=True)
                if self.worker is not None:
                    await self.worker.close()
        await self.front.close()
        await self._transactions.close()
        await self.store.close()


class Engines:
    def __init__(self, dsn: str, pool: Any, code: Any) -> None:
        self._dsn, self.pool, self._code = dsn, pool, code
        self._up: list[MortalEngine] = []
        self._killing = asyncio.Lock()
        self.kills = 0

    async def _open(self) -> MortalEngine:
        one = MortalEngine(self._dsn, tune_gc=False, tracing=False, auto_migrate=False)
        one.died = asyncio.get_running_loop().create_future()
        await one.__aenter__()
        one.serve(self._code)
        await one.engine.refresh()
        one.front = Front(one, self.pool)
        await one.front.open()
        return one

    async def begin(self) -> None:
        self._up = [await self._open(), await self._open()]
        await self._up[0].deploy(GRAPH)
        await self._up[0].deploy(DAG)

    async def end(self) -> None:
        for one in self._up:
            await one.front.close()
            await one.close()

    async def call(self, which: int, door: str, make: Callable[[Door], Awaitable[Any]]) -> Any:
        """What `make` does with a door of an engine. Raises Lost when the engine dies first, or gives no answer."""
        one = self._up[which % 2]
        if one.died.done():  # its place is not taken yet
            one = self._up[(which + 1) % 2]
        work = asyncio.ensure_future(make(one.front.doors[door]))
        if door == "sql":  # whichever engine carries it out
            await asyncio.wait({work}, timeout=2 * SQL_S)
        else:
            await asyncio.wait({work, one.died}, timeout=CALL_S, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=1)
            raise Lost
        if one.died.done() and (work.cancelled() or work.exception() is not None):
            raise Lost
        try:
            return work.result()
        except (Unavailable, asyncio.CancelledError) as e:
            raise Lost from e

    async def move(self, version: str, to: str) -> None:
        """Runs of code that nothing serves any more go on with other code."""
        moved = versions.MoveRuns("reader", version, to)
        for n in range(20):
            with suppress(Lost):
                await self.call(n, "embedded", lambda e: e._backend.call(versions.MOVE, moved))
                return
        raise Lost

    async def kill(self, which: int) -> None:
        async with self._killing:
            victim = self._up[which % 2]
            session = victim.engine.session.id
            await victim.die()
            self.kills += 1
            heir = self._up[(which + 1) % 2]
            await heir.store.renew(session, EXPIRED_S, 0, 0)
            await heir.store.reap(settle_lost)
            self._up[which % 2] = await self._open()


def handle(engine: Any, run: str) -> Handle[Any]:
    return Handle(engine._backend, ids.parse(run), lambda data: data)


@asynccontextmanager
async def engines(dsn: str, code: Any = reader) -> AsyncIterator[Engines]:
    """`code`: of the workflow `reader`."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=16) as pool:
        found = Engines(dsn, pool, code)
        await found.begin()
        try:
            yield found
        finally:
            await found.end()
