"""`async with Perdure(dsn)`: an engine and a worker in your own process. Any number of such processes share one database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Token
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from perdure.app.collector import CollectorPace
from perdure.app.tracing import Tracing
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.mail import Mail
from perdure.core.work import Outcome, RunView, StartRequest
from perdure.engine.engine import Engine, EngineSettings
from perdure.engine.notes import Notes
from perdure.sdk.client import Backend, Handle, ambient
from perdure.sdk.definitions import Startable
from perdure.sdk.execution import PROCESSES_DEFAULT
from perdure.sdk.worker import SLOTS_DEFAULT, THREADS_DEFAULT, Worker
from perdure.store.cluster import PrivateCluster, default_directory
from perdure.store.migrate import check, migrate
from perdure.store.notes import PostgresNotes
from perdure.store.postgres import PostgresStore
from perdure.store.registry import PostgresRegistry

P = ParamSpec("P")
R = TypeVar("R")


class Perdure:
    """The client, the engine and the worker of this process.

    Without a DSN it takes DATABASE_URL, then starts a private PostgreSQL in ./.perdure. Inside the `async with`,
    `workflow.start()`, `signal.send()` and the like find this client by themselves. While it is open, Python's garbage
    collector looks less often (`tune_gc=False` leaves it alone). Spans are exported when OTEL_EXPORTER_OTLP_ENDPOINT is set, or as
    `tracing` says. The worker serves the built-in tasks as well (`verbs=False`: it does not): `perdure.http`, with `services` by name,
    and with `allow_run=True` `perdure.run`, which runs any command; unless given, PERDURE_SERVICES and PERDURE_ALLOW_RUN say.
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
        settings: EngineSettings | None = None,
        auto_migrate: bool = True,
        tune_gc: bool = True,
        tracing: bool | None = None,
    ) -> None:
        self._dsn = dsn
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
            )
            if worker
            else None
        )
        self.store: PostgresStore
        self.engine: Engine
        self._token: Token[Backend] | None = None
        self._cluster: PrivateCluster | None = None
        self._adopted: set[int] = set()
        self._unregistered = False

    async def __aenter__(self) -> Self:
        dsn = self._dsn or os.environ.get("PERDURE_DSN") or os.environ.get("DATABASE_URL") or await self._private_dsn()
        await (migrate(dsn) if self._auto_migrate else check(dsn))
        self._token = ambient.set(self)
        if self.worker is not None:
            self.worker.refresh()
        self.store = PostgresStore(dsn)
        await self.store.open()
        self.engine = Engine(self.store, self.worker, self.settings, Notes(PostgresNotes(self.store.pool)))
        self._tracing = Tracing(engine=self.engine, worker=self.worker, service="perdure", asked=self._traced)
        await self.engine.open()
        if self._gc is not None:
            self._gc.slow_down()
        return self

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
        """A handle to the run that was started under an id of your own (`options(id=...)`)."""
        found = await self.engine.use.run_of(id)
        return self.handle(ids.text(found), workflow)

    async def deploy(
        self, flow: str | Path | Mapping[str, Any], *, name: str | None = None, activate: bool = True
    ) -> str:
        """Make a declarative flow known, and with `activate` current; answers its version. FlowError says what is wrong with it.

        `flow` is a file, the text of one, or the document itself. `name` is for a document that has none; a file's own unless given.
        """
        from perdure.app.flow_files import draft

        made = draft(flow, name)
        use = self.engine.use
        await PostgresRegistry(self.store.pool).deploy(
            use.ns, made.flow.name, made.version, made.flow.kind, made.flow.description or None, made.document,
            made.source, activate=activate,
        )  # fmt: skip
        use.moved(made.flow.name)
        return made.version

    # -- the Backend port -------------------------------------------------------------------------------------------

    async def start(self, request: StartRequest) -> bytes:
        await self._register_new()
        return await self.engine.use.start(request)

    async def run(self, request: StartRequest) -> tuple[bytes, Outcome]:
        await self._register_new()
        return await self.engine.use.run(request)

    async def _register_new(self) -> None:
        if self._unregistered:
            self._unregistered = False
            await self.engine.refresh()

    async def outcome(self, run_id: bytes) -> Outcome:
        return await self.engine.use.outcome(run_id, known=run_id in self.engine.loop.runs)

    async def post(self, run_id: bytes, mail: Mail) -> None:
        await self.engine.use.post(run_id, mail)

    async def resolve(self, run_id: bytes, name: str, value: bytes) -> None:
        await self.engine.use.resolve(run_id, name, value)

    async def read_state(self, run_id: bytes, name: str) -> bytes | None:
        return await self.engine.use.read_state(run_id, name)

    async def history(self, run_id: bytes, after: int) -> list[ev.Recorded]:
        return await self.engine.use.history(run_id, after)

    async def describe(self, run_id: bytes) -> RunView:
        return await self.engine.use.describe(run_id)

    async def resume(self, run_id: bytes) -> bool:
        return await self.engine.use.resume(run_id)

    async def retry(self, run_id: bytes) -> None:
        await self.engine.use.retry(run_id)

    def adopt(self, definition: Any) -> None:
        """A workflow object that is started here is served here, with everything defined since."""
        if self.worker is None or id(definition.fn) in self._adopted:
            return
        self._adopted.add(id(definition.fn))
        self.worker.adopt(definition)
        self.worker.refresh()
        self.engine.serve()
        self._unregistered = True
