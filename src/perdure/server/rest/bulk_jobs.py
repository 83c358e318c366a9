"""Bulk jobs: one act on every run that a query matches."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import bulk_jobs as acts
from perdure.core.api.bulk_jobs import (
    BulkAction,
    BulkJob,
    BulkJobRef,
    BulkOutcome,
    BulkRun,
    BulkStatus,
    ListBulkJobs,
    ListBulkRuns,
    StartBulkJob,
)
from perdure.core.limits import BULK_RUNS_MAX, MESSAGE_KEY_CHARS_MAX, NAME_CHARS_MAX, QUERY_CHARS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(prefix="/bulk-jobs", tags=["bulk jobs"], route_class=GuardedRoute)

JobId = Annotated[
    str, Path(min_length=1, max_length=NAME_CHARS_MAX, description="Id of the bulk job.", examples=[m.ID])
]


class BulkJobRequest(m.Body):
    action: BulkAction
    query: str = Field(
        default="",
        max_length=QUERY_CHARS_MAX,
        description="Which runs; runs that are started later are not part of the job.",
        examples=["workflow = import and status = running"],
    )
    view: str = Field(default="", max_length=NAME_CHARS_MAX, description="A saved view, whose query must match too.")
    reason: str = Field(default="", max_length=m.REASON_CHARS_MAX, description="For cancel, terminate and pause.")
    dry_run: bool = Field(default=False, description="Find the runs, and do nothing to them.")
    signal: str = Field(
        default="", max_length=NAME_CHARS_MAX, description="Name of the signal, for the action `signal`."
    )
    payload: Any = Field(default=None, description="Value of the signal.")
    key: str = Field(
        default="", max_length=MESSAGE_KEY_CHARS_MAX, description="Your own key: two requests with one key are one job."
    )


class BulkJobDetail(BaseModel):
    id: str = Field(examples=[m.ID])
    action: BulkAction
    query: str
    reason: str
    dry_run: bool
    status: BulkStatus = Field(
        description="`pending` while its runs are found; `success` when it came to every run, also if some of them refused; "
        "`failed` when it could not be carried out."
    )
    error: str | None
    created_at: m.Moment = Field(examples=[m.AT])
    created_by: str
    finished_at: m.Moment | None
    matched: int = Field(description=f"Runs that match; while the job is pending, so far. At most {BULK_RUNS_MAX:,}.")
    done: int
    skipped: int = Field(description="There was nothing to do, or the run did not match any more.")
    failed: int = Field(description="The run refused, or could not be reached.")
    signal: str | None = Field(default=None, description="Name of the signal that it sends.")


class BulkRunOutcome(BaseModel):
    run_id: str = Field(examples=[m.ID])
    outcome: BulkOutcome
    message: str = Field(description="Why it was skipped or failed.")
    url: str = Field(description="The run's page.")


@router.post("", status_code=202, responses=responses(401, 403, 404, 409, 413, 422))
async def start_bulk_job(caller: Annotated[RestCaller, asks(acts.START)], body: BulkJobRequest) -> BulkJobDetail:
    """Cancel, terminate, pause, resume, retry, delete or signal every run that matches. The server carries it out; read the job for its progress."""
    request = StartBulkJob(
        action=body.action,
        query=body.query,
        view=body.view,
        reason=body.reason,
        is_dry_run=body.dry_run,
        key=body.key,
        signal=body.signal,
        payload=views.payload(body.payload) if body.action == "signal" or body.payload is not None else b"",
    )
    return shown(await caller.call(acts.START, request))


@router.get("", responses=responses(401, 403, 422))
async def list_bulk_jobs(
    caller: Annotated[RestCaller, asks(acts.LIST)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[BulkJobDetail]:
    """Bulk jobs, newest first. A finished one is kept for 7 days."""
    page = await caller.call(acts.LIST, ListBulkJobs(views.read_id_cursor(cursor), limit))
    return m.Page[BulkJobDetail](items=[shown(j) for j in page.items], next=views.next_cursor(page.next))


@router.get("/{id}", responses=responses(401, 403, 404, 422))
async def get_bulk_job(caller: Annotated[RestCaller, asks(acts.GET)], id: JobId) -> BulkJobDetail:
    """A bulk job with its progress."""
    return shown(await caller.call(acts.GET, BulkJobRef(id)))


@router.get("/{id}/runs", responses=responses(401, 403, 404, 422))
async def list_bulk_runs(
    caller: Annotated[RestCaller, asks(acts.RUNS)],
    id: JobId,
    outcome: Annotated[BulkOutcome | None, Query(description="Only these; `failed` for the errors.")] = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[BulkRunOutcome]:
    """The runs of a bulk job, and what came of each."""
    page = await caller.call(acts.RUNS, ListBulkRuns(id, outcome, views.read_id_cursor(cursor), limit))
    items = [_run(r, caller.api.api.public_url) for r in page.items]
    return m.Page[BulkRunOutcome](items=items, next=views.next_cursor(page.next))


@router.post("/{id}/cancel", responses=responses(401, 403, 404, 409, 422))
async def cancel_bulk_job(caller: Annotated[RestCaller, asks(acts.CANCEL)], id: JobId) -> BulkJobDetail:
    """Stop a bulk job. What was done stays done; the runs that are left are not touched."""
    return shown(await caller.call(acts.CANCEL, BulkJobRef(id)))


def _run(r: BulkRun, public_url: str) -> BulkRunOutcome:
    run_id = ids.text(r.run_id)
    return BulkRunOutcome(run_id=run_id, outcome=r.outcome, message=r.message, url=f"{public_url}/runs/{run_id}")


def shown(j: BulkJob) -> BulkJobDetail:
    return BulkJobDetail(
        id=ids.text(j.id),
        action=j.action,
        query=j.query,
        reason=j.reason,
        dry_run=j.is_dry_run,
        status=j.status,
        error=j.error,
        created_at=views.moment(j.created_us),
        created_by=j.created_by,
        finished_at=views.moment_or_none(j.finished_us),
        matched=j.matched,
        done=j.done,
        skipped=j.skipped,
        failed=j.failed,
        signal=j.signal or None,
    )
