"""A server's engine and gRPC side in this process, for tests of workers and clients. No REST."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from perdure import EngineSettings
from perdure.app.api_ports import api_ports
from perdure.core.access import Permission, Principal, Role
from perdure.engine.api.api import Api
from perdure.executors import registry
from perdure.sdk.client.channel import Access
from perdure.sdk.client.payloads import payload_options
from perdure.sdk.worker.builtin_tasks import VerbOptions
from perdure.sdk.worker.capacity import RUNS_MAX_DEFAULT, Capacity
from perdure.sdk.worker.stream import RemoteWorker
from perdure.sdk.worker.worker import Worker
from perdure.server.grpc.connected_workers import ConnectedWorkers
from perdure.server.grpc.hub import WorkerHub
from perdure.server.grpc.server import GrpcServer
from perdure.store.postgres import PostgresStore
from tests.fakes.api import engine_on


class Everybody:
    async def check(self, headers: Mapping[str, str], permission: Permission | None) -> Principal:
        return Principal(subject="test", role=Role.ADMIN)

    async def recheck(self, principal: Principal) -> bool:
        return True

    def admit(self, principal: Principal) -> None: ...


class Served:
    def __init__(self, api: Api, workers: ConnectedWorkers, hub: WorkerHub, grpc: GrpcServer) -> None:
        self.api, self.engine, self.workers, self.hub, self.grpc = api, api.engine, workers, hub, grpc

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc.port}"


@asynccontextmanager
async def server(
    dsn: str, *, settings: EngineSettings | None = None, grace_s: float = 5.0, port: int = 0, auth: object = None
) -> AsyncIterator[Served]:
    store = PostgresStore(dsn)
    await store.open()
    workers = ConnectedWorkers()
    engine = engine_on(store, workers, settings)
    hub = WorkerHub(engine, workers, grace_s=grace_s)
    await engine.open()
    hub.start()
    api = Api(engine, api_ports(store), lambda: "https://example.org")
    grpc = GrpcServer(api, hub, auth or Everybody(), f"127.0.0.1:{port}")  # type: ignore[arg-type]
    await grpc.start()
    served = Served(api, workers, hub, grpc)
    try:
        yield served
    finally:
        workers.go_away()
        await engine.close()
        hub.close()
        await served.grpc.stop(0.5)
        await store.close()


@asynccontextmanager
async def worker(
    *addresses: str,
    slots: int = 20,
    runs_max: int = RUNS_MAX_DEFAULT,
    queues: list[str] | None = None,
    namespace: str | None = None,
    executors: Sequence[str] = (),
    payloads: str | None = None,
    **verbs: Any,
) -> AsyncIterator[RemoteWorker]:
    where = Access(addresses=addresses, namespace=namespace)
    remote = RemoteWorker(
        Worker(
            Capacity(slots=slots, runs_max=runs_max),
            queues=queues,
            verbs=VerbOptions(**verbs),
            executors=registry.load(executors, {}, os.environ),
        ),
        where,
        drain_s=5,
        payloads=payload_options(payloads),
    )
    task = asyncio.create_task(remote.run())
    try:
        async with asyncio.timeout(120):
            await remote.connected()
        yield remote
    finally:
        remote.drain()
        async with asyncio.timeout(120):
            await asyncio.gather(task, return_exceptions=True)
