"""The executor's side of the protocol: writes specs, reads states in batches, and decides that a job is lost.

A poll is one listing for each job, or one for a whole run where it has RUN_LISTED_FROM jobs or more. Objects are read only when
the listing shows that they changed. For a store that charges for requests, a waiting job costs one listing per poll and no reads.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.core.errors import Failure, clip
from perdure.core.limits import JOB_RESULT_BYTES_MAX
from perdure.executors.command_output import NOT_JSON, as_text
from perdure.executors.objects import layout
from perdure.executors.objects.layout import JobSpec, ReportedStatus, path_of, run_of
from perdure.executors.objects.spec import Work, make_spec
from perdure.executors.objects.store import ObjectStore, StoredObject, TooLarge
from perdure.executors.port import ExecutorHost, Job, JobFailed, JobLost, JobRunning, JobState, JobSucceeded
from perdure.payloads.content import spooled

RUN_LISTED_FROM: Final = 8
"""From so many jobs of one run on, the run is listed at once."""
CALLS_MAX: Final = 32
"""Requests to the store under way at a time."""
OUTPUTS_MAX: Final = 4
"""Outputs in memory at a time: each may have JOB_RESULT_BYTES_MAX."""
LOGS_PER_TURN_MAX: Final = 20
"""Objects of output that are read of one job in one poll."""
SEEN_MAX: Final = 50_000
"""Jobs whose versions are remembered; an older one is read anew."""

StoredObjects = Mapping[str, StoredObject]
"""The objects of one attempt, by name."""


class PolledJob:
    """What the last poll found of a job."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.alive_at = 0.0
        """When its heartbeat or status last changed, by this process's clock."""
        self.started_us = 0
        self.created_us = 0
        self.status: ReportedStatus | None = None
        self.logs = ""
        """The last object of output that was delivered."""


