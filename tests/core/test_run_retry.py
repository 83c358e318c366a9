"""What a retry takes back, by example, for any history, and against real workflow code in an unkind world."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import Promise, Signal, State, task, wf, workflow
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.approvals import Spec, encode_spec
from perdure.core.errors import Conflict, Failure, IllegalTransition
from perdure.core.limits import HISTORY_EVENTS_MAX
from perdure.core.retry import TaskOptions
from perdure.core.run_retry import effective, pause, plan
from perdure.core.runstate import RunState
from perdure.errors import ChildFailed, TaskFailed
from perdure.sdk.workflow.endings import cause_of
from perdure.sdk.workflow.instance import WorkflowInstance
from perdure.testing.replayer import replay_one
from tests.fakes.workflow_world import World, keep_private

OPTIONS = TaskOptions()
FAILURE = Failure("task_failed", "boom")
STARTED = ev.RunStarted("w", "1", b"{}", deadline_us=900)
FAILED = ev.RunFailed(Failure("run_failed", "boom"))
RETRY_AT = 10_000


def tasks(first: int, count: int = 1) -> ev.TasksScheduled:
    return ev.TasksScheduled(first, "t", "default", [b"%d" % i for i in range(first, first + count)], OPTIONS)


def won(*seqs: int) -> ev.TasksSucceeded:
    return ev.TasksSucceeded(list(seqs), [b"r%d" % s for s in seqs])


def lost(seq: int) -> ev.TaskFailed:
    return ev.TaskFailed(seq, FAILURE, 3)


def numbered(*events: ev.Event, at_us: int = 100) -> list[ev.Recorded]:
    """Event n has happened at n * at_us."""
    return [ev.Recorded(n, n * at_us, e) for n, e in enumerate(events, 1)]


def retried(history: list[ev.Recorded], **options: Any) -> list[ev.Recorded]:
    return [*history, ev.Recorded(len(history) + 1, RETRY_AT, plan(history, **options))]


def left(history: list[ev.Recorded]) -> list[ev.Event]:
    return [r.event for r in effective(history)]


def fold(history: list[ev.Recorded]) -> RunState:
    state = RunState()
    for r in history:
        state.apply(r.event)
    return state


BEGUN = ev.RunStarted("w", "1", b"{}")
"""What a retry makes of the start: it has no deadline."""

# -- by example ----------------------------------------------------------------------------------------------------------


def test_a_history_without_a_retry_is_its_own_effective_history() -> None:
    history = numbered(STARTED, tasks(0), lost(0), FAILED)
    assert effective(history) is history
    assert pause(history) == (0, 0, 0)


@pytest.mark.parametrize(
    "events",
    [
        (STARTED,),
        (STARTED, ev.RunSucceeded(b"1")),
        (STARTED, ev.RunCancelled()),
        (STARTED, ev.RunContinued(b"r" * 16, b"")),
        (STARTED, FAILED, ev.RunRetried(2, [], [])),
        (),
    ],
)
def test_only_what_has_failed_can_be_retried(events: tuple[ev.Event, ...]) -> None:
    with pytest.raises(Conflict, match="only failed runs can be retried"):
        plan(numbered(*events))


def test_a_history_that_is_full_has_no_room_for_another_epoch() -> None:
    full = [*numbered(STARTED), ev.Recorded(HISTORY_EVENTS_MAX, 1, FAILED)]
    with pytest.raises(Conflict, match="HISTORY_EVENTS_MAX"):
        plan(full)


def test_what_failed_is_outstanding_again_and_what_succeeded_stays() -> None:
    history = numbered(STARTED, tasks(0, 3), won(0), lost(1), won(2), FAILED)
    event = plan(history, by="ann")
    assert event == ev.RunRetried(4, [1], [], "ann")
    after = effective(retried(history))
    assert [r.event for r in after] == [BEGUN, tasks(0, 3), won(0), won(2)]
    assert [r.seq for r in after] == [1, 2, 3, 5]
    assert sorted(fold(after).tasks) == [1]


def test_what_the_code_did_about_the_failure_never_happened() -> None:
    history = numbered(
        STARTED,
        tasks(0),
        lost(0),
        ev.StateSet("stage", b"1"),
        tasks(1, 2),
        ev.TimerStarted(0, 5),
        won(1),
        ev.TimerFired(0),
        lost(2),
        ev.OperationRecorded(0, "roll", b"4"),
        ev.PatchRecorded("p"),
        ev.AttributesSet(b'{"a":1}'),
        ev.PromiseCreated(0, "p"),
        ev.CancelRequested("why"),
        FAILED,
    )
    assert left(retried(history)) == [BEGUN, tasks(0)]


def test_what_came_from_outside_stays_and_is_heard_at_the_retry() -> None:
    heard: list[ev.Event] = [
        ev.SignalReceived("s", b"1"),
        ev.PromiseResolved("p", b"2"),
        ev.UpdateReceived("u", "change", b"3"),
    ]
    history = numbered(STARTED, tasks(0), lost(0), *heard, ev.UpdateAnswered("u", b"4"), FAILED)
    after = effective(retried(history))
    assert [r.event for r in after] == [BEGUN, tasks(0), *heard]
    assert [r.at_us for r in after] == [100, 200, RETRY_AT, RETRY_AT, RETRY_AT]
    assert list(fold(after).updates) == ["u"], "the code answers it again"


def asked(details: str, quorum: int = 1) -> ev.PromiseCreated:
    spec = Spec(title="deal", details=details, quorum=quorum, reject_quorum=1)
    return ev.PromiseCreated(0, "deal", encode_spec(spec), ev.PromiseKind.APPROVAL)


def test_a_value_for_a_name_stays_with_the_question_that_took_it() -> None:
    """Given early, taken by the refund of the failed run. After the retry the payment is another question of that name."""
    refund, early = asked("refund?"), ev.PromiseResolved("deal", b"true")
    after = effective(retried(numbered(STARTED, tasks(0), lost(0), early, refund, FAILED)))
    state = fold([*after, *numbered(asked("pay?"))])
    assert not state.is_resolved("deal")
    assert fold([*after, *numbered(refund)]).is_resolved("deal")


def test_a_value_that_no_question_could_take_stays_with_its_name() -> None:
    early = ev.PromiseResolved("deal", b"true", authorized=False)
    after = effective(retried(numbered(STARTED, tasks(0), lost(0), early, asked("refund?", quorum=2), FAILED)))
    assert fold([*after, *numbered(asked("pay?"))]).is_resolved("deal")
    plain = effective(retried(numbered(STARTED, tasks(0), lost(0), early, ev.PromiseCreated(0, "deal"), FAILED)))
    assert fold([*plain, *numbered(ev.PromiseCreated(0, "deal"))]).is_resolved("deal")


def test_a_timer_that_fired_meanwhile_has_fired() -> None:
    history = numbered(
        STARTED,
        tasks(0),
        ev.TimerStarted(0, 350),
        lost(0),
        ev.TimerStarted(1, 500),
        ev.TimerFired(0),
        ev.TimerFired(1),
        FAILED,
    )
    assert left(retried(history)) == [BEGUN, tasks(0), ev.TimerStarted(0, 350), ev.TimerFired(0)]


def test_successes_that_share_an_event_with_dropped_ones_stay() -> None:
    history = numbered(STARTED, tasks(0, 2), lost(0), tasks(2), won(2, 1), FAILED)
    assert left(retried(history)) == [BEGUN, tasks(0, 2), won(1)]


def test_what_the_end_of_the_run_cancelled_goes_on() -> None:
    history = numbered(
        STARTED,
        tasks(0, 3),
        ev.TimerStarted(0, 5_000),
        lost(1),
        ev.TasksCancelled([0, 2]),
        ev.TimerCancelled(0),
        FAILED,
    )
    after = fold(effective(retried(history)))
    assert sorted(after.tasks) == [0, 1, 2]
    assert after.timers == {0: 5_000 + RETRY_AT - 700}, "as much is left of it as when the run failed"
    assert pause(retried(history)) == (RETRY_AT, RETRY_AT - 700, 0)


def test_without_a_failure_the_run_goes_on_from_where_it_was_closed() -> None:
    """The code itself raised, or its time was up."""
    for code in ("run_failed", "run_timeout"):
        end = ev.RunFailed(Failure(code, "x"))
        history = numbered(STARTED, tasks(0), won(0), tasks(1), ev.TasksCancelled([1]), end)
        assert plan(history) == ev.RunRetried(5, [], [])
        assert left(retried(history)) == [BEGUN, tasks(0), won(0), tasks(1)]


def test_a_run_whose_time_was_up_does_not_take_back_what_it_got_over() -> None:
    history = numbered(
        STARTED, tasks(0), lost(0), tasks(1), ev.TasksCancelled([1]), ev.RunFailed(Failure("run_timeout", "x"))
    )
    assert left(retried(history)) == [BEGUN, tasks(0), lost(0), tasks(1)]


def test_the_failure_that_the_exception_tells_of_is_where_it_is_cut() -> None:
    history = numbered(STARTED, tasks(0), lost(0), tasks(1), lost(1), ev.RunFailed(FAILURE, 5))
    assert plan(history).cut == 5
    assert left(retried(history)) == [BEGUN, tasks(0), lost(0), tasks(1)]
    unknown = numbered(STARTED, tasks(0), lost(0), tasks(1), lost(1), FAILED)
    assert plan(unknown).cut == 3, "without it every failure is taken back"


def test_a_timer_that_brought_the_code_down_starts_over() -> None:
    history = numbered(
        STARTED, tasks(0), ev.TimerStarted(0, 1_300), ev.TimerFired(0), ev.TasksCancelled([0]), ev.RunFailed(FAILURE, 4)
    )
    assert plan(history) == ev.RunRetried(4, [], [], "", [0])
    after = fold(effective(retried(history)))
    assert sorted(after.tasks) == [0]
    assert after.timers == {0: RETRY_AT + 1_200}, "counted from what the code had heard last when it asked"


def child(seq: int, run: bytes = b"c") -> ev.ChildStarted:
    return ev.ChildStarted(seq, run * 16, "child", b"{}")


def test_children_that_failed_or_were_stopped_are_started_anew_unless_they_live() -> None:
    history = numbered(
        STARTED,
        child(0),
        child(1),
        child(2),
        child(3),
        ev.ChildSucceeded(3, b"1"),
        ev.ChildFailed(0, FAILURE),
        ev.ChildCancelled(1),
        ev.ChildCancelRequested(2),
        FAILED,
    )
    assert plan(history).voided_children == [0, 1, 2]
    assert left(retried(history)) == [BEGUN, child(3), ev.ChildSucceeded(3, b"1")]
    assert left(retried(history, living={0, 2})) == [BEGUN, child(0), child(2), child(3), ev.ChildSucceeded(3, b"1")]


def test_a_child_that_the_code_had_stopped_before_stays_stopped() -> None:
    history = numbered(STARTED, child(0), ev.ChildCancelRequested(0), tasks(0), lost(0), ev.ChildCancelled(0), FAILED)
    assert plan(history) == ev.RunRetried(5, [0], [])
    assert left(retried(history)) == [BEGUN, child(0), ev.ChildCancelRequested(0), tasks(0), ev.ChildCancelled(0)]


def test_a_failed_side_effect_is_taken_back() -> None:
    history = numbered(STARTED, ev.OperationRecorded(0, "a", b"1"), ev.OperationRecorded(1, "b", b"", FAILURE), FAILED)
    assert plan(history).cut == 3
    assert left(retried(history)) == [BEGUN, ev.OperationRecorded(0, "a", b"1")]


def test_a_second_retry_builds_on_the_first() -> None:
    once = retried(numbered(STARTED, tasks(0), lost(0), tasks(1), won(1), FAILED))
    more: list[ev.Event] = [won(0), tasks(1), lost(1), FAILED]
    history = once + [ev.Recorded(len(once) + n, RETRY_AT + n, e) for n, e in enumerate(more, 1)]
    assert plan(history) == ev.RunRetried(10, [1], [])
    assert left(retried(history)) == [BEGUN, tasks(0), won(0), tasks(1)]


def test_a_retry_that_fits_nothing_is_refused() -> None:
    for cut in (1, 9):
        with pytest.raises(IllegalTransition, match=f"from event {cut} on"):
            effective(numbered(STARTED, FAILED, ev.RunRetried(cut, [], [])))
    with pytest.raises(IllegalTransition, match="folded through"):
        fold(numbered(STARTED, FAILED, ev.RunRetried(2, [], [])))


# -- which event an exception goes back to -----------------------------------------------------------------------------------


def error_of(event: int) -> TaskFailed:
    error = TaskFailed(FAILURE)
    error.event = event
    return error


def caught(act: Any) -> BaseException:
    try:
        act()
    except BaseException as e:
        return e
    raise AssertionError("nothing was raised")


def test_an_exception_goes_back_to_the_first_failure_it_comes_from() -> None:
    def from_it() -> None:
        raise RuntimeError("so") from error_of(5)

    def while_handling() -> None:
        try:
            raise error_of(5)
        except TaskFailed:
            raise error_of(9)  # noqa: B904

    def forgetting() -> None:
        try:
            raise error_of(5)
        except TaskFailed:
            raise RuntimeError("so") from None

    assert cause_of(error_of(7), 3) == 7
    assert cause_of(caught(from_it), 3) == 5
    assert cause_of(caught(while_handling), 3) == 5
    assert cause_of(caught(forgetting), 3) == 0
    assert cause_of(ExceptionGroup("", [error_of(8), ExceptionGroup("", [error_of(6)])]), 3) == 6
    assert cause_of(TimeoutError(), 3) == 3
    assert cause_of(TimeoutError(), 0) == 0
    assert cause_of(ValueError(), 3) == 0


# -- any history ----------------------------------------------------------------------------------------------------------


class Chaos:
    """Events in any order that the lifecycle of their subjects allows; nobody's code, so nothing has a reason."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.history = rng, [ev.Recorded(1, 1, STARTED)]
        self.state = fold(self.history)
        self.next: Counter[str] = Counter()

    def add(self, event: ev.Event) -> None:
        self.state.apply(event)
        self._append(event)

    def _append(self, event: ev.Event) -> None:
        last = self.history[-1]
        self.history.append(ev.Recorded(last.seq + 1, last.at_us + self.rng.randint(0, 50), event))

    def number(self, kind: str) -> int:
        self.next[kind] += 1
        return self.next[kind] - 1

    def happen(self) -> None:
        rng, s = self.rng, self.state
        match rng.randrange(16):
            case 0 | 1:
                count = rng.randint(1, 4)
                first = self.next["task"]
                self.next["task"] += count
                self.add(tasks(first, count))
            case 2:
                self.add(ev.TimerStarted(self.number("timer"), rng.randint(0, 5_000)))
            case 3:
                self.add(child(self.number("child"), rng.randbytes(1)))
            case 4:
                self.add(ev.StateSet(rng.choice("abc"), rng.randbytes(1)))
            case 5:
                self.add(ev.PromiseCreated(self.number("promise"), rng.choice("pq")))
            case 6:
                self.add(ev.OperationRecorded(self.number("operation"), "o", b"", rng.choice([None, FAILURE])))
            case 7:
                self.add(ev.SignalReceived("s", b"1"))
            case 8:
                self.add(rng.choice([ev.PromiseResolved("p", b"1"), ev.CancelRequested(), ev.PatchRecorded("p")]))
            case 9 | 10 if s.tasks:
                some = rng.sample(sorted(s.tasks), rng.randint(1, len(s.tasks)))
                self.add(rng.choice([won(*some), won(*some), ev.TasksCancelled(some)]))
            case 11 | 12 if s.tasks:
                self.add(lost(rng.choice(sorted(s.tasks))))
            case 13 if s.timers:
                seq = rng.choice(sorted(s.timers))
                self.add(rng.choice([ev.TimerFired(seq), ev.TimerCancelled(seq)]))
            case 14 | 15 if s.children:
                seq = rng.choice(sorted(s.children))
                ends = [
                    ev.ChildSucceeded(seq, b"1"),
                    ev.ChildFailed(seq, FAILURE),
                    ev.ChildCancelled(seq),
                    ev.ChildCancelRequested(seq),
                ]
                self.add(rng.choice(ends))
            case _:
                pass

    def fail(self) -> None:
        """As the engine closes a run."""
        s = self.state
        if s.tasks:
            self.add(ev.TasksCancelled(list(s.tasks)))
        for seq in list(s.timers):
            self.add(ev.TimerCancelled(seq))
        for seq in list(s.children):
            self.add(ev.ChildCancelRequested(seq))
        bad = [
            r.seq
            for r in effective(self.history)
            if isinstance(r.event, ev.TaskFailed | ev.ChildFailed | ev.TimerFired)
        ]
        cause = self.rng.choice([0, *bad])
        self.add(ev.RunFailed(Failure(self.rng.choice(["run_failed", "run_failed", "run_timeout"]), "x"), cause))

    def retry(self) -> ev.RunRetried:
        event = plan(self.history)
        living = {c for c in event.voided_children if self.rng.random() < 0.3}
        event = plan(self.history, "somebody", living)
        self._append(event)
        after = effective(self.history)
        self.state = fold(after)
        for kind, types in (
            ("child", ev.ChildStarted),
            ("timer", ev.TimerStarted),
            ("promise", ev.PromiseCreated),
            ("operation", ev.OperationRecorded),
        ):
            used = [r.event.seq for r in after if isinstance(r.event, types)]
            self.next[kind] = max(used, default=-1) + 1
        self.next["task"] = sum(len(r.event.inputs) for r in after if isinstance(r.event, ev.TasksScheduled))
        return event


