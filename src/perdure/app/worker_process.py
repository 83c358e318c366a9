"""A worker process: what `perdure worker` and the child of `perdure dev` have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.app.gc_tuning import CollectorPace
from perdure.app.logs import exported
from perdure.app.signals import signals
from perdure.app.tracing import Tracing
from perdure.app.worker_settings import WorkerSettings
from perdure.sdk.client.channel import Tls, access
from perdure.sdk.worker.builtin_tasks import VerbOptions
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.stream import RemoteWorker
from perdure.sdk.worker.worker import Worker

SERVICE = "perdure-worker"


@asynccontextmanager
async def worker_of(settings: WorkerSettings) -> AsyncGenerator[RemoteWorker]:
    """A worker with its traces, ready to run."""
    tls = None
    if settings.tls or settings.tls_ca is not None:
        tls = Tls(_read(settings.tls_ca), _read(settings.tls_cert), _read(settings.tls_key))
    where = access(settings.server, api_key=settings.api_key, namespace=settings.namespace, tls=tls)
    verbs = VerbOptions(
        services=settings.services,
        http_allow=settings.http_allow,
        allow_run=settings.allow_run,
        run_env=settings.run_env,
    )
    tracing = Tracing(SERVICE)
    inner = Worker(
        Capacity(slots=settings.slots, threads=settings.threads, processes=settings.processes),
        queues=list(settings.queues) or None,
        verbs=verbs if settings.verbs else None,
        tracer=tracing.task_tracer,
    )
    try:
        yield RemoteWorker(inner, where, drain_s=settings.drain_s)
    finally:
        await tracing.close()


def _read(path: Path | None) -> bytes | None:
    return path.read_bytes() if path is not None else None


async def work(settings: WorkerSettings, say: Callable[[str], None]) -> None:
    """Serve until a signal stops it; running tasks end first."""
    CollectorPace().settle()
    async with worker_of(settings) as worker:

        def drain() -> None:
            say("stopping: waiting for running tasks; a second signal stops at once")
            worker.drain()

        async with signals(drain), exported(SERVICE):
            connected = asyncio.create_task(_tell(worker, settings.server, say))
            try:
                await worker.run()
            finally:
                connected.cancel()
                await asyncio.gather(connected, return_exceptions=True)


async def _tell(worker: RemoteWorker, server: str, say: Callable[[str], None]) -> None:
    await worker.connected()
    say(f"connected to {server}")
