"""What a fork copies of a history, what it leaves out, and what an edited result changes."""

from __future__ import annotations

import msgspec
import pytest

from perdure.core import events as ev
from perdure.core.approvals import Spec, decode_spec, encode_spec
from perdure.core.errors import Conflict, Failure, InvalidInput
from perdure.core.lifecycle import TaskStatus
from perdure.core.limits import FORK_LINEAGE_MAX
from perdure.core.questions import asked_by
from perdure.core.retry import TaskOptions
from perdure.core.run_fork import CopiedTask, Fork, ForkSpec, fork, task_of

OPTIONS = TaskOptions()
FAILURE = Failure("task_failed", "boom")
RUN = b"r" * 16
OLDER = b"o" * 16
NOW = 10_000
STARTED = ev.RunStarted("w", "1", b"{}")
FAILED = ev.RunFailed(Failure("run_failed", "boom"))


def tasks(first: int, count: int = 1, name: str = "t") -> ev.TasksScheduled:
    return ev.TasksScheduled(first, name, "default", [b"%d" % i for i in range(first, first + count)], OPTIONS)


def nodes(first: int, *names: str) -> ev.TasksScheduled:
    return ev.TasksScheduled(first, "t", "default", [b"{}"] * len(names), OPTIONS, list(names))


def won(*seqs: int) -> ev.TasksSucceeded:
    return ev.TasksSucceeded(list(seqs), [b"r%d" % s for s in seqs])


def set_to(seq: int, value: bytes) -> ev.TasksSucceeded:
    return ev.TasksSucceeded([seq], [value])


def lost(seq: int) -> ev.TaskFailed:
    return ev.TaskFailed(seq, FAILURE, 3)


def child(seq: int, *, detached: bool = False) -> ev.ChildStarted:
    return ev.ChildStarted(seq, b"c" * 16, "child", b"{}", detached=detached)


def numbered(*events: ev.Event) -> list[ev.Recorded]:
    """Event n has happened at n * 100."""
    return [ev.Recorded(n, n * 100, e) for n, e in enumerate(events, 1)]


def forked(*events: ev.Event, at: int = 0, edits: dict[str, bytes] | None = None, version: str = "") -> Fork:
    """At the last event, unless told otherwise."""
    spec = ForkSpec(run_id=RUN, at=at or len(events), edits=edits or {}, now_us=NOW, by="ann", version=version)
    return fork(numbered(*events), spec)


def copied(made: Fork) -> list[ev.Event]:
    """Without the start."""
    assert [r.seq for r in made.records] == list(range(1, len(made.records) + 1))
    return [r.event for r in made.records[1:]]


def start_of(made: Fork) -> ev.RunStarted:
    first = made.records[0].event
    assert isinstance(first, ev.RunStarted)
    return first


# -- the copy ------------------------------------------------------------------------------------------------------------


def test_a_fork_has_the_events_up_to_the_one_it_is_made_at_with_their_times() -> None:
    events = (STARTED, tasks(0, 2), won(0), ev.StateSet("s", b"1"), tasks(2), won(1))
    made = forked(*events, at=4)
    assert made.records == [
        ev.Recorded(1, 100, ev.RunStarted("w", "1", b"{}", lineage=[RUN], forked_at=4)),
        ev.Recorded(2, 200, tasks(0, 2)),
        ev.Recorded(3, 300, won(0)),
        ev.Recorded(4, 400, ev.StateSet("s", b"1")),
    ]
    assert made.tail == [ev.RunForked(RUN, 4, [], "ann")]
    assert (made.state.events, sorted(made.state.tasks), made.state.state) == (5, [1], {"s": b"1"})


def test_a_fork_is_nobodys_child_and_successor_and_begins_at_once() -> None:
    started = ev.RunStarted(
        "w",
        "1",
        b'{"x":1}',
        key="k",
        parent_id=OLDER,
        parent_seq=3,
        continued_from=OLDER,
        attributes=b'{"a":1}',
        trace="00-trace",
        known_as=OLDER,
        schedule="daily",
        nominal_us=7,
        rerun_of=OLDER,
        lineage=[OLDER],
        forked_at=9,
        start_at_us=50,
        expires_us=60,
        pinned=True,
    )
    made = fork(numbered(started), ForkSpec(run_id=RUN, at=1, now_us=NOW, key="new"))
    assert start_of(made) == ev.RunStarted(
        "w",
        "1",
        b'{"x":1}',
        key="new",
        attributes=b'{"a":1}',
        schedule="daily",
        nominal_us=7,
        lineage=[OLDER, RUN],
        forked_at=1,
        pinned=True,
    )
    assert made.tail == [ev.RunForked(RUN, 1, [], "")]


