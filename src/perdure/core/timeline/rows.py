"""What the lanes of a run are made from, as the database has it."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.api.runs import RunItem, TaskItem
from perdure.core.events import Recorded
from perdure.core.timeline.bins import Moments
from perdure.core.wait_reasons import WaitReason

SMALL_TASKS: Final = 2_000
"""Tasks of a run up to which a timeline is made from each of them; beyond, from counts."""
SMALL_EVENTS: Final = 2_000
"""Events up to which a flow is replayed to tell which node slept or waited."""
NODES_MAX: Final = 500
"""Lanes of a timeline."""
OCTAVE_BINS: Final = 8
"""Classes of durations per doubling: a percentile is right within 5 %."""


class AttemptMark(msgspec.Struct, frozen=True):
    """An attempt that was not the last of its task, without what it said."""

    seq: int
    epoch: int
    attempt: int
    outcome: str
    started_us: int | None
    finished_us: int
    worker: str | None


class NodeTally(msgspec.Struct, kw_only=True):
    """Counts of the tasks of one node. Clusters count from the beginning of the run."""

    node: str
    counts: dict[str, int] = {}
    attempts: int = 0
    first_us: int | None = None
    started_us: int | None = None
    """Of tasks and attempts that are known one by one."""
    finished_us: int | None = None
    error: str | None = None
    durations: dict[int, int] = {}
    """Class of durations -> tasks."""
    longest_us: int = 0
    starts: list[Moments] = []
    ends: list[Moments] = []
    failures: list[Moments] = []


class TimelineRows(msgspec.Struct, kw_only=True):
    """A run at one moment."""

    item: RunItem
    now_us: int
    tasks: list[TaskItem] = []
    attempts: list[AttemptMark] = []
    tallies: list[NodeTally] | None = None
    """Instead of tasks and attempts, for a run with many."""
    from_us: int = 0
    """From where the tallies count."""
    capped: bool = False
    """It has more tasks than were counted."""
    history: list[Recorded] | None = None
    """None: too long to be read here."""
    waits: list[WaitReason] = []


class NodeOutline(msgspec.Struct, frozen=True):
    """A node that a flow has, run or not."""

    path: str
    kind: str
    detail: str
    after: tuple[str, ...]
