"""Times of a run folded into lanes: segments of a task, work at a time, idle times, bins that grow with age."""

from __future__ import annotations

import random

import pytest

from perdure.core import events as ev
from perdure.core.api.runs import TaskItem
from perdure.core.error_causes import DAY_US, FailedRun, causes_of, normalised
from perdure.core.lifecycle import TaskStatus
from perdure.core.retry import TaskOptions
from perdure.core.timeline.bins import Moments, age_bin, bin_bounds_us, point, spread
from perdure.core.timeline.nodes import lanes, status_of
from perdure.core.timeline.rows import AttemptMark
from perdure.core.timeline.spans import binned, duration_bars, duration_class, exact_bars, idle_spans, work_bins
from perdure.core.timeline.steps import causes, history_steps, node_name, task_segments, task_steps

S = 1_000_000


def task(status: TaskStatus, **given: object) -> TaskItem:
    base: dict[str, object] = {"id": bytes(16), "seq": 0, "name": "fetch", "queue": "default", "attempts": 1, "lost": 0}
    return TaskItem(**(base | {"status": int(status), "scheduled_us": 0} | given))  # type: ignore[arg-type]


def mark(attempt: int, start: int, end: int, epoch: int = 1, outcome: str = "error") -> AttemptMark:
    return AttemptMark(0, epoch, attempt, outcome, start * S, end * S, "w")


