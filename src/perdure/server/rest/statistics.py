"""Numbers of runs: a histogram for lists, statistics of a workflow, usual durations, and counts for a status bar."""

from __future__ import annotations

from datetime import date
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from perdure.core.api import statistics as acts
from perdure.core.api.statistics import (
    GetCounts,
    GetHistogram,
    GetStats,
    ListDurations,
    NamespaceCounts,
    RunTotals,
)
from perdure.core.durations import datetime_of
from perdure.core.limits import HISTOGRAM_BINS_MAX, NAME_CHARS_MAX, STATS_DAYS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.problems import responses
from perdure.server.rest.start_requests import WorkflowName

router = APIRouter(route_class=GuardedRoute)


class StatusTotals(BaseModel):
    """Runs by their status now."""

    success: int
    failed: int
    cancelled: int
    running: int
    pending: int


class HistogramBin(StatusTotals):
    at: m.Moment = Field(description="Its first moment.")


class RunsOverTime(BaseModel):
    """Runs by time of creation."""

    from_: m.Moment = Field(alias="from")
    to: m.Moment
    bin_s: int = Field(description="Seconds of each bin: 15 minutes or more. Bins begin at whole multiples of it, UTC.")
    bins: list[HistogramBin] = Field(description="All of them, the oldest first.")
    totals: StatusTotals
    capped: bool = Field(description="There are more active runs than were counted: only the newest were.")


class DayOfRuns(BaseModel):
    """Runs that were created on one day (UTC)."""

    day: date
    started: int
    success: int
    failed: int
    cancelled: int
    p50_s: float | None = Field(description="From creation to success.")
    p95_s: float | None


class VersionSeen(BaseModel):
    version: str
    first_at: m.Moment


class Statistics(BaseModel):
    """How the runs of a workflow ended, and how long they took."""

    days: list[DayOfRuns] = Field(description="Every day, the oldest first; today is the last.")
    p50_s: float | None = Field(description="Of all runs of these days that succeeded.")
    p95_s: float | None
    success_rate: float | None = Field(description="Successes among the runs that succeeded or failed.")
    versions: list[VersionSeen] = Field(description="When each version was registered, the newest first.")
    capped: bool = Field(description="There are more active runs than were counted.")


class UsualDuration(BaseModel):
    workflow: str
    p50_s: float
    p95_s: float
    runs: int


class UsualDurations(BaseModel):
    items: list[UsualDuration]


class Counts(BaseModel):
    """What is going on in the namespace."""

    active: int
    pending: int = Field(description="Of the active runs.")
    failed_24h: int = Field(description="Runs created within the last day that failed.")
    approvals: int = Field(description="Open approvals.")
    dead_letters: int = Field(description="Of runs created within the last 30 days.")
    workers: int
    engines: int = Field(description="Of the whole database.")
    commit_p50_ms: float | None = Field(description="The median of this server's commits, since it began.")
    capped: bool = Field(description="There are more active runs, approvals or failed tasks than were counted.")


@router.get("/runs/histogram", tags=["runs"], responses=responses(401, 403, 422))
async def run_histogram(
    caller: Annotated[RestCaller, asks(acts.HISTOGRAM)],
    since: Annotated[str, Query(max_length=100, description="A time, or how long ago: `24h`.")] = "24h",
    until: Annotated[str | None, Query(max_length=100, description="A time, or how long ago. Default: now.")] = None,
    bins: Annotated[int, Query(ge=1, le=HISTOGRAM_BINS_MAX, description="At most so many.")] = 96,
    workflow: Annotated[str, Query(max_length=NAME_CHARS_MAX)] = "",
) -> RunsOverTime:
    """How many runs were created when, by status. Its cost does not depend on how many have ended."""
    found = await caller.call(
        acts.HISTOGRAM,
        GetHistogram(
            since_us=views.read_moment(since, "since", caller.now_us) or 0,
            until_us=views.read_moment(until, "until", caller.now_us),
            bins=bins,
            workflow=workflow,
        ),
    )
    return RunsOverTime.model_validate(
        {
            "from": views.moment(found.from_us),
            "to": views.moment(found.to_us),
            "bin_s": found.bin_s,
            "bins": [HistogramBin(at=views.moment(b.at_us), **_totals(b)) for b in found.bins],
            "totals": StatusTotals(**_totals(found.totals)),
            "capped": found.capped,
        }
    )


@router.get("/workflows/{name}/stats", tags=["workflows"], responses=responses(401, 403, 404, 422))
async def workflow_stats(
    caller: Annotated[RestCaller, asks(acts.STATS)],
    name: WorkflowName,
    days: Annotated[int, Query(ge=1, le=STATS_DAYS_MAX, description="Today and the days before.")] = 30,
) -> Statistics:
    """How many runs of a workflow were created on each day, how they ended and how long they took."""
    found = await caller.call(acts.STATS, GetStats(name, days))
    return Statistics(
        days=[
            DayOfRuns(
                day=datetime_of(d.at_us).date(),
                started=d.started,
                success=d.success,
                failed=d.failed,
                cancelled=d.cancelled,
                p50_s=d.p50_s,
                p95_s=d.p95_s,
            )
            for d in found.days
        ],
        p50_s=found.p50_s,
        p95_s=found.p95_s,
        success_rate=found.success_rate,
        versions=[VersionSeen(version=v.version, first_at=views.moment(v.first_us)) for v in found.versions],
        capped=found.capped,
    )


@router.get("/workflow-durations", tags=["workflows"], responses=responses(401, 403, 422))
async def workflow_durations(caller: Annotated[RestCaller, asks(acts.DURATIONS)]) -> UsualDurations:
    """How long runs of each workflow took that succeeded, over the last seven days; by name."""
    found = await caller.call(acts.DURATIONS, ListDurations())
    return UsualDurations(
        items=[UsualDuration(workflow=d.workflow, p50_s=d.p50_s, p95_s=d.p95_s, runs=d.runs) for d in found.items]
    )


@router.get("/counts", tags=["runs"], responses=responses(401, 403, 422))
async def namespace_counts(caller: Annotated[RestCaller, asks(acts.COUNTS)]) -> Counts:
    """Active and failed runs, approvals, dead letters, workers and engines. The stream has the same as `counts=1`."""
    return counts_view(await caller.call(acts.COUNTS, GetCounts()))


def counts_view(found: NamespaceCounts) -> Counts:
    return Counts(**{name: getattr(found, name) for name in found.__struct_fields__})


def _totals(found: RunTotals) -> dict[str, int]:
    return {name: getattr(found, name) for name in RunTotals.__struct_fields__}
