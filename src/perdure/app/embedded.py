"""`async with Perdure(dsn)`: an engine and a worker in your own process. Any number of such processes share one database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import Token
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec

from perdure.app.api_ports import api_ports
from perdure.app.dev.discovery import server_url
from perdure.app.gc_tuning import CollectorPace
from perdure.app.tracing import Tracing
from perdure.core.api import definitions, runs
from perdure.core.api.act import Act
from perdure.core.api.definitions import DeployFlow
from perdure.core.deadlines import call_timeout_s, unanswered
from perdure.core.durations import Duration
from perdure.core.jobs import CONTAINER, PROCESS
from perdure.core.payload_port import PayloadCarrier
from perdure.engine.api.api import EMBEDDED, Api, Caller, NamespaceApi
from perdure.engine.api.bulk_work import BulkWork
from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.executors import registry
from perdure.executors.port import Executor
from perdure.localpg.cluster import PrivateCluster, default_directory
from perdure.sdk.client.backend import Backend, ambient, closed, opened
from perdure.sdk.client.base import ClientBase
from perdure.sdk.client.payloads import payload_options
from perdure.sdk.payloads.access import LoopAccess, blob_access
from perdure.sdk.worker.builtin_tasks import VerbOptions
from perdure.sdk.worker.capacity import PROCESSES_DEFAULT, SLOTS_DEFAULT, THREADS_DEFAULT, Capacity
from perdure.sdk.worker.worker import Worker
from perdure.store.engine_stores import engine_stores
from perdure.store.migrate import check, migrate
from perdure.store.postgres import PostgresStore

if TYPE_CHECKING:
    from perdure.sdk.schedules import Schedule

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

BOUNDED_BY_THEMSELVES: Final = frozenset({runs.START, runs.RUN, runs.RESULT})
"""Acts that end in the caller's time by themselves, without a task for each call."""


def _executors(one: str | Executor, database: str) -> list[Executor]:
    """Programs on one database take over each other's processes and containers; those on others do not."""
    if not isinstance(one, str):
        return [one]
    scope = blake2b(database.encode(), digest_size=6).hexdigest()
    return registry.load([one], {one: {"scope": scope}} if one in (PROCESS, CONTAINER) else {}, os.environ)


