"""What an engine counts and measures about itself. Plain numbers; /metrics and the bench read them.

A measurement goes into a bucket whose bound is a power of two, found by the number's length in bits: no bounds have to be chosen
beforehand, and no search is needed. Where one is taken per task (tasks/attempts.py) `Histogram.add` is written out, because a call
costs more than the rest of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final

BUCKETS: Final = 64
"""One per bit of a number. Two to the power of 63 microseconds is longer than anything here lasts."""


class Histogram:
    """Whole numbers by size. Bucket i holds those of i bits: 2^(i-1) up to 2^i - 1."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0

    def add(self, value: int) -> None:
        self.counts[value.bit_length()] += 1
        self.total += value

    def add_all(self, values: list[int]) -> None:
        """A total below zero counts as none: values may be differences of two clocks, which disagree by a little."""
        for bits, count in Counter(map(int.bit_length, values)).items():
            self.counts[bits] += count
        self.total += max(sum(values), 0)

    def cumulative(self, lowest: int, highest: int) -> Iterator[tuple[int, int]]:
        """(bound, how many are not above it) for numbers of `lowest` to `highest` bits."""
        below = sum(self.counts[:lowest])
        for i in range(lowest, highest + 1):
            below += self.counts[i]
            yield (1 << i) - 1, below

    @property
    def count(self) -> int:
        return sum(self.counts)


class Measures:
    """Distributions of what takes time or comes in different sizes."""

    __slots__ = ("commit_rows", "commit_us", "flow_slice_us", "loop_stall_us", "schedule_to_start_us", "task_us")

    def __init__(self) -> None:
        self.schedule_to_start_us = Histogram()
        """From the moment a run asked for a task until its first attempt began."""
        self.task_us = Histogram()
        """One attempt, from its begin to its end."""
        self.flow_slice_us = Histogram()
        """CPU time of one slice of a flow's decision; nothing else runs on the event loop meanwhile."""
        self.loop_stall_us = Histogram()
        """How long the event loop took to answer a probe from another thread."""
        self.commit_rows = Histogram()
        self.commit_us = Histogram()


@dataclass(slots=True)
class Counters:
    commits: int = 0
    commit_rows: int = 0
    commit_us: int = 0
    commits_unconfirmed: int = 0
    sessions_fenced: int = 0
    records_refused: int = 0
    runs_started: int = 0
    runs_claimed: int = 0
    runs_admitted: int = 0
    runs_ended: int = 0
    runs_failed: int = 0
    runs_cancelled: int = 0
    runs_evicted: int = 0
    runs_stuck: int = 0
    runs_ended_without_code: int = 0
    activations: int = 0
    tasks_dispatched: int = 0
    tasks_ended: int = 0
    tasks_failed: int = 0
    tasks_retried: int = 0
    tasks_deferred: int = 0
    tasks_lost: int = 0
    tasks_start_deadline_missed: int = 0
    """Tasks that had not begun in time."""
    tasks_spilled: int = 0
    tasks_claimed: int = 0
    late_reports: int = 0
    sessions_reaped: int = 0
    schedules_fired: int = 0
    """Runs that this engine started because a schedule said so."""
    schedules_missed: int = 0
    schedules_skipped: int = 0
    polls: int = 0
    notifications: int = 0
    notifications_delivered: int = 0
    notifications_failed: int = 0
    """Attempts to deliver a notification, or to start the run of a hook, that failed."""
    log_chunks: int = 0
    log_chunks_dropped: int = 0
    """Output of tasks that the database did not take in time, or not at all."""
    runs_exported: int = 0
    runs_removed: int = 0
    """Ended runs that retention removed."""
    retention_failures: int = 0
    """Times that the export or the removal of ended runs failed. It is repeated."""
    telemetry_write_failures: int = 0
    """Telemetry writes that failed. They are repeated; task output may be dropped."""

    flow_slice_us_max: int = 0
    """The longest slice of a flow's decision so far."""
    loop_stall_us_max: int = 0
    """The longest stall of the event loop so far."""

    measures: Measures = field(default_factory=Measures)

    def as_dict(self) -> dict[str, int]:
        """The numbers, without the distributions."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "measures"}
