"""`TestEnv`: the real engine on a real private PostgreSQL, with tasks and child workflows mocked and time that skips.

    async with TestEnv() as env:
        env.mock(fetch, lambda url: Page(url, 3))
        handle = await env.start(crawl, ["a"])
        await env.advance("1d")

Declarative flows are deployed first and started by name: `await env.deploy("nightly.yaml")`, `await env.run(flow("nightly"), day="mo")`.

Time. The environment shifts the database clock of its own connections. `run` skips over every wait by itself; after `start`
time moves only by `advance`, which stops at each timer and at each time of a schedule on the way, so that everything happens in the order
it would have.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Final, ParamSpec, Self, TypeAlias, TypeVar, overload

from perdure.app.embedded import Perdure
from perdure.core.durations import Duration, datetime_of, to_us
from perdure.core.errors import InvalidInput, PerdureError
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.settings import EngineSettings
from perdure.sdk.client.handles import Handle
from perdure.sdk.definitions import Task, Workflow
from perdure.sdk.flows import FlowRef
from perdure.sdk.startable import Startable
from perdure.sdk.worker.builtin_tasks import Verb
from perdure.testing.database import scratch
from perdure.testing.mocks import ByName, StandIn

P = ParamSpec("P")
R = TypeVar("R")
Mockable: TypeAlias = Task[P, R] | Startable[P, R]

SETTLE_S = 30.0
"""How long the environment waits for running tasks before it says which ones keep time from moving."""


INPUT_S = 5.0
"""How long `run` waits, in real time, for input that another part of the test may be about to send."""


MOCKED: Final = "mocked"
"""The version of a workflow that only a mock defines."""


SETTINGS: Final = EngineSettings(commit=CommitPolicy(lazy_us=1_000))
"""No group commit: the test waits for every record to be written, so delaying records gains nothing."""


class TestEnv:
    """An engine, a worker and a database for one test. Give a `dsn` to use a database of your own."""

    __test__ = False  # the name would make pytest collect it

    def __init__(self, dsn: str | None = None) -> None:
        self._dsn = dsn
        self._database: str | None = None
        self.client: Perdure

    async def __aenter__(self) -> Self:
        dsn = self._dsn
        if dsn is None:
            dsn, self._database = await scratch().create()
        self.client = await Perdure(dsn, settings=SETTINGS).__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)
        if self._database is not None:
            await scratch().drop(self._database)

    @overload
    def mock(self, target: Mockable[P, R], fake: Callable[P, Coroutine[Any, Any, R]]) -> None: ...
    @overload
    def mock(self, target: Mockable[P, R], fake: Callable[P, R]) -> None: ...
    @overload
    def mock(self, target: str, fake: Callable[..., Any]) -> None: ...
    def mock(self, target: Any, fake: Callable[..., Any]) -> None:
        """Execute `fake` instead of a task or of a workflow, which may be given by its name. Payloads still pass through its own types.

        Runs of a mocked workflow are real runs whose code is `fake`; `async def` it may wait and call tasks like any workflow. What it
        raises fails the run. A workflow that is not defined in this program is given as `flow(name)`; its input comes by keywords.
        """
        assert self.client.worker is not None
        worker = self.client.worker
        if not callable(fake):
            raise InvalidInput(f"a mock is a function that is called instead; {fake!r} cannot be called")
        found = worker.definitions.find(target) if isinstance(target, str) else target
        if isinstance(found, FlowRef):
            self._mock_by_name(found.name, fake)
        elif isinstance(found, Workflow):
            self.client.serve(found)
            worker.definitions.stand_ins[found.name] = StandIn(found.name, found.version, found.signature, fake)
        elif isinstance(found, Task | Verb):
            if isinstance(found, Task):
                worker.adopt(found)
            worker.definitions.overrides[found.name] = SimpleNamespace(
                fn=fake, name=found.name, is_async=inspect.iscoroutinefunction(fake), signature=found.signature
            )
        else:
            raise InvalidInput(
                f"{target!r} cannot be mocked: give a @task, a @workflow, flow(name), or the name of a task or workflow"
            )

    def _mock_by_name(self, name: str, fake: Callable[..., Any]) -> None:
        worker, engine = self.client.worker, self.client.engine
        assert worker is not None
        if name in worker.definitions.code:
            self.mock(name, fake)
            return
        made = StandIn(name, MOCKED, ByName(), fake)
        worker.definitions.stand_ins[name] = made
        self.client.serve(made)
        engine.flows.fixed[engine.ns, name] = MOCKED  # also where a flow of this name is deployed

    async def deploy(self, flow: str | Path | Mapping[str, Any], *, name: str | None = None) -> str:
        """Make a declarative flow known and current here; answers its version. See `Perdure.deploy`."""
        return await self.client.deploy(flow, name=name)

    async def start(self, w: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run and let it go as far as it can without time passing."""
        handle = await self.client.start(w, *args, **kwargs)
        await self._settle()
        return handle

    async def run(self, w: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and skip every wait until it ends."""
        handle = await self.client.start(w, *args, **kwargs)
        result = asyncio.ensure_future(handle.result())
        try:
            waited_s = 0.0
            while not result.done():
                await self._settle()
                wake = await self._next_wake_us()
                if wake is not None and not result.done():
                    await self._jump(min(wake, await self._next_fire_us() or wake))
                    waited_s = 0.0
                await asyncio.wait([result], timeout=0.01)
                waited_s += 0.01
                if waited_s > INPUT_S:
                    raise PerdureError(
                        f"{w.name} waits for a signal, a promise or a run elsewhere and nothing came for {INPUT_S:g} s; "
                        "use env.start(), send what it waits for, then await handle.result()"
                    )
            return result.result()
        finally:
            result.cancel()

    @property
    def now(self) -> datetime:
        """The environment's time."""
        return datetime_of(self.client.engine.clock.now_us())

    async def advance(self, d: Duration) -> None:
        """Let time pass. Timers on the way fire in order, each followed by everything it sets off."""
        target = self.client.engine.clock.now_us() + to_us(d)
        await self._settle()
        while (wake := await self._next_us()) is not None and wake <= target:
            await self._jump(wake)
        await self._jump(target)

    async def _jump(self, to_us_: int) -> None:
        """Set the clock forward; it never goes back."""
        store, engine = self.client.store, self.client.engine
        behind_us = to_us_ - engine.clock.now_us()
        if behind_us > 0:
            store.shift_clock(store.clock_offset_s + behind_us / 1e6)
        engine.clock.sync((await store.next_due([], [], flows=True)).clock_us)
        engine.timers.fire()
        await self._settle()

    async def _next_wake_us(self) -> int | None:
        engine = self.client.engine
        due = await self.client.store.next_due(engine.runs.claimable, list(engine.dispatcher.served), flows=True)
        begin_us = await self._next_start_us()
        moments = (engine.next_wake_us(), due.run_at_us, due.task_at_us, begin_us)
        wakes = [w for w in moments if w is not None and w < 1 << 62]
        return min(wakes, default=None)

    async def _next_us(self) -> int | None:
        """When anything happens next: a run wakes, or a schedule fires."""
        moments = (await self._next_wake_us(), await self._next_fire_us())
        return min((m for m in moments if m is not None), default=None)

    async def _next_fire_us(self) -> int | None:
        return (await self.client.engine.scheduler.store.next_fire()).fire_us

    async def _next_start_us(self) -> int | None:
        """When the next deferred start begins."""
        return (await self.client.engine.deferred_starts.next_due())[1]

    async def _settle(self) -> None:
        """Wait until only time or a message can change anything."""
        engine = self.client.engine
        async with asyncio.timeout(SETTLE_S):
            while True:
                engine.clock.sync((await self.client.store.next_due([], [], flows=True)).clock_us)
                engine.timers.fire()
                # Asked twice: a run may have been claimed and brought here while the database was asked.
                if engine.is_quiet and not await self._anything_due() and engine.is_quiet:
                    return
                for service in (engine.claims, engine.start_deadlines, engine.endings):
                    service.wake()
                await asyncio.sleep(0.002)

    async def _anything_due(self) -> bool:
        engine = self.client.engine
        due = await self.client.store.next_due(engine.runs.claimable, list(engine.dispatcher.served), flows=True)
        fire_us = await self._next_fire_us()
        if fire_us is not None and fire_us <= due.clock_us:
            engine.scheduler.wake()
        begin_us = await self._next_start_us()
        if engine.deferred_starts.is_busy or (begin_us or due.clock_us + 1) <= due.clock_us:
            engine.deferred_starts.wake()
            return True
        moments = (
            due.run_at_us,
            due.task_at_us,
            due.task_group_at_us,
            due.run_group_at_us,
            engine.next_wake_us(),
            fire_us,
        )
        return due.has_messages or any(m is not None and m <= due.clock_us for m in moments)
