"""A worker with the service executor alone, connected to the API of a real database."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any

from perdure import Perdure
from perdure.core.api import services as acts
from perdure.core.api.services import RegisterInstance
from perdure.executors.service import ServiceExecutor
from perdure.executors.service.executor import ServiceExecutorOptions
from tests.executors.agents import Agent, assignment
from tests.fakes.upstreams import upstream_to

PUBLIC = "http://perdure.example"


class ServiceAgent(Agent):
    """`options` are those of the executor."""

    def __init__(self, perdure: Perdure, **options: Any) -> None:
        given = {"services": "", "allow": "", "wait_s": 1.0, **options}
        super().__init__(ServiceExecutor(ServiceExecutorOptions(**given)))
        self.perdure = perdure

    async def __aenter__(self) -> ServiceAgent:
        self.worker.open(
            upstream_to(
                clock_us=lambda: time.time_ns() // 1000,
                reported=self.reports.extend,
                logged=self.chunks.extend,
                deferred=self.deferred.extend,
                acknowledges=True,
            )
        )
        await self.worker.connect_executors(self.perdure._backend.call)
        return self

    async def call(self, seq: int = 1, **spec: Any) -> Any:
        """The report of one call."""
        return await self.report(assignment("service", spec, seq=seq))

    async def register(self, url: str, *services: str, load: float = 0.0) -> None:
        await self.perdure._backend.call(acts.REGISTER, RegisterInstance(url, list(services), load))


@contextlib.asynccontextmanager
async def service_agent(dsn: str, **options: Any) -> AsyncGenerator[ServiceAgent]:
    async with Perdure(dsn, worker=False) as perdure:
        perdure.api._public_url = lambda: PUBLIC
        async with ServiceAgent(perdure, **options) as agent:
            yield agent