class Perdure(ClientBase):
    """The client, the engine and the worker of this process.

    Without a DSN it takes PERDURE_DSN, then starts a private PostgreSQL in ./.perdure. Inside the `async with`,
    `workflow.start()`, `signal.send()` and the like find this client by themselves. While it is open, Python's garbage
    collector runs less often (`tune_gc=False` leaves it alone). Spans are exported when OTEL_EXPORTER_OTLP_ENDPOINT is set, or as
    `tracing` says. The worker serves the built-in tasks as well (`verbs=False`: it does not): `perdure.http`, with `services` by name
    and with `http_allow` for hosts and networks beside the public internet; unless given, PERDURE_SERVICES and PERDURE_HTTP_ALLOW say.
    `executors` run tasks outside of it, by name or as objects: `executors=["process"]` runs any command of `perdure.run`.
    `schedules` are applied when it opens. Every call ends within `call_timeout` (30 seconds unless given) and raises Unavailable if the
    database does not answer; only waiting for a result has no limit. `audit=True` records what this program does in the audit log, as a
    server does; a program that holds the database is not recorded unless asked. `payloads` names object stores for large values and blobs
    (PERDURE_PAYLOADS unless given); without one the database takes them. With a `build_id` runs are pinned to the version that they began with, as on a worker.
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
        http_allow: Sequence[str] | None = None,
        executors: Sequence[str | Executor] = (),
        settings: EngineSettings | None = None,
        auto_migrate: bool = True,
        tune_gc: bool = True,
        tracing: bool | None = None,
        schedules: Sequence[Schedule[Any]] = (),
        call_timeout: Duration | None = None,
        audit: bool = False,
        payloads: str | None = None,
        build_id: str = "",
    ) -> None:
        self._dsn = dsn
        self._timeout_s, self._is_audited = call_timeout_s(call_timeout), audit
        self._schedules = schedules
        self._auto_migrate, self._tracing = auto_migrate, Tracing("perdure", tracing)
        self._gc = CollectorPace() if tune_gc else None
        database = dsn or os.environ.get("PERDURE_DSN") or os.getcwd()
        self.settings = _with_payloads(settings or EngineSettings(), payloads)
        # The engine decides which runs are in memory; the worker's own bound is for those that serve several engines.
        runs_max = 2 * self.settings.runs_max
        self.worker = (
            Worker(
                Capacity(slots=slots, threads=threads, processes=processes, runs_max=runs_max),
                queues=queues,
                verbs=VerbOptions(services=services, http_allow=http_allow) if verbs else None,
                tracer=self._tracing.task_tracer,
                executors=[e for one in executors for e in _executors(one, database)],
                build_id=build_id,
            )
            if worker
            else None
        )
        self.store: PostgresStore
        self.engine: Engine
        self.api: Api
        self._token: Token[Backend] | None = None
        self._cluster: PrivateCluster | None = None
        self._backend: Backend

    async def __aenter__(self) -> Self:
        dsn = self._dsn or os.environ.get("PERDURE_DSN") or await self._private_dsn()
        await (migrate(dsn) if self._auto_migrate else check(dsn))
        if self.worker is not None:
            self.worker.refresh()
        self.store = PostgresStore(dsn)
        await self.store.open()
        self.engine = Engine(engine_stores(self.store), self.worker, self.settings)
        self.api = Api(self.engine, api_ports(self.store, is_audited=self._is_audited), _server_url)
        self._tracing.trace_runs(self.engine)
        caller = Caller(EMBEDDED, self.settings.namespace, "sdk", self._timeout_s)
        self._backend = EmbeddedBackend(self.api, self.worker, caller, self._timeout_s)
        self._token = ambient.set(self._backend)  # first: tasks run in the context in which the engine opens
        await self.engine.open()
        self.engine.add_service(BulkWork(self.api))
        blob_access.set(LoopAccess(self._backend.payloads))
        if self.worker is not None:
            await self._take_over_jobs(self.worker)
        opened(self._backend)
        if self._gc is not None:
            self._gc.slow_down()
        await self._apply_schedules()
        return self

    async def _take_over_jobs(self, worker: Worker) -> None:
        """Jobs that an earlier process left on this machine go on, unless another attempt has taken their place."""
        left = await worker.connect_executors(self._backend.call)
        for void in await self.engine.present(self.engine.ns, left):
            worker.cancel(*void)

    async def _apply_schedules(self) -> None:
        try:
            for one in self._schedules:
                await one.apply_on(self._backend)
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
        """Finish running work, return the rest to the database, and close the connections."""
        closed(self._backend)
        if self._gc is not None:
            self._gc.restore()
        try:
            await self.engine.close()
            await self._tracing.close()
        finally:
            await self.store.close()
            if self._cluster is not None:  # the last one to leave stops it
                await asyncio.to_thread(self._cluster.leave)

    def serve(self, definition: Any) -> None:
        """Serve a workflow here that was defined after the client was opened."""
        self._backend.adopt(definition)

    async def deploy(
        self, flow: str | Path | Mapping[str, Any], *, name: str | None = None, activate: bool = True
    ) -> str:
        """Deploy a declarative flow, and with `activate` make it current; returns its version. FlowError lists its problems.

        `flow` is a file, the text of one, or the document itself. `name` is for a document that has none; a file's own unless given.
        """
        from perdure.app.flow_files import flow_text

        return (await self._backend.call(definitions.DEPLOY, DeployFlow(flow_text(flow, name), activate))).version


class EmbeddedBackend:
    """Acts of the engine in this process. Every call ends in its time."""

    def __init__(self, api: Api, worker: Worker | None, caller: Caller, timeout_s: float) -> None:
        self._api, self._engine, self._worker = api, api.engine, worker
        self._caller, self._timeout_s = caller, timeout_s
        self._adopted: set[int] = set()
        self._unregistered = False

    @property
    def payloads(self) -> PayloadCarrier:
        """The engine must be open: then it knows its namespace."""
        return self._engine.payloads.of(self._engine.ns).transfer

    @cached_property
    def api(self) -> NamespaceApi:
        """The engine must be open: then it knows its namespace."""
        return NamespaceApi(self._api, self._engine.ns, self._caller)

    def call(self, act: Act[Q, R], request: Q) -> Coroutine[Any, Any, R]:
        """Not a coroutine itself: every start passes through here."""
        if self._unregistered and act.audits:
            return self._registered_first(act, request)
        if act in BOUNDED_BY_THEMSELVES:
            return self.api.call(act, request)
        return self._bounded(self.api.call(act, request), effect=bool(act.audits), wait_s=act.wait_s(request))

    async def _registered_first(self, act: Act[Q, R], request: Q) -> R:
        await self._bounded(self._engine.refresh(), effect=False)
        self._unregistered = False
        return await self.call(act, request)

    async def _bounded(self, work: Coroutine[Any, Any, T], *, effect: bool, wait_s: float = 0.0) -> T:
        """A call ends in its time, also when what it does cannot be stopped at once. `wait_s`: how long it may wait by design."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait({task}, timeout=self._timeout_s + wait_s)
            if task.done():
                return task.result()
            raise unanswered(self._timeout_s, effect=effect)
        finally:
            if not task.done():
                task.add_done_callback(lambda t: t.cancelled() or t.exception())
                task.cancel()

    def adopt(self, definition: Any) -> None:
        """A workflow object that is started here is served here, with everything defined since."""
        worker = self._worker
        if worker is None or id(definition.fn) in self._adopted:
            return
        self._adopted.add(id(definition.fn))
        worker.adopt(definition)
        worker.refresh()
        self._engine.served.serve()
        self._unregistered = True


def _with_payloads(settings: EngineSettings, stores: str | None) -> EngineSettings:
    if settings.payload_stores:
        return settings
    options = payload_options(stores)
    inline = min(settings.payload_inline_bytes, options.inline_bytes)
    return msgspec.structs.replace(settings, payload_stores=options.stores, payload_inline_bytes=inline)


def _server_url() -> str:
    """Where links lead: PERDURE_URL says, or a `perdure dev` of this directory."""
    return os.environ.get("PERDURE_URL") or server_url(Path.cwd())
