"""How many runs there are, how they ended and how long they took."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class GetHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """Runs created from `since_us` until `until_us`, in at most `bins` parts."""

    since_us: int
    until_us: int | None = None
    """None: now."""
    bins: int = 96
    workflow: str = ""
    """Empty: all workflows."""


class RunTotals(msgspec.Struct, frozen=True, kw_only=True):
    success: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0
    pending: int = 0


class RunBin(RunTotals, frozen=True, kw_only=True):
    """Runs by their status now, of those that were created in one part of the time."""

    at_us: int


class RunHistogram(msgspec.Struct, frozen=True, kw_only=True):
    from_us: int
    to_us: int
    bin_s: int
    bins: list[RunBin]
    totals: RunTotals
    capped: bool
    """There are more active runs than were counted: the newest ACTIVE_RUNS_COUNTED_MAX."""


class GetStats(msgspec.Struct, frozen=True):
    workflow: str
    days: int = 30


class DayStats(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that were created on one day (UTC)."""

    at_us: int
    started: int
    success: int
    failed: int
    cancelled: int
    p50_s: float | None
    """Of the time from creation to success."""
    p95_s: float | None


class VersionStart(msgspec.Struct, frozen=True):
    version: str
    first_us: int
    """When it was registered first."""


class WorkflowStats(msgspec.Struct, frozen=True, kw_only=True):
    days: list[DayStats]
    """Every day, the oldest first."""
    p50_s: float | None
    p95_s: float | None
    success_rate: float | None
    """Successes among the runs that succeeded or failed. None: there was neither."""
    versions: list[VersionStart]
    """The newest first."""
    capped: bool


class ListDurations(msgspec.Struct, frozen=True):
    """Of the last seven days."""


class WorkflowDurations(msgspec.Struct, frozen=True):
    """How long runs of a workflow took that succeeded."""

    workflow: str
    p50_s: float
    p95_s: float
    runs: int


class DurationList(msgspec.Struct, frozen=True):
    items: list[WorkflowDurations]


class GetCounts(msgspec.Struct, frozen=True):
    pass


class NamespaceCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What is going on in a namespace, for a status bar."""

    active: int
    pending: int
    """Of the active runs."""
    failed_24h: int
    """Runs created within the last day that failed."""
    approvals: int
    """Open ones."""
    dead_letters: int
    """Of runs created within DEAD_LETTERS_COUNTED_DAYS."""
    workers: int
    engines: int
    """Of all namespaces."""
    commit_p50_ms: float | None
    """The median of the commits of the engine that answers, since it began."""
    capped: bool
    """There are more active runs, approvals or dead letters than were counted."""


HISTOGRAM: Act[GetHistogram, RunHistogram] = Act("run.histogram", GetHistogram, RunHistogram, Permission.READ)
STATS: Act[GetStats, WorkflowStats] = Act("workflow.stats", GetStats, WorkflowStats, Permission.READ)
DURATIONS: Act[ListDurations, DurationList] = Act("workflow.durations", ListDurations, DurationList, Permission.READ)
COUNTS: Act[GetCounts, NamespaceCounts] = Act("namespace.counts", GetCounts, NamespaceCounts, Permission.READ)

ACTS = (HISTOGRAM, STATS, DURATIONS, COUNTS)
