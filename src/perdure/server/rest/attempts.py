"""Attempts of a run's tasks: when, where, how they ended and what they cost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import attempts as acts
from perdure.core.api.attempts import AttemptItem, AttemptPosition, ListAttempts
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses
from perdure.server.rest.runs import RunName, TaskName

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)

Caller = Annotated[RestCaller, asks(acts.LIST)]
Unsuccessful = Annotated[bool, Query(description="Only those that ended and did not succeed.")]


class AttemptLogs(BaseModel):
    """What an attempt printed and logged."""

    first: int = Field(description="Its first chunk, counted from 0.")
    last: int
    lines: int


class TaskAttempt(BaseModel):
    """One execution of a task."""

    task_id: str = Field(examples=[m.ID])
    seq: int = Field(description="The number of the task in its run.")
    name: str = Field(examples=["charge_card"])
    node: str | None = Field(description="The node of a flow, with its index in a foreach.")
    epoch: int = Field(
        description="Of the run when the end was recorded. A retry of the run counts attempts from 1 again, in a later epoch."
    )
    attempt: int = Field(description="Counted from 1.")
    outcome: Literal["success", "error", "timeout", "lost", "cancelled"] | None = Field(
        description="Null while it runs."
    )
    is_last: bool = Field(description="The task ended with it.")
    worker: str | None
    started_at: m.Moment | None = Field(description="Null: its engine is gone, and it is not known whether it began.")
    finished_at: m.Moment | None
    wall_s: float | None
    cpu_s: float | None = Field(description="CPU time of the task's code; null where it is not known.")
    error: m.ErrorInfo | None
    logs: AttemptLogs | None = Field(description="Null: it wrote nothing, or a retry of the run took it back.")


@router.get("/{id}/attempts", responses=responses(401, 403, 404, 409, 422))
async def list_attempts(
    caller: Caller,
    id: RunName,
    unsuccessful: Unsuccessful = False,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[TaskAttempt]:
    """The attempts of all tasks of a run, by task and number."""
    return await _listed(caller, id, "", unsuccessful, limit, cursor)


@router.get("/{id}/tasks/{task}/attempts", responses=responses(401, 403, 404, 409, 422))
async def list_task_attempts(
    caller: Caller,
    id: RunName,
    task: TaskName,
    unsuccessful: Unsuccessful = False,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[TaskAttempt]:
    """The attempts of one task, or of all tasks of one name."""
    return await _listed(caller, id, task, unsuccessful, limit, cursor)


async def _listed(
    caller: RestCaller, run: str, task: str, unsuccessful: bool, limit: int, cursor: Any
) -> m.Page[TaskAttempt]:
    after = views.read_cursor(cursor, AttemptPosition)
    page = await caller.call(acts.LIST, ListAttempts(run, task, unsuccessful, after, limit))
    return m.Page[TaskAttempt](items=[view(a) for a in page.items], next=views.next_cursor(page.next))


def view(a: AttemptItem) -> TaskAttempt:
    wall_us = a.finished_us - a.started_us if a.finished_us is not None and a.started_us is not None else None
    return TaskAttempt(
        task_id=ids.text(a.task_id),
        seq=a.seq,
        name=a.name,
        node=a.node,
        epoch=a.epoch,
        attempt=a.attempt,
        outcome=a.outcome,  # type: ignore[arg-type]
        is_last=a.is_last,
        worker=a.worker,
        started_at=views.moment_or_none(a.started_us),
        finished_at=views.moment_or_none(a.finished_us),
        wall_s=None if wall_us is None else max(wall_us, 0) / 1e6,
        cpu_s=None if a.cpu_us is None else a.cpu_us / 1e6,
        error=None if a.failure is None else views.failure(a.failure),
        logs=None if a.logs is None else AttemptLogs(first=a.logs.first, last=a.logs.last, lines=a.logs.lines),
    )