def test_the_start_of_a_fork_says_which_version_executes_it() -> None:
    events = (STARTED, ev.RunBegan("2", pinned=True), tasks(0))
    made = forked(*events)
    assert (start_of(made).version, start_of(made).pinned) == ("2", True)
    assert copied(made) == [ev.RunBegan(), tasks(0)]
    other = forked(*events, version="3")
    assert (start_of(other).version, other.state.version, other.state.pinned) == ("3", "3", True)


def test_marks_of_earlier_forks_and_of_versions_are_left_out() -> None:
    made = forked(STARTED, ev.RunForked(OLDER, 1), tasks(0), ev.VersionChanged("2", "1", "ann"), won(0))
    assert [r.at_us for r in made.records] == [100, 300, 500]
    assert copied(made) == [tasks(0), won(0)]
    assert start_of(made).version == "2"


def test_what_a_retry_took_back_is_not_copied() -> None:
    made = forked(STARTED, tasks(0, 2), lost(0), tasks(2), won(1), FAILED, ev.RunRetried(3, [0], []))
    assert copied(made) == [tasks(0, 2), won(1)]
    assert [r.at_us for r in made.records] == [100, 200, 700], "it is heard at the retry"
    assert sorted(made.state.tasks) == [0]


@pytest.mark.parametrize(
    "end",
    [FAILED, ev.RunSucceeded(b"1"), ev.RunCancelled(), ev.RunTerminated(), ev.RunContinued(OLDER, b"{}")],
    ids=lambda e: type(e).__name__,
)
@pytest.mark.parametrize("at", [4, 5, 6, 7])
def test_a_fork_at_the_end_of_a_run_is_made_before_the_run_was_closed(end: ev.Event, at: int) -> None:
    events = (STARTED, tasks(0), ev.TimerStarted(0, 900), ev.StateSet("s", b"1"))
    made = forked(*events, ev.TasksCancelled([0]), ev.TimerCancelled(0), end, at=at)
    assert copied(made) == [tasks(0), ev.TimerStarted(0, 900 + NOW - at * 100), ev.StateSet("s", b"1")]
    assert made.tail == [ev.RunForked(RUN, at, [], "ann")]
    assert not made.state.is_terminal
    assert sorted(made.state.tasks) == sorted(made.state.timers) == [0]


def test_a_cancellation_by_the_code_itself_stays() -> None:
    cancelled = ev.TasksCancelled([0])
    made = forked(STARTED, tasks(0), cancelled, tasks(1), won(1), FAILED, at=3)
    assert copied(made) == [tasks(0), cancelled]
    assert not made.state.tasks


def test_a_decision_about_a_node_counts_only_with_the_retry_that_carries_it_out() -> None:
    decided = ev.NodeOverridden("a", "set", b"1")
    retried = ev.RunRetried(0, [], [])
    events = (STARTED, nodes(0, "a", "b"), lost(0), ev.TasksCancelled([1]), FAILED, decided, decided, retried)
    for at in (6, 7):
        assert copied(forked(*events, at=at)) == [nodes(0, "a", "b"), lost(0)]
    assert copied(forked(*events)) == list(events[1:])


def test_the_cause_of_an_earlier_failure_is_numbered_anew() -> None:
    def failed(cause: int) -> ev.RunFailed:
        return ev.RunFailed(FAILURE, cause)

    moved, retried = ev.VersionChanged("2"), ev.RunRetried(0, [], [])
    for cause, expected in ((4, 3), (2, 0), (0, 0)):
        made = forked(STARTED, moved, nodes(0, "a"), lost(0), failed(cause), retried)
        assert copied(made) == [nodes(0, "a"), lost(0), failed(expected), retried]


def test_an_event_that_is_not_there_is_refused() -> None:
    for at in (-1, 3):
        with pytest.raises(InvalidInput, match=f"the run has events 1 to 2; there is no event {at} to fork it at"):
            forked(STARTED, tasks(0), at=at)
    with pytest.raises(InvalidInput, match="there is no event 0 to fork"):
        fork(numbered(STARTED), ForkSpec(run_id=RUN, at=0, now_us=NOW))
    with pytest.raises(InvalidInput, match="events 1 to 0; there is no event 1"):
        fork([], ForkSpec(run_id=RUN, at=1, now_us=NOW))


