"""`wf.map`: results in order whatever order they come in, never more in flight than asked, errors as chosen."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import task, wf, workflow
from perdure.core import events as ev
from perdure.core.errors import Failure, InvalidInput, PayloadMismatch
from perdure.errors import TaskFailed
from tests.fakes.workflow_world import World, assert_replays, keep_private


@task
def halve(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n // 2


@task
def two_arguments(a: int, b: int) -> int:
    return a + b


@workflow
async def halve_child(n: int) -> int:
    return await halve(n)


@workflow
async def halves(items: list[int], concurrency: int | None, on_error: str, children: bool) -> list[Any]:
    mapped: Any = halve_child if children else halve
    results = await wf.map(mapped, items, concurrency=concurrency, on_error=on_error)  # type: ignore[call-overload]
    return [f"{type(r).__name__}" if isinstance(r, Exception) else r for r in results]


ITEMS = st.lists(st.integers(0, 20), max_size=12)
CONCURRENCY = st.none() | st.integers(1, 5)


@given(ITEMS, CONCURRENCY, st.booleans(), st.integers(0, 1_000))
def test_collect_gives_every_outcome_in_its_place(
    items: list[int], concurrency: int | None, children: bool, seed: int
) -> None:
    world = World(halves, items, concurrency, "collect", children).run(seed)
    error = "ChildFailed" if children else "TaskFailed"
    assert world.result == [error if n % 2 else n // 2 for n in items]
    assert_replays(world, seeds=2)


@given(ITEMS, CONCURRENCY, st.booleans(), st.integers(0, 1_000))
def test_raise_gives_all_results_or_one_of_the_errors_and_leaves_nothing_running(
    items: list[int], concurrency: int | None, children: bool, seed: int
) -> None:
    world = World(halves, items, concurrency, "raise", children).run(seed)
    if any(n % 2 for n in items):
        assert world.failure.type == ("ChildFailed" if children else "TaskFailed")
        assert "is odd" in world.failure.message
    else:
        assert world.result == [n // 2 for n in items]
    assert not world.state.tasks or any(isinstance(r.event, ev.TaskFailed) for r in world.history)
    assert_replays(world, seeds=2)


@given(
    st.lists(st.integers(0, 10).map(lambda n: 2 * n), min_size=1, max_size=30), st.integers(1, 4), st.integers(0, 99)
)
def test_results_that_arrive_together_in_one_event_count_like_single_ones(
    items: list[int], concurrency: int, seed: int
) -> None:
    """An engine puts the successes of one commit into one event, in any order."""
    rng = random.Random(seed)
    world = World(halves, items, concurrency, "raise", False)
    world.deliver()
    while world.closing is None:
        assert 0 < len(world.state.tasks) <= concurrency
        seqs = rng.sample(sorted(world.state.tasks), rng.randint(1, len(world.state.tasks)))
        inputs = [world.state.tasks[s].inputs[s - world.state.tasks[s].first] for s in seqs]
        numbers = [int(i.removeprefix(b'{"n":').removesuffix(b"}")) for i in inputs]
        world.add(ev.TasksSucceeded(seqs, [str(n // 2).encode() for n in numbers]))
        world.deliver()
    assert world.result == [n // 2 for n in items]
    assert_replays(world, seeds=2)


def test_a_thousand_tasks_are_two_events_in_and_as_many_out_as_commits() -> None:
    world = World(halves, [0] * 1_000, None, "raise", False)
    world.deliver()
    assert [len(e.inputs) for e in world.of(ev.TasksScheduled)] == [500, 500]
    world.add(ev.TasksSucceeded(list(range(1_000)), [b"0"] * 1_000))
    world.deliver()
    assert world.result == [0] * 1_000
    assert len(world.history) == 4


@workflow
async def broken_maps(which: str) -> str:
    try:
        match which:
            case "concurrency":
                await wf.map(halve, [1], concurrency=0)
            case "on_error":
                await wf.map(halve, [1], on_error="shrug")  # type: ignore[call-overload]
            case "arguments":
                await wf.map(two_arguments, [1])  # type: ignore[call-overload]
            case "function":
                await wf.map(print, [1])  # type: ignore[call-overload]
            case "item":
                await wf.map(halve, ["x"])  # type: ignore[list-item]
    except (InvalidInput, PayloadMismatch) as e:
        return str(e)
    return "no error"


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ("concurrency", "at least one must run"),
        ("on_error", 'choose "raise" or "collect"'),
        ("arguments", "must accept one positional argument"),
        ("function", "takes a @task or a @workflow"),
        ("item", "the argument `n` of halve"),
    ],
)
def test_a_map_that_cannot_work_says_why(which: str, text: str) -> None:
    world = World(broken_maps, which).run()
    assert text in world.result
    assert not world.of(ev.TasksScheduled)


@workflow
async def cancels_its_map() -> str:
    step = wf.map(halve, [0, 2, 4], concurrency=2)
    step.cancel()
    return "cancelled" if step.cancelled() else "?"


def test_cancelling_a_map_cancels_the_tasks_in_flight_and_schedules_no_more() -> None:
    world = World(cancels_its_map).run()
    assert world.result == "cancelled"
    assert world.of(ev.TasksCancelled) == [ev.TasksCancelled([0, 1])]
    assert len(world.of(ev.TasksScheduled)) == 1


@workflow
async def survives_a_failed_map() -> int:
    try:
        await wf.map(halve, [1, 2, 4])
    except TaskFailed:
        pass
    return await halve(10)


def test_results_that_come_after_a_map_failed_disturb_nobody() -> None:
    world = World(survives_a_failed_map)
    world.deliver()
    world.add(ev.TaskFailed(0, Failure("task_failed", "odd"), 1)).add(ev.TasksSucceeded([2], [b"2"]))
    world.deliver()
    assert sorted(world.state.tasks) == [3], "one was cancelled, one had ended, the next step is open"
    assert world.run().result == 5
    assert_replays(world)


keep_private(globals())


def test_no_more_children_run_at_a_time_than_asked() -> None:
    world = World(halves, [2, 4, 6, 8], 2, "raise", True)
    world.deliver()
    assert sorted(world.state.children) == [0, 1]
    world.add(ev.ChildSucceeded(0, b"1")).deliver()
    assert sorted(world.state.children) == [1, 2]


def test_the_failure_of_one_child_stops_the_others() -> None:
    world = World(halves, [2, 4, 6], None, "raise", True)
    world.deliver()
    world.add(ev.ChildFailed(1, Failure("run_failed", "no"))).deliver()
    stopped = [r.event.seq for r in world.history if isinstance(r.event, ev.ChildCancelRequested)]
    assert stopped == [0, 2]


def test_a_task_behind_a_fan_out_is_not_part_of_it() -> None:
    requests = World(halves, [], None, "raise", False).runtime.run.requests
    requests._segments = [(0, 2, "first"), (5, 7, "second")]
    found = [requests._fanout_of(seq) for seq in range(8)]
    assert found == ["first", "first", None, None, None, "second", "second", None]
