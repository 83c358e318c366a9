"""Cancellation reaches whatever is running, lets it clean up, and goes from the leaves to the root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from perdure import Handle, Perdure, Signal, Workflow, attempt, flow, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.retry import End, TaskOptions
from perdure.core.work import Assignment, Report
from perdure.errors import AttemptCancelled, NondeterminismError, RunCancelled, RunFailed
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.execution import THREAD_GRACE_S, TaskExecutor
from perdure.testing.replayer import replay_one
from tests.fakes.upstreams import upstream_to
from tests.fakes.waiting import busy, busy_thread, forever, forever_thread, holds, until

LIMIT_S = 60
SOON_S = 8.0
"""More than anything here takes, on a machine that has other things to do; far less than what the tasks would take."""
began: dict[str, threading.Event] = {}
cleaned: dict[str, float] = {}
notes: list[str] = []


@pytest.fixture(autouse=True)
def clean_slate() -> None:
    began.clear()
    cleaned.clear()
    notes.clear()


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[Perdure]:
    async with Perdure(dsn, processes=1, threads=2, executors=["process"]) as perdure:
        yield perdure


def begun(name: str) -> threading.Event:
    return began.setdefault(name, threading.Event())


# -- what tasks do -----------------------------------------------------------------------------------------------


@task(name="ca_async", retry=1)
async def on_the_loop() -> None:
    try:
        begun("async").set()
        await forever()
    finally:
        await busy(0.05)  # it may await while it cleans up
        cleaned["async"] = time.monotonic()


@task(name="ca_thread", retry=1)
def in_a_thread(polite: bool) -> None:
    name = "polite" if polite else "thread"
    try:
        begun(name).set()
        while True:  # a plain loop that knows nothing of Perdure, unless it is polite
            if polite:
                attempt().raise_if_cancelled()
            busy_thread(0.01)
    finally:
        cleaned[name] = time.monotonic()


@task(name="ca_timeout", timeout="400ms", retry=1)
def overdue() -> None:
    try:
        begun("overdue").set()
        while True:
            busy_thread(0.01)
    except asyncio.CancelledError as error:
        assert isinstance(error, AttemptCancelled) and attempt().cancelled
        cleaned["overdue"] = time.monotonic()
        raise


@task(name="ca_process", process=True, retry=1)
def in_a_process(place: str) -> None:
    try:
        Path(place, "begun").write_text(str(os.getpid()))
        forever_thread()
    except asyncio.CancelledError:
        Path(place, "told").write_text(str(attempt().cancelled))
        raise
    finally:
        Path(place, "cleaned").write_text(str(time.monotonic()))


@task(name="ca_stubborn", process=True, retry=1)
def stubborn(place: str) -> None:
    while True:
        with contextlib.suppress(BaseException):
            Path(place, "begun").write_text(str(os.getpid()))
            forever_thread()


@task(name="ca_pid", process=True)
def pid() -> int:
    return os.getpid()


@task(name="ca_double")
def double(n: int) -> int:
    return 2 * n


@workflow(name="ca_one")
async def one(which: str, place: str = "") -> None:
    match which:
        case "async":
            await on_the_loop()
        case "thread" | "polite":
            await in_a_thread(which == "polite")
        case "overdue":
            await overdue()
        case "process":
            await in_a_process(place)
        case "stubborn":
            await stubborn(place)
        case _:
            await wf.call("perdure.run", {"command": which}, retry=1)


@workflow(name="ca_pid_of")
async def pid_of() -> int:
    return await pid()


@workflow(name="ca_doubled")
async def doubled(n: int) -> int:
    return await double(n)


async def text_of(file: Path) -> str:
    """What a task writes into a file, once it is there."""
    return await until(lambda: file.exists() and file.read_text(), file.name) or ""


async def cancelled(handle: Handle[object]) -> float:
    """Cancel a run; the moment at which that was asked for."""
    at = time.monotonic()
    await handle.cancel("enough")
    with pytest.raises(RunCancelled, match="enough"):
        await asyncio.wait_for(handle.result(), LIMIT_S)
    return at


async def clean_up_of(key: str) -> float:
    """When it was over, once it is."""
    return await until(lambda: cleaned.get(key)) or 0.0


# -- the attempt ---------------------------------------------------------------------------------------------------


async def test_an_async_task_unwinds_at_its_await_and_may_await_in_finally(client: Perdure) -> None:
    handle = await one.start("async")
    await until(begun("async").is_set)
    at = await cancelled(handle)
    assert await clean_up_of("async") - at < SOON_S


@pytest.mark.parametrize("which", ["thread", "polite"])
async def test_a_plain_function_in_a_thread_is_interrupted_and_its_finally_runs(client: Perdure, which: str) -> None:
    handle = await one.start(which)
    await until(begun(which).is_set)
    at = await cancelled(handle)
    took = await clean_up_of(which) - at
    assert took < SOON_S
    if which == "thread":
        assert took >= THREAD_GRACE_S, "first it has the chance to find out by itself"
    assert await asyncio.wait_for(doubled.run(21), LIMIT_S) == 42, "the threads go on"


async def test_a_timeout_takes_the_same_way(client: Perdure) -> None:
    handle = await one.start("overdue")
    with pytest.raises(RunFailed, match=r"did not end within its timeout of 0\.4 s"):
        await asyncio.wait_for(handle.result(), LIMIT_S)
    await clean_up_of("overdue")


async def test_a_task_in_a_process_cleans_up_and_the_pool_survives(client: Perdure, tmp_path: Path) -> None:
    before = await asyncio.wait_for(pid_of.run(), LIMIT_S)
    handle = await one.start("process", str(tmp_path))
    assert int(await text_of(tmp_path / "begun")) == before, "one process serves one after the other"
    at = await cancelled(handle)
    assert float(await text_of(tmp_path / "cleaned")) - at < SOON_S  # one clock for all processes of a machine
    assert (tmp_path / "told").read_text() == "True"
    assert await asyncio.wait_for(pid_of.run(), LIMIT_S) != before, "the next one gets a fresh process"


async def test_a_process_that_takes_no_notice_is_killed(
    client: Perdure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.sdk.worker.execution.KILL_GRACE_S", 0.5)
    handle = await one.start("stubborn", str(tmp_path))
    victim = int(await text_of(tmp_path / "begun"))
    await cancelled(handle)
    await until(lambda: not _is_there(victim))
    assert await asyncio.wait_for(pid_of.run(), LIMIT_S) != victim


async def test_a_command_and_all_it_started_get_the_time_to_clean_up(client: Perdure, tmp_path: Path) -> None:
    command = (
        f"trap 'echo yes > {tmp_path}/cleaned; exit 0' TERM; sleep 600 & echo $! > {tmp_path}/child; "
        f"echo $$ > {tmp_path}/begun; wait"
    )
    handle = await one.start(command)
    started = [int(await text_of(tmp_path / name)) for name in ("begun", "child")]
    at = time.monotonic()
    await cancelled(handle)
    await text_of(tmp_path / "cleaned")
    assert time.monotonic() - at < SOON_S
    await until(lambda: not any(_is_there(process) for process in started))


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:  # one that nobody has waited for yet is gone all the same
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_an_interruption_never_reaches_the_next_task_of_the_thread() -> None:
    """One thread, hundreds of attempts, each cancelled about when it ends. What was not cancelled must succeed."""
    chance = random.Random(5)
    ends: dict[int, Report] = {}
    lasts: dict[int, float] = {n: chance.uniform(0.0, 0.004) for n in range(600)}

    class Plain:
        name, is_async, process = "plain", False, False

        class signature:
            @staticmethod
            def decode_call(data: bytes) -> tuple[tuple[int], dict[str, object]]:
                return (int(data),), {}

            @staticmethod
            def encode_result(value: int) -> bytes:
                return str(value).encode()

        @staticmethod
        def fn(n: int) -> int:
            until_s = time.monotonic() + lasts[n]
            while time.monotonic() < until_s:
                pass
            return n

    def reported(reports: list[Report]) -> None:
        ends.update({r.seq: r for r in reports})

    import perdure.sdk.worker.execution as module

    grace, module.THREAD_GRACE_S = module.THREAD_GRACE_S, 0.0
    execution = TaskExecutor(
        lambda _: Plain,
        upstream_to(clock_us=lambda: time.monotonic_ns() // 1000, reported=reported),
        Capacity(slots=10, threads=1),
        "ignore",
    )
    wanted: set[int] = set()
    try:
        for n in range(600):
            execution.assign([Assignment(b"r" * 16, n, 1, 1, "plain", str(n).encode(), TaskOptions())])
            if n % 2:
                asyncio.get_running_loop().call_later(chance.uniform(0, 0.005), execution.cancel, b"r" * 16, n, 1)
            else:
                wanted.add(n)
            await until(lambda: execution.in_use <= 3)
        await until(lambda: not execution.in_use and wanted <= ends.keys())
    finally:
        module.THREAD_GRACE_S = grace
        await execution.close()
    assert {n: ends[n].end for n in wanted} == dict.fromkeys(wanted, End.SUCCESS)
    assert any(r.end is End.CANCELLED for r in ends.values()), "some were hit"


# -- leaves first --------------------------------------------------------------------------------------------------


@task(name="ca_note")
async def note(text: str) -> None:
    notes.append(text)


stop_it = Signal("ca_stop_it", str)


@workflow(name="ca_grandchild")
async def grandchild() -> None:
    try:
        begun("grandchild").set()
        await forever()
    finally:
        await wf.sleep("300ms")
        await note("grandchild")


@workflow(name="ca_child")
async def child() -> None:
    try:
        await grandchild()
    finally:
        await note("child")


@workflow(name="ca_parent")
async def parent() -> None:
    try:
        await child()
    finally:
        await note("parent")


@workflow(name="ca_many")
async def many() -> None:
    try:
        await wf.map(leaf, [0, 1, 2])
    finally:
        await note("root")


@workflow(name="ca_leaf")
async def leaf(n: int) -> None:
    try:
        begun(f"leaf {n}").set()
        await forever()
    finally:
        await note("leaf")


@workflow(name="ca_impatient")
async def impatient() -> str:
    try:
        async with asyncio.timeout(0.5):
            await grandchild()
    except TimeoutError:
        await note("impatient")
    return "went on"


@workflow(name="ca_unmoved")
async def unmoved() -> str:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            return await stop_it.next()


@workflow(name="ca_patient")
async def patient() -> str:
    try:
        return await unmoved()
    finally:
        await note("patient")


async def events_of(handle: Handle[object]) -> list[ev.Event]:
    return [r.event for r in await handle.history()]


async def child_of(handle: Handle[object]) -> ev.ChildStarted | None:
    return next((e for e in await events_of(handle) if isinstance(e, ev.ChildStarted)), None)


async def is_asked_to_cancel_its_child(handle: Handle[object]) -> bool:
    return ev.ChildCancelRequested(0, True) in await events_of(handle)


async def replayed(of: Workflow[..., object], handle: Handle[object]) -> None:
    """The code takes the same way again."""
    replay_one(of, ids.parse(handle.id), await handle.history())


async def test_a_grandchild_cleans_up_before_the_child_and_the_child_before_the_parent(client: Perdure) -> None:
    handle = await parent.start()
    await until(begun("grandchild").is_set)
    await cancelled(handle)
    assert notes == ["grandchild", "child", "parent"]
    events = await events_of(handle)
    order = [type(e).__name__ for e in events]
    assert order.index("ChildCancelRequested") < order.index("ChildCancelled") < order.index("TasksScheduled")
    assert ev.ChildCancelRequested(0, True) in events
    await replayed(parent, handle)


async def test_a_history_from_before_leaves_came_first_is_replayed_as_it_went(client: Perdure) -> None:
    """Then the code went on at once: its clean-up was asked for before the child had ended."""
    handle = await parent.start()
    await until(begun("grandchild").is_set)
    await cancelled(handle)
    now = [r.event for r in await handle.history()]
    old = [
        ev.ChildCancelRequested(0) if e == ev.ChildCancelRequested(0, True) else e
        for e in now
        if not isinstance(e, ev.ChildCancelled)
    ]
    replay_one(parent, ids.parse(handle.id), [ev.Recorded(i, i, e) for i, e in enumerate(old, 1)])
    new = [e for e in now if not isinstance(e, ev.ChildCancelled)]
    with pytest.raises(NondeterminismError, match="child 0"):
        replay_one(parent, ids.parse(handle.id), [ev.Recorded(i, i, e) for i, e in enumerate(new, 1)])


async def test_all_children_of_a_map_have_ended_before_the_code_goes_on(client: Perdure) -> None:
    handle = await many.start()
    for n in range(3):
        await until(begun(f"leaf {n}").is_set)
    await cancelled(handle)
    assert notes == ["leaf", "leaf", "leaf", "root"]
    await replayed(many, handle)


async def test_a_child_that_took_too_long_has_ended_when_its_parent_hears_of_the_timeout(client: Perdure) -> None:
    handle = await impatient.start()
    assert await asyncio.wait_for(handle.result(), LIMIT_S) == "went on"
    assert notes == ["grandchild", "impatient"]
    await replayed(impatient, handle)


async def test_to_cancel_again_ends_the_wait_for_a_child_that_does_not_stop(client: Perdure) -> None:
    handle = await patient.start()
    await until(lambda: child_of(handle))
    await handle.cancel("enough")
    await until(lambda: is_asked_to_cancel_its_child(handle))

    async def waits_for_its_child() -> bool:
        return (await handle.describe()).finished_us is None and notes == []

    await holds(waits_for_its_child, 0.3)
    await cancelled(handle)
    assert notes == ["patient"]
    await replayed(patient, handle)


async def test_a_deadline_ends_the_wait_as_well(client: Perdure) -> None:
    handle = await patient.options(timeout="1500ms").start()
    await until(lambda: child_of(handle))
    await handle.cancel("enough")
    with pytest.raises(RunFailed, match="deadline"):
        await asyncio.wait_for(handle.result(), LIMIT_S)


async def test_a_flow_ends_after_the_flows_it_started(client: Perdure, dsn: str) -> None:
    inner = {"flow": "ca-inner", "tasks": {"child": {"flow": "ca_child"}}}
    outer = {
        "flow": "ca-outer",
        "tasks": {"inner": {"flow": "ca-inner"}, "pause": {"sleep": "1h"}, "work": {"python": "ca_async"}},
    }
    await client.deploy(inner)
    await client.deploy(outer)
    handle = await flow("ca-outer").start()
    await until(begun("grandchild").is_set)
    await until(begun("async").is_set)
    await cancelled(handle)
    await clean_up_of("async")
    assert notes == ["grandchild", "child"]
    connection = await asyncpg.connect(dsn)
    try:
        ended = await connection.fetch("select workflow, status from perdure.run order by finished_at")
    finally:
        await connection.close()
    assert [r["workflow"] for r in ended] == ["ca_grandchild", "ca_child", "ca-inner", "ca-outer"]
    assert {r["status"] for r in ended} == {"cancelled"}


async def test_a_run_that_moves_to_another_engine_still_waits_for_its_leaves(dsn: str) -> None:
    async with Perdure(dsn) as first:
        handle = await patient.start()
        await until(lambda: child_of(handle))
        await handle.cancel("enough")
        await until(lambda: is_asked_to_cancel_its_child(handle))
        del first
    async with Perdure(dsn) as second:
        again = await second.get(handle.id, workflow=patient)
        started = await child_of(again)
        assert notes == [] and started is not None
        await stop_it.send(ids.text(started.run_id), "all right")
        with pytest.raises(RunCancelled, match="enough"):
            await asyncio.wait_for(again.result(), LIMIT_S)
        assert notes == ["patient"]
