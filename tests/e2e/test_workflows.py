"""Every feature of the SDK end to end: real engine, real worker, real PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import EngineSettings, Perdure, Promise, Retry, Signal, State, attempt, task, wf, workflow
from perdure.core.api import messages, runs
from perdure.core.api.messages import ResolvePromise
from perdure.core.api.runs import AwaitRun, ListHistory
from perdure.core.placement import Placement
from perdure.errors import (
    ChildFailed,
    Conflict,
    InvalidInput,
    NondeterminismError,
    NotFound,
    PerdureError,
    PromiseAlreadyResolved,
    RunAlreadyExists,
    RunCancelled,
    RunFailed,
    RunFinished,
    TaskFailed,
    TaskLost,
    TaskTimeout,
)
from perdure.sdk.client.handles import Handle
from perdure.sdk.definitions import Task, Workflow
from tests.fakes.waiting import busy, forever, turns, until

LIMIT = "60s"
"""Nothing here takes long; this is when a test gives up on a slow machine."""

calls: Counter[str] = Counter()
"""How often each task was executed, by name and argument."""
gates: dict[str, asyncio.Event] = {}
"""Tasks that wait for the test."""
ready: dict[str, asyncio.Event] = {}
"""Set when a task has begun."""


@pytest.fixture(autouse=True)
def clean_slate() -> None:
    calls.clear()
    gates.clear()
    ready.clear()


def embedded(dsn: str, **options: Any) -> Perdure:
    """A client that serves this file's definitions, whatever names other files use."""
    client = Perdure(dsn, **options)
    if client.worker is not None:
        for definition in DEFINITIONS:
            client.worker.adopt(definition)
    return client


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with embedded(dsn) as one:
        yield one


def quick(**more: Any) -> EngineSettings:
    """Notices neighbours and evicts idle runs within a fraction of a second."""
    return EngineSettings(**{"lease_s": 3.0, "heartbeat_s": 0.2, "placement": Placement(idle_s=0.05), **more})


async def types_of(handle: Handle[Any]) -> list[str]:
    return [type(r.event).__name__ for r in await handle.history()]


# -- tasks ----------------------------------------------------------------------------------------------------------------


@dataclass
class Parcel:
    name: str
    weight: float


@task
async def weigh(parcels: list[Parcel], *, extra: float = 0.0) -> float:
    return sum(p.weight for p in parcels) + extra


@task
def label(parcel: Parcel) -> str:
    assert threading.current_thread() is not threading.main_thread(), "sync tasks leave the loop alone"
    return f"{parcel.name} ({parcel.weight:g} kg)"


@workflow
async def ship(parcels: list[Parcel], extra: float) -> tuple[float, list[str]]:
    total = await weigh(parcels, extra=extra)
    return total, list(await asyncio.gather(*(label(p) for p in parcels)))


async def test_async_and_sync_tasks_with_typed_arguments(client: Perdure) -> None:
    parcels = [Parcel("a", 1.5), Parcel("b", 2)]
    assert await ship.run(parcels, extra=0.5) == (4.0, ["a (1.5 kg)", "b (2 kg)"])


async def test_outside_a_workflow_a_task_is_a_plain_function() -> None:
    assert await weigh([Parcel("a", 1)]) == 1


@task(retry=Retry(4, delay="20ms", factor=2, jitter=False))
async def flaky(name: str, fails: int) -> int:
    calls[name] += 1
    if calls[name] <= fails:
        raise ConnectionError(f"try {calls[name]}")
    return attempt().number


@workflow
async def retries(name: str, fails: int) -> int:
    return await flaky(name, fails)


async def test_a_task_is_tried_again_with_growing_delays(client: Perdure) -> None:
    began = time.monotonic()
    assert await retries.run("r", 3) == 4
    assert time.monotonic() - began >= 0.02 + 0.04 + 0.08
    assert calls["r"] == 4


async def test_a_task_fails_once_its_attempts_are_used_up_and_keeps_its_traceback(client: Perdure) -> None:
    with pytest.raises(RunFailed) as error:
        await retries.run("r", 99)
    assert calls["r"] == 4
    assert "ConnectionError: try 4" in str(error.value)
    assert "in flaky" in error.value.failure.traceback
    assert "in retries" in error.value.failure.traceback


@task(retry=Retry(5, delay="10ms", never=(LookupError,)))
def picky(name: str) -> None:
    calls[name] += 1
    raise KeyError("not there")