def test_forks_of_forks_have_an_end() -> None:
    last = msgspec.structs.replace(STARTED, lineage=[OLDER] * (FORK_LINEAGE_MAX - 1))
    assert len(start_of(forked(last)).lineage) == FORK_LINEAGE_MAX
    with pytest.raises(Conflict, match=f"the last of FORK_LINEAGE_MAX={FORK_LINEAGE_MAX} forks of forks"):
        forked(msgspec.structs.replace(STARTED, lineage=[OLDER] * FORK_LINEAGE_MAX))


# -- what is outstanding -------------------------------------------------------------------------------------------------


def test_a_timer_that_runs_has_as_much_time_left_as_at_the_event() -> None:
    first, second = ev.TimerStarted(0, 250), ev.TimerStarted(1, 5_000)
    made = forked(STARTED, first, second, ev.TimerFired(0), tasks(0))
    assert copied(made) == [first, ev.TimerStarted(1, 5_000 + NOW - 500), ev.TimerFired(0), tasks(0)]
    assert made.state.timers == {1: 5_000 + NOW - 500}


def test_an_open_approval_has_as_much_time_left_and_a_decided_one_is_as_it_was() -> None:
    def asked(seq: int, name: str, spec: Spec) -> ev.PromiseCreated:
        return ev.PromiseCreated(seq, name, encode_spec(spec), ev.PromiseKind.APPROVAL)

    timed = Spec(
        title="ok?",
        quorum=1,
        reject_quorum=1,
        assignees=["ann"],
        deadline_us=3_000,
        escalate_us=2_000,
        escalate_to=["bob"],
    )
    untimed = Spec(title="ok?", quorum=1, reject_quorum=1)
    decided, free = asked(1, "decided", timed), asked(2, "free", untimed)
    plain, answer = ev.PromiseCreated(3, "plain"), ev.PromiseResolved("decided", b"true")
    made = forked(STARTED, asked(0, "open", timed), decided, free, plain, answer)
    is_open, *others = copied(made)
    assert others == [decided, free, plain, answer]
    assert isinstance(is_open, ev.PromiseCreated)
    later = NOW - 600
    assert decode_spec(is_open.spec) == msgspec.structs.replace(
        timed, deadline_us=3_000 + later, escalate_us=2_000 + later
    )
    assert (is_open.seq, is_open.name, is_open.kind) == (0, "open", ev.PromiseKind.APPROVAL)


@pytest.mark.parametrize(
    ("deadline_us", "timeout_us", "expected"),
    [
        (0, 0, 0),
        (900, 0, 900 + NOW - 200),
        (900, 5_000, 900 + NOW - 200),
        (0, 5_000, 100 + 5_000 + NOW - 200),
        (201, 0, NOW + 1),
        (200, 0, NOW + 100),
        (150, 0, NOW + 50),
        (0, 30, NOW + 30),
    ],
)
def test_a_deadline_is_as_far_as_it_was_and_one_that_has_passed_starts_over(
    deadline_us: int, timeout_us: int, expected: int
) -> None:
    started = msgspec.structs.replace(STARTED, deadline_us=deadline_us)
    made = fork(numbered(started, tasks(0)), ForkSpec(run_id=RUN, at=2, now_us=NOW, timeout_us=timeout_us))
    assert start_of(made).deadline_us == made.state.deadline_us == expected


def test_an_outstanding_child_is_started_again_and_others_are_kept() -> None:
    ended = ev.ChildSucceeded(1, b"1")
    made = forked(STARTED, child(0), child(1), child(2, detached=True), ev.ChildCancelRequested(0), ended, tasks(0))
    assert copied(made) == [child(1), child(2, detached=True), ended, tasks(0)]
    assert not made.state.children


