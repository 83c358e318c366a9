"""Bulk jobs: one act on every run that a query matches, carried out by the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Any, Final, TypedDict

import msgspec

from perdure.core import ids
from perdure.core.api import bulk_jobs as acts
from perdure.core.api.bulk_jobs import BulkAction, BulkJob, BulkJobRef, BulkOutcome, BulkStatus, ListBulkRuns
from perdure.core.durations import Duration, datetime_of, to_us
from perdure.sdk.client.backend import Backend
from perdure.sdk.client.keys import within

PAGE_RUNS: Final = 500
POLL_S_MIN: Final = 0.05
POLL_S_MAX: Final = 1.0
"""Between two looks at a job that is under way."""


class BulkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A bulk job and how far it is."""

    id: str
    action: BulkAction
    query: str
    status: BulkStatus
    error: str | None
    created_at: datetime
    finished_at: datetime | None
    is_dry_run: bool
    matched: int
    done: int
    skipped: int
    """There was nothing to do, or the run did not match any more."""
    failed: int
    """The run refused, or could not be reached."""


class BulkRunInfo(msgspec.Struct, frozen=True):
    """A run of a bulk job."""

    id: str
    outcome: BulkOutcome
    message: str
    """Why it was skipped or failed."""


class BulkOptions(TypedDict, total=False):
    """Options of `bulk()`."""

    view: str
    """A saved view, whose query must match too."""
    reason: str
    """Recorded by cancel, terminate and pause."""
    dry_run: bool
    """Find the runs, and do nothing to them."""
    signal: str
    """Name of the signal to send, for `signal`."""
    payload: Any
    """Its value, of JSON types."""
    timeout: Duration | None
    """How long the call may take; that of the client unless given."""


class BulkHandle:
    """A bulk job. It goes on when the client goes away."""

    def __init__(self, backend: Backend, id: str) -> None:
        self._backend, self.id = backend, id

    def __repr__(self) -> str:
        return f"BulkHandle({self.id!r})"

    async def info(self, *, timeout: Duration | None = None) -> BulkInfo:
        """How far it is."""
        return info_of(await self._backend.call(acts.GET, BulkJobRef(self.id), within(timeout)))

    async def wait(self, timeout: Duration | None = None) -> BulkInfo:
        """Wait until it has ended.

        Raises:
            TimeoutError: It has not ended within `timeout`; it goes on.
            Unavailable: The server or its database did not answer.
        """
        limit_s, pause_s, began_s = None if timeout is None else to_us(timeout) / 1e6, POLL_S_MIN, monotonic()
        while True:
            left_s = None if limit_s is None else max(began_s + limit_s - monotonic(), POLL_S_MIN)
            job = await self._backend.call(acts.GET, BulkJobRef(self.id), left_s)
            if job.finished_us is not None:
                return info_of(job)
            if limit_s is not None and monotonic() + pause_s > began_s + limit_s:
                raise TimeoutError(f"bulk job {self.id} has not ended within {limit_s:g} s; it goes on")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S_MAX)

    async def cancel(self, *, timeout: Duration | None = None) -> BulkInfo:
        """Stop it. What was done stays done; the runs that are left are not touched."""
        return info_of(await self._backend.call(acts.CANCEL, BulkJobRef(self.id), within(timeout)))

    async def runs(
        self, outcome: BulkOutcome | None = None, *, timeout: Duration | None = None
    ) -> AsyncIterator[BulkRunInfo]:
        """Its runs, all or those with an outcome: `failed` for the errors. `timeout`: of each call, which gets PAGE_RUNS runs."""
        after: bytes | None = None
        while True:
            wanted = ListBulkRuns(self.id, outcome, after, PAGE_RUNS)
            page = await self._backend.call(acts.RUNS, wanted, within(timeout))
            for run in page.items:
                yield BulkRunInfo(ids.text(run.run_id), run.outcome, run.message)
            if page.next is None:
                return
            after = page.next


def info_of(job: BulkJob) -> BulkInfo:
    return BulkInfo(
        id=ids.text(job.id),
        action=job.action,
        query=job.query,
        status=job.status,
        error=job.error,
        created_at=datetime_of(job.created_us),
        finished_at=None if job.finished_us is None else datetime_of(job.finished_us),
        is_dry_run=job.is_dry_run,
        matched=job.matched,
        done=job.done,
        skipped=job.skipped,
        failed=job.failed,
    )
