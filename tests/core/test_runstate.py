"""What is outstanding in a run, folded from its events."""

from __future__ import annotations

import pytest

from perdure.core import events as ev
from perdure.core.approvals import Spec, encode_spec
from perdure.core.errors import Failure, IllegalTransition
from perdure.core.lifecycle import RunStatus
from perdure.core.retry import TaskOptions
from perdure.core.runstate import _APPLY, RunState

OPTIONS = TaskOptions()
STARTED = ev.RunStarted("crawl", "v1", b"{}", deadline_us=900, parent_id=b"p" * 16, parent_seq=4)
FAILURE = Failure("task_failed", "boom")


def state_after(*events: ev.Event) -> RunState:
    state = RunState()
    for event in events:
        state.apply(event)
    return state


def scheduled(first: int, count: int) -> ev.TasksScheduled:
    return ev.TasksScheduled(first, "fetch", "default", [b"{}"] * count, OPTIONS)


def test_every_event_type_can_be_applied() -> None:
    assert set(_APPLY) == set(ev.EVENT_TYPES)


def test_a_start_makes_the_run_running_and_keeps_deadline_and_parent() -> None:
    state = state_after(STARTED)
    assert (state.status, state.deadline_us, state.parent_id, state.parent_seq) == (
        RunStatus.RUNNING,
        900,
        b"p" * 16,
        4,
    )
    assert state.events == 1


def test_tasks_are_outstanding_until_they_succeed_fail_or_are_cancelled() -> None:
    state = state_after(STARTED, scheduled(0, 3), scheduled(3, 2))
    assert sorted(state.tasks) == [0, 1, 2, 3, 4]
    state.apply(ev.TasksSucceeded([4, 0], [b"1", b"2"]))
    state.apply(ev.TaskFailed(1, FAILURE, 3))
    state.apply(ev.TasksCancelled([2, 3]))
    assert state.tasks == {}


def test_a_task_cannot_end_twice() -> None:
    state = state_after(STARTED, scheduled(0, 1), ev.TasksSucceeded([0], [b"1"]))
    for again in (ev.TasksSucceeded([0], [b"1"]), ev.TaskFailed(0, FAILURE, 1), ev.TasksCancelled([0])):
        with pytest.raises(IllegalTransition, match=f"{type(again).__name__}.*not outstanding: 0"):
            state.apply(again)


@pytest.mark.parametrize(
    "end",
    [
        ev.TimerFired(3),
        ev.TimerCancelled(3),
        ev.ChildSucceeded(3, b"1"),
        ev.ChildFailed(3, FAILURE),
        ev.ChildCancelled(3),
    ],
)
def test_what_was_never_begun_cannot_end(end: ev.Event) -> None:
    with pytest.raises(IllegalTransition, match="not outstanding: 3"):
        state_after(STARTED, end)


def test_the_next_wake_is_the_earliest_timer_or_the_deadline() -> None:
    assert state_after(ev.RunStarted("w", "v", b"")).next_wake_us() is None
    state = state_after(STARTED)
    assert state.next_wake_us() == 900
    state.apply(ev.TimerStarted(0, 500))
    state.apply(ev.TimerStarted(1, 700))
    assert state.next_wake_us() == 500
    state.apply(ev.TimerFired(0))
    assert state.next_wake_us() == 700
    state.apply(ev.TimerCancelled(1))
    assert state.next_wake_us() == 900


def test_children_are_outstanding_until_they_end_however_they_end() -> None:
    state = state_after(STARTED, *(ev.ChildStarted(n, bytes([n]) * 16, "child", b"{}") for n in range(3)))
    state.apply(ev.ChildCancelRequested(2))
    assert state.children == {n: bytes([n]) * 16 for n in range(3)}
    state.apply(ev.ChildSucceeded(0, b"1"))
    state.apply(ev.ChildFailed(1, FAILURE))
    state.apply(ev.ChildCancelled(2, "asked"))
    assert state.children == {}


def test_promises_operations_and_state_are_remembered() -> None:
    state = state_after(
        STARTED,
        ev.PromiseCreated(0, "publish"),
        ev.PromiseResolved("publish", b"1"),
        ev.PromiseResolved("early", b"2"),
        ev.OperationRecorded(0, "roll", b"4"),
        ev.StateSet("a", b"1"),
        ev.StateSet("a", b"2"),
        ev.StateSet("b", b"3"),
        ev.StateCleared("b"),
        ev.StateCleared("never set"),
        ev.PatchRecorded("p"),
        ev.SignalReceived("s", b"1"),
        ev.AttributesSet(b'{"a":1,"b":"x"}'),
        ev.AttributesSet(b'{"b":null,"c":true}'),
    )
    assert state.attributes == b'{"a":1,"c":true}'
    assert state.promises == {"publish": ev.PromiseCreated(0, "publish")}
    assert state.resolved == {"publish", "early"}
    assert state.operations == {0}
    assert state.state == {"a": b"2"}


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (ev.RunSucceeded(b"1"), RunStatus.SUCCESS),
        (ev.RunContinued(b"n" * 16, b"{}"), RunStatus.SUCCESS),
        (ev.RunFailed(FAILURE), RunStatus.FAILED),
        (ev.RunCancelled("why"), RunStatus.CANCELLED),
    ],
)
def test_a_run_ends_once(end: ev.Event, status: RunStatus) -> None:
    state = state_after(STARTED, ev.CancelRequested("why"))
    assert state.cancel_requested
    assert not state.is_terminal
    state.apply(end)
    assert state.is_terminal
    assert state.status is status
    with pytest.raises(IllegalTransition, match=f"a run that is {status.word} cannot"):
        state.apply(ev.RunSucceeded(b"2"))


def test_a_run_starts_once() -> None:
    with pytest.raises(IllegalTransition):
        state_after(STARTED, STARTED)


@pytest.mark.parametrize(
    ("spec", "is_resolved"),
    [
        (b"", True),
        (encode_spec(Spec(title="t", quorum=1, reject_quorum=1)), True),
        (encode_spec(Spec(title="t", quorum=2, reject_quorum=1)), False),
        (encode_spec(Spec(title="t", quorum=1, reject_quorum=1, assignees=["ada"])), False),
    ],
)
def test_an_answer_that_came_before_the_question_counts_unless_certain_people_have_to_give_it(
    spec: bytes, is_resolved: bool
) -> None:
    created = ev.PromiseCreated(0, "p", spec, ev.PromiseKind.APPROVAL if spec else ev.PromiseKind.PLAIN)
    state = state_after(STARTED, ev.PromiseResolved("p", b"1", authorized=False), created)
    assert ("p" in state.resolved) is is_resolved
    state = state_after(STARTED, ev.PromiseResolved("p", b"1", authorized=True), created)
    assert "p" in state.resolved


@pytest.mark.parametrize("end", [ev.ChildFailed(0, FAILURE), ev.ChildCancelled(0), ev.ChildSucceeded(0, b"1")])
def test_a_child_that_was_asked_to_stop_is_waited_for_until_it_has_ended(end: ev.Event) -> None:
    started = ev.ChildStarted(0, b"c" * 16, "w", b"{}", "")
    state = state_after(STARTED, started, ev.ChildCancelRequested(0, True))
    assert state.stopping == {0}
    state.apply(end)
    assert state.stopping == set()
