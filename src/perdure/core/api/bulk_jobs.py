"""Bulk jobs: one act on every run that a query matches."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act

BulkAction = Literal["cancel", "terminate", "pause", "resume", "retry", "delete", "signal"]
BulkStatus = Literal["pending", "running", "success", "failed", "cancelled"]
"""`pending`: its runs are being found. `success`: it came to every run; some may have refused. `failed`: it could not be carried out."""
BulkOutcome = Literal["pending", "done", "skipped", "failed"]
"""Of one run. `skipped`: there was nothing to do, or it did not match any more. `failed`: it refused, or was not reached in time."""
ACTIONS: Final[tuple[BulkAction, ...]] = ("cancel", "terminate", "pause", "resume", "retry", "delete", "signal")
OUTCOMES: Final[tuple[BulkOutcome, ...]] = ("pending", "done", "skipped", "failed")


class StartBulkJob(msgspec.Struct, frozen=True, kw_only=True):
    """For all runs that match now. Runs that are started later are not part of it."""

    action: BulkAction
    query: str = ""
    view: str = ""
    """A saved view, whose query must match too."""
    reason: str = ""
    is_dry_run: bool = False
    """Find the runs, and do nothing to them."""
    key: str = ""
    """The sender's own key: two requests with one key are one job."""
    signal: str = ""
    """Name of the signal, for the action `signal`."""
    payload: bytes = b""
    """Its value as JSON."""


class BulkJob(msgspec.Struct, frozen=True, kw_only=True):
    id: bytes
    action: BulkAction
    query: str
    reason: str
    is_dry_run: bool
    status: BulkStatus
    error: str | None
    created_us: int
    created_by: str
    finished_us: int | None
    matched: int
    """Runs found; while it is pending, so far."""
    done: int
    skipped: int
    failed: int
    signal: str = ""
    """Name of the signal that it sends."""
    payload: bytes = b""


class BulkJobRef(msgspec.Struct, frozen=True):
    id: str


class ListBulkJobs(msgspec.Struct, frozen=True):
    below: bytes | None = None
    """Continue below this id."""
    limit: int = 50


class BulkJobPage(msgspec.Struct, frozen=True):
    """Newest first. `next` continues below this id; None at the end."""

    items: list[BulkJob]
    next: bytes | None


class ListBulkRuns(msgspec.Struct, frozen=True):
    id: str
    outcome: BulkOutcome | None = None
    """None: all."""
    after: bytes | None = None
    limit: int = 50


class BulkRun(msgspec.Struct, frozen=True):
    run_id: bytes
    outcome: BulkOutcome
    message: str = ""
    """Why it was skipped or failed."""


class BulkRunPage(msgspec.Struct, frozen=True):
    """By id of the run. `next` continues after this id; None at the end."""

    items: list[BulkRun]
    next: bytes | None


START: Act[StartBulkJob, BulkJob] = Act(
    "bulk_job.start", StartBulkJob, BulkJob, Permission.OPERATE, ("bulk_job.start",), once_by="key"
)
GET: Act[BulkJobRef, BulkJob] = Act("bulk_job.get", BulkJobRef, BulkJob, Permission.READ)
LIST: Act[ListBulkJobs, BulkJobPage] = Act("bulk_job.list", ListBulkJobs, BulkJobPage, Permission.READ)
RUNS: Act[ListBulkRuns, BulkRunPage] = Act("bulk_job.runs", ListBulkRuns, BulkRunPage, Permission.READ)
CANCEL: Act[BulkJobRef, BulkJob] = Act(
    "bulk_job.cancel", BulkJobRef, BulkJob, Permission.OPERATE, ("bulk_job.cancel",), True
)

ACTS = (START, GET, LIST, RUNS, CANCEL)