class ObjectAttempts:
    def __init__(self, store: ObjectStore, host: ExecutorHost, *, start_s: float, stale_s: float) -> None:
        self.store, self._host = store, host
        self._start_s, self._stale_s = start_s, stale_s
        self._seen: OrderedDict[str, PolledJob] = OrderedDict()
        self._calls = asyncio.Semaphore(CALLS_MAX)
        self._outputs = asyncio.Semaphore(OUTPUTS_MAX)

    def spec_url(self, job: Job) -> str:
        return self.store.url_of(f"{path_of(job)}/{layout.SPEC}")

    async def write_spec(self, job: Job, work: Work) -> bool:
        """Whether it is new; False: an earlier worker wrote it."""
        spec = make_spec(job, work, self._host.now_us(), self._stale_s)
        return await self.store.create(f"{path_of(job)}/{layout.SPEC}", msgspec.json.encode(spec))

    async def is_launched(self, job: Job) -> bool:
        return await self.store.get(f"{path_of(job)}/{layout.LAUNCHED}", layout.OBJECT_BYTES_MAX) is not None

    async def launched(self, job: Job, said: str = "") -> None:
        await self._put(job, layout.LAUNCHED, {"said": clip(said, 1_000)})

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        found = await self._entries(jobs)
        return list(await asyncio.gather(*(self._bounded(job, found[job.name]) for job in jobs)))

    async def ended(self, job: Job) -> JobState | None:
        """How the job says that it ended; None: it has not said so. For executors that learn otherwise whether it runs."""
        state = await self._state(job, (await self._entries([job]))[job.name], judges=False)
        return None if isinstance(state, JobRunning) else state

    async def follow(self, job: Job) -> None:
        """Deliver what a running job printed."""
        await self._deliver(job, (await self._entries([job]))[job.name], self._of(job))

    async def cancel(self, job: Job) -> None:
        """Ask the job to stop. One that has not begun can never begin."""
        await self._put(job, layout.CANCEL, {})
        if await self._take_claim(job, "cancelled before it began"):
            await self._put(job, layout.STATUS, {"status": "cancelled", "error": "it was cancelled before it began"})

    async def lose(self, job: Job, why: str) -> JobLost:
        """The job is over: if it still runs it stops, and what it writes from now on does not count."""
        await self._put(job, layout.CANCEL, {"why": why})
        await self._put(job, layout.LOST, {"why": clip(why, 2_000)})
        self._seen.pop(job.name, None)
        return JobLost(why)

    async def forget(self, job: Job) -> None:
        self._seen.pop(job.name, None)
        await self.store.delete([entry.path for entry in await self.store.list(path_of(job))])

    async def _bounded(self, job: Job, entries: StoredObjects) -> JobState:
        async with self._calls:
            return await self._state(job, entries)

    async def _entries(self, jobs: Sequence[Job]) -> dict[str, StoredObjects]:
        runs: dict[str, list[Job]] = defaultdict(list)
        for job in jobs:
            runs[run_of(job)].append(job)
        wanted: list[tuple[str, list[Job]]] = []
        for run, of_run in runs.items():
            if len(of_run) >= RUN_LISTED_FROM:
                wanted.append((run, of_run))
            else:
                wanted += [(path_of(job), [job]) for job in of_run]
        parts = await asyncio.gather(*(self._listed(prefix, of_prefix) for prefix, of_prefix in wanted))
        return {name: entries for part in parts for name, entries in part.items()}

    async def _listed(self, prefix: str, jobs: Sequence[Job]) -> dict[str, StoredObjects]:
        async with self._calls:
            entries = await self.store.list(prefix)
        found: dict[str, dict[str, StoredObject]] = {path_of(job): {} for job in jobs}
        for entry in entries:
            head, name = _split(entry.path)
            if head in found:
                found[head][name] = entry
        return {job.name: found[path_of(job)] for job in jobs}

    def _of(self, job: Job) -> PolledJob:
        seen = self._seen.setdefault(job.name, PolledJob())
        self._seen.move_to_end(job.name)
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return seen

    async def _state(self, job: Job, entries: StoredObjects, judges: bool = True) -> JobState:
        if layout.LOST in entries:
            return JobLost((await self._read(job, layout.LOST)).get("why", "the job was lost"))
        seen = self._of(job)
        status = await self._status(job, entries, seen)
        if status is not None and status.status != "running":
            await self._deliver_all(job, seen)
            return await self._end(job, status, entries)
        await self._deliver(job, entries, seen)
        if not judges:
            return JobRunning()
        if layout.CLAIM not in entries and status is None:
            return await self._unclaimed(job, entries, seen)
        return await self._claimed(job, entries, seen)

    async def _status(self, job: Job, entries: StoredObjects, seen: PolledJob) -> ReportedStatus | None:
        if _changed(seen, entries, layout.STATUS):
            seen.alive_at = _now()
            try:
                seen.status = msgspec.convert(await self._read(job, layout.STATUS), ReportedStatus)
            except msgspec.ValidationError as e:
                seen.status = ReportedStatus(status="failed", error=f"status.json cannot be read: {e}", is_final=True)
        return seen.status

    async def _unclaimed(self, job: Job, entries: StoredObjects, seen: PolledJob) -> JobState:
        """It waits to begin. After `start_s` it is lost, and made unable to begin."""
        if layout.SPEC not in entries:
            return await self.lose(job, f"{self.spec_url(job)} is gone")
        if not seen.created_us:
            seen.created_us = msgspec.convert(await self._read(job, layout.SPEC), JobSpec).created_us
        if self._host.now_us() - seen.created_us <= self._start_s * 1e6:
            return JobRunning()
        why = f"the job never started: no process claimed it within {self._start_s:g} s"
        if await self._take_claim(job, why):
            return await self.lose(job, why)
        return JobRunning()

    async def _claimed(self, job: Job, entries: StoredObjects, seen: PolledJob) -> JobState:
        if _changed(seen, entries, layout.HEARTBEAT) or not seen.alive_at:
            seen.alive_at = _now()
        seen.started_us = seen.started_us or self._host.now_us()
        if _now() - seen.alive_at > self._stale_s:
            return await self.lose(job, f"the job gave no heartbeat for {self._stale_s:g} s")
        return JobRunning(seen.started_us)

    async def _end(self, job: Job, status: ReportedStatus, entries: StoredObjects) -> JobState:
        self._seen.pop(job.name, None)
        if status.status == "success":
            return await self._output(job)
        if status.status == "cancelled" and layout.CANCEL not in entries:
            return JobLost(f"the job was ended from outside: {status.error or 'no reason was given'}")
        code = "task_timeout" if status.error_type == "TimeoutError" else "task_failed"
        text = status.error or f"the job says {status.status}"
        return JobFailed(Failure(code, clip(text), status.error_type or "JobFailed"), is_final=status.is_final)

    async def _output(self, job: Job) -> JobState:
        try:
            async with self._outputs:
                data = await self.store.get(f"{path_of(job)}/{layout.OUTPUT}", JOB_RESULT_BYTES_MAX)
                return JobSucceeded(await asyncio.to_thread(_checked, data or b"null"))
        except TooLarge as e:
            text = f"the output is too large: {e} (JOB_RESULT_BYTES_MAX). Write it to a store and return where it is."
            return JobFailed(Failure("payload_too_large", text, "PayloadTooLarge"), is_final=True)
        except NOT_JSON as e:
            return JobFailed(Failure("task_failed", f"output.json is not JSON: {e}", "InvalidResult"), is_final=True)

    async def _deliver_all(self, job: Job, seen: PolledJob) -> None:
        """Of a job that has ended: the listing before may be older than its last lines."""
        before = None
        while before != seen.logs:
            before = seen.logs
            entries = await self.store.list(f"{path_of(job)}/{layout.LOGS}")
            await self._deliver(job, {_split(e.path)[1]: e for e in entries}, seen)

    async def _deliver(self, job: Job, entries: StoredObjects, seen: PolledJob) -> None:
        new = sorted(name for name in entries if name.startswith(layout.LOGS + "/") and name > seen.logs)
        for name in new[:LOGS_PER_TURN_MAX]:
            data = await self.store.get(f"{path_of(job)}/{name}", layout.OBJECT_BYTES_MAX)
            seen.logs = name
            if data:
                self._host.write(job.name, layout.log_stream(name), data.decode("utf-8", "replace"))

    async def _take_claim(self, job: Job, why: str) -> bool:
        claim = msgspec.json.encode({"by": "executor", "why": why})
        return await self.store.create(f"{path_of(job)}/{layout.CLAIM}", claim)

    async def _read(self, job: Job, name: str) -> dict[str, Any]:
        """An object as a mapping; what is none is taken as empty."""
        size_max = layout.SPEC_BYTES_MAX if name == layout.SPEC else layout.OBJECT_BYTES_MAX
        data = await self.store.get(f"{path_of(job)}/{name}", size_max)
        try:
            found: Any = msgspec.json.decode(data or b"{}")
        except msgspec.DecodeError:
            found = {}
        return found if isinstance(found, dict) else {}

    async def _put(self, job: Job, name: str, value: dict[str, Any]) -> None:
        await self.store.put(f"{path_of(job)}/{name}", msgspec.json.encode(value))


def _checked(data: bytes) -> bytes:
    """In a thread: output as a result, which waits in a file where it is large."""
    return spooled(bytes(as_text(data)))


def _split(path: str) -> tuple[str, str]:
    """The place of an attempt, and the name of an object there."""
    parts = path.split("/")
    return "/".join(parts[:4]), "/".join(parts[4:])


def _changed(seen: PolledJob, entries: StoredObjects, name: str) -> bool:
    """Whether an object exists and is new or other than at the last poll."""
    entry = entries.get(name)
    if entry is None or seen.versions.get(name) == entry.version:
        return False
    seen.versions[name] = entry.version
    return True


def _now() -> float:
    return asyncio.get_running_loop().time()