@given(st.integers(0, 1 << 40), st.lists(st.integers(0, 25), min_size=1, max_size=4))
def test_whatever_happened_a_retry_leaves_a_history_that_goes_on(seed: int, epochs: list[int]) -> None:
    chaos = Chaos(random.Random(seed))
    for length in epochs:
        for _ in range(length):
            chaos.happen()
        chaos.fail()
        before = effective(chaos.history)
        event = chaos.retry()
        after = effective(chaos.history)

        assert not fold(after).is_terminal
        assert effective(after) is after
        assert [r.seq for r in after] == sorted({r.seq for r in after} & {r.seq for r in before})
        assert all(r.seq < event.cut for r in after if isinstance(r.event, ev.TaskFailed | ev.RunFailed))
        assert all(r.seq < event.cut for r in after if not isinstance(r.event, ev.FACTS))
        assert fold(after).deadline_us == 0
        head = {r.seq: r.event for r in after if r.seq < event.cut}
        for r in before:
            if r.seq < event.cut and not isinstance(r.event, ev.RunStarted | ev.TimerStarted):
                gone = isinstance(r.event, ev.ChildStarted) and r.event.seq in event.voided_children
                assert gone or head[r.seq] == r.event
        results = {s for r in before if isinstance(r.event, ev.TasksSucceeded) for s in r.event.seqs}
        asked = sum(len(r.event.inputs) for r in before if isinstance(r.event, ev.TasksScheduled) and r.seq < event.cut)
        kept = {s for r in after if isinstance(r.event, ev.TasksSucceeded) for s in r.event.seqs}
        assert kept == {s for s in results if s < asked}, "a success stays, if it was asked for before the cut"


