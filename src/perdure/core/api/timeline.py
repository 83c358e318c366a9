"""A run over time: one lane for each node of a flow or task of code, with attempts, waits and, for many tasks, how many were at work."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef

BINS_DEFAULT: Final = 120
BINS_MAX: Final = 480

NodeKind = Literal["task", "fanout", "timer", "child", "approval", "signal", "promise", "choice"]
SegmentKind = Literal["queued", "running", "success", "failed", "cancelled", "backoff", "timer", "waiting"]


class GetTimeline(msgspec.Struct, frozen=True):
    run: RunRef
    bins: int = BINS_DEFAULT
    """Parts of time into which the work of a node with many tasks is counted, at most."""


class Segment(msgspec.Struct, frozen=True):
    """What a task was doing for a while: it waited in a queue, an attempt of it ran, it waited for the next attempt."""

    kind: SegmentKind
    from_us: int
    to_us: int
    attempt: int | None = None
    worker: str | None = None


class WorkBins(msgspec.Struct, frozen=True):
    """Attempts at work, on average, and attempts that failed, in each of several equal parts of time."""

    from_us: int
    bin_us: int
    running: list[int]
    failed: list[int]


class DurationBars(msgspec.Struct, frozen=True):
    """How long the last attempts of tasks took: counts over equal parts of 0 to `max_us`."""

    bars: list[int]
    max_us: int
    p50_us: int
    p95_us: int


class TimelineNode(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    """The node of a flow, or the name of a task of code."""
    kind: NodeKind
    status: int
    """TaskStatus of all its tasks together: the most telling one."""
    tasks: int
    counts: dict[int, int]
    """TaskStatus -> how many."""
    seq: int | None = None
    """Number of its only task."""
    attempts: int = 0
    """The most of one task."""
    first_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    error: str | None = None
    segments: list[Segment] = []
    bins: WorkBins | None = None
    durations: DurationBars | None = None
    expected_us: int | None = None
    """The median of how long it took in the latest runs of the workflow."""
    child_run: bytes | None = None
    after: list[str] = []


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    run_id: bytes
    from_us: int
    to_us: int
    ended: bool
    total: int
    counts: dict[int, int]
    nodes: list[TimelineNode]
    idle: list[tuple[int, int]]
    """Long times in which no attempt was at work."""
    truncated: bool
    """There are more nodes, or more tasks than were counted."""


GET: Act[GetTimeline, Timeline] = Act("run.timeline", GetTimeline, Timeline, Permission.READ)

ACTS = (GET,)
