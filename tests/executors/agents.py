"""Workers with one executor and no engine, alive and crashing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

from perdure.core.jobs import job_name, job_task
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment, AttemptToken, LogChunk, Report
from perdure.executors.port import Executor, Job, JobRunning
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.job_watcher import JobPhase
from perdure.sdk.worker.worker import Worker
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import busy_thread, until

WAIT_S = 240.0
"""For a job to end on a busy machine."""


def assignment(executor: str, spec: dict[str, Any], *, seq: int = 1, attempt: int = 1, **options: Any) -> Assignment:
    run_id = os.urandom(16)
    return Assignment(
        run_id,
        seq,
        attempt,
        1,
        job_task(executor),
        json.dumps(spec).encode(),
        TaskOptions(executor=executor, **options),
        job=job_name(os.urandom(16), seq, attempt),
    )


def same(a: Assignment, **changes: Any) -> Assignment:
    """Of the same attempt, as another worker gets it."""
    fields = {f: getattr(a, f) for f in a.__struct_fields__}
    return Assignment(**{**fields, **changes})


async def is_begun(executor: Executor, a: Assignment) -> bool:
    """Of a job that was started."""
    (state,) = await executor.observe([Job(name=a.job, assignment=a)])
    return not isinstance(state, JobRunning) or state.started_us > 0


class Agent:
    """A worker that a server has connected, as far as its executor can see."""

    def __init__(self, executor: Executor, *, slots: int = 100, payloads: Any = None) -> None:
        self.executor, self._payloads = executor, payloads
        self.worker = Worker(Capacity(slots=slots), output="capture", verbs=None, executors=[executor])
        self.reports: list[Report] = []
        self.chunks: list[LogChunk] = []
        self.deferred: list[AttemptToken] = []
        self.found: list[AttemptToken] = []
        """Attempts whose jobs an earlier worker left."""

    async def __aenter__(self) -> Agent:
        self.worker.open(
            upstream_to(
                clock_us=lambda: time.time_ns() // 1000,
                reported=self.reports.extend,
                logged=self.chunks.extend,
                deferred=self.deferred.extend,
                acknowledges=True,
                payloads=self._payloads,
            )
        )
        self.found = await self.worker.connect_executors()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker.close()

    def begin(self, a: Assignment) -> Assignment:
        self.worker.assign([a])
        return a

    def cancel(self, a: Assignment) -> None:
        self.worker.cancel(a.run_id, a.seq, a.attempt)

    async def end(self, a: Assignment, wait_s: float = WAIT_S) -> Report:
        return (await until(lambda: self._reports_of(a), within_s=wait_s))[0]

    def _reports_of(self, a: Assignment) -> list[Report]:
        return [r for r in self.reports if (r.run_id, r.seq, r.attempt) == (a.run_id, a.seq, a.attempt)]

    async def report(self, a: Assignment) -> Report:
        return await self.end(self.begin(a))

    async def running(self, a: Assignment) -> None:
        """Wait until the executor observes it as begun, or it has ended."""

        async def begun() -> bool:
            if self._reports_of(a):
                return True
            assert self.worker._tasks is not None
            entry = self.worker._tasks.jobs.named(a.job)
            if entry is None or entry.phase is JobPhase.STARTING:
                return False
            return await is_begun(self.executor, a)

        await until(begun, f"{a.job} begins", WAIT_S)

    def lines(self, stream: str = "stdout") -> list[str]:
        return [line.text for chunk in self.chunks for line in chunk.lines if line.stream == stream]

    def failure(self, report: Report) -> str:
        assert report.failure is not None, report
        return report.failure.message


def crash(make: Callable[[], Executor], a: Assignment, *, after_s: float | None, point: str = "") -> bool:
    """A worker in a process of its own that starts the job and is killed by SIGKILL: at a named point, or so many seconds after it began. Whether it
    was killed; otherwise it saw the job's end first."""
    pid = os.fork()
    if not pid:
        _die_as_agent(make, a, point)
    if after_s is not None:
        busy_thread(after_s)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def _die_as_agent(make: Callable[[], Executor], a: Assignment, point: str) -> None:
    """In the child. Never returns."""
    try:
        asyncio.set_event_loop(None)
        asyncio.run(_as_agent(make(), a, point))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(3)


async def _as_agent(executor: Executor, a: Assignment, point: str) -> None:
    async with Agent(executor):
        if point == "opened":
            os.kill(os.getpid(), signal.SIGKILL)
        job = Job(name=a.job, assignment=a)
        await executor.start(job)
        if point == "started":
            os.kill(os.getpid(), signal.SIGKILL)
        if point == "running":
            await until(lambda: is_begun(executor, a), f"{a.job} begins", WAIT_S)
            os.kill(os.getpid(), signal.SIGKILL)

        async def over() -> bool:
            (state,) = await executor.observe([job])
            return not isinstance(state, JobRunning)

        await until(over, f"{a.job} ends", WAIT_S)
        if point == "ended":
            os.kill(os.getpid(), signal.SIGKILL)
