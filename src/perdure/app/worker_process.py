"""A worker process: what `perdure worker` and the child of `perdure dev` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure.app.gc_tuning import CollectorPace
from perdure.app.signals import signals
from perdure.app.tracing import Tracing
from perdure.sdk.client.channel import Tls, access
from perdure.sdk.worker.execution import PROCESSES_DEFAULT
from perdure.sdk.worker.stream import DRAIN_S_DEFAULT, RemoteWorker
from perdure.sdk.worker.worker import SLOTS_DEFAULT, THREADS_DEFAULT, Worker

SERVICE = "perdure-worker"


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    server: str
    queues: list[str] | None = None
    """None: all that the tasks name."""
    slots: int = SLOTS_DEFAULT
    threads: int = THREADS_DEFAULT
    processes: int = PROCESSES_DEFAULT
    api_key: str | None = None
    namespace: str | None = None
    tls: bool = False
    tls_ca: Path | None = None
    """None: the system's authorities."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    drain_s: float = DRAIN_S_DEFAULT
    verbs: bool = True
    services: Mapping[str, str] | None = None
    """None: PERDURE_SERVICES."""
    allow_run: bool | None = None
    """None: PERDURE_ALLOW_RUN."""
    http_allow: Sequence[str] | None = None
    """None: PERDURE_HTTP_ALLOW."""
    run_env: Sequence[str] | None = None
    """None: PERDURE_RUN_ENV."""


@asynccontextmanager
async def worker_of(options: WorkerOptions) -> AsyncGenerator[RemoteWorker]:
    """A worker with its traces, ready to run."""
    tls = None
    if options.tls:
        tls = Tls(_read(options.tls_ca), _read(options.tls_cert), _read(options.tls_key))
    where = access(options.server, api_key=options.api_key, namespace=options.namespace, tls=tls)
    inner = Worker(
        queues=options.queues,
        slots=options.slots,
        threads=options.threads,
        processes=options.processes,
        verbs=options.verbs,
        services=options.services,
        allow_run=options.allow_run,
        http_allow=options.http_allow,
        run_env=options.run_env,
    )
    tracing = Tracing(engine=None, worker=inner, service=SERVICE)
    try:
        yield RemoteWorker(inner, where, drain_s=options.drain_s)
    finally:
        await tracing.close()


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None


async def work(options: WorkerOptions, say: Callable[[str], None]) -> None:
    """Serve until told to stop; running tasks end first."""
    CollectorPace().settle()
    async with worker_of(options) as worker:

        def drain() -> None:
            say("stopping: waiting for running tasks; a second signal stops at once")
            worker.drain()

        async with signals(drain):
            connected = asyncio.create_task(_tell(worker, options.server, say))
            try:
                await worker.run()
            finally:
                connected.cancel()
                await asyncio.gather(connected, return_exceptions=True)


async def _tell(worker: RemoteWorker, server: str, say: Callable[[str], None]) -> None:
    await worker.connected()
    say(f"connected to {server}")
