"""Dead letters: tasks that failed for good with their runs, and the retry of many of those runs at once."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import dead_letters as acts
from perdure.core.api.act import KEY_PREFIX
from perdure.core.api.dead_letters import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPosition,
    ListDeadLetters,
    RetriedRun,
    RetryDeadLetters,
)
from perdure.core.errors import InvalidInput
from perdure.core.limits import BULK_RETRY_MAX, NAME_CHARS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

MOMENT_US_MAX: Final = 10_000 * 366 * 86_400_000_000
"""Later than any moment the database knows."""

router = APIRouter(prefix="/dead-letters", tags=["dead letters"], route_class=GuardedRoute)

RunText = Annotated[str, Field(min_length=1, max_length=NAME_CHARS_MAX + len(KEY_PREFIX))]
WhenText = Annotated[str, Field(max_length=m.TIME_CHARS_MAX)]
FilterText = Annotated[str, Field(max_length=NAME_CHARS_MAX)]


class DeadLetterInfo(BaseModel):
    """A task that failed for good, in a run that failed with it and was not retried since."""

    id: str = Field(description="Of the task.", examples=[m.ID])
    run_id: str = Field(examples=[m.ID])
    workflow: str
    key: str | None = Field(description="The key that the run's starter gave it.")
    seq: int = Field(description="The task's number in its run.")
    task: str
    node: str | None = Field(description="The node of a flow that it belongs to.")
    queue: str
    attempts: int = Field(description="How often it was executed.")
    lost: int = Field(description="How often its worker was lost.")
    scheduled_at: m.Moment = Field(examples=[m.AT])
    failed_at: m.Moment = Field(examples=[m.AT])
    error: str
    parent_id: str | None = Field(description="The run that the run is a child of.")
    url: str = Field(description="The run's page.")


class RetryDeadLettersRequest(m.Body):
    """Which runs to retry: those named, or those that the filter finds."""

    runs: list[RunText] = Field(
        default_factory=list, max_length=BULK_RETRY_MAX, description="These runs, and no filter."
    )
    workflow: FilterText = ""
    queue: FilterText = ""
    task: FilterText = Field(default="", description="The task's name, or a node of a flow.")
    since: WhenText | None = Field(
        default=None, description="Failed at this time or later; a time, or how long ago.", examples=["1d"]
    )
    until: WhenText | None = Field(default=None, description="Failed before this time.")
    q: FilterText = Field(default="", description="Part of the error.")
    limit: int = Field(
        default=BULK_RETRY_MAX, ge=1, le=BULK_RETRY_MAX, description="Dead letters to go through, in one request."
    )
    cursor: str | None = Field(
        default=None, max_length=m.CURSOR_CHARS_MAX, description="The `next` of the page before."
    )
    dry_run: bool = Field(default=False, description="Report what would be retried, and change nothing.")


class RetryOutcome(BaseModel):
    """The outcome of one run."""

    run_id: str = Field(examples=[m.ID])
    outcome: Literal["retried", "refused", "would_retry"]
    reason: str | None = Field(description="Why it was not retried.")
    url: str = Field(description="The run's page.")


@router.get("", responses=responses(401, 403, 422))
async def list_dead_letters(
    caller: Annotated[RestCaller, asks(acts.LIST)],
    workflow: Annotated[str, Query(max_length=NAME_CHARS_MAX)] = "",
    queue: Annotated[str, Query(max_length=NAME_CHARS_MAX)] = "",
    task: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="The task's name, or a node of a flow.")] = "",
    since: Annotated[
        str | None,
        Query(
            max_length=m.TIME_CHARS_MAX,
            description="Failed at this time or later; a time, or how long ago.",
            examples=["24h"],
        ),
    ] = None,
    until: Annotated[
        str | None,
        Query(max_length=m.TIME_CHARS_MAX, description="Failed before this time.", examples=["2026-10-21T14:00:00Z"]),
    ] = None,
    q: Annotated[str, Query(max_length=NAME_CHARS_MAX, description="Part of the error.")] = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[DeadLetterInfo]:
    """Tasks that failed for good in runs that failed with them, newest failure first."""
    wanted = _filter(caller, DeadLetterFilter(workflow=workflow, queue=queue, task=task, text=q), since, until)
    page = await caller.call(acts.LIST, ListDeadLetters(wanted, _position(cursor), limit))
    items = [_item(letter, caller.api.api.public_url) for letter in page.items]
    return m.Page[DeadLetterInfo](items=items, next=views.next_cursor(page.next))


@router.post("/retry", responses=responses(401, 403, 404, 409, 422))
async def retry_dead_letters(
    caller: Annotated[RestCaller, asks(acts.RETRY)], body: RetryDeadLettersRequest
) -> m.Page[RetryOutcome]:
    """Retry the runs of dead letters, many at once. Each by itself: a refused run is reported, and the rest continues. Asking again is safe."""
    if body.runs and body.model_fields_set - {"runs", "dry_run", "limit"}:
        raise InvalidInput("give the runs, or a filter that finds them, not both")
    found = DeadLetterFilter(workflow=body.workflow, queue=body.queue, task=body.task, text=body.q)
    wanted = _filter(caller, found, body.since, body.until)
    page = await caller.call(
        acts.RETRY, RetryDeadLetters(body.runs, wanted, _position(body.cursor), body.limit, body.dry_run)
    )
    items = [_retried(one, caller.api.api.public_url) for one in page.items]
    return m.Page[RetryOutcome](items=items, next=views.next_cursor(page.next))


def _filter(caller: RestCaller, wanted: DeadLetterFilter, since: str | None, until: str | None) -> DeadLetterFilter:
    since_us = views.read_moment(since, "since", caller.now_us)
    until_us = views.read_moment(until, "until", caller.now_us)
    return msgspec.structs.replace(wanted, since_us=since_us, until_us=until_us)


def _position(cursor: str | None) -> DeadLetterPosition | None:
    found = views.read_cursor(cursor, tuple[int, bytes])
    if found is not None and (len(found[1]) != 16 or not 0 <= found[0] < MOMENT_US_MAX):
        raise views.no_cursor()
    return found


def _item(d: DeadLetter, public_url: str) -> DeadLetterInfo:
    run_id = ids.text(d.run_id)
    return DeadLetterInfo(
        id=ids.text(d.task_id),
        run_id=run_id,
        workflow=d.workflow,
        key=views.own_key(d.key),
        seq=d.seq,
        task=d.task,
        node=d.node,
        queue=d.queue,
        attempts=d.attempts,
        lost=d.lost,
        scheduled_at=views.moment(d.scheduled_us),
        failed_at=views.moment(d.failed_us),
        error=d.error or "",
        parent_id=ids.text(d.parent_id) if d.parent_id else None,
        url=f"{public_url}/runs/{run_id}",
    )


def _retried(r: RetriedRun, public_url: str) -> RetryOutcome:
    run_id = ids.text(r.run_id)
    return RetryOutcome(run_id=run_id, outcome=r.outcome, reason=r.reason or None, url=f"{public_url}/runs/{run_id}")