@task(retry=Retry(5, delay="10ms", on=(OSError,)))
def only_os_errors(name: str) -> None:
    calls[name] += 1
    raise ValueError("not worth another try")


@workflow
async def final_at_once(name: str) -> list[str]:
    out = []
    for step in (picky(name), only_os_errors(f"{name}2")):
        try:
            await step
        except TaskFailed as e:
            out.append(e.failure.type)
    return out


async def test_errors_in_never_or_outside_on_are_final(client: Perdure) -> None:
    assert await final_at_once.run("p") == ["KeyError", "ValueError"]
    assert calls == {"p": 1, "p2": 1}


@task(timeout="200ms", retry=Retry(2, delay="10ms"))
async def too_slow(name: str) -> str:
    calls[name] += 1
    try:
        await forever()
    except asyncio.CancelledError:
        calls[f"{name} cancelled"] += 1
        raise


@task(heartbeat="300ms", retry=1)
async def silent(name: str) -> str:
    calls[name] += 1
    await forever()


@task(heartbeat="2s", retry=1)
async def talks(name: str) -> str:
    for _ in range(4):
        await busy(0.8)
        attempt().heartbeat()
    return "done"


@workflow
async def watched(which: str) -> str:
    try:
        match which:
            case "timeout":
                return await too_slow("t")
            case "silent":
                return await silent("s")
            case _:
                return await talks("x")
    except TaskTimeout as e:
        return str(e)


async def test_an_attempt_that_takes_too_long_is_cancelled_and_tried_again(client: Perdure) -> None:
    assert "did not end within its timeout" in await watched.run("timeout")
    await until(lambda: calls["t cancelled"] == 2)
    assert calls["t"] == 2


async def test_an_attempt_that_sends_no_heartbeat_is_ended_and_one_that_does_is_not(client: Perdure) -> None:
    quiet, lively = await watched.start("silent"), await watched.start("talks")
    assert "sent no heartbeat" in await quiet.result(LIMIT)
    assert await lively.result(LIMIT) == "done"


@task(timeout="150ms", retry=Retry(2, delay="10ms"))
async def lingers(name: str) -> str:
    calls[name] += 1
    mine = calls[name]
    try:
        if mine == 2:
            ready[name].set()
        await forever()
    finally:
        if mine == 1:
            await ready[name].wait()  # still unwinding when the second attempt begins, gone before that one ends
        calls[f"{name} unwound"] += 1


@workflow
async def lingering() -> str:
    try:
        return await lingers.options(timeout="700ms")("l")
    except TaskTimeout:
        return "timed out"


async def test_an_attempt_that_unwinds_slowly_does_not_hide_the_next_one(client: Perdure) -> None:
    ready["l"] = asyncio.Event()
    assert await lingering.run() == "timed out"
    await until(lambda: calls["l unwound"] == 2)
    assert client.worker is not None
    await until(lambda: client.worker is not None and client.worker.slots_free == client.worker.slots)


@task(at_most_once=True)
async def charge(name: str) -> str:
    calls[name] += 1
    raise ConnectionError("no answer")


@workflow
async def charges(name: str) -> str:
    try:
        return await charge(name)
    except TaskFailed as e:
        return str(e)


async def test_an_at_most_once_task_is_executed_once_even_when_it_fails(client: Perdure) -> None:
    assert await charges.run("c") == "ConnectionError: no answer"
    assert calls["c"] == 1


@task(at_most_once=True)
async def charge_slowly(name: str) -> str:
    calls[name] += 1
    ready[name].set()
    await gates[name].wait()
    return "charged"


@workflow
async def charges_slowly(name: str) -> str:
    try:
        return await charge_slowly(name)
    except TaskLost as e:
        return e.code


async def test_an_at_most_once_task_that_lost_its_engine_fails_instead_of_running_again(dsn: str) -> None:
    ready["c"], gates["c"] = asyncio.Event(), asyncio.Event()
    async with embedded(dsn, settings=quick(close_grace_s=0.1)) as first:
        handle = await charges_slowly.start("c")
        async with asyncio.timeout(120):
            await ready["c"].wait()
        run_id = handle.id
        del first
    async with embedded(dsn, settings=quick()) as second:
        assert await (await second.get(run_id, workflow=charges_slowly)).result(LIMIT) == "task_lost"
    assert calls["c"] == 1


