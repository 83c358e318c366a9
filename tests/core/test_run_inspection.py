"""A run as of one of its events, and where two histories part, to the last field."""

from __future__ import annotations

import pytest

from perdure.core import events as ev
from perdure.core.api.inspection import DiffSide, OutstandingStep, RunAt, RunDiff, StepDiff, StepResult, StepView
from perdure.core.errors import Failure, InvalidInput
from perdure.core.limits import DIFF_STEPS_SHOWN, RESULTS_SHOWN_MAX
from perdure.core.retry import TaskOptions
from perdure.core.run_inspection import diff, run_at
from perdure.core.undo import UndoableTask

RUN = b"r" * 16
OTHER = b"o" * 16
CHILD = b"c" * 16
STARTED = ev.RunStarted("w", "1", b"{}")
TYPED = Failure("task_failed", "boom", "ValueError")
UNTYPED = Failure("task_timeout", "too late")


def tasks(first: int, *inputs: bytes, name: str = "t", undo: str = "") -> ev.TasksScheduled:
    return ev.TasksScheduled(first, name, "default", list(inputs) or [b"{}"], TaskOptions(undo=undo))


def won(seq: int, value: bytes = b"1") -> ev.TasksSucceeded:
    return ev.TasksSucceeded([seq], [value])


def child(seq: int) -> ev.ChildStarted:
    return ev.ChildStarted(seq, CHILD, "inner", b'{"x":1}')


def numbered(*events: ev.Event) -> list[ev.Recorded]:
    """Event n has happened at n * 100."""
    return [ev.Recorded(n, n * 100, e) for n, e in enumerate(events, 1)]


def at(*events: ev.Event, number: int = 0) -> RunAt:
    return run_at(RUN, numbered(*events), number)


def outstanding(*events: ev.Event) -> list[tuple[str, int]]:
    return [(o.kind, o.seq) for o in at(STARTED, *events).outstanding]


def compared(one: tuple[ev.Event, ...], other: tuple[ev.Event, ...]) -> RunDiff:
    return diff((RUN, numbered(STARTED, *one)), (OTHER, numbered(STARTED, *other)))


def parted(found: RunDiff) -> StepDiff:
    assert found.parted is not None
    assert found.parted == found.after[0]
    return found.parted


# -- a run as of an event ------------------------------------------------------------------------------------------------


def test_a_run_as_of_an_event_knows_nothing_of_what_comes_after() -> None:
    events = (
        ev.RunStarted("w", "1", b"{}", attributes=b'{"a":1}'),
        tasks(0, b"x", b"y", undo="untask"),
        ev.StateSet("s", b"1"),
        ev.TasksSucceeded([1], [b"r"]),
        ev.VersionChanged("2", "1"),
        ev.StateSet("s", b"2"),
        won(0),
        ev.RunSucceeded(b"9"),
    )
    assert at(*events, number=4) == RunAt(
        run_id=RUN,
        workflow="w",
        version="1",
        status="running",
        at=4,
        at_us=400,
        event="TasksSucceeded",
        events=8,
        outstanding=[OutstandingStep(kind="task", seq=0, name="t", since=2)],
        states={"s": b"1"},
        attributes=b'{"a":1}',
        results=[StepResult(event=4, step="task 1 t", value=b"r")],
        undo=[UndoableTask(task=1, name="t", undo="untask")],
    )


def test_without_a_number_it_is_the_last_event() -> None:
    found = at(STARTED, tasks(0), ev.VersionChanged("2", "1"), won(0), ev.RunSucceeded(b"9"))
    assert (found.at, found.at_us, found.event, found.events) == (5, 500, "RunSucceeded", 5)
    assert (found.version, found.status, found.outstanding) == ("2", "success", [])


def test_an_event_that_is_not_there_is_refused() -> None:
    for number in (-1, 3):
        with pytest.raises(InvalidInput, match=f"the run has events 1 to 2; there is no event {number}$"):
            at(STARTED, tasks(0), number=number)
    with pytest.raises(InvalidInput, match="events 1 to 0; there is no event 0"):
        run_at(RUN, [], 0)


