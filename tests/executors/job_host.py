"""What an executor sees of a worker, without one: a host that keeps what it is given, and jobs made by hand."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core.jobs import job_name, job_task
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment
from perdure.executors.port import Executor, Job, JobRunning, JobSecrets, JobState

WAIT_S = 120.0


class KeptOutput:
    """A Host."""

    payloads = None

    def __init__(self) -> None:
        self.written: dict[tuple[str, str], str] = defaultdict(str)
        self.warnings: list[str] = []
        self._news = asyncio.Event()

    def now_us(self) -> int:
        return time.time_ns() // 1000

    async def secrets(self, job: Job) -> JobSecrets | None:
        return None

    def changed(self, name: str) -> None:
        self._tell()

    def write(self, name: str, stream: str, text: str) -> None:
        self.written[name, stream] += text
        self._tell()

    def warn(self, name: str, text: str) -> None:
        self.warnings.append(text)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        """Looks again at every report of the executor."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                await self._news.wait()


def make_job(executor: str, number: int, spec: dict[str, Any], *, attempt: int = 1, task: str = "") -> Job:
    run_id = number.to_bytes(16, "big")
    name = job_name(run_id, 1, attempt)
    return Job(
        name=name,
        assignment=Assignment(
            run_id=run_id,
            seq=1,
            attempt=attempt,
            epoch=1,
            name=task or job_task(executor),
            input=msgspec.json.encode(spec),
            options=TaskOptions(executor=executor),
            job=name,
        ),
    )


async def ended(executor: Executor, host: KeptOutput, job: Job) -> JobState:
    """The state of a job once it has ended."""
    states: list[JobState] = []
    async with asyncio.timeout(WAIT_S):
        while True:
            states = await executor.observe([job])
            if not isinstance(states[0], JobRunning):
                return states[0]
            try:
                async with asyncio.timeout(max(0.05, min(1.0, executor.poll_s))):
                    await host._news.wait()
            except TimeoutError:
                pass