def test_a_run_that_waits_for_a_retried_child_cannot_be_forked() -> None:
    events = (STARTED, child(0), ev.ChildFailed(0, FAILURE), FAILED, ev.RunRetried(0, [], [], retried_children=[0]))
    with pytest.raises(Conflict, match="waits for child 0, which was retried with it at event 5; fork it at an event"):
        forked(*events)
    before = forked(*events, at=4)
    assert copied(before) == [child(0), ev.ChildFailed(0, FAILURE)]
    after = forked(*events, ev.ChildSucceeded(0, b"1"))
    assert copied(after) == [*events[1:], ev.ChildSucceeded(0, b"1")]
    plain = forked(STARTED, nodes(0, "a"), lost(0), FAILED, ev.RunRetried(0, [], []), child(0))
    assert copied(plain) == [nodes(0, "a"), lost(0), FAILED, ev.RunRetried(0, [], [])]


def test_the_laws_hold_at_every_event_of_a_history() -> None:
    history = numbered(
        STARTED,
        tasks(0, 3),
        child(0),
        ev.TimerStarted(0, 700),
        won(0),
        child(1),
        ev.ChildFailed(0, FAILURE),
        ev.TimerFired(0),
        ev.ChildCancelRequested(1, awaited=True),
        lost(1),
        tasks(3),
        ev.TasksCancelled([2]),
        ev.ChildCancelled(1),
        ev.TasksCancelled([3]),
        ev.RunFailed(FAILURE, 10),
        ev.RunRetried(10, [1], []),
        won(1),
        ev.TasksCancelled([2]),
        ev.RunSucceeded(b"1"),
    )
    before = list(history)
    for at in range(1, len(history) + 1):
        edits = {"0": b"x"} if at > 1 else {}
        spec = ForkSpec(run_id=RUN, at=at, edits=edits, now_us=NOW)
        made = fork(history, spec)
        assert not made.state.is_terminal, at
        assert not made.state.children, at
        assert 0 not in made.state.tasks, at
        again = fork(history, spec)
        assert (again.records, again.tail, again.tasks) == (made.records, made.tail, made.tasks), at
    assert history == before


# -- edited results ------------------------------------------------------------------------------------------------------


def test_what_the_code_did_with_a_result_that_is_replaced_never_happened() -> None:
    made = forked(
        STARTED,
        tasks(0, 2),
        won(0),
        ev.StateSet("s", b"1"),
        tasks(2),
        ev.TimerStarted(0, 800),
        won(2),
        ev.TimerFired(0),
        ev.OperationRecorded(0, "roll", b"4"),
        lost(1),
        edits={"0": b"new"},
    )
    assert copied(made) == [tasks(0, 2), set_to(0, b"new"), lost(1)]
    assert [r.at_us for r in made.records] == [100, 200, 300, 1_000]
    assert made.tail == [ev.RunForked(RUN, 10, ["task 0"], "ann")]
    assert not made.state.state


def test_a_failed_task_that_is_edited_has_succeeded() -> None:
    made = forked(STARTED, tasks(0), lost(0), FAILED, edits={"t": b"new"})
    assert copied(made) == [tasks(0), set_to(0, b"new")]
    assert made.records[-1].at_us == 300


def test_only_the_edited_one_of_results_that_share_an_event_is_replaced() -> None:
    made = forked(STARTED, tasks(0, 3), won(2, 1, 0), tasks(3), won(3), edits={"1": b"new"})
    assert copied(made) == [tasks(0, 3), ev.TasksSucceeded([2, 1, 0], [b"r2", b"new", b"r0"])]
    late = forked(STARTED, tasks(0, 2), won(0), tasks(2), won(2, 1), edits={"0": b"new"})
    assert copied(late) == [tasks(0, 2), set_to(0, b"new"), won(1)]


def test_before_the_first_edited_result_everything_stays() -> None:
    events = (STARTED, tasks(0), won(0), tasks(1), ev.StateSet("s", b"1"))
    made = forked(*events, lost(1), tasks(2), edits={"1": b"new"})
    assert copied(made) == [*events[1:], set_to(1, b"new")]


def test_what_came_from_outside_and_timers_that_fired_stay() -> None:
    heard: list[ev.Event] = [
        ev.SignalReceived("s", b"1"),
        ev.PromiseResolved("p", b"2"),
        ev.UpdateReceived("u", "change", b"3"),
        ev.TimerFired(0),
    ]
    made = forked(
        STARTED,
        tasks(0),
        ev.TimerStarted(0, 400),
        ev.TimerStarted(1, 450),
        won(0),
        *heard,
        ev.UpdateAnswered("u", b"4"),
        ev.TimerCancelled(1),
        edits={"0": b"new"},
    )
    later = NOW - 1_100
    assert copied(made) == [
        tasks(0),
        ev.TimerStarted(0, 400),
        ev.TimerStarted(1, 450 + later),
        set_to(0, b"new"),
        *heard,
    ]
    assert made.state.timers == {1: 450 + later}
    assert list(made.state.updates) == ["u"], "it is answered again"


