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
import operator
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Final, ParamSpec, Self, TypeAlias, TypeVar, overload

from perdure.app.embedded import Perdure
from perdure.core.durations import Duration
from perdure.core.errors import InvalidInput, PerdureError
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.settings import EngineSettings
from perdure.sdk.client.handles import Handle
from perdure.sdk.definitions import Task, Workflow
from perdure.sdk.flows import FlowRef
from perdure.sdk.startable import Bound, Startable
from perdure.sdk.worker.builtin_tasks import Verb
from perdure.testing.clockwork import Clockwork
from perdure.testing.crashes import CRASHES_MAX, CrashTest, Drive
from perdure.testing.database import scratch
from perdure.testing.lives import LifeSource
from perdure.testing.mocks import NOT_GIVEN, ByName, Mock, StandIn, function_of, is_mockable_built_in

P = ParamSpec("P")
R = TypeVar("R")
Mockable: TypeAlias = Task[P, R] | Startable[P, R]

MOCKED: Final = "mocked"
"""The version of a workflow that only a mock defines."""


SETTINGS: Final = EngineSettings(commit=CommitPolicy(lazy_us=1_000))
"""No group commit: the test waits for every record to be written, so delaying records gains nothing."""


class TestEnv:
    """An engine, a worker and a database for one test. Give a `dsn` to use a database of your own."""

    __test__ = False  # the name would make pytest collect it

    def __init__(self, dsn: str | None = None, *, crashes_max: int = 0) -> None:
        """With `crashes_max` every `run` is a `crash_everywhere`, with that many crashes at most."""
        self._dsn, self._crashes_max = dsn, crashes_max
        self._deployed: list[tuple[Any, str | None]] = []
        self._database: str | None = None
        self._mocks: list[Mock] = []
        self.client: Perdure
        self._clockwork: Clockwork

    async def __aenter__(self) -> Self:
        dsn = self._dsn
        if dsn is None:
            dsn, self._database = await scratch().create()
        self.client = await Perdure(dsn, settings=SETTINGS).__aenter__()
        self._clockwork = Clockwork(self.client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.__aexit__(kind, error, trace)
        if self._database is not None:
            await scratch().drop(self._database)

    @overload
    def mock(self, target: Mockable[P, R], calls: Callable[P, Coroutine[Any, Any, R]]) -> Mock: ...
    @overload
    def mock(self, target: Mockable[P, R], calls: Callable[P, R]) -> Mock: ...
    @overload
    def mock(self, target: Mockable[P, R], *, returns: R) -> Mock: ...
    @overload
    def mock(
        self, target: Mockable[..., Any] | str, *, raises: BaseException | Callable[..., BaseException]
    ) -> Mock: ...
    @overload
    def mock(self, target: str, calls: Callable[..., Any]) -> Mock: ...
    @overload
    def mock(self, target: str, *, returns: Any) -> Mock: ...
    def mock(self, target: Any, calls: Any = NOT_GIVEN, *, returns: Any = NOT_GIVEN, raises: Any = NOT_GIVEN) -> Mock:
        """Replace a task or a workflow, which may be given by its name: call a function instead, return a value, or raise.

            env.mock(fetch, lambda url: "a page")      # until the environment closes
            with env.mock(fetch, raises=OSError) as m: # until the block ends
                ...
            m.calls, m.call_count

        Payloads still pass through the types of what is replaced. Runs of a mocked workflow are real runs whose code is the mock; an
        `async def` may wait and call tasks like any workflow. What it raises fails the run. A workflow that is not defined in this
        program is given as `flow(name)`; its input comes by keywords. So does that of the built-in tasks of flows, which are given by
        name: `perdure.http`, `perdure.run`, `perdure.job.EXECUTOR`.
        """
        fn = function_of(calls, returns, raises)
        if fn is None:
            raise InvalidInput("a mock is given in one way: a function that is called instead, returns= or raises=")
        if not callable(fn):
            raise InvalidInput(f"a mock is a function that is called instead; {fn!r} cannot be called")
        made = self._mock(target, fn)
        self._mocks.append(made)
        return made

    def _mock(self, target: Any, fn: Callable[..., Any]) -> Mock:
        assert self.client.worker is not None
        definitions = self.client.worker.definitions
        if isinstance(target, str) and is_mockable_built_in(target):
            return self._mock_task(definitions.built_in(target) or SimpleNamespace(name=target), fn)
        found = definitions.find(target) if isinstance(target, str) else target
        if isinstance(found, FlowRef):
            return self._mock_by_name(found.name, fn)
        if isinstance(found, Workflow):
            self.client.serve(found)
            made = Mock(found.name, fn)
            stand_in = StandIn(found.name, found.version, found.signature, made.recording)
            made.put(definitions.stand_ins, found.name, stand_in)
            return made
        if isinstance(found, Task | Verb):
            if isinstance(found, Task):
                self.client.worker.adopt(found)
            return self._mock_task(found, fn)
        raise InvalidInput(
            f"{target!r} cannot be mocked: give a @task, a @workflow, flow(name), or the name of a task or workflow"
        )

    def _mock_task(self, task: Any, fn: Callable[..., Any]) -> Mock:
        assert self.client.worker is not None
        made = Mock(task.name, fn)
        signature = getattr(task, "signature", None) or ByName()  # jobs have none
        stand_in = SimpleNamespace(fn=made.recording, name=task.name, is_async=made.is_async, signature=signature)
        made.put(self.client.worker.definitions.overrides, task.name, stand_in)
        self._serve_tasks()
        made.then(self._serve_tasks)
        return made

    def _serve_tasks(self) -> None:
        """A task of an executor that is not here is served while it is mocked."""
        self.client.engine.served.serve()

    def _mock_by_name(self, name: str, fn: Callable[..., Any]) -> Mock:
        worker, engine = self.client.worker, self.client.engine
        assert worker is not None
        if name in worker.definitions.code and isinstance(worker.definitions.find(name), Workflow):
            return self._mock(name, fn)
        made = Mock(name, fn)
        stand_in = StandIn(name, MOCKED, ByName(), made.recording)
        made.put(worker.definitions.stand_ins, name, stand_in)
        self.client.serve(StandIn(name, MOCKED, ByName(), _ended(name)))  # what is left when the mock has ended
        made.put(engine.flows.fixed, (engine.ns, name), MOCKED)  # also where a flow of this name is deployed
        return made

    def assert_mocks_used(self) -> None:
        """AssertionError that names the mocks that were not called, also those that have ended."""
        unused = [mock.name for mock in self._mocks if not mock.calls]
        assert not unused, f"mocks that were not called: {', '.join(unused)}"

    async def deploy(self, flow: str | Path | Mapping[str, Any], *, name: str | None = None) -> str:
        """Make a declarative flow known and current here; answers its version. See `Perdure.deploy`."""
        version = await self.client.deploy(flow, name=name)
        self._deployed.append((flow, name))
        return version

    async def crash_everywhere(
        self,
        run: Bound[R] | Startable[[], R],
        *,
        drive: Drive | None = None,
        same: Callable[[R, R], bool] = operator.eq,
        crashes_max: int = CRASHES_MAX,
    ) -> R:
        """Run a workflow to its end; then again and again, each time with a crash of the engine and the worker after another event.

            await env.crash_everywhere(order.bind("ink"))

        The run must end as it did without a crash, and no task may be executed after its result was recorded; else AssertionError
        says after which event. Returns the result, or raises how the run failed. Waits are skipped. The runs are in a database of
        their own, each in another namespace, with the mocks of this environment and the flows that were deployed here. Plain values in the modules of the tasks and
        workflows are put back at each crash to what they were when this was called, as in a new process.

        Args:
            run: a workflow with its arguments, `order.bind("ink")`; or one without parameters.
            drive: sends what the run needs from outside: `async def drive(run): await signal.send(run.id, 1)`. It is called for every
                run, and goes on during a crash like a client elsewhere. Waits are skipped once it has returned.
            same: whether two results are the same, for results with times or ids in them.
            crashes_max: crashes at most; of more events, some at even distances are taken.
        """
        if self._database is None:
            raise InvalidInput("crash_everywhere makes a database of its own; use TestEnv() without a DSN")
        bound = run if isinstance(run, Bound) else run.bind()
        dsn, database = await scratch().create()  # the engine of this environment would take part in its own database
        lives = LifeSource(dsn, self.client, SETTINGS, self._deployed)
        try:
            tried = CrashTest(bound, lives.begin, drive=drive, same=same, crashes_max=crashes_max)
            result: R = await tried.run()
            return result
        finally:
            await lives.close()
            await scratch().drop(database)

    async def start(self, w: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run and let it go as far as it can without time passing."""
        handle = await self.client.start(w, *args, **kwargs)
        await self._clockwork.settle()
        return handle

    async def run(self, w: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Start a run and skip every wait until it ends."""
        if self._crashes_max:
            return await self.crash_everywhere(w.bind(*args, **kwargs), crashes_max=self._crashes_max)
        handle = await self.client.start(w, *args, **kwargs)
        result = asyncio.ensure_future(handle.result())
        try:
            await self._clockwork.skip_until(result, w.name)
            return result.result()
        finally:
            result.cancel()

    @property
    def now(self) -> datetime:
        """The environment's time."""
        return self._clockwork.now

    async def advance(self, d: Duration) -> None:
        """Let time pass. Timers on the way fire in order, each followed by everything it sets off."""
        await self._clockwork.advance(d)

    async def settle(self) -> None:
        """Wait until only time or a message can change anything."""
        await self._clockwork.settle()


def _ended(name: str) -> Callable[..., Any]:
    def fail(**_: Any) -> Any:
        raise PerdureError(f"the mock of {name!r} has ended; mock it for as long as its runs last")

    return fail
