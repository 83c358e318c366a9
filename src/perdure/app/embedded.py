"""`async with Perdure(dsn)`: an engine and a worker in your own process. Any number of such processes share one database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import Token
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

import msgspec

from perdure.app.dev.discovery import server_url
from perdure.app.gc_tuning import CollectorPace
from perdure.app.tracing import Tracing
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.deadlines import call_timeout_s, unanswered
from perdure.core.durations import Duration
from perdure.core.links import Kind
from perdure.core.messages import Mail, SignalSent, UpdateAsked
from perdure.core.work import Answer, Outcome, RunView, StartRequest
from perdure.engine.api.approvals import NOBODY, Actor, Approvals, Ballot, link_url
from perdure.engine.api.schedules import Schedules as ScheduleApi
from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.localpg.cluster import PrivateCluster, default_directory
from perdure.sdk.client.handles import Backend, Handle, Schedules, ambient, closed, opened
from perdure.sdk.definitions import Startable
from perdure.sdk.worker.execution import PROCESSES_DEFAULT
from perdure.sdk.worker.worker import SLOTS_DEFAULT, THREADS_DEFAULT, Worker
from perdure.store.approvals import PostgresApprovals
from perdure.store.definitions import PostgresDefinitions
from perdure.store.engine_stores import engine_stores
from perdure.store.migrate import check, migrate
from perdure.store.postgres import PostgresStore

if TYPE_CHECKING:
    from perdure.sdk.schedules import Schedule

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

EMBEDDED = "embedded"
"""Who acts where a program has the database and no credential; such acts are not in the audit log, but for approvals."""
CODE = "code"
"""Who changes schedules from a program."""


class Perdure:
    """The client, the engine and the worker of this process.

    Without a DSN it takes PERDURE_DSN, then starts a private PostgreSQL in ./.perdure. Inside the `async with`,
    `workflow.start()`, `signal.send()` and the like find this client by themselves. While it is open, Python's garbage
    collector looks less often (`tune_gc=False` leaves it alone). Spans are exported when OTEL_EXPORTER_OTLP_ENDPOINT is set, or as
    `tracing` says. The worker serves the built-in tasks as well (`verbs=False`: it does not): `perdure.http`, with `services` by name
    and with `http_allow` for hosts and networks beside the public internet, and with `allow_run=True` `perdure.run`, which runs any
    command, with the variables that `run_env` names; unless given, PERDURE_SERVICES, PERDURE_HTTP_ALLOW, PERDURE_ALLOW_RUN and
    PERDURE_RUN_ENV say.
    `schedules` are applied when it opens. Every call ends within `call_timeout` (30 seconds unless given) and raises Unavailable if the
    database does not answer; only waiting for a result goes on.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        worker: bool = True,
        slots: int = SLOTS_DEFAULT,
        threads: int = THREADS_DEFAULT,
        processes: int = PROCESSES_DEFAULT,
        queues: list[str] | None = None,
        verbs: bool = True,
        services: Mapping[str, str] | None = None,
        allow_run: bool | None = None,
        http_allow: Sequence[str] | None = None,
        run_env: Sequence[str] | None = None,
        settings: EngineSettings | None = None,
        auto_migrate: bool = True,
        tune_gc: bool = True,
        tracing: bool | None = None,
        schedules: Sequence[Schedule[Any]] = (),
        call_timeout: Duration | None = None,
    ) -> None:
        self._dsn = dsn
        self._timeout_s = call_timeout_s(call_timeout)
        self._schedules = schedules
        self._auto_migrate, self._traced = auto_migrate, tracing
        self._gc = CollectorPace() if tune_gc else None
        self.settings = settings or EngineSettings()
        # The engine decides which runs are in memory; the worker's own bound is for those that serve several engines.
        runs_max = 2 * self.settings.runs_max
        self.worker = (
            Worker(
                slots=slots,
                threads=threads,
                processes=processes,
                queues=queues,
                runs_max=runs_max,
                verbs=verbs,
                services=services,
                allow_run=allow_run,
                http_allow=http_allow,
                run_env=run_env,
            )
            if worker
            else None
        )
        self.store: PostgresStore
        self.engine: Engine
        self.approvals: Approvals
        self._token: Token[Backend] | None = None
        self._cluster: PrivateCluster | None = None
        self._adopted: set[int] = set()
        self._unregistered = False

    async def __aenter__(self) -> Self:
        dsn = self._dsn or os.environ.get("PERDURE_DSN") or await self._private_dsn()
        await (migrate(dsn) if self._auto_migrate else check(dsn))
        self._token = ambient.set(self)
        if self.worker is not None:
            self.worker.refresh()
        self.store = PostgresStore(dsn)
        await self.store.open()
        self.engine = Engine(engine_stores(self.store), self.worker, self.settings)
        self.approvals = Approvals(PostgresApprovals(self.store.pool))
        self._tracing = Tracing(engine=self.engine, worker=self.worker, service="perdure", asked=self._traced)
        await self.engine.open()
        opened(self)
        if self._gc is not None:
            self._gc.slow_down()
        await self._apply_schedules()
        return self

    async def _apply_schedules(self) -> None:
        try:
            for one in self._schedules:
                await one.apply_on(self)
        except BaseException:
            await self.close()
            raise

    async def _private_dsn(self) -> str:
        self._cluster = PrivateCluster(default_directory())
        return await asyncio.to_thread(self._cluster.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        try:
            await self.close()
        finally:
            if token is not None:
                with suppress(ValueError):  # a fixture may leave in another context than it entered
                    ambient.reset(token)

    async def close(self) -> None:
        """Finish what is at hand, hand the rest back to the database, and let go of it."""
        closed(self)
        if self._gc is not None:
            self._gc.restore()
        try:
            await self.engine.close()
            await self._tracing.close()
        finally:
            await self.store.close()
            if self._cluster is not None:  # the last one to leave stops it
                await asyncio.to_thread(self._cluster.leave)

    # -- for people who hold the client -----------------------------------------------------------------------------

    async def start_workflow(self, workflow: Startable[P, R], *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """`workflow.start(...)` on this very client."""
        return await workflow.start_on(self, workflow.signature.encode_call(args, kwargs))

    def handle(self, run_id: str, workflow: Startable[Any, R] | None = None) -> Handle[R]:
        """A handle to a run by its id; give its workflow for a typed result."""
        from perdure.sdk.payloads import Converter

        decode = workflow.signature.decode_result if workflow is not None else Converter.of(Any).decode
        return Handle(self, ids.parse(run_id), decode)

    async def find(self, id: str, workflow: Startable[Any, R] | None = None) -> Handle[R]:
        """A handle to the run that was started under a key of your own (`options(key=...)`)."""
        return self.handle(ids.text(await self.find_run(id)), workflow)

    async def deploy(
        self, flow: str | Path | Mapping[str, Any], *, name: str | None = None, activate: bool = True
    ) -> str:
        """Make a declarative flow known, and with `activate` current; answers its version. FlowError says what is wrong with it.

        `flow` is a file, the text of one, or the document itself. `name` is for a document that has none; a file's own unless given.
        """
        from perdure.app.flow_files import draft
        from perdure.flows.scheduled import trigger_requests

        made = draft(flow, name)
        use = self.engine.use
        deploying = PostgresDefinitions(self.store.pool).deploy(
            use.ns, made.flow.name, made.version, made.flow.kind, made.flow.description or None, made.document,
            made.source, activate=activate, triggers=trigger_requests(made.flow), by=CODE,
            control=made.control, timeout_us=made.flow.timeout_us,
        )  # fmt: skip
        await self._bounded(deploying)
        use.moved(made.flow.name)
        self.engine.scheduler.changed()
        return made.version

    # -- the Backend port -------------------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> bytes:
        await self._register_new()
        return await self.engine.use.start(request, self._timeout_s)

    async def run(self, request: StartRequest) -> tuple[bytes, Outcome]:
        await self._register_new()
        return await self.engine.use.run(request, self._timeout_s)

    async def _register_new(self) -> None:
        if self._unregistered:
            await self._bounded(self.engine.refresh(), effect=False)
            self._unregistered = False

    async def _bounded(self, work: Coroutine[Any, Any, T], *, effect: bool = True, waits_s: float = 0.0) -> T:
        """A call ends in its time, also when what it does cannot be stopped at once. `waits_s`: how long it may wait by design."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self._timeout_s + waits_s)
            if task.done():
                return task.result()
            raise unanswered(self._timeout_s, effect=effect)
        finally:
            if not task.done():
                task.add_done_callback(lambda t: t.cancelled() or t.exception())
                task.cancel()

    async def outcome(self, run_id: bytes) -> Outcome:
        return await self.engine.use.outcome(run_id, known=run_id in self.engine.runs)

    async def post(self, run_id: bytes, mail: Mail, key: str = "") -> bool:
        return await self._bounded(self.engine.use.post(run_id, mail, key))

    async def signal_with_start(self, request: StartRequest, signal: SignalSent, key: str) -> tuple[bytes, bool]:
        await self._register_new()
        return await self._bounded(self.engine.use.signal_with_start(request, signal, key))

    async def emit(self, name: str, value: bytes, key: str) -> bool:
        emitting = self.engine.named_events.emit(self.engine.use.ns, name, value, key=key, source=EMBEDDED)
        return (await self._bounded(emitting)).fresh

    async def find_run(self, key: str) -> bytes:
        return await self._bounded(self.engine.use.run_of(key), effect=False)

    async def resolve(self, run_id: bytes, name: str, value: bytes) -> None:
        await self._bounded(self.engine.use.resolve(run_id, name, value))

    async def update(self, run_id: bytes, asked: UpdateAsked, seconds: float) -> Answer | None:
        asking = self.engine.updates.ask(self.engine.use, run_id, asked, seconds)
        return await self._bounded(asking, waits_s=seconds)

    async def vote(self, run_id: bytes, name: str, approved: bool, value: bytes, comment: str, by: str) -> bool:
        ballot = Ballot(approved, msgspec.json.decode(value), comment)
        after = await self._bounded(self.approvals.vote(self.engine.use, run_id, name, _actor(by), ballot))
        return after.resolved_us is not None

    async def delegate(self, run_id: bytes, name: str, to: str, by: str) -> None:
        await self._bounded(self.approvals.delegate(self.engine.use, run_id, name, _actor(by), to))

    async def link(self, run_id: bytes, kind: Kind, name: str, who: str, lasts_us: int) -> str:
        """The page is a server's: where that is, PERDURE_URL says, or a `perdure dev` of this directory."""
        url = os.environ.get("PERDURE_URL") or server_url(Path.cwd())
        use, namespace = self.engine.use, self.engine.settings.namespace
        issuing = self.approvals.issue(use, namespace, kind, run_id, name, _actor(""), who, lasts_us or None)
        token, _ = await self._bounded(issuing)
        return link_url(url, token)

    async def read_state(self, run_id: bytes, name: str) -> bytes | None:
        return await self._bounded(self.engine.use.read_state(run_id, name), effect=False)

    async def history(self, run_id: bytes, after: int) -> list[ev.Recorded]:
        return await self._bounded(self.engine.use.history(run_id, after), effect=False)

    async def describe(self, run_id: bytes) -> RunView:
        return await self._bounded(self.engine.use.describe(run_id), effect=False)

    async def resume(self, run_id: bytes) -> None:
        await self._bounded(self.engine.use.resume(run_id))

    async def retry(self, run_id: bytes) -> None:
        await self._bounded(self.engine.use.retry(run_id, EMBEDDED))

    async def schedules(self) -> Schedules:
        await self._register_new()
        return cast(
            Schedules, _BoundedSchedules(ScheduleApi(self.engine.scheduler, self.engine.use.ns, CODE), self._bounded)
        )

    def adopt(self, definition: Any) -> None:
        """A workflow object that is started here is served here, with everything defined since."""
        if self.worker is None or id(definition.fn) in self._adopted:
            return
        self._adopted.add(id(definition.fn))
        self.worker.adopt(definition)
        self.worker.refresh()
        self.engine.served.serve()
        self._unregistered = True


class _BoundedSchedules:
    """Schedules whose every call ends in its time."""

    def __init__(self, schedules: Schedules, bounded: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]) -> None:
        self._schedules, self._within_time = schedules, bounded

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._schedules, name)
        return lambda *args, **kwargs: self._within_time(call(*args, **kwargs))


def _actor(by: str) -> Actor:
    """Whoever has the database may speak for anybody."""
    return Actor(EMBEDDED, (by or NOBODY,), "sdk", True)
