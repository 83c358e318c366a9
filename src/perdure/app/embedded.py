"""`async with Perdure(dsn)`: an engine and a worker in your own process. Any number of such processes share one database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Token
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from time import monotonic  # bound here, before workflow guards wrap it
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, Unpack

import msgspec

from perdure.app.api_ports import api_ports
from perdure.app.discovery import server_url
from perdure.app.embedded_options import PerdureOptions
from perdure.app.gc_tuning import CollectorPace
from perdure.app.outbox import outbox, secret_box
from perdure.app.payload_keys import sealing_options, use_sealing
from perdure.app.senders.settings import notify_settings
from perdure.app.tracing import Tracing
from perdure.core.api import runs
from perdure.core.api.act import Act
from perdure.core.deadlines import call_timeout_s, unanswered
from perdure.core.jobs import CONTAINER, PROCESS
from perdure.core.payload_port import PayloadCarrier
from perdure.engine.api.api import EMBEDDED, Api, Caller, NamespaceApi
from perdure.engine.api.bulk_work import BulkWork
from perdure.engine.api.sql_requests import SqlRequests
from perdure.engine.engine import Engine
from perdure.engine.settings import EngineSettings
from perdure.executors import registry
from perdure.executors.port import Executor
from perdure.localpg import private_cluster
from perdure.sdk.client.backend import Backend, ambient
from perdure.sdk.client.base import ClientBase
from perdure.sdk.client.payloads import payload_options
from perdure.sdk.options import checked
from perdure.sdk.payloads.access import LoopAccess, blob_access
from perdure.sdk.worker.builtin_tasks import VerbOptions
from perdure.sdk.worker.capacity import PROCESSES_DEFAULT, SLOTS_DEFAULT, THREADS_DEFAULT, Capacity
from perdure.sdk.worker.transactions import transactions
from perdure.sdk.worker.worker import Worker
from perdure.store.engine_stores import engine_stores
from perdure.store.migrate import check, migrate
from perdure.store.postgres import PostgresStore
from perdure.store.task_transactions import PostgresTaskTransactions

if TYPE_CHECKING:
    from perdure.localpg.cluster import PrivateCluster

Q = TypeVar("Q")
R = TypeVar("R")
T = TypeVar("T")

BOUNDED_BY_THEMSELVES: Final = frozenset({runs.START, runs.RUN, runs.RESULT})
"""Acts that end in the caller's time by themselves, without a task for each call."""
CALL_S_MIN: Final = 0.001
"""For a call whose time is over when it begins."""


def _executors(one: str | Executor, database: str) -> list[Executor]:
    """Programs on one database take over each other's processes and containers; those on others do not."""
    if not isinstance(one, str):
        return [one]
    scope = blake2b(database.encode(), digest_size=6).hexdigest()
    return registry.load([one], {one: {"scope": scope}} if one in (PROCESS, CONTAINER) else {}, os.environ)


class Perdure(ClientBase):
    """The client, the engine and the worker of this process.

        async with Perdure("postgresql://localhost/app") as client:
            handle = await client.start(order, 42)

    Inside the `async with`, `workflow.start()`, `signal.send()` and the like find this client by themselves.

    Args:
        dsn: the database. Unless given PERDURE_DSN; without that a private PostgreSQL in ./.perdure is started.
        options: see PerdureOptions.
    """

    _worker_type: ClassVar[type[Worker]] = Worker

    def __init__(self, dsn: str | None = None, **options: Unpack[PerdureOptions]) -> None:
        given = checked("Perdure()", PerdureOptions, options)
        self._dsn = dsn
        self._timeout_s, self._is_audited = call_timeout_s(given.get("call_timeout")), given.get("audit", False)
        self._schedules = given.get("schedules", ())
        self._auto_migrate = given.get("auto_migrate", True)
        self._tracing = Tracing("perdure", given.get("tracing"))
        self._gc = CollectorPace() if given.get("tune_gc", True) else None
        self.settings = _with_payloads(given.get("settings") or EngineSettings(), given.get("payloads"))
        self.worker = self._new_worker(given) if given.get("worker", True) else None
        self.store: PostgresStore
        self._transactions: PostgresTaskTransactions
        self.engine: Engine
        self.api: Api
        self._token: Token[Backend] | None = None
        self._cluster: PrivateCluster | None = None
        self._backend: Backend

    def _new_worker(self, given: PerdureOptions) -> Worker:
        database = self._dsn or os.environ.get("PERDURE_DSN") or os.getcwd()
        verbs = VerbOptions(services=given.get("services"), http_allow=given.get("http_allow"))
        return self._worker_type(
            Capacity(
                slots=given.get("slots", SLOTS_DEFAULT),
                threads=given.get("threads", THREADS_DEFAULT),
                processes=given.get("processes", PROCESSES_DEFAULT),
                # The engine decides which runs are in memory; the worker's own bound is for those that serve several engines.
                runs_max=2 * self.settings.runs_max,
            ),
            queues=given.get("queues"),
            verbs=verbs if given.get("verbs", True) else None,
            tracer=self._tracing.task_tracer,
            executors=[e for one in given.get("executors", ()) for e in _executors(one, database)],
            build_id=given.get("build_id", ""),
        )

    async def __aenter__(self) -> Self:
        dsn = self._dsn or os.environ.get("PERDURE_DSN") or await self._private_dsn()
        await self._check_schema(dsn)
        await use_sealing(dsn, sealing_options(os.environ), os.environ)
        if self.worker is not None:
            self.worker.refresh()
        self.store = self._new_store(dsn)
        await self.store.open()
        self.engine = Engine(engine_stores(self.store), self.worker, self.settings)
        self.api = Api(
            self.engine, api_ports(self.store, secrets=secret_box(os.environ), is_audited=self._is_audited), _server_url
        )
        self._tracing.trace_runs(self.engine)
        caller = Caller(EMBEDDED, self.settings.namespace, "sdk", self._timeout_s)
        self._backend = Backend(EmbeddedBackend(self.api, self.worker, caller, self._timeout_s))
        self._token = ambient.set(self._backend)  # first: tasks run in the context in which the engine opens
        self._transactions = PostgresTaskTransactions(dsn)
        transactions.set(self._transactions)
        await self._open_engine()
        self.engine.add_service(BulkWork(self.api))
        self.engine.add_service(SqlRequests(self.api))
        self.engine.add_service(outbox(self.api, notify_settings(os.environ)))
        blob_access.set(LoopAccess(self._backend.payloads))
        if self.worker is not None:
            await self._take_over_jobs(self.worker)
        self._backend.open()
        if self._gc is not None:
            self._gc.slow_down()
        await self._apply_schedules()
        return self

    async def _open_engine(self) -> None:
        try:
            await self.engine.open()
        except BaseException:
            await self._transactions.close()
            await self._release()
            raise

    async def _check_schema(self, dsn: str) -> None:
        await (migrate(dsn) if self._auto_migrate else check(dsn))

    def _new_store(self, dsn: str) -> PostgresStore:
        return PostgresStore(dsn)

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
        self._cluster = private_cluster()
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
        self._backend.close()
        if self._gc is not None:
            self._gc.restore()
        try:
            await self.engine.close()
            await self._transactions.close()
            await self._tracing.close()
        finally:
            await self._release()

    async def _release(self) -> None:
        await self.store.close()
        if self._cluster is not None:  # the last one to leave stops it
            await asyncio.to_thread(self._cluster.leave)

    def serve(self, definition: Any) -> None:
        """Serve a workflow here that was defined after the client was opened."""
        self._backend.adopt(definition)


