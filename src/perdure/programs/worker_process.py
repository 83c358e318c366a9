"""A worker process: what `perdure worker` and the child of `perdure dev` have in common."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from perdure.app.gc_tuning import CollectorPace
from perdure.app.tracing import Tracing
from perdure.core.errors import PerdureError, Unavailable
from perdure.core.jobs import CONTAINER, PROCESS
from perdure.executors import registry
from perdure.executors.port import Executor
from perdure.programs.logs import exported
from perdure.programs.signals import signals
from perdure.programs.worker_settings import WorkerSettings
from perdure.sdk.client.channel import Tls, access
from perdure.sdk.client.payloads import PayloadOptions
from perdure.sdk.registry import schedules_by_name
from perdure.sdk.schedules import Schedule
from perdure.sdk.worker.builtin_tasks import VerbOptions
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.stream import RemoteWorker
from perdure.sdk.worker.transactions import transactions
from perdure.sdk.worker.worker import Worker
from perdure.store.task_transactions import PostgresTaskTransactions

SERVICE = "perdure-worker"
APPLY_RETRY_S: Final = 2.0
"""Before a schedule is applied again, after the server did not answer."""


@asynccontextmanager
async def worker_of(settings: WorkerSettings) -> AsyncGenerator[RemoteWorker]:
    """A worker with its traces, ready to run."""
    tls = None
    if settings.tls or settings.tls_ca is not None:
        tls = Tls(_read(settings.tls_ca), _read(settings.tls_cert), _read(settings.tls_key))
    where = access(settings.server, api_key=settings.api_key, namespace=settings.namespace, tls=tls)
    verbs = VerbOptions(services=settings.services, http_allow=settings.http_allow)
    tracing = Tracing(SERVICE)
    inner = Worker(
        Capacity(slots=settings.slots, threads=settings.threads, processes=settings.processes),
        queues=list(settings.queues) or None,
        verbs=verbs if settings.verbs else None,
        tracer=tracing.task_tracer,
        executors=executors_of(settings),
        secrets=settings.secrets,
        build_id=settings.build_id,
        is_dev=settings.is_dev,
    )
    effects = PostgresTaskTransactions(settings.dsn) if settings.dsn else None
    if effects is not None:
        transactions.set(effects)
    try:
        options = PayloadOptions(settings.payloads, settings.payload_inline_bytes)
        yield RemoteWorker(inner, where, drain_s=settings.drain_s, payloads=options)
    finally:
        if effects is not None:
            await effects.close()
        await tracing.close()


def executors_of(settings: WorkerSettings) -> list[Executor]:
    """Workers of one server and namespace take over each other's processes and containers; those of others do not."""
    given = {name: dict(options) for name, options in settings.executor_options.items()}
    scope = blake2b(f"{settings.server} {settings.namespace}".encode(), digest_size=6).hexdigest()
    for name in (PROCESS, CONTAINER):
        if name in settings.executors:
            given.setdefault(name, {}).setdefault("scope", scope)
    return registry.load(settings.executors, given, os.environ)


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
            connected = asyncio.create_task(_connected(worker, settings, say))
            try:
                await worker.run()
            finally:
                connected.cancel()
                await asyncio.gather(connected, return_exceptions=True)
            if not connected.cancelled() and (error := connected.exception()) is not None:
                raise error


async def _connected(worker: RemoteWorker, settings: WorkerSettings, say: Callable[[str], None]) -> None:
    await worker.connected()
    say(f"connected to {settings.server}")
    if not settings.apply_schedules:
        return
    try:
        for schedule in schedules_by_name():
            await _applied(schedule, worker)
            say(f"applied schedule {schedule.name}")
    except PerdureError:  # raised when the worker has ended: a deploy that did not do all of its work fails
        worker.drain()
        raise


async def _applied(schedule: Schedule[Any], worker: RemoteWorker) -> None:
    """A server that is away for a while is asked again."""
    while True:
        try:
            await schedule.apply_on(worker.client)
            return
        except Unavailable:
            await asyncio.sleep(APPLY_RETRY_S)
