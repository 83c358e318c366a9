"""One executor of a worker: starts its jobs, observes them in batches and stops them.

Phases of a job, as the worker that watches it sees them:

    STARTING --started--> RUNNING --observed as ended--> (reported)
        \\                    \\--cancelled, out of time--> STOPPING --observed as ended, or STOP_S_MAX--> (reported)
         \\--refused, or the executor cannot be reached--> (reported)
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Coroutine, Iterable
from enum import Enum
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from perdure.core.api.act import Act
from perdure.core.errors import (
    Failure,
    PayloadCorrupt,
    PayloadMissing,
    PerdureError,
    SecretExposed,
    SecretMissing,
    SecretUnavailable,
    Unavailable,
    clip,
)
from perdure.core.payload_port import PayloadCarrier
from perdure.core.retry import End
from perdure.core.retry import is_final as policy_is_final
from perdure.core.work import AttemptToken
from perdure.executors.port import (
    OBSERVED_MAX,
    Executor,
    Job,
    JobFailed,
    JobLost,
    JobRefused,
    JobRunning,
    JobSecrets,
    JobState,
    JobSucceeded,
    TaskCode,
)
from perdure.sdk.worker.attempt_secrets import check_result
from perdure.sdk.worker.attempts import Attempt

log = logging.getLogger("perdure.worker")

Q = TypeVar("Q")
R = TypeVar("R")

STARTS_MAX: Final = 64
"""Calls of `start` and `cancel` under way at a time, for each executor."""
CALL_S_MAX: Final = 60.0
"""The longest that one call of an executor may take; after it the call is repeated."""
START_PAUSES_S: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Between tries to start a job. After the last the attempt goes back to its queue and is tried again from there."""
UNREACHABLE_S: Final = 10.0
"""Pause before an attempt is given out again whose executor could not be reached."""
STORE_PAUSE_S: Final = 2.0
"""Between tries to store a large result."""
STOP_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
STOP_S_MAX: Final = 60.0
"""How long a cancelled job is observed before it is reported all the same."""
FORGET_EVERY_S: Final = 0.05
"""Ended jobs are forgotten in turns this far apart."""
FORGET_MAX: Final = 100_000
"""Ended jobs that wait to be forgotten; older ones are forgotten at once."""


