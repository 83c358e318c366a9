"""Whole workflows driven by events alone: real asyncio inside, and every history replayed to the same end.

Each scenario is run three ways: facts one at a time; facts in random order and groups (seeds); and from its own history, whole,
split anew, and cut at random points as a crash would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from perdure import Promise, Retry, Signal, State, task, wf, workflow
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.errors import ChildFailed, TaskFailed
from perdure.sdk.workflow import guards
from perdure.sdk.workflow.instance import WorkflowInstance
from tests.fakes.waiting import turns
from tests.fakes.workflow_world import START_US, World, assert_replays, keep_private

SEEDS = range(8)


@pytest.fixture(autouse=True, scope="module")
def guarded() -> Iterator[None]:
    """As in a worker."""
    guards.install()
    yield
    guards.uninstall()


steer = Signal("steer", str)
numbers = Signal("numbers", int)
publish = Promise("publish", bool)
progress = State("progress", 0)


@task
def double(n: int) -> int:
    return 2 * n


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
def fail(why: str) -> int:
    raise ValueError(why)


@task
def odd_fails(n: int) -> int:
    if n % 2:
        raise ValueError(f"{n} is odd")
    return n


def played(workflow_: Any, *args: Any, script: list[ev.Event] | None = None, seed: int | None = None) -> World:
    world = World(workflow_, *args)
    world.script = list(script or ())
    return world.run(seed)


def check(workflow_: Any, *args: Any, expected: Any, script: list[ev.Event] | None = None) -> World:
    """The same result in a kind world, in unkind ones, and on every replay."""
    kind = played(workflow_, *args, script=script)
    assert kind.result == expected
    assert_replays(kind)
    for seed in SEEDS:
        world = played(workflow_, *args, script=script, seed=seed)
        assert world.result == expected
        assert_replays(world)
    return kind


# -- steps and asyncio ----------------------------------------------------------------------------------------------------


@workflow
async def in_a_row(n: int) -> int:
    a = await double(n)
    b = await add(a, b=1)
    return await add(b)


def test_tasks_one_after_another() -> None:
    world = check(in_a_row, 5, expected=11)
    assert [e.name for e in world.of(ev.TasksScheduled)] == ["double", "add", "add"]


@workflow
async def gathered_ones(n: int) -> list[int]:
    return list(await asyncio.gather(*(double(i) for i in range(n))))


def test_gather_schedules_everything_at_once_and_keeps_the_order() -> None:
    world = check(gathered_ones, 6, expected=[0, 2, 4, 6, 8, 10])
    assert len(world.activations[0]) == 6


@workflow
async def nested_gather() -> list[list[int]]:
    async def chain(n: int) -> list[int]:
        first = await double(n)
        return [first, await double(first)]

    return list(await asyncio.gather(chain(1), chain(2), chain(3)))


def test_coroutines_of_the_workflow_run_side_by_side() -> None:
    check(nested_gather, expected=[[2, 4], [4, 8], [6, 12]])


@workflow
async def waits_for_first() -> int:
    done, pending = await asyncio.wait([double(4), publish.wait()], return_when=asyncio.FIRST_COMPLETED)
    assert len(pending) == 1
    return sum(s.result() for s in done)


def test_wait_returns_with_the_first_that_is_done() -> None:
    check(waits_for_first, expected=8)


@workflow
async def iterates_sets() -> list[int]:
    """Sets of steps and of tasks are walked, which would betray any hash that comes from an address."""
    done, _ = await asyncio.wait([double(n) for n in range(9)])
    out = [await add(s.result()) for s in done]
    tasks = {asyncio.create_task(_one(n)) for n in range(9)}
    done_tasks, _ = await asyncio.wait(tasks)
    return out + [await add(t.result()) for t in done_tasks]


async def _one(n: int) -> int:
    return await double(n)


def test_sets_of_steps_and_tasks_iterate_alike_on_every_replay() -> None:
    for seed in [None, *SEEDS]:
        world = played(iterates_sets, seed=seed)
        assert sorted(world.result) == sorted(2 * [2 * n for n in range(9)])
        assert_replays(world)


@workflow
async def grouped() -> list[int]:
    async with asyncio.TaskGroup() as group:
        a = group.create_task(_one(1))
        b = group.create_task(_one(2))
    return [a.result(), b.result()]


def test_a_task_group_waits_for_its_members() -> None:
    check(grouped, expected=[2, 4])


@workflow
async def group_fails() -> str:
    out = "no error"
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_one(1))
            group.create_task(_fails_later())
            waiting = group.create_task(_waits())
    except* TaskFailed as errors:
        out = f"{[str(e) for e in errors.exceptions]} {waiting.cancelled()}"
    return out


async def _fails_later() -> None:
    await fail("later")


async def _waits() -> None:
    await publish.wait()


def test_a_task_group_cancels_the_others_when_one_fails() -> None:
    check(group_fails, expected="['ValueError: later'] True")


@workflow
async def as_they_complete() -> int:
    total = 0
    for step in asyncio.as_completed([double(n) for n in range(5)]):
        total += await step
    return total


def test_as_completed_hands_over_steps_in_the_order_they_end() -> None:
    check(as_they_complete, expected=20)


@workflow
async def coroutines_as_they_complete() -> int:
    return sum([await step for step in asyncio.as_completed([_one(n) for n in range(12)])])


def test_as_completed_over_coroutines_starts_them_in_the_order_they_were_given() -> None:
    """asyncio puts them into a set first, whose order would follow their addresses."""
    world = check(coroutines_as_they_complete, expected=132)
    assert [e.inputs[0] for e in world.of(ev.TasksScheduled)] == [f'{{"n":{n}}}'.encode() for n in range(12)]


@workflow
async def waits_with_limit(limit: str) -> str:
    try:
        return str(await asyncio.wait_for(publish.wait(), to_seconds(limit)))
    except TimeoutError:
        return "too late"


def to_seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_wait_for_ends_with_the_value_or_with_a_timeout() -> None:
    check(waits_with_limit, "5s", expected="too late")
    check(waits_with_limit, "5s", expected="True", script=[ev.PromiseResolved("publish", b"true")])


@workflow
async def timeouts() -> list[str]:
    out = []
    try:
        async with asyncio.timeout(3):
            await publish.wait()
    except TimeoutError:
        out.append("expired")
    async with asyncio.timeout(3):
        out.append(str(await double(1)))
    return out


def test_asyncio_timeout_is_a_durable_timer_that_is_cancelled_when_not_needed() -> None:
    world = check(timeouts, expected=["expired", "2"])
    assert len(world.of(ev.TimerFired)) == 1
    assert len(world.of(ev.TimerCancelled)) == 1


@workflow
async def no_time_at_all() -> int:
    async with asyncio.timeout(0):
        n = 1
    return n + await double(1)


def test_a_timeout_of_zero_around_code_that_does_not_wait_has_no_effect_later() -> None:
    check(no_time_at_all, expected=3)


@workflow
async def sleeps() -> list[float]:
    begin = wf.now()
    out = []
    await asyncio.sleep(0)
    await asyncio.sleep(60)
    out.append((wf.now() - begin).total_seconds())
    await wf.sleep("1d")
    out.append((wf.now() - begin).total_seconds())
    await wf.sleep(timedelta(minutes=1))
    await wf.sleep(wf.now() + timedelta(hours=1))
    out.append((wf.now() - begin).total_seconds())
    return [round(s) for s in out]


def test_sleeping_is_durable_and_takes_the_time_of_the_history() -> None:
    world = check(sleeps, expected=[60, 86_460, 90_120])
    assert len(world.of(ev.TimerStarted)) == 4, "a sleep of no time needs no timer"


@workflow
async def queues() -> list[int]:
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    out: list[int] = []

    async def produce() -> None:
        for n in range(6):
            await queue.put(await double(n))

    async def consume() -> None:
        for _ in range(6):
            out.append(await queue.get())
            queue.task_done()

    await asyncio.gather(produce(), consume())
    await queue.join()
    return out


def test_a_queue_between_two_coroutines() -> None:
    check(queues, expected=[0, 2, 4, 6, 8, 10])


@workflow
async def locks() -> list[str]:
    lock, gate, two, log = asyncio.Lock(), asyncio.Event(), asyncio.Semaphore(2), []
    inside = 0

    async def one(n: int) -> None:
        nonlocal inside
        await gate.wait()
        async with two:
            inside += 1
            assert inside <= 2
            async with lock:
                log.append(f"in {n}")
                await double(n)
                log.append(f"out {n}")
            inside -= 1

    members = [asyncio.create_task(one(n)) for n in range(4)]
    await double(9)
    gate.set()
    await asyncio.gather(*members)
    return log


def test_event_lock_and_semaphore() -> None:
    check(locks, expected=[f"{w} {n}" for n in range(4) for w in ("in", "out")])


@workflow
async def conditions() -> str:
    changed, ready = asyncio.Condition(), False

    async def prepare() -> None:
        nonlocal ready
        await double(1)
        async with changed:
            ready = True
            changed.notify_all()

    helper = asyncio.create_task(prepare())
    async with changed:
        await changed.wait_for(lambda: ready)
    await helper
    return "ready"


def test_a_condition() -> None:
    check(conditions, expected="ready")


@workflow
async def shielded() -> int:
    step = double(21)
    try:
        await asyncio.wait_for(asyncio.shield(step), 0)
    except TimeoutError:
        pass
    return await step


def test_shield_keeps_a_step_alive_when_its_waiter_gives_up() -> None:
    world = check(shielded, expected=42)
    assert world.of(ev.TasksCancelled) == []


@workflow
async def cancels_a_step() -> str:
    step = double(1)
    timer = wf.sleep("1h")
    step.cancel()
    timer.cancel()
    try:
        await step
    except asyncio.CancelledError:
        return "cancelled"
    return "not cancelled"


def test_cancelling_a_step_cancels_what_is_behind_it() -> None:
    world = check(cancels_a_step, expected="cancelled")
    assert world.of(ev.TasksCancelled) == [ev.TasksCancelled([0])]
    assert world.of(ev.TimerCancelled) == [ev.TimerCancelled(0)]


@workflow
async def gives_ids() -> list[str]:
    step, timer = double(1), wf.sleep("1s")
    out = [str(step.id), str(timer.id)]
    await step
    return out


def test_a_step_knows_the_id_of_its_record() -> None:
    world = check(gives_ids, expected=[str(UUID(bytes=ids.derive(RUN, k, 0))) for k in (ids.TASK, ids.TIMER)])
    assert world.run_id == RUN


RUN = World(gives_ids).run_id


# -- failures -------------------------------------------------------------------------------------------------------------


@workflow
async def catches() -> str:
    try:
        await fail("no luck")
    except TaskFailed as e:
        return f"{e} / {e.failure.type}"
    return "no error"


def test_a_failed_task_raises_at_its_await() -> None:
    check(catches, expected="ValueError: no luck / ValueError")


@workflow
async def lets_it_fail() -> int:
    return await fail("no luck")


def test_an_exception_fails_the_run_with_its_traceback() -> None:
    world = played(lets_it_fail)
    assert world.failure.code == "run_failed"
    assert world.failure.message == "ValueError: no luck"
    assert world.failure.type == "TaskFailed"
    assert "lets_it_fail" in world.failure.traceback
    assert_replays(world)


@workflow
async def returns_the_wrong_type() -> int:
    return "text"  # type: ignore[return-value]


def test_a_result_that_does_not_fit_fails_the_run() -> None:
    world = played(returns_the_wrong_type)
    assert world.failure.code == "payload_mismatch"
    assert_replays(world)


@workflow
async def wants_a_number(n: int) -> int:
    return n


def test_an_input_that_does_not_fit_fails_the_run() -> None:
    runtime = WorkflowInstance(RUN, wants_a_number)
    done = runtime.activate([ev.Recorded(1, 0, ev.RunStarted("wants_a_number", "v", b'{"n":"x"}'))], replay=True)
    assert isinstance(done.commands[0], cm.FailRun)
    assert done.commands[0].failure.code == "payload_mismatch"


@workflow
async def cancels_itself() -> None:
    raise asyncio.CancelledError


def test_a_workflow_that_cancels_itself_fails_because_nobody_asked() -> None:
    world = played(cancels_itself)
    assert "cancelled itself" in world.failure.message


# -- cancellation -----------------------------------------------------------------------------------------------------------


@workflow
async def cleans_up() -> str:
    try:
        await asyncio.gather(double(1), wf.sleep("1d"), publish.wait())
    finally:
        progress.set(await add(40, b=2))
    return "done"


def test_a_cancelled_run_unwinds_and_may_await_in_finally() -> None:
    for seed in [None, *SEEDS]:
        world = played(cleans_up, script=[ev.CancelRequested("enough")], seed=seed)
        assert world.closing == cm.CancelRun("enough")
        assert world.of(ev.StateSet) == [ev.StateSet("progress", b"42")]
        assert not world.state.timers, "cancelled with the run, unless it fired before"
        assert_replays(world)


@workflow
async def refuses_to_stop() -> str:
    try:
        await publish.wait()
    except asyncio.CancelledError:
        return "finished in spite of it"
    return "published"


def test_a_run_may_finish_in_spite_of_a_cancel_request() -> None:
    check(refuses_to_stop, expected="finished in spite of it", script=[ev.CancelRequested("enough")])


@workflow
async def fails_while_unwinding() -> None:
    try:
        await publish.wait()
    finally:
        raise RuntimeError("the cleanup broke")


def test_a_cleanup_that_breaks_fails_the_run() -> None:
    world = played(fails_while_unwinding, script=[ev.CancelRequested()])
    assert world.failure.message == "the cleanup broke"
    assert_replays(world)


def test_a_second_cancel_request_does_not_interrupt_the_cleanup() -> None:
    world = played(cleans_up, script=[ev.CancelRequested("one")])
    twice = World(cleans_up)
    twice.deliver()
    twice.add(ev.CancelRequested("one")).add(ev.CancelRequested("two"))
    assert twice.run().closing == world.closing


# -- map ------------------------------------------------------------------------------------------------------------------


@workflow
async def mapped(items: list[int]) -> list[int]:
    return await wf.map(double, items)


def test_map_is_one_bulk_command_and_keeps_the_order() -> None:
    world = check(mapped, list(range(20)), expected=[2 * n for n in range(20)])
    assert len(world.of(ev.TasksScheduled)) == 1
    check(mapped, [], expected=[])


@workflow
async def mapped_few_at_a_time(items: list[int], at_once: int) -> list[int]:
    return await double.map(items, concurrency=at_once)


@pytest.mark.parametrize("at_once", [1, 3, 50])
def test_map_with_concurrency_never_has_more_in_flight(at_once: int) -> None:
    for seed in [None, *SEEDS]:
        world = World(mapped_few_at_a_time, list(range(17)), at_once)
        world.rng = None
        most = 0

        def happen(original: Callable[[], bool] = world.happen, world: World = world) -> bool:
            nonlocal most
            most = max(most, len(world.state.tasks))
            return original()

        world.happen = happen  # type: ignore[method-assign]
        world.run(seed)
        assert world.result == [2 * n for n in range(17)]
        assert most == min(at_once, 17)
        assert_replays(world)


@workflow
async def mapped_collecting(items: list[int]) -> list[str]:
    results = await wf.map(odd_fails, items, concurrency=4, on_error="collect")
    return [str(r) if isinstance(r, Exception) else f"={r}" for r in results]


def test_map_collects_errors_in_their_places() -> None:
    check(mapped_collecting, [0, 1, 2, 3], expected=["=0", "ValueError: 1 is odd", "=2", "ValueError: 3 is odd"])


@workflow
async def mapped_raising(items: list[int]) -> str:
    try:
        await wf.map(odd_fails, items)
    except TaskFailed as e:
        return str(e)
    return "no error"


def test_map_raises_the_first_error_and_cancels_the_rest() -> None:
    world = check(mapped_raising, [0, 2, 5, 4, 6], expected="ValueError: 5 is odd")
    assert world.of(ev.TasksCancelled) == [ev.TasksCancelled([3, 4])]


@workflow
async def two_maps_at_once() -> list[list[int]]:
    return list(
        await asyncio.gather(wf.map(double, range(5), concurrency=2), wf.map(odd_fails, [0, 2, 4], concurrency=1))
    )


def test_two_maps_side_by_side_do_not_mix_up_their_results() -> None:
    check(two_maps_at_once, expected=[[0, 2, 4, 6, 8], [0, 2, 4]])


# -- children -------------------------------------------------------------------------------------------------------------


@workflow
async def child(n: int) -> int:
    return await double(n) + 1


@workflow
async def bad_child(n: int) -> int:
    return await fail(f"child {n}")


@workflow
async def parent() -> list[Any]:
    first = await child.options(key="one")(1)
    several = await wf.map(child, [2, 3], concurrency=1)
    try:
        await bad_child(4)
    except ChildFailed as e:
        return [first, several, str(e)]
    return []


def test_children_return_their_results_and_their_failures() -> None:
    world = check(parent, expected=[3, [5, 7], "TaskFailed: ValueError: child 4"])
    assert [e.key for e in world.of(ev.ChildStarted)] == ["one", "", "", ""]


@workflow
async def gives_up_on_a_child() -> str:
    step = child(1)
    await turns()
    step.cancel()
    try:
        await step
    except asyncio.CancelledError:
        return "gave up"
    return "?"


def test_a_child_that_is_given_up_is_asked_to_stop() -> None:
    world = check(gives_up_on_a_child, expected="gave up")
    assert world.of(ev.ChildCancelRequested) == [ev.ChildCancelRequested(0)]


@workflow
async def leaves_a_child_behind() -> str:
    child(1)
    return "done"


def test_a_child_that_nobody_awaited_is_left_to_the_engine() -> None:
    world = played(leaves_a_child_behind)
    assert [type(c) for c in world.commands] == [cm.StartChild, cm.CompleteRun]


@workflow
async def sees_a_cancelled_child() -> str:
    try:
        await child(1)
    except ChildFailed as e:
        return f"{e.failure.code}: {e}"
    return "?"


def test_a_child_that_somebody_else_cancelled_fails_its_parents_await() -> None:
    world = World(sees_a_cancelled_child)
    world.deliver()
    world.add(ev.ChildCancelled(0, "by hand"))
    assert world.run().result == "run_cancelled: RunCancelled: by hand"


# -- signals, promises, state -------------------------------------------------------------------------------------------------


def sent(name: str, *values: bytes) -> list[ev.Event]:
    return [ev.SignalReceived(name, v) for v in values]


@workflow
async def takes_signals(count: int) -> list[int]:
    out: list[int] = []
    async for n in numbers:
        out.append(n)
        if len(out) == count:
            return out
        await double(n)
    return out


def test_signals_arrive_in_order_whether_the_code_waits_for_them_or_not() -> None:
    check(takes_signals, 4, expected=[1, 2, 3, 4], script=sent("numbers", b"1", b"2", b"3", b"4"))
    early = World(takes_signals, 3)
    for event in sent("numbers", b"7", b"8", b"9"):
        early.add(event)
    assert early.run().result == [7, 8, 9]
    assert_replays(early)


@workflow
async def waits_for_signals_with_a_limit() -> list[str]:
    out = []
    for _ in range(3):
        try:
            out.append(await steer.next(timeout="10s"))
        except TimeoutError as e:
            out.append(str(e))
    return out


def test_a_signal_that_does_not_come_in_time_is_a_timeout_and_is_not_lost_later() -> None:
    late = "no signal 'steer' arrived in time"
    world = World(waits_for_signals_with_a_limit)
    world.deliver()
    world.add(ev.SignalReceived("steer", b'"left"')).deliver()
    world.happen()
    world.deliver()
    world.add(ev.SignalReceived("steer", b'"right"'))
    assert world.run().result == ["left", late, "right"]
    assert_replays(world)


@workflow
async def two_waiters() -> list[str]:
    first, second = steer.next(), steer.next()
    return [await second, await first]


def test_waiters_of_one_signal_are_served_in_the_order_they_came() -> None:
    check(two_waiters, expected=["b", "a"], script=sent("steer", b'"a"', b'"b"'))


@workflow
async def gave_up_waiting() -> str:
    steer.next().cancel()
    return await steer.next()


def test_a_signal_goes_past_a_waiter_that_gave_up() -> None:
    check(gave_up_waiting, expected="a", script=sent("steer", b'"a"'))


@workflow
async def gets_nonsense() -> str:
    try:
        return str(await numbers.next())
    except Exception as e:
        return type(e).__name__


@workflow
async def reads_text() -> str:
    return await Signal("numbers", str).next()


@pytest.mark.parametrize("buffered", [False, True], ids=["awaited", "buffered"])
def test_a_message_that_the_code_cannot_read_makes_the_run_stuck_until_other_code_reads_it(buffered: bool) -> None:
    history = [ev.RunStarted("gets_nonsense", "v", b"{}"), ev.SignalReceived("numbers", b'"x"')]
    records = [ev.Recorded(i + 1, 0, e) for i, e in enumerate(history)]
    runtime = WorkflowInstance(RUN, buffers_nonsense if buffered else gets_nonsense)
    if buffered:
        records.insert(1, ev.Recorded(2, 0, ev.SignalReceived("word", b'"go"')))
        records = [ev.Recorded(i + 1, 0, r.event) for i, r in enumerate([records[0], records[2], records[1]])]
    done = runtime.activate(records, replay=True)
    assert done.stuck is not None and done.stuck.code == "payload_mismatch" and not done.commands
    assert done.stuck.message.startswith("the code cannot read signal 'numbers': the value does not fit `int`")
    assert done.stuck.message.endswith("Deploy code that reads it, then resume the run.")
    repaired = WorkflowInstance(RUN, reads_text).activate(records, replay=True)
    assert isinstance(repaired.commands[-1], cm.CompleteRun)


@workflow
async def buffers_nonsense() -> str:
    await Signal("word", str).next()
    return await gets_nonsense.fn()


@workflow
async def waits_for_a_wrong_value() -> str:
    try:
        return str(await Promise("given", int).wait("1h"))
    except Exception as e:
        return type(e).__name__


def test_a_promise_that_the_code_cannot_read_raises_nothing_in_it() -> None:
    history = [ev.RunStarted("waits_for_a_wrong_value", "v", b"{}"), ev.PromiseResolved("given", b'"x"', True)]
    records = [ev.Recorded(i + 1, 0, e) for i, e in enumerate(history)]
    done = WorkflowInstance(RUN, waits_for_a_wrong_value).activate(records, replay=False)
    assert done.stuck is not None and "the value of promise 'given'" in done.stuck.message and not done.commands


@workflow
async def waits_for_promise() -> list[bool]:
    await double(1)
    return [await publish.wait(), await publish.wait()]


def test_a_promise_may_be_resolved_before_or_after_the_code_waits_and_stays_resolved() -> None:
    kept = ev.PromiseResolved("publish", b"true")
    check(waits_for_promise, expected=[True, True], script=[kept])
    early = World(waits_for_promise).add(kept)
    assert early.run().result == [True, True]
    assert_replays(early)


@workflow
async def promise_with_a_limit() -> str:
    try:
        return str(await publish.wait(timeout="2d"))
    except TimeoutError as e:
        return str(e)


def test_a_promise_with_a_limit_ends_with_the_value_or_a_timeout() -> None:
    world = check(promise_with_a_limit, expected="promise 'publish' was not resolved in time")
    assert world.of(ev.TimerStarted)[0].fire_at_us == START_US + 1_000 + 2 * 86_400_000_000
    world = check(promise_with_a_limit, expected="True", script=[ev.PromiseResolved("publish", b"true")])
    assert len(world.commands) == 4, "promise, timer, cancel of the timer, result"


@dataclass
class Stage:
    name: str
    at: int


stage: State[Stage | None] = State("stage", None, Stage | None)


@workflow
async def writes_state() -> list[Any]:
    before = progress.get(), stage.get()
    progress.set(1)
    stage.set(Stage("begin", 1))
    await double(1)
    progress.set(progress.get() + 1)
    progress.set(progress.get() + 1)
    during = progress.get(), stage.get()
    stage.clear()
    return [*before, during[0], during[1].name if during[1] else None, stage.get()]


def test_state_is_read_back_as_it_was_written() -> None:
    world = check(writes_state, expected=[0, None, 3, "begin", None])
    assert world.state.state == {"progress": b"3"}


# -- side effects, time, chance -------------------------------------------------------------------------------------------------

rolled: list[int] = []


def roll(sides: int) -> int:
    rolled.append(sides)
    return len(rolled) * 100 + sides


@workflow
async def rolls() -> list[int]:
    first = await wf.run("roll", roll, 6)
    return [first, await wf.run("roll", roll, sides=20), await wf.run("again", lambda: 7)]


def test_a_side_effect_is_executed_once_and_its_record_is_replayed() -> None:
    rolled.clear()
    world = played(rolls)
    assert world.result == [106, 220, 7]
    assert world.operations_run == 3
    before = list(rolled)
    assert_replays(world)
    assert rolled == before, "replaying executes nothing"


def breaks() -> int:
    raise OSError("disk full")


@workflow
async def side_effect_breaks() -> str:
    try:
        return str(await wf.run("write", breaks))
    except TaskFailed as e:
        return str(e)


def test_a_side_effect_that_raises_is_recorded_as_failed() -> None:
    check(side_effect_breaks, expected="OSError: disk full")


@workflow
async def chance() -> list[str]:
    out = [str(wf.uuid()), str(wf.random()), wf.now().isoformat(), wf.run_id()]
    await double(1)
    return [*out, str(wf.uuid()), str(wf.random()), wf.now().isoformat()]


def test_time_and_chance_come_from_the_history() -> None:
    world = played(chance)
    uuid, number, now, run_id, uuid2, number2, now2 = world.result
    assert UUID(uuid).version == 4
    assert 0 <= float(number) < 1
    assert len({uuid, uuid2}) == len({number, number2}) == 2
    assert datetime.fromisoformat(now) == datetime.fromtimestamp((START_US + 1_000) / 1e6, UTC)
    assert datetime.fromisoformat(now2) > datetime.fromisoformat(now)
    assert run_id == ids.text(world.run_id)
    assert_replays(world)
    other = World(chance, run_id=ids.run_id(1_700_000_000_000, 0, 8)).run()
    assert other.result[0] != uuid, "another run has another seed"


# -- patches, continuing, replaying ---------------------------------------------------------------------------------------------


@workflow(name="patched_flow")
async def flow_v1() -> int:
    a = await double(1)
    return await double(a)


@workflow(name="patched_flow")
async def flow_v2() -> int:
    a = await add(1, b=1) if wf.patched("use add") else await double(1)
    return await double(a)


def test_a_patch_keeps_old_runs_on_the_old_path_and_new_ones_on_the_new() -> None:
    old = World(flow_v1).run()
    for kept in range(1, len(old.history)):
        runtime = WorkflowInstance(old.run_id, flow_v2)
        done = runtime.activate(old.history[:kept], replay=True)
        assert done.stuck is None
        if kept > 1:
            assert not any(isinstance(c, cm.RecordPatch) for c in done.commands)
        runtime.evict()
    new = check(flow_v2, expected=4)
    assert [e.name for e in new.of(ev.TasksScheduled)] == ["add", "double"]
    assert new.of(ev.PatchRecorded) == [ev.PatchRecorded("use add")]


@workflow(name="patched_flow")
async def flow_broken() -> int:
    a = await add(1)
    return await double(a)


def test_changed_code_stops_the_run_and_says_where() -> None:
    old = World(flow_v1).run()
    done = WorkflowInstance(old.run_id, flow_broken).activate(old.history, replay=True)
    assert done.commands == []
    assert done.stuck is not None
    assert done.stuck.code == "nondeterminism"
    assert "at task 0" in done.stuck.message
    assert "task 'double'" in done.stuck.message
    assert "task 'add'" in done.stuck.message


@workflow(name="patched_flow")
async def flow_swallows() -> int:
    try:
        a = await add(1)
    except Exception:
        a = 2
    return await double(a)


def test_changed_code_stops_the_run_even_when_it_swallows_the_error() -> None:
    old = World(flow_v1).run()
    done = WorkflowInstance(old.run_id, flow_swallows).activate(old.history, replay=True)
    assert done.commands == []
    assert done.stuck is not None
    assert done.stuck.code == "nondeterminism"


@workflow(name="patched_flow")
async def flow_waits_elsewhere() -> int:
    await publish.wait()
    return 1


def test_code_that_forgot_a_step_is_told_where_it_waits_instead() -> None:
    old = World(flow_v1).run()
    done = WorkflowInstance(old.run_id, flow_waits_elsewhere).activate(old.history[:3], replay=True)
    assert done.stuck is not None
    assert "promise 'publish'" in done.stuck.message
    assert "TasksScheduled task 'double'" in done.stuck.message


@workflow
async def counts_down(left: int, log: list[str]) -> list[str]:
    log = [*log, await steer.next()]
    if left:
        wf.continue_as_new(left - 1, log)
    return log


def test_continue_as_new_carries_its_arguments_and_the_signals_nobody_read() -> None:
    world = World(counts_down, 2, [])
    for event in [*sent("steer", b'"a"', b'"b"', b'"c"'), *sent("numbers", b"5")]:
        world.add(event)
    world.run()
    assert world.closing == cm.ContinueAsNew(
        b'{"left":1,"log":["a"]}', [("steer", b'"b"'), ("steer", b'"c"'), ("numbers", b"5")]
    )
    assert_replays(world)


@workflow
async def continues_after_a_promise() -> None:
    await publish.wait()
    wf.continue_as_new()


def test_continue_as_new_carries_promises_nobody_awaited_and_whatever_came_after_the_decision() -> None:
    world = World(continues_after_a_promise)
    facts = [
        ev.PromiseResolved("early", b"1"),
        ev.PromiseResolved("publish", b"true"),
        ev.SignalReceived("steer", b'"late"'),
        ev.PromiseResolved("late", b"2"),
        ev.PromiseResolved("asked", b"3", question=b"of this run"),
        ev.CancelRequested("late"),
    ]
    for fact in facts:
        world.add(fact)
    assert world.run().closing == cm.ContinueAsNew(
        b"{}", [("steer", b'"late"')], [("early", b"1"), ("late", b"2")], [("late", False)]
    )
    assert_replays(world)


@workflow
async def ends_after_a_promise() -> int:
    await publish.wait()
    return 1


def test_an_end_tells_what_its_code_did_not_read_and_what_came_too_late() -> None:
    world = World(ends_after_a_promise)
    for fact in (
        ev.SignalReceived("steer", b'"early"'),
        ev.PromiseResolved("publish", b"true"),
        ev.SignalReceived("steer", b'"late"'),
        ev.PromiseResolved("late", b"2"),
        ev.UpdateReceived("u", "change", b"3"),
    ):
        world.add(fact)
    end = world.run().closing
    assert isinstance(end, cm.CompleteRun)
    assert end.unread == [("steer", b'"early"'), ("steer", b'"late"')]
    late = [r for r in world.history if r.seq in end.late]
    assert [type(r.event) for r in late] == [ev.SignalReceived, ev.PromiseResolved, ev.UpdateReceived]
    assert_replays(world)


@workflow
async def continues_past_except_exception() -> None:
    try:
        wf.continue_as_new()
    except Exception:
        raise AssertionError("not meant for user code") from None


def test_except_exception_does_not_catch_continue_as_new() -> None:
    assert played(continues_past_except_exception).closing == cm.ContinueAsNew(b"{}", [])


@workflow
async def by_name() -> int:
    return int(await wf.call("add", {"a": 3, "b": 4}, queue="q", retry=Retry(7), timeout="5s"))


def test_a_task_by_name_is_scheduled_untyped() -> None:
    world = check(by_name, expected=7)
    scheduled = world.of(ev.TasksScheduled)[0]
    assert (scheduled.queue, scheduled.options.max_attempts, scheduled.options.timeout_us) == ("q", 7, 5_000_000)


@workflow
async def uses_options() -> int:
    return await double.options(retry=1, timeout="3s", queue="io", heartbeat="1s")(4)


def test_options_are_recorded_in_effect() -> None:
    scheduled = check(uses_options, expected=8).of(ev.TasksScheduled)[0]
    assert scheduled.queue == "io"
    assert (scheduled.options.max_attempts, scheduled.options.timeout_us, scheduled.options.heartbeat_us) == (
        1,
        3_000_000,
        1_000_000,
    )


# -- the runtime itself ---------------------------------------------------------------------------------------------------

cleaned: list[str] = []


@task
async def clean(what: str) -> None:
    cleaned.append(what)


@task
def clean_sync(what: str) -> None:
    cleaned.append(what)


async def _waits_and_cleans(what: str) -> None:
    try:
        await publish.wait()
    finally:
        clean_sync(f"{what} sync")
        await clean(what)


@workflow
async def sleeps_with_cleanup() -> None:
    members = [asyncio.create_task(_waits_and_cleans("background"))]
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_waits_and_cleans("group"))
            await _waits_and_cleans("main")
    finally:
        await asyncio.gather(*members, return_exceptions=True)


async def test_a_run_that_leaves_memory_does_nothing_not_even_in_finally() -> None:
    """Inside a real loop, as in a worker: a task called in `finally` must not be mistaken for a plain call outside a workflow."""
    cleaned.clear()
    others = len(asyncio.all_tasks())

    def drive() -> None:
        world = World(sleeps_with_cleanup)
        world.deliver()
        world.evict()

    await _in_a_callback(drive)
    await turns()
    assert cleaned == []
    assert len(asyncio.all_tasks()) == others


@workflow
async def leaves_work_behind() -> str:
    asyncio.create_task(_waits_and_cleans("left behind"))  # noqa: RUF006
    await double(1)
    return "done"


async def test_what_a_finished_run_left_behind_does_nothing_when_it_is_thrown_away() -> None:
    cleaned.clear()

    def drive() -> None:
        world = played(leaves_work_behind)
        assert world.result == "done"
        world.evict()

    await _in_a_callback(drive)
    await turns()
    assert cleaned == []


async def _ticks(log: list[str]) -> Any:
    try:
        for n in range(10):
            yield n
            await double(n)
    finally:
        log.append("closed")
        await clean("generator")


@workflow
async def drops_a_generator() -> int:
    log: list[str] = []
    async for n in _ticks(log):
        if n == 2:
            break
    return await double(4)


async def test_an_async_generator_of_workflow_code_never_reaches_the_loop_of_the_process() -> None:
    cleaned.clear()
    seen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    def drive() -> None:
        world = played(drops_a_generator)
        assert world.result == 8
        world.evict()
        half = World(drops_a_generator)
        half.deliver()
        half.evict()

    await _in_a_callback(drive)
    await turns(5)
    assert seen == []
    assert cleaned == []


async def _in_a_callback(act: Callable[[], None]) -> None:
    """Workflow code runs in plain callbacks of the worker's loop, never inside a task."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def call() -> None:
        try:
            act()
            done.set_result(None)
        except BaseException as e:
            done.set_exception(e)

    loop.call_soon(call)
    await done


