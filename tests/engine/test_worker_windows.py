"""What workers did in the last minutes, and counts by name: bounded, and right about what they forget."""

from __future__ import annotations

import pytest

from perdure.core.limits import METRIC_NAMES_MAX, WORKER_WINDOW_S, WORKERS_MEASURED_MAX
from perdure.engine.name_counts import OTHER, NameCounts
from perdure.engine.tasks.tally import AttemptTally
from perdure.engine.tasks.worker_windows import NO_LOAD, SLICE_US, SLICES, WorkerWindows

TASK = (1, "t")
WINDOW_US = WORKER_WINDOW_S * 1_000_000


def test_a_worker_has_its_throughput_failures_and_percentiles() -> None:
    tally = AttemptTally(NameCounts())
    for us in range(1, 1_001):
        tally.ended(TASK, "one", "success" if us % 10 else "error", us * 1_000, 0)
    tally.ended(TASK, "two", "cancelled", 5, 0)
    load = tally.windows.load("one", 0)
    assert (load.ended, load.failed) == (1_000, 100)
    for found, exact in ((load.p50_us, 500_000), (load.p95_us, 950_000), (load.p99_us, 990_000)):
        assert found is not None and exact <= found <= exact * 1.125
    assert (tally.windows.load("two", 0).ended, tally.windows.load("two", 0).failed) == (1, 0)


@pytest.mark.parametrize("us", [0, 1, 2, 3, 4, 5, 7, 8, 15, 1_000, 123_456_789])
def test_the_percentile_of_one_duration_is_not_below_it_and_near(us: int) -> None:
    windows = WorkerWindows()
    found = windows.slice_of("w", 0)
    assert found is not None
    found.add([us], failed=False)
    p50_us = windows.load("w", 0).p50_us
    assert p50_us is not None and us <= p50_us <= max(1, us * 1.125)


def test_what_is_older_than_the_window_does_not_count_and_is_forgotten() -> None:
    tally = AttemptTally(NameCounts())
    for n in range(SLICES + 3):
        tally.ended(TASK, "one", "success", 1, n * SLICE_US)
    now = (SLICES + 2) * SLICE_US
    assert tally.windows.load("one", now).ended == SLICES
    assert tally.windows.load("one", now + WINDOW_US) == NO_LOAD
    tally.ended(TASK, "two", "success", 1, now + WINDOW_US + SLICE_US)
    assert list(tally.windows._workers) == ["two"]


def test_workers_beyond_the_limit_are_not_measured() -> None:
    windows = WorkerWindows()
    made = [windows.slice_of(f"w{n}", 0) for n in range(WORKERS_MEASURED_MAX + 1)]
    assert made[-2] is not None and made[-1] is None


def test_names_beyond_the_limit_are_counted_together() -> None:
    names = NameCounts()
    tally = AttemptTally(names)
    for n in range(METRIC_NAMES_MAX + 50):
        tally.ended((1, f"t{n}"), None, "success", 1, 0)
    tally.ended((1, "t0"), None, "error", 1, 0)
    assert len(names.tasks.found) == METRIC_NAMES_MAX + 1
    assert names.tasks.found[OTHER].ends == {"success": 50}
    assert names.tasks.found[1, "t0"].ends == {"success": 1, "error": 1}
