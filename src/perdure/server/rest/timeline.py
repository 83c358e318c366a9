"""The timeline of a run: its nodes over time."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import timeline as acts
from perdure.core.api.timeline import BINS_DEFAULT, BINS_MAX, DurationBars, GetTimeline, Timeline, WorkBins
from perdure.core.lifecycle import TaskStatus
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.problems import responses
from perdure.server.rest.runs import RunName

router = APIRouter(prefix="/runs", tags=["runs"], route_class=GuardedRoute)

Counts = Annotated[
    dict[m.TaskStatusWord, int], Field(description="Tasks by status; a status without tasks is left out.")
]


class NodeWork(BaseModel):
    """Work at a time, in equal parts of time."""

    from_: m.Moment = Field(alias="from")
    bin_s: float
    running: list[int] = Field(description="Attempts at work, on average, rounded up.")
    failed: list[int] = Field(description="Attempts that failed.")


class NodeDurations(BaseModel):
    """How long tasks took that succeeded: the last attempt of each."""

    bars: list[int] = Field(description="Counts over sixteen equal parts of 0 to `max_s`.")
    max_s: float
    p50_s: float
    p95_s: float


class TimelineLane(BaseModel):
    node: str = Field(description="The node of a flow, or the name of a task, timer, child or promise of code.")
    kind: acts.NodeKind
    status: m.TaskStatusWord = Field(description="Of all its tasks together: the most telling one.")
    tasks: int
    counts: Counts
    seq: int | None = Field(description="The number of its only task.")
    attempts: int = Field(description="The most of one task.")
    first_at: m.Moment | None = Field(description="When it was first asked for.")
    started_at: m.Moment | None
    finished_at: m.Moment | None
    error: str | None
    segments: list[m.TaskSegment] = Field(description="Of a node with one task; of timers and waits, all.")
    bins: NodeWork | None = Field(description="Of a node with several tasks.")
    durations: NodeDurations | None
    expected_s: float | None = Field(description="Median of how long it took in the latest runs; of active runs.")
    child_run: str | None
    after: list[str] = Field(description="Nodes that come before it.")


class RunTimeline(BaseModel):
    """The nodes of a run over time."""

    run_id: str = Field(examples=[m.ID])
    from_: m.Moment = Field(alias="from")
    to: m.Moment = Field(description="When it ended; of an active run, now.")
    ended: bool
    total: int = Field(description="Tasks.")
    counts: Counts
    nodes: list[TimelineLane]
    idle: list[tuple[m.Moment, m.Moment]] = Field(description="Long times in which no attempt was at work.")
    truncated: bool = Field(description="It has more nodes, or more tasks than were counted.")


@router.get("/{id}/timeline", responses=responses(401, 403, 404, 409, 422))
async def get_timeline(
    caller: Annotated[RestCaller, asks(acts.GET)],
    id: RunName,
    bins: Annotated[
        int, Query(ge=4, le=BINS_MAX, description="Parts of time for nodes with several tasks, at most.")
    ] = BINS_DEFAULT,
) -> RunTimeline:
    """The nodes of a run over time: attempts and waits of each, and for many tasks how many were at work."""
    return view(await caller.call(acts.GET, GetTimeline(id, bins)))


def view(t: Timeline) -> RunTimeline:
    return RunTimeline.model_validate(
        {
            "run_id": ids.text(t.run_id),
            "from": views.moment(t.from_us),
            "to": views.moment(t.to_us),
            "ended": t.ended,
            "total": t.total,
            "counts": counts(t.counts),
            "nodes": [_node(n) for n in t.nodes],
            "idle": [(views.moment(start), views.moment(end)) for start, end in t.idle],
            "truncated": t.truncated,
        }
    )


def counts(found: dict[int, int]) -> dict[str, int]:
    return {TaskStatus(s).word: n for s, n in sorted(found.items()) if n}


def _node(n: acts.TimelineNode) -> dict[str, Any]:
    return {
        "node": n.node,
        "kind": n.kind,
        "status": TaskStatus(n.status).word,
        "tasks": n.tasks,
        "counts": counts(n.counts),
        "seq": n.seq,
        "attempts": n.attempts,
        "first_at": views.moment_or_none(n.first_us),
        "started_at": views.moment_or_none(n.started_us),
        "finished_at": views.moment_or_none(n.finished_us),
        "error": n.error,
        "segments": [views.segment(s) for s in n.segments],
        "bins": _bins(n.bins),
        "durations": _durations(n.durations),
        "expected_s": None if n.expected_us is None else n.expected_us / 1e6,
        "child_run": None if n.child_run is None else ids.text(n.child_run),
        "after": n.after,
    }


def _bins(b: WorkBins | None) -> dict[str, Any] | None:
    if b is None:
        return None
    return {"from": views.moment(b.from_us), "bin_s": b.bin_us / 1e6, "running": b.running, "failed": b.failed}


def _durations(d: DurationBars | None) -> dict[str, Any] | None:
    if d is None:
        return None
    return {"bars": d.bars, "max_s": d.max_us / 1e6, "p50_s": d.p50_us / 1e6, "p95_s": d.p95_us / 1e6}