@workflow
async def differently() -> list[Any]:
    patient = flaky.options(retry=Retry(6, delay="1ms"))("o", 5)
    short = too_slow.options(timeout="50ms", retry=1)("o2")
    out: list[Any] = [await patient]
    try:
        await short
    except TaskTimeout as e:
        out.append(e.failure.code)
    return out


async def test_options_change_how_a_task_is_executed_this_time(client: Perdure) -> None:
    assert await differently.run() == [6, "task_timeout"]
    assert calls["o2"] == 1


# -- fan-out --------------------------------------------------------------------------------------------------------------


@task
async def square(n: int) -> int:
    calls["square"] += 1
    calls["now"] += 1
    calls["most"] = max(calls["most"], calls["now"])
    await turns()
    calls["now"] -= 1
    if n == 13:
        raise ValueError("unlucky")
    return n * n


@workflow
async def squares(n: int, concurrency: int | None) -> int:
    return sum(await wf.map(square, range(20, 20 + n), concurrency=concurrency))


@workflow
async def squares_collecting() -> list[str]:
    results = await square.options(retry=1).map([12, 13, 14], on_error="collect")
    return [str(r) for r in results]


async def test_a_thousand_tasks_in_one_command(client: Perdure) -> None:
    handle = await squares.start(1_000, None)
    assert await handle.result(LIMIT) == sum(n * n for n in range(20, 1_020))
    assert calls["square"] == 1_000
    assert (await types_of(handle)).count("TasksScheduled") == 2


async def test_a_fan_out_with_bounded_concurrency_and_one_that_collects(client: Perdure) -> None:
    assert await squares.run(60, 4) == sum(n * n for n in range(20, 80))
    assert calls["most"] <= 4
    assert await squares_collecting.run() == ["144", "ValueError: unlucky", "196"]


# -- children -------------------------------------------------------------------------------------------------------------

finished = Promise("finished", str)
cleaned_up = State("cleaned_up", "")