class JobPhase(Enum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"


class JobAttempt:
    """An attempt that an executor runs."""

    __slots__ = ("attempt", "failure", "is_deferred", "job", "phase", "started_us", "stop_by", "token", "watcher")

    def __init__(self, job: Job, watcher: Watcher, attempt: Attempt) -> None:
        a = job.assignment
        self.job, self.watcher, self.attempt = job, watcher, attempt
        self.token: AttemptToken = (a.run_id, a.seq, a.attempt)
        self.phase = JobPhase.STARTING
        self.is_deferred = False
        """It holds no slot."""
        self.started_us = 0
        self.failure: Failure | None = None
        """Why it is being stopped; None: its result is not needed any more."""
        self.stop_by = 0.0
        """When it is reported even if it has not stopped, by the loop's clock."""

    def recovered(self) -> None:
        """A worker before this one started it."""
        self.watcher.watch(self)


class JobOwner(Protocol):
    """What the watchers of a worker share."""

    def now_us(self) -> int: ...
    def named(self, name: str) -> JobAttempt | None: ...
    def code(self, task: str) -> TaskCode: ...
    def defer(self, entry: JobAttempt) -> None: ...
    def ended(self, entry: JobAttempt, end: End, value: bytes, failure: Failure | None) -> None: ...
    def write(self, entry: JobAttempt, stream: str, text: str) -> None: ...
    def warn(self, entry: JobAttempt, text: str) -> None: ...
    def beat(self, entries: Iterable[JobAttempt], details: bytes = b"") -> None: ...
    def is_heavy(self, value: bytes) -> bool:
        """Whether a result has to be stored before it is reported."""
        ...

    async def offload(self, entry: JobAttempt, value: bytes) -> bytes: ...
    async def load_input(self, entry: JobAttempt) -> None:
        """Input that is kept in the payload store is fetched, once."""

    async def secrets(self, job: Job) -> JobSecrets | None: ...

    @property
    def payloads(self) -> PayloadCarrier | None: ...

    async def call(self, act: Act[Q, R], request: Q) -> R: ...


class Watcher:
    """Watches the jobs of one executor. It is the executor's Host."""

    def __init__(self, executor: Executor, owner: JobOwner) -> None:
        self.executor, self._owner = executor, owner
        self._watched: dict[str, JobAttempt] = {}
        """Jobs that are started and have not ended."""
        self._changed: set[str] = set()
        self._news = asyncio.Event()
        self._calls = asyncio.Semaphore(STARTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: list[tuple[float, int, Job]] = []
        """A heap of jobs to forget: (when, number, job)."""
        self._has_ended = asyncio.Event()
        self._numbers = count()
        self._is_unreachable = False
        self._is_open = asyncio.Event()

    async def open(self) -> None:
        await self.executor.open(self)
        self._is_open.set()
        self._spawn(self._observe_all())
        self._spawn(self._forget_all())

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._is_open.is_set():
            await self._forget_due()
        await self.executor.close()

    def start(self, entry: JobAttempt) -> None:
        self._spawn(self._start(entry))

    def watch(self, entry: JobAttempt) -> None:
        """It is started: from now on it is observed."""
        self._watched[entry.job.name] = entry
        if entry.phase is JobPhase.STOPPING:
            self._spawn(self._stop(entry))
            return
        entry.phase = JobPhase.RUNNING
        if not self.executor.holds_slot:
            self._owner.defer(entry)
        self.changed(entry.job.name)

    def stop(self, entry: JobAttempt, failure: Failure | None = None) -> None:
        """Ask it to stop. One that is being started is stopped after that."""
        if entry.phase is JobPhase.STOPPING:
            return
        before, entry.phase, entry.failure = entry.phase, JobPhase.STOPPING, failure
        entry.stop_by = asyncio.get_running_loop().time() + STOP_S_MAX
        if before is JobPhase.RUNNING:
            self._spawn(self._stop(entry))

    def remove(self, entry: JobAttempt) -> None:
        self._watched.pop(entry.job.name, None)
        self._changed.discard(entry.job.name)

    def let_go(self, entry: JobAttempt) -> None:
        """Another worker watches it from now on."""
        entry.phase = JobPhase.STOPPING

    def forget(self, job: Job) -> None:
        """Its end is acknowledged: what is left of it goes after `keep_s`."""
        due = asyncio.get_running_loop().time() + self.executor.keep_s
        if len(self._ended) >= FORGET_MAX:
            due = 0.0
        heapq.heappush(self._ended, (due, next(self._numbers), job))
        self._has_ended.set()

    @property
    def payloads(self) -> PayloadCarrier | None:
        return self._owner.payloads

    def now_us(self) -> int:
        return self._owner.now_us()

    def code(self, task: str) -> TaskCode:
        return self._owner.code(task)

    def changed(self, name: str) -> None:
        if name in self._watched:
            self._changed.add(name)
            self._news.set()

    def write(self, name: str, stream: str, text: str) -> None:
        entry = self._owner.named(name)
        if entry is not None:
            self._owner.write(entry, stream, text)

    def warn(self, name: str, text: str) -> None:
        entry = self._owner.named(name)
        if entry is not None:
            self._owner.warn(entry, text)

    async def secrets(self, job: Job) -> JobSecrets | None:
        return await self._owner.secrets(job)

    async def call(self, act: Act[Q, R], request: Q) -> R:
        return await self._owner.call(act, request)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("executor %s", self.executor.name, exc_info=task.exception())

    async def _start(self, entry: JobAttempt) -> None:
        await self._is_open.wait()
        error: Exception | None = None
        for pause_s in START_PAUSES_S:
            try:
                async with self._calls, asyncio.timeout(CALL_S_MAX):
                    _refuse_secrets(self.executor, entry.job)
                    if not self.executor.takes_references:
                        await self._owner.load_input(entry)
                    await self.executor.start(entry.job)
                self.watch(entry)
                return
            except JobRefused as e:
                self._owner.ended(entry, End.FINAL_ERROR, b"", Failure("job_refused", clip(str(e)), "Refused"))
                return
            except (PayloadMissing, PayloadCorrupt, SecretUnavailable) as e:
                self._owner.ended(entry, End.ERROR, b"", e.to_failure())
                return
            except SecretMissing as e:
                self._owner.ended(entry, End.FINAL_ERROR, b"", e.to_failure())
                return
            except Exception as e:
                error = e
                log.warning("executor %s: %s is not started yet: %s", self.executor.name, entry.job.name, _said(e))
            if entry.phase is JobPhase.STOPPING:
                break
            await asyncio.sleep(pause_s)
        if entry.phase is JobPhase.STOPPING:  # it may have been started all the same
            self.watch(entry)
            return
        text = f"the executor {self.executor.name} could not start the job: {_said(error)}"
        later = Failure("executor_unavailable", clip(text), retry_after_us=int(UNREACHABLE_S * 1e6))
        self._owner.ended(entry, End.RETURNED, b"", later)

    async def _stop(self, entry: JobAttempt) -> None:
        for pause_s in STOP_PAUSES_S:
            try:
                async with self._calls, asyncio.timeout(CALL_S_MAX):
                    await self.executor.cancel(entry.job)
                break
            except Exception as e:
                log.warning("executor %s: %s is not stopped yet: %s", self.executor.name, entry.job.name, _said(e))
                await asyncio.sleep(pause_s)
        self.changed(entry.job.name)

    async def _observe_all(self) -> None:
        loop = asyncio.get_running_loop()
        polled = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(polled + self.executor.poll_s):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            names, self._changed = list(self._changed), set()
            if loop.time() >= polled + self.executor.poll_s:
                names, polled = list(self._watched), loop.time()
            for at in range(0, len(names), OBSERVED_MAX):
                part = names[at : at + OBSERVED_MAX]
                await self._observe([e for name in part if (e := self._watched.get(name)) is not None])

    async def _observe(self, entries: list[JobAttempt]) -> None:
        if not entries:
            return
        try:
            async with asyncio.timeout(CALL_S_MAX):
                states = await self.executor.observe([e.job for e in entries])
        except Exception as e:
            if not self._is_unreachable:
                log.warning("executor %s cannot be observed: %s", self.executor.name, _said(e))
            self._is_unreachable = True
            self._give_up_stopping(entries)
            return
        if self._is_unreachable:
            self._is_unreachable = False
            log.info("executor %s is observed again", self.executor.name)
        for entry, state in zip(entries, states, strict=True):
            if self._watched.get(entry.job.name) is entry:
                self._observed(entry, state)
        beating = [e for e in entries if e.job.assignment.options.heartbeat_us and e.job.name in self._watched]
        if beating:
            self._owner.beat(beating)

    def _observed(self, entry: JobAttempt, state: JobState) -> None:
        match state:
            case JobRunning():
                self._is_running(entry, state)
            case _ if entry.phase is JobPhase.STOPPING:
                self._stopped(entry)
            case JobSucceeded(value) if (exposed := _exposed(entry, value)) is not None:
                self._owner.ended(entry, End.FINAL_ERROR, b"", exposed)
            case JobSucceeded(value) if self._owner.is_heavy(value):
                self.remove(entry)
                self._spawn(self._store(entry, value))
            case JobSucceeded(value):
                self._owner.ended(entry, End.SUCCESS, value, None)
            case JobFailed(failure, is_final):
                final = is_final or policy_is_final(entry.job.assignment.options, (failure.type,))
                self._owner.ended(entry, End.FINAL_ERROR if final else End.ERROR, b"", failure)
            case JobLost(why):
                self._owner.ended(entry, End.JOB_LOST, b"", Failure("task_lost", clip(why)))

    async def _store(self, entry: JobAttempt, value: bytes) -> None:
        """A large result goes to the payload store before it is reported."""
        while True:
            try:
                self._owner.ended(entry, End.SUCCESS, await self._owner.offload(entry, value), None)
                return
            except Unavailable as e:
                log.warning(
                    "executor %s: the result of %s is not stored yet: %s", self.executor.name, entry.job.name, e
                )
                await asyncio.sleep(STORE_PAUSE_S)
            except PerdureError as e:
                self._owner.ended(entry, End.FINAL_ERROR, b"", e.to_failure())
                return

    def _is_running(self, entry: JobAttempt, state: JobRunning) -> None:
        if state.details:
            self._owner.beat([entry], state.details)
        if entry.phase is JobPhase.STOPPING:
            self._give_up_stopping([entry])
            return
        timeout_us = entry.job.assignment.options.timeout_us
        if timeout_us and state.started_us and not entry.started_us:
            # The engine measures from the moment this worker got the attempt, which is too long for a job that was taken over.
            left_s = max(0.0, (state.started_us + timeout_us - self.now_us()) / 1e6)
            asyncio.get_running_loop().call_later(left_s, self._time_is_over, entry)
        entry.started_us = state.started_us or entry.started_us

    def _time_is_over(self, entry: JobAttempt) -> None:
        if self._watched.get(entry.job.name) is entry:
            timeout_s = entry.job.timeout_s or 0
            text = f"attempt {entry.job.attempt} did not end within its timeout of {timeout_s:g} s"
            self.stop(entry, Failure("task_timeout", text, "TimeoutError"))

    def _give_up_stopping(self, entries: list[JobAttempt]) -> None:
        now = asyncio.get_running_loop().time()
        for entry in entries:
            if entry.phase is JobPhase.STOPPING and now > entry.stop_by:
                log.warning(
                    "executor %s: %s was cancelled %g s ago and has not stopped; it is not watched any more",
                    self.executor.name,
                    entry.job.name,
                    STOP_S_MAX,
                )
                self._stopped(entry)

    def _stopped(self, entry: JobAttempt) -> None:
        end = End.CANCELLED if entry.failure is None else End.ERROR
        self._owner.ended(entry, end, b"", entry.failure)

    async def _forget_all(self) -> None:
        while True:
            await self._has_ended.wait()
            await asyncio.sleep(max(FORGET_EVERY_S, min(1.0, self.executor.keep_s)))
            await self._forget_due()
            if not self._ended:
                self._has_ended.clear()

    async def _forget_due(self) -> None:
        loop = asyncio.get_running_loop()
        while self._ended and self._ended[0][0] <= loop.time():
            _, _, job = heapq.heappop(self._ended)
            try:
                async with asyncio.timeout(CALL_S_MAX):
                    await self.executor.forget(job)
            except Exception as e:
                log.warning("executor %s: the remains of %s are left: %s", self.executor.name, job.name, _said(e))


def _refuse_secrets(executor: Executor, job: Job) -> None:
    """Where the executor would write them into a place that others can read."""
    for place in job.assignment.options.secrets:
        if not place.path or place.path[0] not in executor.secret_keys:
            takes = f"in {', '.join(executor.secret_keys)} alone" if executor.secret_keys else "nowhere in a job"
            raise JobRefused(
                f"the secret {place.names[0]} stands in {'.'.join(map(str, place.path))}; the executor {executor.name} takes secrets {takes}, "
                "because others could read it there"
            )


def _exposed(entry: JobAttempt, value: bytes) -> Failure | None:
    try:
        check_result(entry.attempt, value)
    except SecretExposed as e:
        return e.to_failure()
    return None


def _said(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if error is not None else "no reason was given"