# -- real code ------------------------------------------------------------------------------------------------------------

broken: set[str] = set()
executed: Counter[str] = Counter()
note = Signal("note", str)
approve = Promise("approve", str)
progress = State("progress", "")


@task
def do(name: str) -> str:
    executed[name] += 1
    if name in broken:
        raise ValueError(name)
    return name


def operate() -> str:
    return do.fn("operation")


@workflow
async def inner(name: str) -> str:
    return await do(name)


@workflow
async def straight(x: int) -> str:
    out = ""
    for i in range(4):
        progress.set(str(i))
        out += await do(f"step {i}")
    return out


@workflow
async def wide(x: int) -> str:
    done = await wf.map(do, [f"item {i}" for i in range(6)])
    return "".join(done) + await do("join")


@workflow
async def narrow(x: int) -> str:
    """A limit: later items are asked for when earlier ones end."""
    return "".join(await wf.map(do, [f"item {i}" for i in range(7)], concurrency=2))


@workflow
async def grouped(x: int) -> str:
    out: list[str] = []

    async def branch(name: str) -> None:
        async with asyncio.timeout(3600):
            out.append(await do(f"{name} 1"))
            await wf.sleep(5)
            out.append(await do(f"{name} 2"))

    async with asyncio.TaskGroup() as group:
        for name in ("left", "right"):
            group.create_task(branch(name))
    return "".join(sorted(out))