@workflow
async def small(n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return await square(n)


@workflow
async def large() -> list[Any]:
    results = await wf.map(small, [1, 2, 3])
    try:
        await small(-1)
    except ChildFailed as e:
        return [*results, str(e)]
    return results


async def test_children_return_results_and_failures(client: Perdure) -> None:
    assert await large.run() == [1, 4, 9, "ValueError: negative"]


@workflow
async def waits_with_cleanup(note: str) -> str:
    try:
        return await finished.wait()
    finally:
        cleaned_up.set(f"{note}: {await square(5)}")


@workflow
async def holds_a_child(how: str) -> str:
    step = waits_with_cleanup.options(key="held")(how)
    if how == "leave":
        await wf.sleep("50ms")
        return "left"
    try:
        return await asyncio.wait_for(step, 0.05)
    except TimeoutError:
        return "gave up"


@pytest.mark.parametrize(("how", "result"), [("leave", "left"), ("cancel", "gave up")])
async def test_a_child_that_nobody_waits_for_any_more_is_cancelled_and_cleans_up(
    client: Perdure, how: str, result: str
) -> None:
    assert await holds_a_child.run(how) == result
    held = await waits_with_cleanup.options(key="held", on_conflict="attach").start(how)
    with pytest.raises(RunCancelled):
        await held.result(LIMIT)
    assert await cleaned_up.read(held.id) == f"{how}: 25"


async def test_a_child_that_is_cancelled_from_outside_fails_its_parents_await(client: Perdure) -> None:
    parent = await wants_a_child.start()
    await until(lambda: _has(parent, "ChildStarted"))
    held = await waits_with_cleanup.options(key="wanted", on_conflict="attach").start("w")
    await held.cancel("by hand")
    assert await parent.result(LIMIT) == "run_cancelled"


@workflow
async def wants_a_child() -> str:
    try:
        return await waits_with_cleanup.options(key="wanted")("w")
    except ChildFailed as e:
        return e.failure.code


@workflow
async def wants_a_taken_id() -> str:
    try:
        return str(await small.options(key="taken")(3))
    except ChildFailed as e:
        return e.failure.code


async def test_a_child_under_a_taken_id_fails_and_the_holder_is_not_touched(client: Perdure) -> None:
    holder = await waits_with_cleanup.options(key="taken").start("holder")
    assert await wants_a_taken_id.run() == "run_already_exists"
    assert await holder.status() == "running"
    await finished.resolve(holder.id, "fine")
    assert await holder.result(LIMIT) == "fine"


# -- ends -----------------------------------------------------------------------------------------------------------------


async def test_a_cancelled_run_cleans_up_and_says_why(client: Perdure) -> None:
    handle = await waits_with_cleanup.start("c")
    await handle.cancel("not needed")
    with pytest.raises(RunCancelled, match="not needed"):
        await handle.result(LIMIT)
    assert await handle.status() == "cancelled"
    assert await cleaned_up.read(handle.id) == "c: 25"
    assert "CancelRequested" in await types_of(handle)


@task
async def waits_to_be_cancelled(name: str) -> None:
    ready[name].set()
    try:
        await forever()
    except asyncio.CancelledError:
        calls[f"{name} cancelled"] += 1
        raise


@workflow
async def runs_a_long_task(name: str) -> None:
    await waits_to_be_cancelled(name)


async def test_a_cancelled_run_stops_its_tasks(client: Perdure) -> None:
    ready["x"] = asyncio.Event()
    handle = await runs_a_long_task.start("x")
    async with asyncio.timeout(120):
        await ready["x"].wait()
    await handle.cancel()
    with pytest.raises(RunCancelled):
        await handle.result(LIMIT)
    await until(lambda: calls["x cancelled"] == 1)


async def test_a_run_that_does_not_end_before_its_deadline_fails(client: Perdure) -> None:
    handle = await waits_with_cleanup.options(timeout="300ms").start("t")
    with pytest.raises(RunFailed, match="did not end before its deadline") as error:
        await handle.result(LIMIT)
    assert error.value.failure.code == "run_timeout"


async def test_waiting_for_a_result_may_be_given_up_while_the_run_goes_on(client: Perdure) -> None:
    handle = await waits_with_cleanup.start("g")
    with pytest.raises(TimeoutError):
        await handle.result("100ms")
    await finished.resolve(handle.id, "late")
    assert await handle.result(LIMIT) == "late"


# -- ids of one's own -----------------------------------------------------------------------------------------------------


async def test_a_taken_id_fails_attaches_or_replaces_as_asked(client: Perdure) -> None:
    first = await waits_with_cleanup.options(key="k").start("one")
    with pytest.raises(RunAlreadyExists, match="choose another"):
        await waits_with_cleanup.options(key="k").start("one")
    same = await waits_with_cleanup.options(key="k", on_conflict="attach").start("one")
    assert same.id == first.id
    with pytest.raises(RunAlreadyExists, match="another workflow or input"):
        await waits_with_cleanup.options(key="k", on_conflict="attach").start("two")
    with pytest.raises(RunAlreadyExists, match="another workflow or input"):
        await small.options(key="k", on_conflict="attach").start(1)
    other = await waits_with_cleanup.options(key="k", on_conflict="replace").start("three")
    assert other.id != first.id
    with pytest.raises(RunCancelled, match="replaced"):
        await first.result(LIMIT)
    await finished.resolve(other.id, "done")
    assert await other.result(LIMIT) == "done"
    with pytest.raises(RunAlreadyExists):
        await waits_with_cleanup.options(key="k").start("three")
    again = await waits_with_cleanup.options(key="k", on_conflict="attach").start("three")
    assert await again.result(LIMIT) == "done", "an ended run answers at once"


async def test_many_starts_of_one_id_at_once_are_one_run(client: Perdure) -> None:
    handles = await asyncio.gather(*(small.options(key="same", on_conflict="attach").start(4) for _ in range(20)))
    assert len({h.id for h in handles}) == 1
    assert await asyncio.gather(*(h.result(LIMIT) for h in handles)) == [16] * 20
    assert calls["square"] == 1


# -- messages -------------------------------------------------------------------------------------------------------------

words = Signal("words", str)
total_words = State("total_words", 0)


@workflow
async def listens(count: int) -> list[str]:
    out: list[str] = []
    async for word in words:
        out.append(word)
        total_words.set(len(out))
        if len(out) == count:
            break
    return out


async def test_signals_arrive_in_order_and_state_can_be_read_from_outside(client: Perdure) -> None:
    handle = await listens.start(20)
    assert await total_words.read(handle.id) == 0
    for n in range(19):
        await words.send(handle.id, str(n))

    async def nineteen() -> bool:
        return await total_words.read(handle.id) == 19

    await until(nineteen)
    await words.send(handle.id, "last")
    assert await handle.result(LIMIT) == [*map(str, range(19)), "last"]
    assert await total_words.read(handle.id) == 20
    with pytest.raises(RunFinished):
        await words.send(handle.id, "too late")
    with pytest.raises(RunFinished):
        await handle.cancel()


async def test_a_promise_is_resolved_once(client: Perdure) -> None:
    handle = await waits_with_cleanup.start("p")
    await finished.resolve(handle.id, "first")
    with pytest.raises((PromiseAlreadyResolved, RunFinished)):
        await finished.resolve(handle.id, "second")
    assert await handle.result(LIMIT) == "first"
    with pytest.raises(RunFinished):
        await finished.resolve(handle.id, "third")


@workflow
async def waits_for_two() -> list[str]:
    await words.next()
    return [await finished.wait()]


async def test_a_promise_may_be_resolved_before_the_code_waits_and_only_once(client: Perdure) -> None:
    handle = await waits_for_two.start()
    await finished.resolve(handle.id, "early")
    with pytest.raises(PromiseAlreadyResolved, match="the first value stands"):
        await finished.resolve(handle.id, "second")
    await words.send(handle.id, "go")
    assert await handle.result(LIMIT) == ["early"]


@workflow
async def impatient() -> str:
    try:
        return await words.next(timeout="100ms")
    except TimeoutError as e:
        return str(e)


async def test_a_wait_with_a_limit_ends_in_time(client: Perdure) -> None:
    assert await impatient.run() == "no signal 'words' arrived in time"


async def test_messages_to_a_run_that_never_was_are_refused(client: Perdure) -> None:
    nobody = "0192a6f0-5c1e-7000-8123-0123456789ab"
    with pytest.raises(NotFound):
        await words.send(nobody, "x")
    with pytest.raises(NotFound):
        await finished.resolve(nobody, "x")
    with pytest.raises(NotFound):
        await total_words.read(nobody)
    with pytest.raises(NotFound):
        await client.get(nobody)
    with pytest.raises(NotFound):
        await client._backend.call(runs.RESULT, AwaitRun(nobody))
    with pytest.raises(NotFound, match="names no run"):
        await words.send("not an id", "x")


async def test_without_a_client_the_error_says_what_to_do() -> None:
    with pytest.raises(PerdureError, match="async with Perdure"):
        await small.start(1)


# -- continue as new --------------------------------------------------------------------------------------------------------


@workflow
async def relay(left: int, log: list[str]) -> list[str]:
    for _ in range(2):
        log.append(await words.next())
    if left:
        wf.continue_as_new(left - 1, log)
    return log


@pytest.mark.keep
async def test_a_run_that_continues_as_new_is_one_run_to_those_outside(client: Perdure) -> None:
    """The handle follows it, messages follow it, and no signal is lost, doubled or out of order on the way."""
    handle = await relay.options(key="relay").start(9, [])
    sent = [str(n) for n in range(20)]
    for word in sent:
        await words.send(handle.id, word)
    assert await handle.result(LIMIT) == sent
    assert (await types_of(handle))[-1] == "RunContinued"
    same = await relay.options(key="relay", on_conflict="attach").start(9, [])
    assert await same.result(LIMIT) == sent


async def test_signals_that_pour_in_while_a_run_continues_are_neither_lost_nor_doubled(client: Perdure) -> None:
    handles = [await relay.start(14, []) for _ in range(5)]
    sent = [str(n) for n in range(30)]

    async def pour(handle: Handle[list[str]]) -> None:
        for word in sent:
            await words.send(handle.id, word)

    await asyncio.gather(*(pour(h) for h in handles))
    for handle in handles:
        assert await handle.result(LIMIT) == sent


async def test_the_result_of_a_continued_run_with_a_long_history_is_found_by_another_client(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.services.outcomes.HISTORY_PAGE", 3)
    async with embedded(dsn) as client:
        handle = await counts_slowly.start(1, 6)
        assert await handle.result(LIMIT) == 6
        assert len(await types_of(handle)) > 10
        page = await client._backend.call(runs.HISTORY, ListHistory(handle.id, limit=3))
        paged = page.items
        while page.has_more:
            page = await client._backend.call(runs.HISTORY, ListHistory(handle.id, paged[-1].seq, 3))
            assert 0 < len(page.items) <= 3
            paged += page.items
        assert paged == await handle.history()
    async with embedded(dsn) as client:
        assert await (await client.get(handle.id, workflow=counts_slowly)).result(LIMIT) == 6


@workflow
async def counts_slowly(left: int, steps: int) -> int:
    for n in range(steps):
        await square(n)
    if left:
        wf.continue_as_new(left - 1, steps)
    return steps


@workflow
async def spins(n: int) -> None:
    await square(n)
    await wf.sleep("100ms")
    wf.continue_as_new(n + 1)


async def test_a_cancel_request_reaches_a_run_that_keeps_continuing(client: Perdure) -> None:
    handles = [await spins.start(20) for _ in range(10)]
    await until(lambda: calls["square"] > 40)
    await asyncio.gather(*(h.cancel("enough") for h in handles))
    for handle in handles:
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result(LIMIT)


@workflow
async def has_a_child_that_continues() -> list[str]:
    return await counts.options(key="counts")(3, [])


@workflow
async def counts(left: int, log: list[str]) -> list[str]:
    log.append(f"{left}: {await square(left)}")
    if left:
        wf.continue_as_new(left - 1, log)
    return log


async def test_a_parent_gets_the_result_of_a_child_that_continued_as_new(client: Perdure) -> None:
    assert await has_a_child_that_continues.run() == ["3: 9", "2: 4", "1: 1", "0: 0"]


# -- side effects and versions ------------------------------------------------------------------------------------------------


def draw(name: str) -> int:
    calls[name] += 1
    return calls[name] * 7


async def draw_async(name: str) -> int:
    await turns()
    return draw(name)


@workflow
async def draws() -> list[int]:
    first = await wf.run("draw", draw, "d")
    second = await wf.run("draw async", draw_async, "d")
    await wf.sleep("1500ms")
    return [first, second, await square(2)]


async def test_a_side_effect_is_recorded_once_and_not_repeated_when_the_run_is_loaded_again(dsn: str) -> None:
    async with embedded(dsn, settings=quick(tick_s=0.02, placement=Placement(idle_s=0.0, near_s=0.0))) as client:
        handle = await draws.start()
        await until(lambda: client.engine.counters.runs_evicted > 0)
        assert await handle.result(LIMIT) == [7, 14, 4]
        assert client.engine.counters.runs_claimed > 0
    assert calls["d"] == 2


@workflow(name="versioned")
async def versioned_old() -> list[int]:
    a = await square(2)
    await finished.wait()
    return [a, await square(3)]


@workflow(name="versioned")
async def versioned_patched() -> list[int]:
    a = await weigh_one(2) if wf.patched("weigh") else await square(2)
    await finished.wait()
    return [a, await square(3)]


@workflow(name="versioned")
async def versioned_broken() -> list[int]:
    a = await weigh_one(2)
    await finished.wait()
    return [a, await square(3)]


@task
async def weigh_one(n: int) -> int:
    return n * 1_000


async def test_a_patch_keeps_running_runs_on_the_old_path(dsn: str) -> None:
    async with embedded(dsn) as client:
        assert client.worker is not None
        client.worker.adopt(versioned_old)
        old = await versioned_old.start()
        await until(lambda: _has(old, "PromiseCreated"))
    async with embedded(dsn) as client:
        assert client.worker is not None
        client.worker.adopt(versioned_patched)
        new = await versioned_patched.start()
        await finished.resolve(old.id, "go")
        await finished.resolve(new.id, "go")
        assert await (await client.get(old.id, workflow=versioned_old)).result(LIMIT) == [4, 9]
        assert await new.result(LIMIT) == [2_000, 9]


async def _has(handle: Handle[Any], event: str) -> bool:
    return event in await types_of(handle)


async def test_changed_code_stops_the_run_and_the_repaired_code_resumes_it(dsn: str) -> None:
    async with embedded(dsn) as client:
        assert client.worker is not None
        client.worker.adopt(versioned_old)
        old = await versioned_old.start()
        await until(lambda: _has(old, "PromiseCreated"))
        before = await types_of(old)
    async with embedded(dsn) as client:
        assert client.worker is not None
        client.worker.adopt(versioned_broken)
        handle = await client.get(old.id, workflow=versioned_old)
        await finished.resolve(old.id, "go")
        with pytest.raises(NondeterminismError) as error:
            await handle.result(LIMIT)
        assert "task 'square'" in str(error.value)
        assert "task 'weigh_one'" in str(error.value)
        assert await handle.status() == "running"
        assert (await handle.describe()).stuck is not None
        assert (await types_of(handle))[: len(before)] == before
        client.worker.adopt(versioned_patched)
        await handle.resume()
        assert await handle.result(LIMIT) == [4, 9]
        with pytest.raises(Conflict, match="neither paused nor stuck"):
            await handle.resume()


# -- limits ---------------------------------------------------------------------------------------------------------------


@task
def make_text(size: int) -> str:
    return "x" * size


@workflow
async def moves_text(text: str, size: int) -> int:
    return len(text) + len(await make_text(size))


@workflow
async def returns_text(size: int) -> str:
    return "x" * size


async def test_payloads_over_the_limit_are_refused_wherever_they_appear(dsn: str) -> None:
    async with embedded(dsn, settings=EngineSettings(payload_bytes_max=250_000)):
        assert await moves_text.run("x" * 200_000, 200_000) == 400_000
        with pytest.raises(InvalidInput, match="PAYLOAD_POSTGRES_BYTES_MAX"):
            await moves_text.run("x" * 300_000, 1)
        with pytest.raises(RunFailed, match="PAYLOAD_POSTGRES_BYTES_MAX"):
            await moves_text.run("x", 300_000)
        with pytest.raises(RunFailed, match="PAYLOAD_POSTGRES_BYTES_MAX") as error:
            await returns_text.run(300_000)
        assert error.value.failure.code == "payload_too_large"
        handle = await waits_with_cleanup.start("big")
        with pytest.raises(InvalidInput, match="PAYLOAD_POSTGRES_BYTES_MAX"):
            await finished.resolve(handle.id, "x" * 300_000)
        await handle.cancel()


@workflow
async def goes_on_and_on() -> None:
    while True:
        await square(1)


async def test_a_history_over_the_limit_fails_the_run_with_the_way_out(
    client: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.engine.runs.loop.HISTORY_EVENTS_MAX", 40)
    with pytest.raises(RunFailed, match="continue_as_new") as error:
        await (await goes_on_and_on.start()).result(LIMIT)
    assert error.value.failure.code == "history_too_large"


# -- looking --------------------------------------------------------------------------------------------------------------


async def test_events_can_be_followed_while_a_run_is_going_and_from_the_middle(client: Perdure) -> None:
    handle = await waits_with_cleanup.start("e")
    seen: list[tuple[int, str]] = []

    async def follow() -> None:
        async for event in handle.events():
            seen.append((event.seq, event.type))

    following = asyncio.create_task(follow())
    await until(lambda: (2, "PromiseCreated") in seen)
    assert not following.done()
    await finished.resolve(handle.id, "ok")
    await asyncio.wait_for(following, 60)
    assert [n for n, _ in seen] == list(range(1, len(seen) + 1))
    assert [t for _, t in seen][:3] == ["RunStarted", "PromiseCreated", "PromiseResolved"]
    assert seen[-1][1] == "RunSucceeded"
    assert [(e.seq, e.type) async for e in handle.events(after=3)] == seen[3:]


async def test_a_run_describes_itself(client: Perdure) -> None:
    handle = await waits_with_cleanup.options(key="me").start("d")
    view = await handle.describe()
    assert (view.workflow, view.key, view.version) == ("waits_with_cleanup", "me", waits_with_cleanup.version)
    assert await handle.status() == "running"
    await finished.resolve(handle.id, "ok")
    await handle.result(LIMIT)
    view = await handle.describe()
    assert view.finished_us is not None
    assert await handle.status() == "success"


# -- several engines, restarts, eviction ----------------------------------------------------------------------------------------


@task
async def work_here(n: int) -> str:
    calls[f"work {n}"] += 1
    await busy(0.02)
    return "done"


@workflow
async def spreads(n: int) -> int:
    return len(await wf.map(work_here, range(n)))


async def test_two_engines_on_one_database_share_the_work(dsn: str) -> None:
    placement = Placement(horizon_s=0.05)
    async with (
        embedded(dsn, slots=4, settings=quick(placement=placement)) as one,
        embedded(dsn, slots=4, settings=quick(placement=placement)) as two,
    ):
        await until(lambda: one.engine.session.others_free > 0)
        handle = await one.start(spreads, 300)
        assert await handle.result(LIMIT) == 300
        assert one.engine.counters.tasks_spilled > 0
        assert two.engine.counters.tasks_claimed > 0
    assert all(calls[f"work {n}"] == 1 for n in range(300))


async def test_another_engine_takes_over_what_a_dead_one_left(dsn: str) -> None:
    async with embedded(dsn, settings=quick(lease_s=1.0)) as survivor:
        dead = await embedded(dsn, settings=quick(lease_s=1.0, close_grace_s=0.1)).__aenter__()
        handle = await dead.start(waits_with_cleanup, "t")
        for loop in dead.engine._tasks:
            loop.cancel()
        await asyncio.gather(*dead.engine._tasks, return_exceptions=True)
        dead.engine.loop.forget_all()
        taken = await survivor.get(handle.id, workflow=waits_with_cleanup)
        await until(lambda: survivor.engine.counters.sessions_reaped > 0)
        await survivor._backend.call(messages.RESOLVE, ResolvePromise(taken.id, "finished", b'"taken over"'))
        assert await taken.result(LIMIT) == "taken over"
        assert survivor.engine.counters.runs_claimed > 0
        await dead.close()


async def test_a_client_without_a_worker_starts_runs_that_others_execute(dsn: str) -> None:
    async with embedded(dsn, worker=False) as client, embedded(dsn, settings=quick()):
        handle = await client.start(small, 6)
        assert await handle.result(LIMIT) == 36
        assert client.engine.counters.activations == 0


@workflow
async def sleeps_a_while(before: int, seconds: float, after: int) -> list[int]:
    first = await square(before)
    await asyncio.sleep(seconds)
    return [first, await square(after)]


async def test_a_sleeping_run_leaves_memory_and_comes_back_in_time(dsn: str) -> None:
    async with embedded(dsn, settings=quick(placement=Placement(idle_s=0.1, near_s=0.2))) as client:
        handle = await sleeps_a_while.start(2, 1.5, 3)
        await until(lambda: not client.engine.runs)
        assert client.worker is not None
        assert client.worker.held() == []
        view = await handle.describe()
        assert view.owner is None
        assert view.wake_us is not None
        assert await handle.result(LIMIT) == [4, 9]
    assert calls["square"] == 2


async def test_a_run_in_the_database_is_woken_by_a_message(dsn: str) -> None:
    async with embedded(dsn, settings=quick()) as client:
        handle = await listens.start(2)
        for word in ("a", "b"):
            await until(lambda: not client.engine.runs)
            await words.send(handle.id, word)
            if word == "a":
                await until(lambda: client.engine.counters.runs_evicted > 1)
        assert await handle.result(LIMIT) == ["a", "b"]


async def test_a_run_goes_on_after_a_restart_without_repeating_what_was_recorded(dsn: str) -> None:
    async with embedded(dsn) as client:
        handle = await sleeps_a_while.options(key="restart").start(4, 0.6, 5)
        await until(lambda: _has(handle, "TimerStarted"))
        del client
    assert calls["square"] == 1
    async with embedded(dsn):
        again = await sleeps_a_while.options(key="restart", on_conflict="attach").start(4, 0.6, 5)
        assert again.id == handle.id
        assert await again.result(LIMIT) == [16, 25]
    assert calls["square"] == 2


@task
async def gated(name: str) -> str:
    calls[name] += 1
    ready[name].set()
    await gates[name].wait()
    return name


@workflow
async def runs_gated(name: str) -> str:
    return await gated(name)


async def test_closing_lets_running_tasks_finish(dsn: str) -> None:
    ready["g"], gates["g"] = asyncio.Event(), asyncio.Event()
    async with embedded(dsn) as client:
        handle = await runs_gated.start("g")
        async with asyncio.timeout(120):
            await ready["g"].wait()
        asyncio.get_running_loop().call_later(0.1, gates["g"].set)
        del client
    async with embedded(dsn) as client:
        assert await (await client.get(handle.id, workflow=runs_gated)).result(LIMIT) == "g"
    assert calls["g"] == 1


async def test_a_task_that_was_cut_off_by_a_shutdown_runs_again(dsn: str) -> None:
    ready["g"], gates["g"] = asyncio.Event(), asyncio.Event()
    async with embedded(dsn, settings=quick(close_grace_s=0.1)):
        handle = await runs_gated.start("g")
        async with asyncio.timeout(120):
            await ready["g"].wait()
    gates["g"].set()
    async with embedded(dsn) as client:
        assert await (await client.get(handle.id, workflow=runs_gated)).result(LIMIT) == "g"
    assert calls["g"] == 2


DEFINITIONS = [d for d in globals().values() if isinstance(d, Task | Workflow)]
