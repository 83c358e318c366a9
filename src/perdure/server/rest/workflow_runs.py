"""The latest runs of a workflow together: a grid of runs and nodes, errors by cause, and inputs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import workflow_runs as acts
from perdure.core.api.workflow_runs import (
    ERROR_DAYS_DEFAULT,
    ERROR_DAYS_MAX,
    GRID_RUNS_DEFAULT,
    GRID_RUNS_MAX,
    GetErrors,
    GetGrid,
    GetInputs,
    GridRun,
)
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.problems import responses
from perdure.server.rest.start_requests import WorkflowName

router = APIRouter(prefix="/workflows", tags=["workflows"], route_class=GuardedRoute)


class GridEntry(BaseModel):
    status: m.TaskStatusWord
    tasks: int
    done: int
    failed: int
    attempts: int = Field(description="The most of one task.")


class GridColumn(BaseModel):
    """A run, with its nodes."""

    id: str = Field(examples=[m.ID])
    key: str | None
    created_at: m.Moment
    finished_at: m.Moment | None
    status: m.RunStatusWord
    duration_s: float | None = Field(description="Null while it is active.")
    cells: dict[str, GridEntry]


class WorkflowGrid(BaseModel):
    nodes: list[str]
    runs: list[GridColumn] = Field(description="Newest last.")


class WorkflowError(BaseModel):
    """Failures that differ in numbers and quoted parts only."""

    type: str = Field(examples=["ConnectionError"])
    message: str = Field(examples=["no answer from '…' after # s"])
    task: str | None = Field(description="The node or task that failed; null: the workflow's own code.")
    count: int
    last_at: m.Moment
    days: list[int] = Field(description="How many on each day (UTC), oldest first.")
    sample_run: str = Field(description="The latest.", examples=[m.ID])


class ErrorsByCause(BaseModel):
    items: list[WorkflowError]
    scanned: int = Field(description="Runs that were looked at.")
    capped: bool = Field(description="There were more.")


class InputUsed(BaseModel):
    input: Any
    run_id: str = Field(examples=[m.ID])
    created_at: m.Moment


class InputsUsed(BaseModel):
    items: list[InputUsed]


@router.get("/{name}/grid", responses=responses(401, 403, 404, 422))
async def get_grid(
    caller: Annotated[RestCaller, asks(acts.GRID)],
    name: WorkflowName,
    runs: Annotated[int, Query(ge=1, le=GRID_RUNS_MAX, description="How many of the latest.")] = GRID_RUNS_DEFAULT,
) -> WorkflowGrid:
    """The latest runs of a workflow and how each of their nodes ended."""
    found = await caller.call(acts.GRID, GetGrid(name, runs))
    return WorkflowGrid(nodes=found.nodes, runs=[_column(r) for r in found.runs])


def _column(r: GridRun) -> GridColumn:
    return GridColumn(
        id=ids.text(r.run_id),
        key=views.own_key(r.key),
        created_at=views.moment(r.created_us),
        finished_at=views.moment_or_none(r.finished_us),
        status=views.word(r.status),
        duration_s=None if r.finished_us is None else max(r.finished_us - r.created_us, 0) / 1e6,
        cells={
            node: GridEntry(
                status=views.task_word(c.status), tasks=c.tasks, done=c.done, failed=c.failed, attempts=c.attempts
            )
            for node, c in r.cells.items()
        },
    )


@router.get("/{name}/errors", responses=responses(401, 403, 404, 422))
async def get_errors(
    caller: Annotated[RestCaller, asks(acts.ERRORS)],
    name: WorkflowName,
    days: Annotated[int, Query(ge=1, le=ERROR_DAYS_MAX, description="Today and the days before.")] = ERROR_DAYS_DEFAULT,
) -> ErrorsByCause:
    """Why runs of a workflow failed, by cause."""
    found = await caller.call(acts.ERRORS, GetErrors(name, days))
    items = [
        WorkflowError(
            type=e.type,
            message=e.message,
            task=e.task,
            count=e.count,
            last_at=views.moment(e.last_us),
            days=e.days,
            sample_run=ids.text(e.sample_run),
        )
        for e in found.items
    ]
    return ErrorsByCause(items=items, scanned=found.scanned, capped=found.capped)


@router.get("/{name}/inputs", responses=responses(401, 403, 404))
async def get_inputs(caller: Annotated[RestCaller, asks(acts.INPUTS)], name: WorkflowName) -> InputsUsed:
    """The last ten different inputs that runs of a workflow were started with."""
    found = await caller.call(acts.INPUTS, GetInputs(name))
    return InputsUsed(
        items=[
            InputUsed(input=views.plain(i.input), run_id=ids.text(i.run_id), created_at=views.moment(i.created_us))
            for i in found.items
        ]
    )
