"""The service executor against a real service in another process, with the records of a real database.

Where a service differs from a job that has a process of its own, the difference stands here: it has no output, a result that is too
large or no JSON fails the attempt, and its loss is a failed call, for which another instance is called. The service keeps its answers by
Idempotency-Key, which is how work is not done twice after a crash of the worker.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.core.errors import Unavailable
from perdure.core.retry import End, Requeue, settle
from perdure.executors.port import Executor, ExecutorHost, Job
from perdure.executors.service import ServiceExecutor
from perdure.executors.service.executor import ServiceExecutorOptions
from tests.executors.agents import Agent, assignment
from tests.executors.conformance import Conformance, Counterpart
from tests.fakes.waiting import until

PROGRAM = Path(__file__).parent / "service_workers" / "keeping_worker.py"


class ConnectedHost:
    """A worker as its executor sees it, with a server that can be away."""

    def __init__(self, inner: ExecutorHost, perdure: Perdure, services: Services) -> None:
        self._inner, self._perdure, self._services = inner, perdure, services

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def call(self, act: Any, request: Any) -> Any:
        if self._services.is_away:
            raise Unavailable("the server is away")
        return await self._perdure._backend.call(act, request)


class ConnectedExecutor(ServiceExecutor):
    """Brings its own connection to the database, because it is made before and after a fork."""

    def __init__(self, services: Services) -> None:
        super().__init__(ServiceExecutorOptions(services={"work": services.url}, allow=""))
        self._counterpart = services
        self._perdure = Perdure(services.dsn, worker=False)

    async def open(self, host: ExecutorHost) -> None:
        await self._perdure.__aenter__()
        await super().open(ConnectedHost(host, self._perdure, self._counterpart))  # type: ignore[arg-type]

    async def close(self) -> None:
        await super().close()
        await self._perdure.close()


class Services(Counterpart):
    name = "service"

    def __init__(self, dsn: str) -> None:
        self.dsn, self.is_away = dsn, False
        self._made: list[ConnectedExecutor] = []
        self.process = subprocess.Popen([sys.executable, str(PROGRAM)], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"

    def executor(self) -> Executor:
        self._made.append(ConnectedExecutor(self))
        return self._made[-1]

    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        return {"service": "work", "params": {"kind": kind, **{k: _plain(v) for k, v in values.items()}}}

    async def lose(self, job: Job) -> None:
        self.process.kill()
        self.process.wait()

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        return self._away()

    @asynccontextmanager
    async def _away(self) -> AsyncIterator[None]:
        self.is_away = True
        try:
            yield
        finally:
            self.is_away = False

    async def remains(self, job: Job) -> bool:
        return any(job.name in executor._jobs for executor in self._made)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@pytest.fixture
def counterpart(processes: None, dsn: str) -> Iterator[Services]:
    made = Services(dsn)
    yield made
    made.process.kill()
    made.process.wait()
    assert made.process.stdout is not None
    made.process.stdout.close()


class TestService(Conformance):
    async def test_output_becomes_log_lines_in_order(self, counterpart: Counterpart) -> None:
        """A service has no output: its log holds what Perdure writes about the calls."""
        async with Agent(counterpart.executor()) as agent:
            await agent.report(assignment("service", counterpart.work("value", value=1)))
            assert agent.lines() == agent.lines("stderr") == []

    async def test_output_is_seen_while_the_job_runs(self, counterpart: Counterpart) -> None:
        """A call that fails and is repeated is seen in the log while the job goes on."""
        async with Agent(counterpart.executor()) as agent:
            spec = {**counterpart.work("value", value=1), "max_attempts": 100, "attempt_delay_ms": 1_000}
            a = assignment("service", spec)
            await counterpart.lose(Job(name=a.job, assignment=a))
            agent.begin(a)

            async def seen() -> bool:
                return any(line.startswith("call 1 of 100: ") for line in agent.lines("log"))

            await until(seen)
            assert not agent.reports
            agent.cancel(a)
            assert (await agent.end(a)).end is End.CANCELLED

    async def test_binary_garbage_breaks_nothing(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment("service", counterpart.work("garbage")))
            assert report.end is End.ERROR and report.failure is not None and report.failure.type == "ServiceFailed"

    async def test_huge_output_is_bounded(self, counterpart: Counterpart) -> None:
        async with Agent(counterpart.executor()) as agent:
            report = await agent.report(assignment("service", counterpart.work("huge", n=20_000_000)))
            assert report.end is End.FINAL_ERROR and "PAYLOAD_BYTES_MAX" in agent.failure(report)

    async def test_a_job_that_ignores_the_request_is_killed(self, counterpart: Counterpart) -> None:
        """The connection is closed; what the service does with that is its own affair."""
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment("service", counterpart.work("stubborn")))
            await agent.running(a)
            agent.cancel(a)
            assert (await agent.end(a)).end is End.CANCELLED

    async def test_a_lost_job_is_told_from_a_failed_one(self, counterpart: Counterpart) -> None:
        """A service that dies gives no answer, which is another type of failure than an error of its own."""
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment("service", counterpart.work("sleep", s=300)))
            await agent.running(a)
            await counterpart.lose(Job(name=a.job, assignment=a))
            report = await agent.end(a)
            assert report.end is End.ERROR and report.failure is not None and report.failure.type == "HttpFailed"

    async def test_a_lost_job_stays_lost(self, counterpart: Counterpart) -> None:
        executor = counterpart.executor()
        async with Agent(executor) as agent:
            a = agent.begin(assignment("service", counterpart.work("sleep", s=300)))
            await agent.running(a)
            job = Job(name=a.job, assignment=a)
            await counterpart.lose(job)
            await agent.end(a)
            before = (await executor.observe([job]))[0]
            await executor.start(job)
            assert (await executor.observe([job]))[0] is before

    async def test_another_attempt_follows_a_loss_and_uses_up_none_of_the_policy(
        self, counterpart: Counterpart
    ) -> None:
        """It uses up one: the calls within the attempt were the tries that cost nothing."""
        async with Agent(counterpart.executor()) as agent:
            a = agent.begin(assignment("service", counterpart.work("sleep", s=300), max_attempts=2))
            await agent.running(a)
            await counterpart.lose(Job(name=a.job, assignment=a))
            lost = await agent.end(a)
            verdict = settle(a.options, bytes(16), a.attempt, 0, lost.end, lost.failure)
            assert isinstance(verdict, Requeue) and verdict.attempt == 2