@workflow
async def undone(x: int) -> str:
    a = await do("a")
    try:
        b = await do("b")
    except TaskFailed:
        await do("undo a")
        raise RuntimeError("undone")  # noqa: B904
    return a + b + await do("c")


@workflow
async def collected(x: int) -> str:
    got = await asyncio.gather(do("p"), do("q"), inner("r"), return_exceptions=True)
    bad = [g for g in got if isinstance(g, Exception)]
    if bad:
        await do("report")
        raise RuntimeError(f"{len(bad)} failed")
    return "".join(str(g) for g in got)


@workflow
async def varied(x: int) -> str:
    first = asyncio.gather(do("one"), inner("two"), wf.run("op", operate))
    try:
        spare = await inner("spare")
    except ChildFailed:
        spare = await do("instead")
    parts = await first
    said = await note.next()
    ok = await approve.wait(timeout="1h")
    return "".join([*parts, said, ok, "+" if spare else "-"])


FLOWS = (straight, wide, narrow, grouped, undone, collected, varied)
NAMES = [
    *(f"step {i}" for i in range(4)),
    *(f"item {i}" for i in range(7)),
    "join",
    "left 1",
    "left 2",
    "right 1",
    "right 2",
    "a",
    "b",
    "c",
    "undo a",
    "p",
    "q",
    "r",
    "report",
    "one",
    "two",
    "spare",
    "instead",
    "operation",
]
keep_private(globals())


