"""Probes of the gRPC port get the answer of /readyz; reflection lists the services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from perdure.server.grpc import health
from perdure.server.grpc.health import add_health
from perdure.wire.pb import worker_pb2

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Workers"].full_name


class Readiness:
    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.asked = 0

    async def __call__(self) -> list[str]:
        self.asked += 1
        return self.reasons


@asynccontextmanager
async def served(ready: Readiness) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    add_health(server, ready, (SERVICE,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


def request(service: str = "") -> Any:
    return health_pb2.HealthCheckRequest(service=service)


async def test_health_follows_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "READ_EVERY_S", 0.0)
    ready = Readiness()
    async with served(ready) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert (await stub.Check(request())).status == SERVING
        assert (await stub.Check(request(SERVICE))).status == SERVING
        ready.reasons = ["draining"]
        assert (await stub.Check(request())).status == NOT_SERVING


async def test_a_service_that_does_not_exist_is_not_found() -> None:
    async with served(Readiness()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health_pb2_grpc.HealthStub(channel).Check(request("nonsense"))
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND


async def test_a_watcher_hears_of_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "READ_EVERY_S", 0.01)
    ready = Readiness()
    async with served(ready) as channel, asyncio.timeout(120):
        watching = health_pb2_grpc.HealthStub(channel).Watch(request())
        assert (await watching.read()).status == SERVING
        ready.reasons = ["database: away"]
        assert (await watching.read()).status == NOT_SERVING
        ready.reasons = []
        assert (await watching.read()).status == SERVING
        watching.cancel()
        unknown = health_pb2_grpc.HealthStub(channel).Watch(request("nonsense"))
        assert (await unknown.read()).status == UNKNOWN
        unknown.cancel()


async def test_many_probes_share_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "READ_EVERY_S", 1_000.0)
    ready = Readiness()
    async with served(ready) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        await asyncio.gather(*(stub.Check(request()) for _ in range(20)))
        assert ready.asked == 1


async def test_reflection_lists_the_services_and_their_messages() -> None:
    async with served(Readiness()) as channel:
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter(asked))
        listed, described = [answer async for answer in call]
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    assert described.file_descriptor_response.file_descriptor_proto
