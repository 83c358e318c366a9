"""grpc.health.v1 and reflection on the gRPC port, for load balancers, Kubernetes probes and grpcurl.

Health is that of /readyz: a server that drains, or whose database is away, is NOT_SERVING. Neither service asks for a credential: probes
have none, and reflection shows the published protocol only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_reflection.v1alpha import reflection

READ_EVERY_S: Final = 1.0
"""Probes and watchers that ask within this time share one answer, so that many of them cost the database nothing."""

_register: Any = health_pb2_grpc.add_HealthServicer_to_server
_reflect: Any = reflection.enable_server_reflection
_messages: Any = health_pb2
Answer: Any = health_pb2.HealthCheckResponse
"""Generated code that ships no types of its own."""

Reasons = Callable[[], Awaitable[list[str]]]
"""Why the server is not ready; empty when it is."""


class HealthService(health_pb2_grpc.HealthServicer):
    """The empty name stands for the server; each service has the same health."""

    def __init__(self, reasons: Reasons, services: Sequence[str]) -> None:
        self._reasons, self._services = reasons, ("", *services)
        self._status: int = Answer.UNKNOWN
        self._read_s = float("-inf")
        self._reading = asyncio.Lock()

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service {request.service!r}")
        return Answer(status=await self._read())

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Newer versions of the protocol ask for all services at once."""
        answer = Answer(status=await self._read())
        return _messages.HealthListResponse(statuses=dict.fromkeys(self._services, answer))

    async def Watch(  # noqa: N802
        self, request: Any, context: Any
    ) -> AsyncIterator[Any]:
        """The status now and whenever it changes, until the client goes. An unknown service stays unknown, as the protocol demands."""
        last: int | None = None
        while True:
            known = request.service in self._services
            status = await self._read() if known else Answer.SERVICE_UNKNOWN
            if status != last:
                last = status
                yield Answer(status=status)
            await asyncio.sleep(READ_EVERY_S)

    async def _read(self) -> int:
        async with self._reading:
            now = asyncio.get_running_loop().time()
            if now - self._read_s >= READ_EVERY_S:
                ready = not await self._reasons()
                self._status, self._read_s = Answer.SERVING if ready else Answer.NOT_SERVING, now
            return self._status


def add_health(server: grpc.aio.Server, reasons: Reasons, services: Sequence[str]) -> None:
    """Health and reflection for these services, on a server that has not been started."""
    _register(HealthService(reasons, services), server)
    _reflect((*services, HEALTH, reflection.SERVICE_NAME), server)