class Retryable(World):
    def fail(self) -> None:
        """What the engine writes when the code gives up."""
        assert isinstance(self.closing, cm.FailRun)
        s = self.state
        if s.tasks:
            self.add(ev.TasksCancelled(list(s.tasks)))
        for seq in list(s.timers):
            self.add(ev.TimerCancelled(seq))
        for seq in list(s.children):
            self.add(ev.ChildCancelRequested(seq))
        self.add(ev.RunFailed(self.closing.failure, self.closing.cause))

    def retry(self) -> None:
        self.now_us += 86_400_000_000
        event = plan(self.history)
        self.history.append(ev.Recorded(len(self.history) + 1, self.now_us, event))
        self.runtime.evict()
        self.runtime = WorkflowInstance(self.run_id, self.workflow)
        self._first, self.closing, self.operations = True, None, {}
        self.inbox = list(effective(self.history))
        self.state = fold(self.inbox)
        kept = {s for r in self.inbox if isinstance(r.event, ev.ChildCancelRequested) for s in [r.event.seq]}
        self.script = [f for f in self.script if not isinstance(f, ev.ChildCancelled) or f.seq in kept]

    def _is_cancelling(self, seq: int) -> bool:
        return any(isinstance(r.event, ev.ChildCancelRequested) and r.event.seq == seq for r in effective(self.history))

    def _end_child(self, seq: int) -> None:
        started = [r.event for r in self.history if isinstance(r.event, ev.ChildStarted) and r.event.seq == seq][-1]
        name = inner.signature.decode_call(started.input)[0][0]
        try:
            self.add(ev.ChildSucceeded(seq, inner.signature.encode_result(do.fn(name))))
        except ValueError as e:
            self.add(ev.ChildFailed(seq, Failure("run_failed", str(e), "ValueError")))