def test_everything_that_is_waited_for_is_outstanding_in_the_order_in_which_it_was_asked_for() -> None:
    found = at(
        STARTED,
        ev.PromiseCreated(0, "given"),
        ev.PromiseCreated(1, "ok", b'{"title":"","quorum":1,"reject_quorum":1}', ev.PromiseKind.APPROVAL),
        ev.PromiseCreated(2, "paid", b'{"event":"paid"}', ev.PromiseKind.EVENT),
        child(0),
        ev.TimerStarted(0, 5_000),
        tasks(0, b"x", b"y"),
        ev.OperationRecorded(0, "roll", b"4"),
    )
    assert found.outstanding == [
        OutstandingStep(kind="promise", seq=0, name="given", since=2),
        OutstandingStep(kind="approval", seq=1, name="ok", since=3),
        OutstandingStep(kind="event", seq=2, name="paid", since=4),
        OutstandingStep(kind="child", seq=0, name="inner", since=5, run_id=CHILD),
        OutstandingStep(kind="timer", seq=0, name="timer", since=6, until_us=5_000),
        OutstandingStep(kind="task", seq=0, name="t", since=7),
        OutstandingStep(kind="task", seq=1, name="t", since=7),
    ]


@pytest.mark.parametrize(
    ("asked", "ended"),
    [
        (tasks(0), won(0)),
        (tasks(0), ev.TaskFailed(0, TYPED, 1)),
        (tasks(0), ev.TasksCancelled([0])),
        (ev.TimerStarted(0, 5), ev.TimerFired(0)),
        (ev.TimerStarted(0, 5), ev.TimerCancelled(0)),
        (child(0), ev.ChildSucceeded(0, b"1")),
        (child(0), ev.ChildFailed(0, TYPED)),
        (child(0), ev.ChildCancelled(0)),
        (ev.PromiseCreated(0, "p"), ev.PromiseResolved("p", b"1")),
    ],
)
def test_what_has_ended_is_not_outstanding(asked: ev.Event, ended: ev.Event) -> None:
    assert len(outstanding(asked)) == 1
    assert outstanding(asked, ended) == []


def test_nothing_of_a_run_that_has_ended_is_outstanding() -> None:
    asked = (ev.PromiseCreated(0, "p"), child(0))
    assert outstanding(*asked) == [("promise", 0), ("child", 0)]
    assert outstanding(*asked, ev.RunTerminated()) == []


def test_results_are_shown_newest_first_with_the_errors_of_what_failed() -> None:
    found = at(
        STARTED,
        tasks(0, b"1", b"2", b"3", b"4"),
        child(0),
        child(1),
        ev.TimerStarted(0, 5),
        ev.PromiseCreated(0, "p"),
        ev.TaskFailed(3, TYPED, 1),
        ev.TasksSucceeded([1, 0], [b"b", b"a"]),
        ev.TasksCancelled([2]),
        ev.ChildFailed(0, UNTYPED),
        ev.ChildSucceeded(1, b"c"),
        ev.TimerFired(0),
        ev.PromiseResolved("p", b"v"),
        ev.PromiseResolved("unknown", b"v"),
        ev.SignalReceived("s", b"one"),
        ev.SignalReceived("s", b"two"),
        ev.OperationRecorded(0, "roll", b"4"),
        ev.OperationRecorded(1, "call", b"", TYPED),
    )
    assert found.results == [
        StepResult(event=18, step="operation 1 call", error="ValueError: boom"),
        StepResult(event=17, step="operation 0 roll", value=b"4"),
        StepResult(event=16, step="signal 1 s", value=b"two"),
        StepResult(event=15, step="signal 0 s", value=b"one"),
        StepResult(event=13, step="promise 0 p", value=b"v"),
        StepResult(event=12, step="timer 0 timer"),
        StepResult(event=11, step="child 1 inner", value=b"c"),
        StepResult(event=10, step="child 0 inner", error="task_timeout: too late"),
        StepResult(event=8, step="task 0 t", value=b"a"),
        StepResult(event=8, step="task 1 t", value=b"b"),
        StepResult(event=7, step="task 3 t", error="ValueError: boom"),
    ]
    assert found.outstanding == []


def test_only_the_latest_results_are_shown() -> None:
    many = RESULTS_SHOWN_MAX + 5
    found = at(STARTED, *(ev.OperationRecorded(n, "roll", b"%d" % n) for n in range(many)))
    assert [r.value for r in found.results] == [b"%d" % n for n in range(many - 1, 4, -1)]


def test_nodes_of_a_flow_go_by_their_labels_and_skipped_ones_have_no_result() -> None:
    spread = ev.TasksScheduled(1, "t", "default", [b"{}", b"{}"], TaskOptions(), ["each"], index=5)
    node = ev.TasksScheduled(0, "t", "default", [b"{}"], TaskOptions(), ["a"])
    found = at(STARTED, node, spread, ev.TasksSkipped(3, ["b"], "no"), won(0), won(2))
    assert [o.name for o in found.outstanding] == ["each[5]"]
    assert [r.step for r in found.results] == ["task 2 each[6]", "task 0 a"]


