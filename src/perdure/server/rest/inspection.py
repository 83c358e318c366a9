"""What looks into a run: its state as of an event, its difference from another run, its history as a document."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import inspection
from perdure.core.api.inspection import DiffRuns, DiffSide, ExportRun, GetRunAt, RunAt, RunDiff, StepDiff, StepView
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.problems import responses
from perdure.server.rest.runs import SEQ_MAX, RunName

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)


class OutstandingAt(BaseModel):
    kind: str = Field(examples=["task"])
    seq: int
    name: str
    since: int = Field(description="The event that asked for it.")
    until: m.Moment | None = Field(description="When a timer fires.")
    run_id: str | None = Field(description="Of a child.")


class ResultAt(BaseModel):
    event: int
    step: str = Field(examples=["task 3 charge"])
    value: Any
    error: str | None


class RunStateAt(BaseModel):
    """A run as of one of its events."""

    id: str
    workflow: str
    version: str
    status: m.RunStatusWord
    at: int
    time: m.Moment
    event: str = Field(examples=["TaskFailed"])
    events: int = Field(description="Events that the run has by now.")
    outstanding: list[OutstandingAt]
    state: dict[str, Any]
    attributes: dict[str, Any]
    results: list[ResultAt] = Field(description="The latest ones, newest first.")
    undo: list[m.UndoStep]
    nodes: dict[str, str] = Field(description="Statuses of the nodes of a flow.")


class DiffStep(BaseModel):
    event: int
    name: str
    input: Any
    outcome: str | None
    value: Any
    error: str | None
    took_ms: float | None


class DiffLine(BaseModel):
    step: str = Field(examples=["task 3"])
    one: DiffStep | None
    other: DiffStep | None
    differs: list[str] = Field(
        description="Of name, input, outcome, result; `missing` when only one of the runs has this step."
    )


class DiffRun(BaseModel):
    id: str
    workflow: str
    version: str
    status: m.RunStatusWord
    input: Any
    result: Any
    error: str | None
    events: int
    took_ms: float


class RunDifference(BaseModel):
    """Where two runs part, and every step from there on."""

    one: DiffRun
    other: DiffRun
    differs: list[str] = Field(description="Of workflow, version, input, status, result, error.")
    same: int = Field(description="Steps that are the same before the runs part.")
    parted: DiffLine | None
    after: list[DiffLine]
    omitted: int


@router.get("/{id}/at/{event}", responses=responses(401, 403, 404, 409, 422))
async def get_run_at(
    caller: Annotated[RestCaller, asks(inspection.AT)],
    id: RunName,
    event: Annotated[int, Path(ge=0, le=SEQ_MAX, description="Number of an event; 0 is the last one.")],
) -> RunStateAt:
    """What was outstanding, set and known when an event was recorded."""
    return _at(await caller.call(inspection.AT, GetRunAt(id, event)))


@router.get("/{id}/diff", responses=responses(401, 403, 404, 409, 422))
async def diff_runs(
    caller: Annotated[RestCaller, asks(inspection.DIFF)],
    id: RunName,
    other: Annotated[str, Query(min_length=1, max_length=500, description="Another run, named in the same way.")],
) -> RunDifference:
    """Where two runs part, step by step."""
    return _difference(await caller.call(inspection.DIFF, DiffRuns(id, other)))


@router.get("/{id}/export", responses=responses(401, 403, 404, 409, 413))
async def export_run(caller: Annotated[RestCaller, asks(inspection.EXPORT)], id: RunName) -> Response:
    """The history of a run as a document, to be replayed against code: `perdure.replay`, `perdure debug`."""
    found = await caller.call(inspection.EXPORT, ExportRun(id))
    return Response(found.document, media_type="application/json")


def _at(r: RunAt) -> RunStateAt:
    return RunStateAt(
        id=ids.text(r.run_id),
        workflow=r.workflow,
        version=r.version,
        status=r.status,  # type: ignore[arg-type]
        at=r.at,
        time=views.moment(r.at_us),
        event=r.event,
        events=r.events,
        outstanding=[
            OutstandingAt(
                kind=o.kind,
                seq=o.seq,
                name=o.name,
                since=o.since,
                until=views.moment_or_none(o.until_us),
                run_id=ids.text(o.run_id) if o.run_id else None,
            )
            for o in r.outstanding
        ],
        state={name: views.plain(value) for name, value in r.states.items()},
        attributes=views.plain(r.attributes) or {},
        results=[ResultAt(event=x.event, step=x.step, value=views.plain(x.value), error=x.error) for x in r.results],
        undo=[views.undo_step(u) for u in r.undo],
        nodes=r.nodes,
    )


def _difference(d: RunDiff) -> RunDifference:
    return RunDifference(
        one=_run(d.one),
        other=_run(d.other),
        differs=d.differs,
        same=d.same,
        parted=_line(d.parted) if d.parted is not None else None,
        after=[_line(line) for line in d.after],
        omitted=d.omitted,
    )


def _run(s: DiffSide) -> DiffRun:
    return DiffRun(
        id=ids.text(s.run_id),
        workflow=s.workflow,
        version=s.version,
        status=s.status,  # type: ignore[arg-type]
        input=views.plain(s.input),
        result=views.plain(s.result),
        error=s.error,
        events=s.events,
        took_ms=s.took_us / 1_000,
    )


def _line(line: StepDiff) -> DiffLine:
    return DiffLine(step=line.step, one=_step(line.one), other=_step(line.other), differs=line.differs)


def _step(s: StepView | None) -> DiffStep | None:
    if s is None:
        return None
    return DiffStep(
        event=s.event,
        name=s.name,
        input=views.plain(s.input),
        outcome=s.outcome or None,
        value=views.plain(s.value),
        error=s.error,
        took_ms=None if s.took_us is None else s.took_us / 1_000,
    )