def test_an_answer_to_what_a_retry_took_back_is_not_copied_behind_a_replaced_result() -> None:
    asked = ev.PromiseCreated(
        0, "deal", encode_spec(Spec(title="refund?", quorum=1, reject_quorum=1)), ev.PromiseKind.APPROVAL
    )
    answer = ev.PromiseResolved("deal", b"true", question=asked_by(asked))
    events = (STARTED, tasks(0), won(0), tasks(1), lost(1), asked, answer, FAILED, ev.RunRetried(5, [1], []), won(1))
    assert answer in copied(forked(*events))
    assert answer not in copied(forked(*events, edits={"0": b"other"}))
    assert answer in copied(forked(*events, edits={"1": b"other"}))  # the replaced result is younger than the answer


def test_steps_that_have_not_ended_get_their_results_at_the_moment_of_the_fork() -> None:
    made = forked(STARTED, tasks(0, 2), child(0), child(1), edits={"child:0": b"c", "1": b"b", "0": b"a"})
    assert copied(made) == [tasks(0, 2), child(0)]
    assert made.tail == [
        set_to(1, b"b"),
        set_to(0, b"a"),
        ev.ChildSucceeded(0, b"c"),
        ev.RunForked(RUN, 4, ["task 0", "task 1", "child 0"], "ann"),
    ]
    assert not made.state.tasks
    assert not made.state.children


def test_a_task_that_was_stopped_because_of_a_replaced_result_can_be_set() -> None:
    made = forked(STARTED, tasks(0, 2), lost(0), ev.TasksCancelled([1]), tasks(2), edits={"0": b"a", "1": b"b"})
    assert copied(made) == [tasks(0, 2), set_to(0, b"a")]
    assert made.tail[0] == set_to(1, b"b")


@pytest.mark.parametrize("end", [ev.ChildSucceeded(0, b"1"), ev.ChildFailed(0, FAILURE), ev.ChildCancelled(0)])
def test_a_child_that_has_ended_gets_another_result(end: ev.Event) -> None:
    made = forked(STARTED, child(0), end, tasks(0), won(0), edits={"child:0": b"new"})
    assert copied(made) == [child(0), ev.ChildSucceeded(0, b"new")]
    assert made.tail == [ev.RunForked(RUN, 5, ["child 0"], "ann")]


def test_children_end_as_they_did_unless_the_code_stopped_them_because_of_a_replaced_result() -> None:
    made = forked(
        STARTED,
        tasks(0),
        child(0),
        child(1),
        child(2),
        won(0),
        ev.ChildCancelRequested(1),
        child(3),
        ev.ChildFailed(0, FAILURE),
        ev.ChildCancelled(1),
        ev.ChildSucceeded(2, b"2"),
        ev.ChildSucceeded(3, b"3"),
        edits={"0": b"new"},
    )
    assert copied(made) == [
        tasks(0),
        child(0),
        child(2),
        set_to(0, b"new"),
        ev.ChildFailed(0, FAILURE),
        ev.ChildSucceeded(2, b"2"),
    ]


def test_several_results_are_replaced_where_each_was_recorded() -> None:
    made = forked(
        STARTED,
        tasks(0, 2),
        child(0),
        won(1),
        lost(0),
        ev.ChildFailed(0, FAILURE),
        edits={"0": b"a", "1": b"b", "child:0": b"c"},
    )
    assert copied(made) == [
        tasks(0, 2),
        child(0),
        set_to(1, b"b"),
        set_to(0, b"a"),
        ev.ChildSucceeded(0, b"c"),
    ]
    assert made.tail == [ev.RunForked(RUN, 6, ["task 0", "task 1", "child 0"], "ann")]


@pytest.mark.parametrize(
    ("events", "edits", "what"),
    [
        ((tasks(0), ev.TasksCancelled([0]), tasks(1)), {"0": b"x"}, "task 0"),
        ((tasks(0), won(0), tasks(1), won(1)), {"0": b"x", "1": b"y"}, "task 1"),
        ((tasks(0), won(0), child(0)), {"0": b"x", "child:0": b"y"}, "child 0"),
        ((child(0, detached=True),), {"child:0": b"y"}, "child 0"),
    ],
)
def test_a_step_that_may_not_be_asked_for_again_cannot_be_set(
    events: tuple[ev.Event, ...], edits: dict[str, bytes], what: str
) -> None:
    with pytest.raises(InvalidInput, match=f"^{what} cannot be set: it was cancelled, or was asked for after another"):
        forked(STARTED, *events, edits=edits)