def kept_tasks(history: list[ev.Recorded]) -> set[str]:
    """Names of tasks that have their result for good."""
    names: dict[int, str] = {}
    for r in effective(history):
        if isinstance(r.event, ev.TasksScheduled):
            for i, data in enumerate(r.event.inputs):
                names[r.event.first + i] = do.signature.decode_call(data)[0][0]
    return {names[s] for r in effective(history) if isinstance(r.event, ev.TasksSucceeded) for s in r.event.seqs}


@given(st.sampled_from(FLOWS), st.sets(st.sampled_from(NAMES)), st.integers(0, 1 << 30), st.integers(1, 4))
def test_code_goes_on_after_any_failure_and_ends_as_if_there_had_been_none(
    flow: Any, wrong: set[str], seed: int, repairs: int
) -> None:
    broken.clear()
    executed.clear()
    good = Retryable(flow, 1)
    good.script = [ev.SignalReceived("note", b'"n"'), ev.PromiseResolved("approve", b'"y"')]
    expected = good.run().result
    good.evict()

    broken.update(wrong)
    rng = random.Random(seed)
    world = Retryable(flow, 1)
    world.script = [ev.SignalReceived("note", b'"n"'), ev.PromiseResolved("approve", b'"y"')]
    world.run(seed)
    for _ in range(2 * len(NAMES)):
        assert world.stuck is None, world.stuck
        if not isinstance(world.closing, cm.FailRun):
            break
        world.fail()
        for name in rng.sample(sorted(broken), min(repairs, len(broken))):
            broken.discard(name)
        world.retry()
        kept, before = kept_tasks(world.history), executed.copy()
        world.run(rng.randrange(1 << 30))
        assert all(executed[name] == before[name] for name in kept), "what has its result is not executed again"
    assert world.result == expected
    assert isinstance(world.closing, cm.CompleteRun)
    end = ev.Recorded(len(world.history) + 1, world.now_us, ev.RunSucceeded(world.closing.result))
    replay_one(flow, world.run_id, [*world.history, end])
    world.evict()
