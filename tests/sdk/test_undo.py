"""The undo stack: what is on it, in which order it is taken back, and that a replay at any point goes on where it was."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from perdure import Retry, task, wf, workflow
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.errors import Conflict, Failure
from perdure.core.limits import UNDO_ATTEMPTS_DEFAULT, UNDO_STACK_MAX, UNWIND_GRACE_US
from perdure.core.run_retry import plan
from perdure.core.runstate import RunState
from perdure.core.undo import DEADLINE, PREFIX, offer, refuse_undone, stack_of, with_failures
from perdure.errors import InvalidInput, TaskFailed
from perdure.sdk.workflow import guards
from tests.fakes.waiting import forever
from tests.fakes.workflow_world import World, assert_replays, keep_private

SEEDS = 300


@pytest.fixture(autouse=True, scope="module")
def guarded() -> Iterator[None]:
    """As in a worker."""
    guards.install()
    yield
    guards.uninstall()


class UndoWorld(World):
    """A world that records which tasks undo, as an engine does."""

    def _record(self, c: cm.Command) -> None:
        if isinstance(c, cm.ScheduleTasks):
            assert self.closing is None
            self.add(ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options, c.nodes, c.index))
        else:
            super()._record(c)

    @property
    def undone(self) -> list[str]:
        """Labels of what was taken back, in that order."""
        return [ev.label(e, e.first) for e in self.of(ev.TasksScheduled) if e.nodes]

    @property
    def calls(self) -> list[Any]:
        return [msgspec.json.decode(e.inputs[0])["**"] for e in self.of(ev.TasksScheduled) if e.nodes]

    @property
    def statuses(self) -> dict[int, str]:
        return {line.task: line.status for line in stack_of(self.history)}


@task(queue="money", timeout="30s")
def refund(order: str, result: str, error: dict[str, str]) -> None:
    pass


@task(retry=Retry(2))
def unpack(order: str) -> None:
    pass


@task
def broken(order: str) -> None:
    raise RuntimeError("the till is locked")


@task(undo=refund)
def charge(order: str, amount: int = 1) -> str:
    return f"receipt of {order}"


@task(undo=unpack)
def pack(order: str) -> None:
    pass


@task(undo=broken)
def ship(order: str) -> None:
    pass


@task
def fail(order: str) -> None:
    raise ValueError("no stock")


@workflow
async def straight(order: str) -> None:
    await charge(order, 7)
    await pack(order)
    await fail(order)


@workflow
async def with_a_broken_undo(order: str) -> None:
    await charge(order)
    await ship(order)
    await pack(order)
    await fail(order)


@workflow
async def a_map_beside_a_failure(orders: list[str]) -> None:
    await charge("first")
    await asyncio.gather(charge.map(orders), fail("x"))


@workflow
async def side_by_side(order: str) -> None:
    await asyncio.gather(charge(order), pack(order), fail(order))


@workflow
async def many(orders: list[str]) -> None:
    await charge.map(orders)
    await fail("x")


@workflow
async def goes_on(order: str) -> str:
    try:
        await charge(order)
        await pack(order)
        await fail(order)
    except TaskFailed:
        await wf.unwind()
    await charge("another")
    return "done"


@workflow
async def goes_on_then_fails(order: str) -> None:
    await goes_on.fn(order)
    await fail("in the end")


@workflow
async def told_of_broken(order: str) -> str:
    await ship(order)
    try:
        await wf.unwind()
    except TaskFailed as e:
        return str(e)
    return "nothing was said"


@workflow
async def scoped(order: str) -> None:
    await charge("outside")
    try:
        async with wf.undo_scope():
            await charge("inside")
            async with wf.undo_scope():
                await pack("deep inside")
            await fail(order)
    except TaskFailed:
        pass
    await pack("afterwards")
    await fail("in the end")


@workflow
async def scope_with_a_broken_undo(order: str) -> None:
    async with wf.undo_scope():
        await ship(order)
        await fail(order)


@workflow
async def committed(order: str) -> None:
    await charge(order)
    wf.commit_undo()
    await pack(order)
    await fail(order)


@workflow
async def by_hand(order: str) -> None:
    await charge(order)
    wf.undo(unpack, f"what {order} left behind")
    await fail(order)


@workflow
async def continues(order: str, commit: bool) -> None:
    await charge(order)
    if commit:
        wf.commit_undo()
    wf.continue_as_new(order, commit)


@workflow
async def waits(order: str) -> str:
    await charge(order)
    await pack(order)
    await forever()


@workflow
async def stubborn(order: str) -> str:
    await charge(order)
    try:
        await forever()
    except asyncio.CancelledError:
        pass
    return "I stay"


@workflow
async def by_name(order: str) -> None:
    await wf.call("charge", {"order": order}, undo="refund")
    await fail(order)


@workflow
async def too_many(orders: list[str]) -> None:
    await charge.map(orders)


# -- what is undone ----------------------------------------------------------------------------------------------------


def test_a_failed_run_takes_back_what_it_did_newest_first() -> None:
    world = UndoWorld(straight, "o1").run()
    assert world.undone == ["undo:pack[1]", "undo:charge[0]"]
    assert world.failure.message == "ValueError: no stock"
    assert world.statuses == {0: "undone", 1: "undone"}
    assert_replays(world)


def test_an_undo_is_offered_the_arguments_the_result_and_the_error() -> None:
    world = UndoWorld(straight, "o1").run()
    error = {"code": "run_failed", "type": "TaskFailed", "message": "ValueError: no stock"}
    assert world.calls == [
        {"order": "o1", "result": None, "error": error},
        {"order": "o1", "amount": 7, "result": "receipt of o1", "error": error},
    ]


def test_an_undo_has_the_options_of_its_task_and_is_tried_five_times_unless_it_says_otherwise() -> None:
    options = {e.name: (e.queue, e.options) for e in UndoWorld(straight, "o1").run().of(ev.TasksScheduled)}
    assert options["refund"][0] == "money"
    assert options["refund"][1].timeout_us == 30_000_000
    assert options["refund"][1].max_attempts == UNDO_ATTEMPTS_DEFAULT
    assert options["unpack"][1].max_attempts == 2
    assert [options[n][1].undo for n in ("charge", "pack", "refund", "unpack")] == ["refund", "unpack", "", ""]


def test_an_undo_that_fails_does_not_stop_the_others_and_the_end_tells_of_it() -> None:
    world = UndoWorld(with_a_broken_undo, "o1").run()
    assert world.undone == ["undo:pack[2]", "undo:ship[1]", "undo:charge[0]"]
    assert world.failure.code == "run_failed"
    assert world.failure.message == "ValueError: no stock; and undoing 'ship' failed: the till is locked"
    assert world.statuses == {0: "undone", 1: "failed", 2: "undone"}
    assert_replays(world)


@pytest.mark.parametrize("seed", range(20))
def test_what_still_ran_is_stopped_and_what_had_succeeded_by_then_is_undone(seed: int) -> None:
    world = UndoWorld(side_by_side, "o1").run(seed)
    done = [s for e in world.of(ev.TasksSucceeded) for s in e.seqs if s < 2]
    undone = [e.index for e in world.of(ev.TasksScheduled) if e.nodes]
    assert undone == done[::-1]
    assert not world.state.tasks
    assert_replays(world)


@pytest.mark.parametrize("seed", range(5))
def test_every_item_of_a_map_is_undone(seed: int) -> None:
    world = UndoWorld(many, [f"o{i}" for i in range(6)]).run(seed)
    done = [s for e in world.of(ev.TasksSucceeded) for s in e.seqs if s < 6]
    assert [e.index for e in world.of(ev.TasksScheduled) if e.nodes] == done[::-1]
    assert_replays(world)


def test_a_run_that_ends_well_undoes_nothing() -> None:
    world = UndoWorld(goes_on, "o1").run()
    assert world.result == "done"
    assert world.undone == ["undo:pack[1]", "undo:charge[0]"]
    world.add(ev.RunSucceeded(b'"done"'))
    assert world.statuses == {0: "undone", 1: "undone", 5: "kept"}


def test_unwinding_by_hand_empties_the_stack_and_the_run_goes_on() -> None:
    world = UndoWorld(goes_on_then_fails, "o1").run()
    assert world.undone == ["undo:pack[1]", "undo:charge[0]", "undo:charge[5]"]
    assert_replays(world)


def test_unwinding_by_hand_tells_of_undos_that_failed() -> None:
    world = UndoWorld(told_of_broken, "o1").run()
    assert world.result == "undoing 'ship' failed: the till is locked"
    assert_replays(world)


def test_a_scope_undoes_what_was_done_inside_and_nothing_else() -> None:
    world = UndoWorld(scoped, "o1").run()
    assert world.undone == ["undo:pack[2]", "undo:charge[1]", "undo:pack[6]", "undo:charge[0]"]
    assert_replays(world)


def test_the_end_tells_of_undos_of_a_scope_that_failed() -> None:
    world = UndoWorld(scope_with_a_broken_undo, "o1").run()
    assert world.failure.message == "ValueError: no stock; and undoing 'ship' failed: the till is locked"
    assert_replays(world)


def test_what_is_committed_stays() -> None:
    world = UndoWorld(committed, "o1").run()
    assert world.undone == ["undo:pack[1]"]
    assert world.statuses == {0: "kept", 1: "undone"}
    assert_replays(world)


def test_a_call_pushed_by_hand_is_made_as_it_was_given() -> None:
    world = UndoWorld(by_hand, "o1").run()
    assert world.undone == ["undo:unpack", "undo:charge[0]"]
    pushed = next(e for e in world.of(ev.TasksScheduled) if e.name == "unpack")
    assert msgspec.json.decode(pushed.inputs[0]) == {"order": "what o1 left behind"}
    assert_replays(world)


def test_a_task_by_name_is_undone_by_name() -> None:
    """With the defaults, where this process does not know the undo: this file keeps its tasks out of the registry."""
    world = UndoWorld(by_name, "o1").run()
    undo = next(e for e in world.of(ev.TasksScheduled) if e.nodes)
    assert (undo.name, undo.queue, undo.options.max_attempts) == ("refund", "default", UNDO_ATTEMPTS_DEFAULT)


def test_a_run_cannot_continue_as_new_with_something_to_undo() -> None:
    world = UndoWorld(continues, "o1", False).run()
    assert world.failure.type == "InvalidInput"
    assert "wf.commit_undo()" in world.failure.message
    assert world.undone == ["undo:charge[0]"]
    assert isinstance(UndoWorld(continues, "o1", True).run().closing, cm.ContinueAsNew)


# -- cancelling --------------------------------------------------------------------------------------------------------


def cancelled(world: UndoWorld, reason: str, *, deadline: bool = False) -> UndoWorld:
    world.script = [ev.CancelRequested(reason, deadline)]
    return world.run()  # type: ignore[return-value]


def test_a_cancelled_run_takes_back_what_it_did() -> None:
    world = cancelled(UndoWorld(waits, "o1"), "changed my mind")
    assert world.undone == ["undo:pack[1]", "undo:charge[0]"]
    assert world.closing == cm.CancelRun("changed my mind")
    assert world.calls[0]["error"] == {"code": "run_cancelled", "type": "", "message": "changed my mind"}
    assert_replays(world)


def test_cancelling_a_run_that_undoes_changes_nothing() -> None:
    world = UndoWorld(straight, "o1")
    while not world.undone:
        world.deliver() if world.inbox else world.happen()
    world.add(ev.CancelRequested("too late")).run()
    assert world.undone == ["undo:pack[1]", "undo:charge[0]"]
    assert world.failure.message == "ValueError: no stock"
    assert_replays(world)


def test_cancelling_code_that_unwinds_by_hand_does_not_stop_the_unwinding() -> None:
    world = UndoWorld(goes_on, "o1")
    while not world.undone:
        world.deliver() if world.inbox else world.happen()
    world.add(ev.CancelRequested("now")).run()
    assert world.undone == ["undo:pack[1]", "undo:charge[0]"]
    assert world.closing == cm.CancelRun("now")
    assert_replays(world)


@pytest.mark.parametrize("flow", [waits, stubborn])
def test_a_run_past_its_deadline_unwinds_and_fails_whatever_its_code_says(flow: Any) -> None:
    world = cancelled(UndoWorld(flow, "o1"), DEADLINE, deadline=True)
    assert world.failure == Failure("run_timeout", "the run did not end before its deadline", "TimeoutError")
    assert "undo:charge[0]" in world.undone
    assert_replays(world)


def test_a_deadline_that_passed_is_put_off_once() -> None:
    state = RunState()
    state.apply(ev.RunStarted("w", "1", b"", deadline_us=1_000))
    for _ in range(2):
        state.apply(ev.CancelRequested(DEADLINE, deadline=True))
    assert (state.deadline_us, state.timed_out) == (1_000 + UNWIND_GRACE_US, True)


# -- retry -------------------------------------------------------------------------------------------------------------


def test_a_run_that_was_undone_cannot_be_retried() -> None:
    world = UndoWorld(straight, "o1").run()
    world.add(ev.RunFailed(world.failure))
    with pytest.raises(Conflict, match="start it anew"):
        plan(world.history)


def test_a_run_that_had_nothing_to_undo_can_be_retried() -> None:
    world = UndoWorld(told_of_broken, "o1")
    world.deliver()
    world.add(ev.TaskFailed(0, Failure("task_failed", "no"), 1)).deliver()
    world.add(ev.RunFailed(world.failure))
    refuse_undone(world.history)
    assert plan(world.history).voided_tasks == [0]


# -- definitions -------------------------------------------------------------------------------------------------------


def test_an_undo_that_could_never_be_called_is_refused_where_it_is_defined() -> None:
    with pytest.raises(
        InvalidInput, match=r"refund cannot undo bake: it needs `order`.*`older`.*Did you mean 'older'\?"
    ):

        @task(undo=refund)
        def bake(older: str) -> None: ...


def test_what_is_no_task_cannot_undo() -> None:
    with pytest.raises(InvalidInput, match="give a @task, or the name of one"):
        task(undo=print)(fail.fn)  # type: ignore[call-overload]


def test_the_stack_is_bounded() -> None:
    world = UndoWorld(too_many, ["o"] * (UNDO_STACK_MAX + 1)).run()
    assert f"UNDO_STACK_MAX={UNDO_STACK_MAX}" in world.failure.message


def test_offers_take_every_form_of_call() -> None:
    told = {"result": 1, "error": None}
    for call, given in [
        (b'{"a":1}', {"a": 1}),
        (b'{"**":{"a":1,"b":[2]}}', {"a": 1, "b": [2]}),
        (b'{"*":[1],"b":2}', {"b": 2}),
        (b"[1,2]", {"input": [1, 2]}),
        (b"", {}),
    ]:
        assert msgspec.json.decode(offer(call, b"1", None)) == {"**": {**given, **told}}


def test_the_text_of_an_end_quotes_a_few_failures() -> None:
    assert with_failures("why", []) == "why"
    assert with_failures("", ["a", "b"]) == "a; and b"
    assert with_failures("why", ["1", "2", "3", "4", "5"]) == "why; and 1; and 2; and 3; and 2 more undos failed"


# -- at random ---------------------------------------------------------------------------------------------------------


@task
def undo_it(n: int, result: int) -> int:
    assert result == n * 2
    if n % 11 == 10:
        raise RuntimeError("it stays")
    return n


@task(undo=undo_it)
def do_it(n: int) -> int:
    if n % 7 == 6:
        raise ValueError(f"{n} fails")
    return n * 2


@workflow
async def randomly(program: list[Any]) -> None:
    await play(program)


async def play(program: list[Any]) -> None:
    for act, value in program:
        match act:
            case "do":
                await do_it(value)
            case "together":
                await asyncio.gather(*(play([p]) for p in value))
            case "map":
                await do_it.map(value)
            case "hurry":
                async with asyncio.timeout(value[0]):
                    await play(value[1])
            case "scope":
                async with wf.undo_scope():
                    await play(value)
            case "try":
                try:
                    await play(value)
                except (TaskFailed, TimeoutError):
                    pass
            case "sleep":
                await asyncio.sleep(value)
            case _:
                raise ValueError("the end")


def drawn(rng: random.Random, depth: int, kinds: list[str]) -> list[Any]:
    out: list[Any] = []
    for _ in range(rng.randint(1, 3)):
        kind = rng.choice(kinds if depth else ["do"])
        inner = [] if kind in ("do", "sleep") else drawn(rng, depth - 1, kinds)
        match kind:
            case "do":
                out.append(("do", rng.randint(0, 99)))
            case "map":
                out.append(("map", [rng.randint(0, 99) for _ in range(rng.randint(0, 4))]))
            case "hurry":
                out.append(("hurry", [rng.choice([0, 0.001, 1]), inner]))
            case "sleep":
                out.append(("sleep", rng.choice([0, 1])))
            case _:
                out.append((kind, inner))
    return out


def played(rng: random.Random, program: list[Any], cancel: bool) -> UndoWorld:
    """To the end, with facts in any order and groups, and perhaps a cancellation at any moment."""
    world = UndoWorld(randomly, program)
    world.rng = rng
    for _ in range(2_000):
        if world.closing is not None:
            return world
        assert world.stuck is None, world.stuck
        if cancel and rng.random() < 0.05:
            cancel = False
            world.add(ev.CancelRequested("enough"))
        if world.inbox and rng.random() < 0.6:
            world.deliver()
        elif not world.happen() and not world.inbox:
            raise AssertionError("the run hangs")
    raise AssertionError("the run does not end")


def check(world: UndoWorld, exact: bool) -> None:
    lines = stack_of(world.history)
    undos = [e.index for e in world.of(ev.TasksScheduled) if e.nodes]
    assert len(set(undos)) == len(undos), "something was undone twice"
    if isinstance(world.closing, cm.CompleteRun):
        return
    left = [line for line in lines if line.status not in ("undone", "failed")]
    assert not left, f"{world.closing}: {left}"
    failed = [line for line in lines if line.status == "failed"]
    text = world.closing.reason if isinstance(world.closing, cm.CancelRun) else world.failure.message
    assert ("undo" in text) == bool(failed)
    if exact:
        assert undos == [line.task for line in lines][::-1]


@pytest.mark.keep
@pytest.mark.parametrize(
    "kinds", [["do", "together", "map", "sleep", "hurry", "try"], ["do", "together", "map", "scope", "try", "hurry"]]
)
def test_whatever_a_run_did_is_undone_when_it_fails_or_is_cancelled(kinds: list[str]) -> None:
    ends: dict[str, int] = {}
    for seed in range(SEEDS):
        rng = random.Random(seed)
        program = [*drawn(rng, 3, kinds), *([("fail", None)] if seed % 2 else [])]
        world = played(rng, program, cancel=seed % 3 == 0)
        ends[type(world.closing).__name__] = ends.get(type(world.closing).__name__, 0) + 1
        try:
            check(world, exact="scope" not in kinds)
            assert_replays(world, seeds=3)
        except AssertionError as e:
            raise AssertionError(f"seed {seed}: {program}") from e
        world.evict()
    assert len(ends) == 3, ends


keep_private(globals())


def test_what_a_fan_out_still_runs_is_stopped_before_anything_is_taken_back() -> None:
    stopped = 0
    for seed in range(40):
        world = UndoWorld(a_map_beside_a_failure, [f"order {n}" for n in range(5)]).run(seed)
        kinds = [type(c) for commands in world.activations for c in commands]
        stopped += cm.CancelTasks in kinds
    assert stopped > 0, "in some of these orders the failure comes while parts of the map are under way"


def test_of_two_that_go_by_one_name_the_newer_is_the_one_that_is_being_undone() -> None:
    """A node of a flow that was visited twice: what takes it back names the node alone."""
    options = msgspec.structs.replace(ev.TaskOptions(), undo="refund")
    events: list[ev.Event] = [
        ev.TasksScheduled(0, "pay", "q", [b"{}"], options, ["pay"]),
        ev.TasksSucceeded([0], [b"1"]),
        ev.TasksScheduled(1, "pay", "q", [b"{}"], options, ["pay"]),
        ev.TasksSucceeded([1], [b"2"]),
        ev.TasksScheduled(2, "refund", "q", [b"{}"], ev.TaskOptions(), [f"{PREFIX}pay"]),
    ]
    lines = stack_of([ev.Recorded(n, n, e) for n, e in enumerate(events, 1)])
    assert [(line.task, line.status) for line in lines] == [(0, "ready"), (1, "undoing")]
