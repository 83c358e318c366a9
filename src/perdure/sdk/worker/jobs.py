"""The jobs of a worker: attempts that executors run outside of it.

    assign -> Watcher.start -> executor.start -> observed now and then -> its end is reported -> acknowledged -> forgotten
                          \\-> the slot is given back, unless the job uses the worker's machine

A worker that leaves gives its jobs back or, where they run on its own machine, leaves them running for the next worker there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from perdure.core.api.act import Act
from perdure.core.errors import Failure, NotRegistered, Unavailable
from perdure.core.payload_port import PayloadCarrier
from perdure.core.payloads import MARK
from perdure.core.retry import End
from perdure.core.work import Assignment, AttemptToken, Beat, Report, Upstream
from perdure.executors.port import Executor, Job, JobSecrets, TaskCode
from perdure.sdk.secrets.known import redacted_data
from perdure.sdk.worker import output
from perdure.sdk.worker.attempt_secrets import TaskSecrets
from perdure.sdk.worker.attempts import Attempt
from perdure.sdk.worker.job_watcher import JobAttempt, JobOwner, Watcher
from perdure.sdk.worker.remote_call import code_of
from perdure.sdk.worker.reports import ended_report, redacted_failure

JOBS_MAX: Final = 20_000
"""Jobs that one worker watches without a slot. Further ones keep their slots until others have ended."""
UNACKNOWLEDGED_MAX: Final = 100_000
"""Ended jobs that wait for the acknowledgement of their reports; of older ones the remains are left."""
RETURN_S: Final = 1.0
"""Pause before a job that a leaving worker gave back is taken over."""


Q = TypeVar("Q")
R = TypeVar("R")
CallAct = Callable[[Act[Any, Any], Any], Awaitable[Any]]
"""Asks the server that the worker works for."""


async def no_server(act: Act[Any, Any], request: Any) -> NoReturn:
    raise Unavailable(f"this worker has no server that could be asked for {act.name}")


class JobHooks(msgspec.Struct, frozen=True):
    """What jobs need of the worker around them."""

    upstream: Upstream
    find_attempt: Callable[[Assignment], Attempt]
    """Makes the attempt that output and heartbeats belong to."""
    ended: Callable[[Attempt, Report, bool], None]
    """A job has ended; the flag says that it held a slot."""
    find: Callable[[str], Any]
    """The definition of a task."""
    freed: Callable[[], None]
    """A slot was given back."""
    secrets: TaskSecrets


class Jobs(JobOwner):
    def __init__(self, executors: Mapping[str, Executor], hooks: JobHooks) -> None:
        self._hooks, self._upstream = hooks, hooks.upstream
        self._by_key: dict[tuple[bytes, int], JobAttempt] = {}
        self._by_name: dict[str, JobAttempt] = {}
        self._watchers = {name: Watcher(executor, self) for name, executor in executors.items()}
        self._call: CallAct = no_server
        self._deferred = 0
        self._recovered: dict[str, dict[str, str]] = {}
        """Secrets of jobs that an earlier worker left, until they are added; by job, names by value."""
        self._unacknowledged: dict[AttemptToken, tuple[Watcher, Job]] = {}

    async def open(self, call: CallAct) -> None:
        """Connect the executors, and find the jobs that a worker before this one left on this machine."""
        self._call = call
        for watcher in self._watchers.values():
            await watcher.open()
            for job in await watcher.executor.recover():
                self._add(job, watcher).recovered()

    def assign(self, a: Assignment, executor: str) -> None:
        watcher = self._watchers.get(executor)
        if watcher is None:
            raise NotRegistered(f"this worker has no executor {executor!r}; start it with --executor {executor}")
        known = self._by_name.get(a.job)
        if known is not None:  # it is watched here already: this worker lost its server, and gets the attempt again
            loaded = msgspec.structs.replace(a, input=known.job.assignment.input)
            known.job, known.attempt._assignment = Job(name=a.job, assignment=loaded), a
            self._hooks.freed()
            if known.is_deferred:
                self._upstream.deferred([known.token])
            return
        watcher.start(self._add(Job(name=a.job, assignment=a), watcher))

    def _add(self, job: Job, watcher: Watcher) -> JobAttempt:
        a = job.assignment
        entry = JobAttempt(job, watcher, self._hooks.find_attempt(a))
        entry.attempt._secrets = self._recovered.pop(job.name, None)
        self._by_key[a.run_id, a.seq] = self._by_name[job.name] = entry
        return entry

    def find(self, run_id: bytes, seq: int, attempt: int) -> JobAttempt | None:
        entry = self._by_key.get((run_id, seq))
        return entry if entry is not None and entry.job.attempt == attempt else None

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> bool:
        """Whether there is such a job. Its end is reported once it has stopped."""
        entry = self.find(run_id, seq, attempt)
        if entry is not None:
            entry.watcher.stop(entry)
        return entry is not None

    def named(self, name: str) -> JobAttempt | None:
        return self._by_name.get(name)

    def code(self, task: str) -> TaskCode:
        return code_of(self._hooks.find(task))

    def tokens(self) -> list[AttemptToken]:
        return [entry.token for entry in self._by_key.values()]

    def deferred(self) -> list[AttemptToken]:
        return [entry.token for entry in self._by_key.values() if entry.is_deferred]

    def slots_held(self) -> int:
        """Slots of jobs that were found when the worker opened."""
        return sum(not entry.is_deferred for entry in self._by_key.values())

    async def call(self, act: Act[Q, R], request: Q) -> R:
        reply: R = await self._call(act, request)
        return reply

    def now_us(self) -> int:
        return self._upstream.clock_us()

    async def secrets(self, job: Job) -> JobSecrets | None:
        found = await self._hooks.secrets.of_job(job)
        if found is not None:
            entry = self._by_name.get(job.name)
            if entry is None:  # a job that is being recovered has no attempt yet
                self._recovered[job.name] = found.names
            else:
                entry.attempt._secrets = found.names
        return found

    def write(self, entry: JobAttempt, stream: str, text: str) -> None:
        captured = output.output_of(entry.attempt)
        if captured is not None:
            captured.write(stream, text)

    def warn(self, entry: JobAttempt, text: str) -> None:
        captured = output.output_of(entry.attempt)
        if captured is not None:
            captured.add("log", "warning", text)

    @property
    def payloads(self) -> PayloadCarrier | None:
        return self._upstream.payloads

    def is_heavy(self, value: bytes) -> bool:
        return self.payloads is not None and self.payloads.is_heavy(value)

    async def offload(self, entry: JobAttempt, value: bytes) -> bytes:
        assert self.payloads is not None
        return await self.payloads.offload(value, f"the result of {entry.job.assignment.name}")

    async def load_input(self, entry: JobAttempt) -> None:
        a = entry.job.assignment
        if a.input.startswith(MARK) and self.payloads is not None:
            loaded = msgspec.structs.replace(a, input=await self.payloads.resolve(a.input))
            entry.job = Job(name=entry.job.name, assignment=loaded)

    def beat(self, entries: Iterable[JobAttempt], details: bytes = b"") -> None:
        shown = redacted_data(details)
        self._upstream.beats([Beat(*entry.token, shown) for entry in entries])

    def defer(self, entry: JobAttempt) -> None:
        """The job waits outside: its slot is free, as long as the worker may watch more."""
        if entry.is_deferred or self._deferred >= JOBS_MAX:
            return
        entry.is_deferred = True
        self._deferred += 1
        self._hooks.freed()
        self._upstream.deferred([entry.token])

    def ended(self, entry: JobAttempt, end: End, value: bytes, failure: Failure | None) -> None:
        a = entry.job.assignment
        self._remove(entry)
        now = self.now_us()
        started = entry.started_us or now
        failure = redacted_failure(failure) if failure is not None else None
        report = Report(a.run_id, a.seq, a.attempt, end, value, failure, min(started, now), now, a.epoch)
        if end is not End.RETURNED:
            self._unacknowledged[entry.token] = (entry.watcher, entry.job)
            if len(self._unacknowledged) > UNACKNOWLEDGED_MAX:
                del self._unacknowledged[next(iter(self._unacknowledged))]
        entry.attempt._over = True
        self._hooks.ended(entry.attempt, report, not entry.is_deferred)
        if not self._upstream.acknowledges:
            self.acknowledged([report])

    def _remove(self, entry: JobAttempt) -> None:
        self._by_name.pop(entry.job.name, None)
        if self._by_key.get(entry.token[:2]) is entry:
            del self._by_key[entry.token[:2]]
        self._deferred -= entry.is_deferred
        entry.watcher.remove(entry)

    def acknowledged(self, reports: list[Report]) -> None:
        """Their ends are known to the server."""
        for r in reports:
            found = self._unacknowledged.pop((r.run_id, r.seq, r.attempt), None)
            if found is not None:
                watcher, job = found
                watcher.forget(job)

    def give_back(self, *, at_once: bool = False) -> None:
        """The worker leaves: other workers take over what they can find. Jobs of this machine stay, and so do those that would be started
        again elsewhere, unless there is no time left for them (`at_once`)."""
        for entry in list(self._by_key.values()):
            executor = entry.watcher.executor
            if not executor.holds_slot and (at_once or executor.can_move(entry.job)):
                entry.watcher.let_go(entry)
                later = Failure(
                    "task_returned", "the worker that watched the job has left", retry_after_us=int(RETURN_S * 1e6)
                )
                self.ended(entry, End.RETURNED, b"", later)

    @property
    def is_idle(self) -> bool:
        return not self._by_key

    def stop_all(self) -> None:
        for entry in list(self._by_key.values()):
            entry.watcher.stop(entry)

    def abandon(self) -> list[tuple[Attempt, Report, bool]]:
        """Those that have not stopped in time, as cancelled."""
        now = self.now_us()
        left = list(self._by_key.values())
        for entry in left:
            self._remove(entry)
        return [(e.attempt, ended_report(e.job.assignment, End.CANCELLED, now, now), not e.is_deferred) for e in left]

    async def close(self) -> None:
        """Jobs go on; the next worker finds them."""
        for watcher in self._watchers.values():
            await watcher.close()