class EmbeddedBackend:
    """Acts of the engine in this process. Every call ends in its time."""

    def __init__(self, api: Api, worker: Worker | None, caller: Caller, timeout_s: float) -> None:
        self._api, self._engine, self._worker = api, api.engine, worker
        self._caller, self.timeout_s = caller, timeout_s
        self._adopted: set[int] = set()
        self._registered = 0
        """How many of these the database knows."""
        self._registering = asyncio.Lock()

    @property
    def payloads(self) -> PayloadCarrier:
        """The engine must be open: then it knows its namespace."""
        return self._engine.payloads.of(self._engine.ns).transfer

    @cached_property
    def api(self) -> NamespaceApi:
        """The engine must be open: then it knows its namespace."""
        return NamespaceApi(self._api, self._engine.ns, self._caller)

    def call(self, act: Act[Q, R], request: Q, within_s: float | None = None) -> Coroutine[Any, Any, R]:
        """Not a coroutine itself: every start passes through here."""
        if self._registered < len(self._adopted) and act.audits:
            return self._registered_first(act, request, within_s)
        api, limit_s = self.api, self.timeout_s
        if within_s is not None:
            api, limit_s = api.within(within_s), within_s
        if act in BOUNDED_BY_THEMSELVES:
            return api.call(act, request)
        return _bounded(api.call(act, request), limit_s, effect=bool(act.audits), wait_s=act.wait_s(request))

    async def _registered_first(self, act: Act[Q, R], request: Q, within_s: float | None) -> R:
        began_s, limit_s = monotonic(), self.timeout_s if within_s is None else within_s
        await _bounded(self._register(), limit_s, effect=False)
        return await self.call(act, request, max(began_s + limit_s - monotonic(), CALL_S_MIN))

    async def _register(self) -> None:
        """Once, however many calls wait for it."""
        async with self._registering:
            adopted = len(self._adopted)
            if self._registered < adopted:
                await self._engine.refresh()
                self._registered = adopted

    def adopt(self, definition: Any) -> None:
        """A workflow object that is started here is served here, with everything defined since."""
        worker = self._worker
        if worker is None or id(definition.fn) in self._adopted:
            return
        self._adopted.add(id(definition.fn))
        worker.adopt(definition)
        worker.refresh()
        self._engine.served.serve()


async def _bounded(work: Coroutine[Any, Any, T], limit_s: float, *, effect: bool, wait_s: float = 0.0) -> T:
    """A call ends in its time, also when what it does cannot be stopped at once. `wait_s`: how long it may wait by design."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=limit_s + wait_s)
        if task.done():
            return task.result()
        raise unanswered(limit_s, effect=effect)
    finally:
        if not task.done():
            task.add_done_callback(lambda t: t.cancelled() or t.exception())
            task.cancel()


def _with_payloads(settings: EngineSettings, stores: str | None) -> EngineSettings:
    if settings.payload_stores:
        return settings
    options = payload_options(stores)
    inline = min(settings.payload_inline_bytes, options.inline_bytes)
    return msgspec.structs.replace(settings, payload_stores=options.stores, payload_inline_bytes=inline)


def _server_url() -> str:
    """Where links lead: PERDURE_URL says, or a `perdure dev` of this directory."""
    return os.environ.get("PERDURE_URL") or server_url(Path.cwd())
