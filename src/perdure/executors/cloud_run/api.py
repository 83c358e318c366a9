"""The Cloud Run Admin API v2 by Google's own client, within its quotas.

The client blocks, so it is called in a few threads. Requests take tokens from a bucket before they are made: a burst waits instead of being refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from perdure.core.packages import missing
from perdure.executors.port import JobRefused

T = TypeVar("T")

THREADS_MAX: Final = 8
REQUEST_S_MAX: Final = 30.0
PAGE_MAX: Final = 100
"""Jobs of one page of a list."""
LISTED_FROM: Final = 10
"""From so many jobs on, all jobs of the region are listed instead of being read one by one."""
PAGES_MAX: Final = 50
"""Pages of one list: a region has at most 1,000 jobs."""
TOKEN: Final = "1"
"""The suffix of an attempt's only execution."""
PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = "pending", "running", "succeeded", "failed", "cancelled"
STATUSES: Final = {1: SUCCEEDED, 2: FAILED, 3: RUNNING, 4: PENDING, 5: CANCELLED}
"""google.cloud.run.v2.ExecutionReference.CompletionStatus"""


class SeenExecution(msgspec.Struct, frozen=True):
    """An attempt's execution as the API describes it."""

    status: str
    created_s: float
    execution: str
    """Its name within the job; empty: it is not known yet."""


class TokenBucket:
    """So many requests a minute, a tenth of them at once."""

    def __init__(self, per_minute: int) -> None:
        self._per_s = per_minute / 60
        self._size = max(1.0, per_minute / 10)
        self._tokens = self._size
        self._at = 0.0

    async def take(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._tokens = min(self._size, self._tokens + (now - self._at) * self._per_s) if self._at else self._size
        self._at = now
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._per_s)


class CloudRunApi:
    """`parent` is projects/PROJECT/locations/REGION. An `endpoint` with http:// is a local implementation, without credentials."""

    def __init__(self, parent: str, endpoint: str, reads_per_minute: int, writes_per_minute: int) -> None:
        self._parent = parent
        self._jobs, self._executions, self._tasks = _clients(endpoint)
        self._reads, self._writes = TokenBucket(reads_per_minute), TokenBucket(writes_per_minute)
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="perdure-cloud-run")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def create(self, name: str, job: dict[str, Any]) -> None:
        """The job and its execution in one request. A name that is taken was created before."""
        from google.api_core import exceptions
        from google.cloud import run_v2

        request = run_v2.CreateJobRequest(parent=self._parent, job_id=name, job=run_v2.Job(job))
        await self._writes.take()
        try:
            await self._call(lambda: self._jobs.create_job(request, timeout=REQUEST_S_MAX, retry=None))
        except exceptions.Conflict:  # 409 is ALREADY_EXISTS, or ABORTED: REST has one status for both
            if await self._read(name) is None:
                raise
        except exceptions.BadRequest as e:
            raise JobRefused(f"Cloud Run refuses the job: {e.message}") from e

    async def seen(self, names: Sequence[str]) -> dict[str, SeenExecution]:
        """Those of them that exist."""
        found = await self._listed() if len(names) >= LISTED_FROM else {}
        missing = [name for name in names if name not in found]
        got = await asyncio.gather(*(self._read(name) for name in missing))
        return found | {name: one for name, one in zip(missing, got, strict=True) if one is not None}

    async def cancel(self, name: str, execution: str) -> None:
        """End the execution; one that has ended is left alone."""
        from google.api_core import exceptions

        await self._writes.take()
        full = f"{self._job(name)}/executions/{execution}"
        try:
            await self._call(lambda: self._executions.cancel_execution(name=full, timeout=REQUEST_S_MAX, retry=None))
        except (exceptions.NotFound, exceptions.BadRequest):  # 400 is FAILED_PRECONDITION here: it has ended
            pass

    async def exit_code(self, name: str, execution: str) -> int:
        """How the container exited by itself; 0: it did not, or that is not known."""
        from google.api_core import exceptions

        await self._reads.take()
        parent = f"{self._job(name)}/executions/{execution}"
        try:
            found = await self._call(
                lambda: list(self._tasks.list_tasks(parent=parent, timeout=REQUEST_S_MAX, retry=None))
            )
        except exceptions.NotFound:
            return 0
        ends = [task.last_attempt_result for task in found]
        return next((end.exit_code for end in ends if end.exit_code and not end.term_signal), 0)

    async def delete(self, name: str) -> None:
        """The job with its executions."""
        from google.api_core import exceptions

        await self._writes.take()
        try:
            await self._call(lambda: self._jobs.delete_job(name=self._job(name), timeout=REQUEST_S_MAX, retry=None))
        except exceptions.NotFound:
            pass

    def _job(self, name: str) -> str:
        return f"{self._parent}/jobs/{name}"

    async def _read(self, name: str) -> SeenExecution | None:
        from google.api_core import exceptions

        await self._reads.take()
        try:
            return _seen(
                await self._call(lambda: self._jobs.get_job(name=self._job(name), timeout=REQUEST_S_MAX, retry=None))
            )
        except exceptions.NotFound:
            return None

    async def _listed(self) -> dict[str, SeenExecution]:
        found: dict[str, SeenExecution] = {}
        token = ""
        for _ in range(PAGES_MAX):
            await self._reads.take()
            page = await self._call(partial(self._page, token))
            found |= {job.name.rpartition("/")[2]: _seen(job) for job in page.jobs}
            token = page.next_page_token
            if not token:
                break
        return found

    def _page(self, token: str) -> Any:
        from google.cloud import run_v2

        request = run_v2.ListJobsRequest(parent=self._parent, page_size=PAGE_MAX, page_token=token)
        return next(self._jobs.list_jobs(request, timeout=REQUEST_S_MAX, retry=None).pages)

    async def _call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _seen(job: Any) -> SeenExecution:
    latest = job.latest_created_execution
    created = latest.create_time or job.create_time
    seconds = created.timestamp() if created else 0.0
    return SeenExecution(STATUSES.get(int(latest.completion_status), PENDING), seconds, latest.name.rpartition("/")[2])


def _clients(endpoint: str) -> tuple[Any, Any, Any]:
    """Of jobs, executions and tasks."""
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import run_v2
    except ImportError as e:
        raise missing("the executor for Cloud Run", "cloud-run") from e
    kinds: tuple[Any, ...] = (run_v2.JobsClient, run_v2.ExecutionsClient, run_v2.TasksClient)
    given: dict[str, Any] = {}
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        given = {"host": host, "url_scheme": scheme or "https"}
        if scheme == "http":
            given["credentials"] = AnonymousCredentials()  # type: ignore[no-untyped-call]
    jobs, executions, tasks = (kind(transport=kind.get_transport_class("rest")(**given)) for kind in kinds)
    return jobs, executions, tasks
