"""Creates a Cloud Run job for each attempt, under the attempt's own name; the container runs `perdure job`.

No double start. The API's `run` takes no name for the execution, so a repeated request would start a second one. Instead the attempt is a job of
its own, created with `start_execution_token`: job and execution come from one request, and repeating it fails with ALREADY_EXISTS. Should the
platform start the container twice all the same, the claim object lets one of them run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from perdure.core import ids
from perdure.core.errors import Failure, InvalidInput
from perdure.executors.cloud_run.api import CANCELLED, FAILED, PENDING, RUNNING, TOKEN, CloudRunApi, SeenExecution
from perdure.executors.objects.attempts import ObjectAttempts
from perdure.executors.objects.layout import PLATFORM_STALE_S, SPEC_ENV, START_S_MAX
from perdure.executors.objects.spec import Work, read_work
from perdure.executors.objects.store import ObjectStore
from perdure.executors.port import Executor, ExecutorHost, Job, JobFailed, JobRefused, JobRunning, JobState

POLL_S: Final = 10.0
READS_PER_MINUTE: Final = 600
WRITES_PER_MINUTE: Final = 120
TASK_S_MAX: Final = 86_400
"""The longest that Cloud Run lets a task run."""
TIMEOUT_MARGIN_S: Final = 60
"""Cloud Run's timeout is so much longer than the job's own, which is reported better."""
FOLLOWED_MAX: Final = 50
"""Running jobs whose output is delivered while they run; that of others is delivered when they end."""
OUTCOMES_MAX: Final = 16
"""Results that are read from the store at a time."""


class CloudRunOptions(msgspec.Struct, frozen=True, kw_only=True):
    project: str = ""
    region: str = ""
    store: str = ""
    """Where specs and outputs are, such as gs://bucket/jobs. The job's service account must be able to write there."""
    image: str = ""
    """For specs without one. It has Python and Perdure."""
    service_account: str = ""
    endpoint: str = ""
    """Another address of the API; http:// is for local implementations and goes without credentials."""
    reads_per_minute: int = READS_PER_MINUTE
    """Requests that this worker may make; stay below the project's quota."""
    writes_per_minute: int = WRITES_PER_MINUTE
    start_s: float = START_S_MAX
    """A job that has not begun after so long is lost."""
    poll_s: float = POLL_S


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of a spec that are about the container rather than the work."""

    image: str | None = None
    cpu: str | None = None
    memory: str | None = None
    service_account: str | None = None
    labels: dict[str, str] | None = None


CONTAINER_KEYS: Final = frozenset(f.name for f in msgspec.structs.fields(Container))


class CloudRunExecutor(Executor):
    Options = CloudRunOptions
    name: ClassVar[str] = "cloud-run"

    options: CloudRunOptions

    def __init__(self, options: CloudRunOptions | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.poll_s = o.poll_s
        for key, value in (("project", o.project), ("region", o.region), ("store", o.store)):
            if not value:
                raise InvalidInput(
                    f"the executor cloud-run has no {key}: give it --executor-option cloud-run.{key}=..."
                )
        self._store = ObjectStore(o.store)
        self._delivering: set[str] = set()
        self._reading = asyncio.Semaphore(OUTCOMES_MAX)

    async def open(self, host: ExecutorHost) -> None:
        await super().open(host)
        o = self.options
        parent = f"projects/{o.project}/locations/{o.region}"
        self._api = CloudRunApi(parent, o.endpoint, o.reads_per_minute, o.writes_per_minute)
        self._attempts = ObjectAttempts(self._store, host, start_s=o.start_s, stale_s=PLATFORM_STALE_S)

    async def close(self) -> None:
        self._api.close()

    async def start(self, job: Job) -> None:
        container, work = _read_spec(job)
        if not (container.image or self.options.image):
            raise JobRefused("perdure.job.cloud-run has no image: give `image`, or the worker's option cloud-run.image")
        await self._attempts.write_spec(job, work)
        await self._api.create(job.name, self._manifest(job, container))

    async def observe(self, jobs: Sequence[Job]) -> list[JobState]:
        seen = await self._api.seen([job.name for job in jobs])
        return list(await asyncio.gather(*(self._state(job, seen.get(job.name)) for job in jobs)))

    async def cancel(self, job: Job) -> None:
        await self._attempts.cancel(job)
        seen = (await self._api.seen([job.name])).get(job.name)
        if seen is not None and seen.execution and seen.status in (PENDING, RUNNING):
            await self._api.cancel(job.name, seen.execution)

    async def forget(self, job: Job) -> None:
        self._delivering.discard(job.name)
        await self._api.delete(job.name)
        await self._attempts.forget(job)

    def _manifest(self, job: Job, container: Container) -> dict[str, Any]:
        o, labels = self.options, _labels(job, container.labels or {})
        limits = {key: value for key, value in (("cpu", container.cpu), ("memory", container.memory)) if value}
        seconds = min(TASK_S_MAX, int(job.timeout_s) + TIMEOUT_MARGIN_S) if job.timeout_s else TASK_S_MAX
        task = {
            "containers": [
                {
                    "image": container.image or o.image,
                    "command": ["perdure", "job"],
                    "env": [{"name": SPEC_ENV, "value": self._attempts.spec_url(job)}],
                    "resources": {"limits": limits},
                }
            ],
            "max_retries": 0,
            "timeout": {"seconds": seconds},
            "service_account": container.service_account or o.service_account,
        }
        template = {"task_count": 1, "parallelism": 1, "labels": labels, "template": task}
        return {"labels": labels, "template": template, "start_execution_token": TOKEN}

    async def _state(self, job: Job, seen: SeenExecution | None) -> JobState:
        if seen is not None and seen.status == RUNNING:
            await self._deliver(job)
            return JobRunning(int(seen.created_s * 1e6))
        if seen is not None and seen.status == PENDING:
            return await self._pending(job, seen)
        self._delivering.discard(job.name)
        async with self._reading:
            return await self._attempts.ended(job) or await self._silent(job, seen)

    async def _pending(self, job: Job, seen: SeenExecution) -> JobState:
        if time.time() - seen.created_s <= self.options.start_s:
            return JobRunning()
        await self.cancel(job)
        return await self._attempts.lose(
            job, f"the job never started: its execution was pending for {self.options.start_s:g} s"
        )

    async def _silent(self, job: Job, seen: SeenExecution | None) -> JobState:
        """The execution is over, and the container wrote no end."""
        if seen is None:
            return await self._attempts.lose(job, "the Cloud Run job was deleted")
        if seen.status == CANCELLED:
            return await self._attempts.lose(job, "the execution was cancelled by another user")
        code = await self._api.exit_code(job.name, seen.execution)
        if seen.status == FAILED and code:
            text = f"the container exited with code {code} before `perdure job` could say why: see the execution's logs"
            return JobFailed(Failure("task_failed", text, "ExitCode"))
        return await self._attempts.lose(
            job, "the container ended without writing a status: it was killed, or had too little memory"
        )

    async def _deliver(self, job: Job) -> None:
        if len(self._delivering) < FOLLOWED_MAX or job.name in self._delivering:
            self._delivering.add(job.name)
            async with self._reading:
                await self._attempts.follow(job)


def _read_spec(job: Job) -> tuple[Container, Work]:
    spec = job.spec
    try:
        container = msgspec.convert({k: v for k, v in spec.items() if k in CONTAINER_KEYS}, Container)
    except msgspec.ValidationError as e:
        raise JobRefused(f"perdure.job.cloud-run cannot be run as it is: {e}") from e
    return container, read_work({k: v for k, v in spec.items() if k not in CONTAINER_KEYS}, "cloud-run")


def _labels(job: Job, given: dict[str, str]) -> dict[str, str]:
    a = job.assignment
    return {
        **given,
        "managed-by": "perdure",
        "perdure-run": ids.text(a.run_id),
        "perdure-task": ids.text(ids.derive(a.run_id, ids.TASK, a.seq)),
        "perdure-attempt": str(a.attempt),
    }
