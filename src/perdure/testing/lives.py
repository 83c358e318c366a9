"""One run across the crash of its engine and worker, as its client sees it: calls that the crash interrupts are repeated.

first life --crash--> second life
    |                     |
    '--- calls, time -----'   one `Backend`, one clock
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, TypeVar, cast
from uuid import uuid4

import msgspec

from perdure.app.embedded import Perdure
from perdure.core.api.act import Act
from perdure.core.durations import Duration, to_us
from perdure.core.errors import Conflict, PerdureError
from perdure.core.limits import CALL_TIMEOUT_S
from perdure.core.payload_port import PayloadCarrier
from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.sdk.client.handles import Handle
from perdure.testing.clockwork import Clockwork
from perdure.testing.memory import ModuleMemory
from perdure.testing.mortal import CrashPoint, MortalPerdure

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class Life:
    """An engine and a worker, from their start to a crash."""

    def __init__(self, client: MortalPerdure) -> None:
        self.client, self.clockwork = client, Clockwork(client)


Begin = Callable[[CrashPoint, bool], Coroutine[Any, Any, MortalPerdure]]
"""Opens a client. False: it follows a crash."""


class LifeSource:
    """Opens clients on a database that nothing else uses, which serve what another client serves. Each run gets a namespace of its own."""

    def __init__(
        self, dsn: str, parent: Perdure, settings: EngineSettings, flows: list[tuple[Any, str | None]]
    ) -> None:
        assert parent.worker is not None
        self._dsn, self._parent, self._settings, self._flows = dsn, parent, settings, flows
        self._definitions = parent.worker.definitions
        self._memory = ModuleMemory(self._definitions.functions().values())
        self._executed: set[str] = set()
        self._last: MortalPerdure | None = None
        self._point: CrashPoint | None = None
        """Of the life that began last."""
        self._runs = 0

    async def begin(self, point: CrashPoint, is_first: bool) -> MortalPerdure:
        self._runs += is_first
        if is_first:  # time never goes back, also not from one run to the next
            point.clock_offset_s = (self._last or self._parent).store.clock_offset_s
        self._lose_memory()
        self._point = point
        settings = msgspec.structs.replace(self._settings, namespace=f"run-{self._runs}")
        client = MortalPerdure(self._dsn, point, settings, self._last)
        self._last = client
        assert client.worker is not None
        client.worker.definitions.take(self._definitions)
        await client.__aenter__()
        self._fix_versions(client.engine)
        for flow, name in self._flows if is_first else ():
            await client.deploy(flow, name=name)
        return client

    async def close(self) -> None:
        if self._last is not None:
            await self._last.disconnect()

    def _lose_memory(self) -> None:
        """Of the modules whose functions were executed."""
        self._executed |= self._point.names if self._point is not None else set()
        functions = self._definitions.functions()
        self._memory.restore(functions[name] for name in self._executed if name in functions)

    def _fix_versions(self, engine: Engine) -> None:
        """Of workflows that are mocked by their names."""
        parent = self._parent.engine
        for (ns, name), version in parent.flows.fixed.items():
            if ns == parent.ns:
                engine.flows.fixed[engine.ns, name] = version


class Lives:
    """The acts of a run's client, which survives the crash at `point`."""

    timeout_s = CALL_TIMEOUT_S

    def __init__(self, begin: Begin, point: CrashPoint) -> None:
        self._begin, self._point = begin, point
        self._adopted: list[Any] = []
        self._first: Life
        self._second: asyncio.Task[Life]

    async def open(self) -> None:
        self._first = Life(await self._opened(is_first=True))
        self._second = asyncio.create_task(self._after_crash())

    async def _opened(self, *, is_first: bool) -> MortalPerdure:
        # In a task of its own: an open client is the ambient one of its context.
        return await asyncio.create_task(self._begin(self._point, is_first))

    async def _after_crash(self) -> Life:
        await self._point.crash
        await self._first.client.die()
        life = Life(await self._opened(is_first=False))
        for definition in self._adopted:
            life.client.serve(definition)
        return life

    async def close(self) -> None:
        """In good order: what is left behind would be due for ever in the eyes of the next run."""
        self._point.after = 0
        if self._point.crash.done():
            (found,) = await asyncio.gather(self._second, return_exceptions=True)
        else:
            self._second.cancel()
            found = self._first
        if isinstance(found, Life):
            with suppress(PerdureError):
                await found.clockwork.close_groups()
            await found.client.close()

    @property
    def life(self) -> Life:
        """The one that began last."""
        second = self._second
        return second.result() if second.done() and not second.cancelled() else self._first

    async def lasting(self, work: Callable[[Life], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, which is begun again in the second life if the crash interrupts it."""
        if self._point.crash.done():
            return await work(await asyncio.shield(self._second))
        task = asyncio.ensure_future(work(self._first))
        try:
            either: set[asyncio.Future[Any]] = {task, self._point.crash}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._point.crash.done() or (task.done() and not task.cancelled() and task.exception() is None):
                return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # an error that the crash caused
        return await work(await asyncio.shield(self._second))

    async def call(self, act: Act[Q, R], request: Q, within_s: float | None = None) -> R:
        if act.once_by and not getattr(request, act.once_by):
            request = cast(Q, msgspec.structs.replace(cast(Any, request), **{act.once_by: uuid4().hex}))
        tries = 0

        async def ask(life: Life) -> R:
            nonlocal tries
            tries += 1
            try:
                return await life.client._backend.call(act, request, within_s)
            except Conflict:
                if tries == 1 or act.is_repeatable(request):
                    raise
                return cast(R, None)  # the crash came between the effect and its answer

        return await self.lasting(ask)

    @property
    def payloads(self) -> PayloadCarrier:
        return self.life.client._backend.payloads

    def adopt(self, definition: Any) -> None:
        self._adopted.append(definition)
        self.life.client.serve(definition)


class DrivenRun(Generic[R_co]):
    """A run that `drive` sends messages to. While `drive` runs, time passes by `advance` alone."""

    def __init__(self, lives: Lives, handle: Handle[R_co]) -> None:
        self._lives, self.handle = lives, handle

    @property
    def id(self) -> str:
        return self.handle.id

    @property
    def now(self) -> datetime:
        """The time of the run's environment."""
        return self._lives.life.clockwork.now

    async def settle(self) -> None:
        """Wait until only time or a message can change anything."""
        await self._lives.lasting(lambda life: life.clockwork.settle())

    async def advance(self, d: Duration) -> None:
        """Let time pass."""
        target = self._lives.life.client.engine.clock.now_us() + to_us(d)
        await self._lives.lasting(lambda life: life.clockwork.advance_to(target))