def test_a_bug_below_the_code_becomes_a_reason_and_is_never_raised() -> None:
    runtime = WorkflowInstance(RUN, in_a_row)
    broken: Any = ev.TasksSucceeded([1, 2], [b"1"])
    done = runtime.activate(
        [ev.Recorded(1, 0, ev.RunStarted("in_a_row", "v", b'{"n":1}')), ev.Recorded(2, 0, broken)], replay=True
    )
    assert done.stuck is not None
    assert done.stuck.code == "internal"


@workflow
async def reads_after_a_word() -> list[str]:
    await Signal("word", str).next()
    heard = [await steer.next() for _ in range(4)]
    await Signal("word", str).next()
    return heard


def test_too_many_unread_signals_are_reported_until_half_are_read_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("perdure.core.waits.SIGNALS_BUFFERED_MAX", 6)
    runtime = WorkflowInstance(RUN, reads_after_a_word)
    seq = 0

    def given(*events: ev.Event) -> Any:
        nonlocal seq
        records = []
        for event in events:
            seq += 1
            records.append(ev.Recorded(seq, 0, event))
        done = runtime.activate(records, replay=seq == len(events))
        assert done.stuck is None and not done.commands
        return done

    assert given(ev.RunStarted("reads_after_a_word", "v", b"{}")).full == []
    assert given(*[ev.SignalReceived("steer", b'"x"')] * 5).full == []
    assert given(*[ev.SignalReceived("steer", b'"x"')] * 2).full == ["steer"], "the seventh is kept too"
    assert given(ev.SignalReceived("word", b'"go"')).full == [], "three are left"
    runtime.evict()


def test_a_recorded_failure_keeps_the_message_of_its_cause() -> None:
    world = World(catches)
    world.deliver()
    world.add(ev.TaskFailed(0, Failure("task_timeout", "late", "TimeoutError"), 1))
    assert "TimeoutError: late" in world.run().failure.message


keep_private(globals())


_go_on = Signal("runtime_go_on", int)
_answer = Promise("runtime_answer", int)


@workflow
async def asks_late() -> int:
    await _go_on.next()
    return await _answer.wait()


def test_of_two_values_for_a_promise_the_first_stands() -> None:
    world = World(asks_late)
    world.deliver()
    for value in (b"1", b"2"):
        record = ev.Recorded(len(world.history) + 1, world.now_us, ev.PromiseResolved("runtime_answer", value))
        world.history.append(record)
        world.inbox.append(record)
    world.deliver()
    world.add(ev.SignalReceived("runtime_go_on", b"1")).deliver()
    assert isinstance(world.closing, cm.CompleteRun)
    assert world.closing.result == b"1"