def test_what_a_retry_took_back_is_outstanding_again() -> None:
    events = (
        STARTED,
        tasks(0),
        ev.TaskFailed(0, TYPED, 3),
        ev.StateSet("s", b"1"),
        ev.RunFailed(TYPED),
        ev.RunRetried(3, [0], []),
    )
    before, after = at(*events, number=5), at(*events)
    assert (before.status, before.outstanding, len(before.results), before.states) == ("failed", [], 1, {"s": b"1"})
    assert (after.status, after.event, after.results, after.states) == ("running", "RunRetried", [], {})
    assert after.outstanding == [OutstandingStep(kind="task", seq=0, name="t", since=2)]


def test_a_detached_child_is_not_waited_for() -> None:
    assert outstanding(ev.ChildStarted(1, CHILD, "inner", b"{}", detached=True)) == []


def test_the_value_of_a_promise_that_is_not_waited_for_is_no_result() -> None:
    found = at(STARTED, ev.PromiseCreated(0, "p"), ev.PromiseResolved("q", b"1"))
    assert found.results == []
    assert found.outstanding == [OutstandingStep(kind="promise", seq=0, name="p", since=2)]


# -- two runs ------------------------------------------------------------------------------------------------------------


def test_two_runs_that_did_the_same_do_not_part() -> None:
    steps = (tasks(0, b"x"), won(0), ev.TimerStarted(0, 5), ev.RunSucceeded(b"1"))
    one = numbered(STARTED, *steps)
    later = [ev.Recorded(r.seq, r.at_us * 3, r.event) for r in one]
    side = DiffSide(
        run_id=RUN,
        workflow="w",
        version="1",
        status="success",
        input=b"{}",
        result=b"1",
        error=None,
        events=5,
        took_us=400,
    )
    assert diff((RUN, one), (RUN, later)) == RunDiff(
        one=side,
        other=DiffSide(
            run_id=RUN, workflow="w", version="1", status="success", input=b"{}", result=b"1", events=5, took_us=1_200
        ),
        differs=[],
        same=2,
        parted=None,
        after=[],
    )


def test_runs_part_at_the_first_step_that_differs_and_every_step_after_it_is_shown() -> None:
    found = compared(
        (tasks(0, b"x"), won(0), tasks(1, b"y"), ev.TaskFailed(1, TYPED, 3), ev.RunFailed(TYPED)),
        (tasks(0, b"x"), ev.SignalReceived("s", b"1"), won(0), tasks(1, b"y"), won(1, b"2"), ev.RunSucceeded(b"2")),
    )
    assert found.same == 1
    first = StepDiff(
        step="task 1",
        one=StepView(event=4, name="t", input=b"y", outcome="failed", error="ValueError: boom", took_us=100),
        other=StepView(event=5, name="t", input=b"y", outcome="success", value=b"2", took_us=100),
        differs=["outcome", "result"],
    )
    second = StepDiff(
        step="signal 0",
        one=None,
        other=StepView(event=3, name="s", outcome="success", value=b"1", took_us=0),
        differs=["missing"],
    )
    assert parted(found) == first
    assert found.after == [first, second]
    assert found.omitted == 0
    assert found.differs == ["status", "result", "error"]
    assert (found.one.status, found.one.error, found.one.result) == ("failed", "ValueError: boom", b"")
    assert (found.other.status, found.other.error, found.other.result) == ("success", None, b"2")


@pytest.mark.parametrize(
    ("one", "other", "step", "differs"),
    [
        ((tasks(0, b"x"),), (tasks(0, b"y"),), "task 0", ["input"]),
        ((tasks(0, name="a"),), (tasks(0, name="b"),), "task 0", ["name"]),
        ((tasks(0), won(0)), (tasks(0),), "task 0", ["outcome", "result"]),
        ((tasks(0), won(0)), (tasks(0), won(0, b"2")), "task 0", ["result"]),
        ((tasks(0), ev.TasksCancelled([0])), (tasks(0),), "task 0", ["outcome"]),
        (
            (tasks(0), ev.TaskFailed(0, TYPED, 1)),
            (tasks(0), ev.TaskFailed(0, UNTYPED, 1)),
            "task 0",
            ["result"],
        ),
        ((ev.TasksSkipped(0, ["a"]),), (tasks(0, name="a"),), "task 0", ["input", "outcome"]),
        ((ev.TimerStarted(0, 5), ev.TimerFired(0)), (ev.TimerStarted(0, 5),), "timer 0", ["outcome"]),
        (
            (ev.TimerStarted(0, 5), ev.TimerFired(0)),
            (ev.TimerStarted(0, 5), ev.TimerCancelled(0)),
            "timer 0",
            ["outcome"],
        ),
        ((child(0), ev.ChildCancelled(0)), (child(0), ev.ChildFailed(0, TYPED)), "child 0", ["outcome", "result"]),
        ((child(0), ev.ChildSucceeded(0, b"1")), (child(0), ev.ChildSucceeded(0, b"2")), "child 0", ["result"]),
        ((ev.SignalReceived("s", b"1"),), (ev.SignalReceived("u", b"2"),), "signal 0", ["name", "result"]),
        (
            (ev.OperationRecorded(0, "roll", b""),),
            (ev.OperationRecorded(0, "roll", b"", TYPED),),
            "operation 0",
            ["outcome", "result"],
        ),
        ((ev.PromiseCreated(0, "p"),), (ev.PromiseCreated(0, "q"),), "promise 0", ["name"]),
        ((ev.PromiseCreated(0, "p"),), (), "promise 0", ["missing"]),
        ((), (ev.PromiseCreated(0, "p", b"{}", ev.PromiseKind.EVENT),), "event 0", ["missing"]),
    ],
)
def test_a_step_differs_in_its_name_its_input_its_outcome_or_its_result(
    one: tuple[ev.Event, ...], other: tuple[ev.Event, ...], step: str, differs: list[str]
) -> None:
    found = parted(compared(one, other))
    assert (found.step, found.differs) == (step, differs)
    back = parted(compared(other, one))
    assert (back.step, back.differs, back.one, back.other) == (step, differs, found.other, found.one)