def kinds(t: TaskItem, earlier: list[AttemptMark], now: int = 100) -> list[tuple[str, int, int]]:
    return [(s.kind, s.from_us // S, s.to_us // S) for s in task_segments(t, earlier, now * S)]


def test_a_task_waits_fails_waits_again_and_succeeds() -> None:
    done = task(TaskStatus.SUCCESS, attempts=3, started_us=30 * S, finished_us=40 * S)
    assert kinds(done, [mark(2, 12, 15), mark(1, 2, 8)]) == [
        ("queued", 0, 2),
        ("failed", 2, 8),
        ("backoff", 8, 12),
        ("failed", 12, 15),
        ("backoff", 15, 30),
        ("success", 30, 40),
    ]


@pytest.mark.parametrize(
    ("t", "earlier", "expected"),
    [
        (task(TaskStatus.PENDING), [], [("queued", 0, 100)]),
        (task(TaskStatus.RUNNING, started_us=4 * S), [], [("queued", 0, 4), ("running", 4, 100)]),
        (
            task(TaskStatus.PENDING, run_at_us=300 * S),
            [mark(1, 2, 8)],
            [("queued", 0, 2), ("failed", 2, 8), ("backoff", 8, 100)],
        ),
        (
            task(TaskStatus.PENDING, run_at_us=50 * S),
            [mark(1, 2, 8)],
            [("queued", 0, 2), ("failed", 2, 8), ("backoff", 8, 50), ("queued", 50, 100)],
        ),
        (task(TaskStatus.SKIPPED, attempts=0, finished_us=0), [], []),
        # The run was retried at 60: between its two epochs the task did nothing.
        (
            task(TaskStatus.SUCCESS, scheduled_us=60 * S, started_us=61 * S, finished_us=62 * S),
            [mark(1, 2, 8)],
            [("failed", 2, 8), ("queued", 60, 61), ("success", 61, 62)],
        ),
    ],
)
def test_segments_tell_what_a_task_was_doing(
    t: TaskItem, earlier: list[AttemptMark], expected: list[tuple[str, int, int]]
) -> None:
    assert kinds(t, earlier) == expected


def test_segments_are_in_order_and_do_not_overlap() -> None:
    rng = random.Random(5)
    for _ in range(200):
        at, earlier = rng.randrange(5), list[AttemptMark]()
        for n in range(rng.randrange(4)):
            start = at + rng.randrange(5)
            at = start + rng.randrange(5)
            earlier.append(mark(n + 1, start, at))
        t = task(TaskStatus.SUCCESS, started_us=(at + 2) * S, finished_us=(at + 3) * S)
        found = task_segments(t, earlier, 1_000 * S)
        assert all(s.from_us <= s.to_us for s in found)
        assert all(a.to_us <= b.from_us for a, b in zip(found, found[1:], strict=False))


def test_work_at_a_time_is_the_average_over_each_bin() -> None:
    found = work_bins([(0, 10 * S, False), (0, 5 * S, True), (5 * S, 10 * S, False)], 10)
    assert found is not None and found.bin_us == S
    assert found.running[:10] == [2] * 10 and sum(found.failed) == 1


def test_clusters_are_spread_without_losing_any() -> None:
    rng = random.Random(7)
    times = [rng.uniform(0, 500 * S) for _ in range(3_000)]
    by_bin: dict[int, list[float]] = {}
    for at in times:
        by_bin.setdefault(age_bin(int(at)), []).append(at)
    clusters = [Moments(*bin_bounds_us(n), len(each), sum(each)) for n, each in by_bin.items()]
    found = spread(clusters, 0, 7 * S)
    assert sum(n for n, _ in found.values()) == pytest.approx(3_000)
    exact = spread([point(at) for at in times], 0, 7 * S)
    assert all(abs(found[at][0] - n) <= 12 for at, (n, _) in exact.items())
    running = binned(exact, {}, {}, 0, 7 * S, 0, 71).running
    assert running == sorted(running) and running[-1] <= 3_000


@pytest.mark.parametrize("age_s", [0.0, 0.06, 1.0, 15.99, 16.0, 16.01, 31.9, 32.0, 1_000.0, 86_400.0, 2_592_000.0])
def test_a_moment_lies_in_its_bin(age_s: float) -> None:
    low, high = bin_bounds_us(age_bin(round(age_s * S)))
    assert low <= age_s * S < high and (high - low) <= max(S / 16, age_s * S / 100)


def test_bins_follow_each_other_without_gaps() -> None:
    bounds = [bin_bounds_us(n) for n in range(3_000)]
    assert all(a[1] == b[0] for a, b in zip(bounds, bounds[1:], strict=False))
    assert [age_bin(int((low + high) / 2)) for low, high in bounds] == list(range(3_000))


def test_only_long_times_without_work_are_idle() -> None:
    work = [(0, 100 * S), (90 * S, 200 * S), (230 * S, 300 * S), (900 * S, 1_000 * S)]
    assert idle_spans(work, 0, 1_000 * S) == [(300 * S, 900 * S)]
    assert idle_spans([], 0, 70 * S) == [(0, 70 * S)] and idle_spans([], 0, 50 * S) == []


def test_classes_of_durations_come_close_to_the_exact_ones() -> None:
    rng = random.Random(3)
    took = [int(rng.lognormvariate(12, 1)) + 1 for _ in range(5_000)]
    classes: dict[int, int] = {}
    for us in took:
        classes[duration_class(us)] = classes.get(duration_class(us), 0) + 1
    near, exact = duration_bars(classes, max(took)), exact_bars(took)
    assert near is not None and exact is not None and sum(near.bars) == sum(exact.bars) == 5_000
    for a, b in ((near.p50_us, exact.p50_us), (near.p95_us, exact.p95_us)):
        assert abs(a - b) <= 0.1 * b


def test_a_lane_has_the_most_telling_status() -> None:
    assert status_of({TaskStatus.SUCCESS: 5, TaskStatus.FAILED: 1}) == TaskStatus.FAILED
    assert status_of({TaskStatus.SUCCESS: 5, TaskStatus.RUNNING: 1}) == TaskStatus.RUNNING
    assert status_of({TaskStatus.FAILED: 5, TaskStatus.RUNNING: 1}) == TaskStatus.RUNNING
    assert status_of({TaskStatus.SKIPPED: 1, TaskStatus.SUCCESS: 1}) == TaskStatus.SUCCESS


def test_places_of_a_foreach_are_one_lane() -> None:
    assert node_name("outer[12].inner[3]") == "outer.inner" and node_name("plain") == "plain"
    tasks = [
        task(TaskStatus.SUCCESS, seq=n, node=f"each[{n}]", started_us=n * S, finished_us=(n + 2) * S) for n in range(5)
    ]
    (lane,) = lanes(task_steps(tasks, [], 100 * S), 20)
    assert (lane.node, lane.kind, lane.tasks, lane.finished_us) == ("each", "fanout", 5, 6 * S)


def recorded(*events: ev.Event) -> list[ev.Recorded]:
    return [ev.Recorded(n, n * S, e) for n, e in enumerate(events, 1)]


def test_a_cancelled_timer_of_code_is_a_time_limit_and_no_step() -> None:
    history = recorded(
        ev.RunStarted("w", "1", b"{}"),
        ev.TimerStarted(0, 9 * S),
        ev.TimerStarted(1, 9 * S),
        ev.TimerFired(0),
        ev.TimerCancelled(1),
        ev.ChildStarted(0, bytes(16), "sub", b"{}"),
        ev.ChildFailed(0, ev.Failure("task_failed", "no")),
        ev.PromiseCreated(0, "go"),
    )
    found = history_steps(history, 20 * S, None)
    assert [(s.node, s.kind, s.status) for s in found] == [
        ("sleep", "timer", TaskStatus.SUCCESS),
        ("sub", "child", TaskStatus.FAILED),
        ("go", "promise", TaskStatus.RUNNING),
    ]
    assert found[2].segments[0].to_us == 20 * S
    ended = history_steps([*history, ev.Recorded(9, 9 * S, ev.RunCancelled())], 20 * S, None)
    assert ended[2].status == TaskStatus.CANCELLED and ended[2].segments[0].to_us == 9 * S


def test_a_task_of_code_comes_after_those_that_led_to_it() -> None:
    def scheduled(first: int, count: int = 1) -> ev.TasksScheduled:
        return ev.TasksScheduled(first, "t", "q", [b""] * count, TaskOptions())

    history = recorded(
        ev.RunStarted("w", "1", b"{}"),
        scheduled(0),
        ev.TasksSucceeded([0], [b""]),
        scheduled(1, 2),
        ev.TasksSucceeded([1], [b""]),
        ev.TasksSucceeded([2], [b""]),
        scheduled(3),
    )
    assert causes(history) == {0: frozenset(), 1: frozenset({0}), 2: frozenset({0}), 3: frozenset({1, 2})}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no item 17 in 'orders'", "no item 4 in 'refunds'"),
        ("run 0192a6f0-5c1e-7000-8123-0123456789ab is gone", "run 0192a6f0-5c1e-7000-8123-0123456789ff is gone"),
        ("timed out after 3.5 s\nat line 4", "timed out after 12 s\nat line 9"),
    ],
)
def test_texts_that_differ_in_numbers_and_quotes_are_one_cause(one: str, other: str) -> None:
    assert normalised(one) == normalised(other) and "#" in normalised(one)


def test_causes_are_counted_by_day() -> None:
    now = 100 * DAY_US + 5
    failed = [
        FailedRun(run_id=bytes([n]) * 16, finished_us=now - ago * DAY_US, type="E", message=f"no item {n}", task="t")
        for n, ago in enumerate((0, 0, 2, 30))
    ]
    (cause,) = causes_of(failed, 3, now)
    assert (cause.count, cause.days, cause.sample_run) == (4, [1, 0, 2], bytes(16))