# -- names of steps ------------------------------------------------------------------------------------------------------


def test_a_task_is_named_by_its_number_its_node_or_its_name() -> None:
    spread = ev.TasksScheduled(4, "part", "default", [b"{}"] * 3, OPTIONS, ["each"], index=10)
    seen = numbered(STARTED, tasks(0, name="one"), tasks(1, name="load"), nodes(2, "load", "save"), spread)
    for step, seq in (("0", 0), ("3", 3), ("one", 0), ("load", 2), ("save", 3), ("each[11]", 5), ("6", 6)):
        assert task_of(seen, step) == seq, step


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("t", "2 tasks are called 't'; give a number: 0, 1$"),
        ("3", r"no step '3' was scheduled by then; steps: t \(0\), u \(2\)$"),
        ("²", r"no step '²' was scheduled by then; steps: t \(0\)"),
        ("child:1", "no child 1 was started by then; children: 0$"),
        ("child:x", "no child x was started by then"),
        ("child:-1", "no child -1 was started by then"),
    ],
)
def test_a_step_that_is_not_there_is_refused_with_those_that_are(step: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        forked(STARTED, tasks(0, 2), tasks(2, name="u"), child(0), tasks(3), at=4, edits={step: b"1"})


def test_a_refusal_lists_nodes_rather_than_names_and_not_too_many() -> None:
    with pytest.raises(InvalidInput, match="no step 'x' was scheduled by then; steps: a, b$"):
        task_of(numbered(STARTED, tasks(0), nodes(1, "a", "b")), "x")
    with pytest.raises(
        InvalidInput, match="12 tasks are called 't'; give a number: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, and 2"
    ):
        task_of(numbered(STARTED, tasks(0, 12)), "t")
    with pytest.raises(InvalidInput, match="give a number: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9$"):
        task_of(numbered(STARTED, tasks(0, 10)), "t")
    with pytest.raises(InvalidInput, match="steps: none$"):
        task_of(numbered(STARTED), "0")


def test_a_skipped_node_has_no_result_to_replace() -> None:
    skipped = ev.TasksSkipped(1, ["b"], "no")
    with pytest.raises(InvalidInput, match="the node 'b' was skipped; it has no result to replace"):
        forked(STARTED, nodes(0, "a"), skipped, edits={"b": b"1"})
    assert task_of(numbered(STARTED, nodes(0, "a"), skipped), "a") == 0


# -- rows of tasks -------------------------------------------------------------------------------------------------------


def test_the_tasks_that_have_ended_have_rows_and_outstanding_ones_have_none() -> None:
    made = forked(STARTED, tasks(0, 4), won(1), lost(0), ev.TasksCancelled([2]), tasks(4))
    assert made.tasks == [
        CopiedTask(1, "t", "default", TaskStatus.SUCCESS, None, 200, 300, None, None),
        CopiedTask(0, "t", "default", TaskStatus.FAILED, 3, 200, 400, "boom", None),
        CopiedTask(2, "t", "default", TaskStatus.CANCELLED, None, 200, 500, None, None),
    ]
    assert sorted(made.state.tasks) == [3, 4]


def test_rows_of_nodes_have_their_labels_and_those_set_late_end_with_the_fork() -> None:
    made = forked(
        STARTED,
        nodes(0, "a", "b"),
        ev.TasksSkipped(2, ["c"], "not needed"),
        ev.TasksSkipped(3, ["d"]),
        won(0),
        edits={"b": b"new"},
    )
    assert made.tasks == [
        CopiedTask(2, "c", "", TaskStatus.SKIPPED, 0, 300, 300, "not needed", "c"),
        CopiedTask(3, "d", "", TaskStatus.SKIPPED, 0, 400, 400, None, "d"),
        CopiedTask(0, "t", "default", TaskStatus.SUCCESS, None, 200, 500, None, "a"),
        CopiedTask(1, "t", "default", TaskStatus.SUCCESS, None, 200, None, None, "b"),
    ]