def test_a_step_that_has_not_ended_has_no_outcome_and_no_duration() -> None:
    found = parted(compared((child(0),), ()))
    assert found.one == StepView(event=2, name="inner", input=b'{"x":1}', outcome="", took_us=None)
    assert found.other is None


def test_steps_are_the_same_under_other_event_numbers_and_in_another_order() -> None:
    found = compared(
        (tasks(0, b"x"), child(0), won(0)),
        (child(0), ev.StateSet("s", b"1"), tasks(0, b"x"), ev.PatchRecorded("p"), won(0)),
    )
    assert (found.same, found.parted, found.differs) == (2, None, [])


def test_two_runs_differ_in_workflow_version_and_input() -> None:
    one, other = ev.RunStarted("w", "1", b"{}"), ev.RunStarted("v", "1", b"[]")
    found = diff((RUN, numbered(one)), (OTHER, numbered(other, ev.RunBegan("2"))))
    assert found.differs == ["workflow", "version", "input"]
    assert (found.other.run_id, found.other.version, found.other.events) == (OTHER, "2", 2)


def test_an_error_without_a_type_is_told_by_its_code() -> None:
    found = compared((ev.RunFailed(UNTYPED),), (ev.RunCancelled("why"),))
    assert (found.one.error, found.other.error) == ("task_timeout: too late", None)
    assert (found.one.status, found.other.status) == ("failed", "cancelled")
    assert found.differs == ["status", "error"]


def test_the_time_of_a_fork_counts_from_the_fork_on() -> None:
    found = compared((tasks(0), won(0)), (tasks(0), ev.RunForked(RUN, 2), won(0)))
    assert (found.one.took_us, found.other.took_us) == (200, 100)
    assert (found.same, found.parted) == (1, None)


def test_what_a_retry_took_back_is_not_compared() -> None:
    retried = (tasks(0), ev.TaskFailed(0, TYPED, 3), tasks(1), ev.RunFailed(TYPED), ev.RunRetried(3, [0], []), won(0))
    found = compared(retried, (tasks(0), won(0)))
    assert (found.same, found.parted, found.differs) == (1, None, [])
    assert (found.one.events, found.other.events) == (7, 3)


def test_a_long_difference_is_cut_and_the_rest_is_counted() -> None:
    many = DIFF_STEPS_SHOWN + 3
    found = compared((), (tasks(0, *[b"x"] * many),))
    assert (found.same, len(found.after), found.omitted) == (0, DIFF_STEPS_SHOWN, 3)
    assert found.after[-1].step == f"task {DIFF_STEPS_SHOWN - 1}"
    exact = compared((), (tasks(0, *[b"x"] * DIFF_STEPS_SHOWN),))
    assert (len(exact.after), exact.omitted) == (DIFF_STEPS_SHOWN, 0)


def test_a_promise_that_was_resolved_before_the_code_asked_has_its_value() -> None:
    early = (ev.PromiseResolved("p", b"1"), ev.PromiseCreated(0, "p"))
    found = at(STARTED, *early)
    assert found.outstanding == [] and [(r.event, r.value) for r in found.results] == [(3, b"1")]
    other = compared(early, (ev.PromiseResolved("p", b"2"), ev.PromiseCreated(0, "p")))
    assert parted(other).differs == ["result"]
