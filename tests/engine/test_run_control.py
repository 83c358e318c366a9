"""What an operator does to one run, and what becomes of its family: pause, delete, delayed starts, parent-close policies."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Handle, Limit, Perdure, Signal, task, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.lifecycle import RunStatus
from perdure.core.messages import PauseMessage
from perdure.core.retry import End
from perdure.core.work import Report
from perdure.engine.runs.exits import RunExits
from perdure.engine.runs.run import ActiveRun
from perdure.errors import Conflict, InvalidInput, NotFound, RunCancelled, RunExpired, RunFailed
from perdure.sdk.client.backend import backend
from tests.e2e.test_endings import clean, has, is_over, let_time_pass, query, serving, watching
from tests.fakes.waiting import turns, until

go = Signal("control_go", int)
begun: list[int] = []
gate = asyncio.Event()


@task(name="control_step")
async def step(n: int) -> int:
    begun.append(n)
    return n


@task(name="control_slow")
async def slow() -> int:
    begun.append(-1)
    await gate.wait()
    return 7


@workflow(name="control_steps")
async def steps() -> int:
    await step(1)
    await go.next()
    return await step(2)


@workflow(name="control_slow_alone")
async def slow_alone() -> int:
    return await slow()


@workflow(name="control_in_flight")
async def in_flight() -> int:
    first, *rest = await asyncio.gather(slow(), *(step.options(queue="control-unserved")(n) for n in range(3)))
    return first + sum(rest)


@task(name="control_endless")
async def endless() -> int:
    begun.append(-1)
    await asyncio.Event().wait()
    return 0


@workflow(name="control_one_task")
async def one_task() -> int:
    return await endless()


@workflow(name="control_sleeper")
async def sleeper() -> str:
    try:
        await go.next(timeout="1h")
    except TimeoutError:
        return "awake"
    return "signalled"


@workflow(name="control_limited", limit=Limit(1))
async def limited() -> int:
    return await go.next()


@workflow(name="control_child")
async def child() -> int:
    return await go.next()


@workflow(name="control_family")
async def family(policy: str) -> int:
    waiting = child.options(parent_close=policy)()  # type: ignore[arg-type]
    await asyncio.wait([waiting, go.next()], return_when=asyncio.FIRST_COMPLETED)
    return 1


@workflow(name="control_detacher")
async def detacher() -> str:
    assert await child.options(detached=True, key="control-detached")() is None
    return "done"


@workflow(name="control_waits_for_child")
async def waits_for_child(policy: str) -> int:
    return await child.options(parent_close=policy)()  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global gate
    begun.clear()
    gate = asyncio.Event()  # each test has a loop of its own


async def status(handle: Handle[Any]) -> str:
    return await handle.status()


async def child_of(dsn: str, client: Perdure) -> Handle[Any]:
    found = "select run_id from perdure.run_queue where workflow = 'control_child'"
    await until(lambda: _some(dsn, found))
    (row,) = await query(dsn, found)
    return await client.get(ids.text(row["run_id"].bytes))


async def _some(dsn: str, sql: str) -> bool:
    return bool(await query(dsn, sql))


# -- pause -------------------------------------------------------------------------------------------------------------


async def test_nothing_of_a_paused_run_starts_and_its_messages_wait(dsn: str) -> None:
    async with serving(dsn, steps) as client:
        handle = await steps.start()
        await until(lambda: has(handle, "TasksSucceeded"))
        await handle.pause("inventory")
        view = await handle.describe()
        assert (view.paused_by, view.owner) == ("embedded", None)
        await go.send(handle.id, 1)
        await turns(50)
        assert begun == [1]
        assert not await has(handle, "SignalReceived")
        await handle.pause("again")  # has no further effect
        await handle.resume()
        assert await handle.result("3m") == 2
        with pytest.raises(Conflict, match="neither paused nor stuck"):
            other = await steps.start()
            await other.resume()
        await other.cancel()
        await until(lambda: is_over(other))
        assert client.engine.counters.runs_ended_without_code == 0
    await clean(dsn)


async def test_a_run_that_was_paused_twice_at_once_is_resumed_once(dsn: str) -> None:
    async with serving(dsn, steps) as client:
        handle = await steps.start()
        await until(lambda: has(handle, "TasksSucceeded"))
        await asyncio.gather(handle.pause("inventory"), handle.pause("inventory"))
        await handle.resume()
        await go.send(handle.id, 1)
        assert await handle.result("10s") == 2
        assert client.engine.counters.runs_ended_without_code == 0
    await clean(dsn)


async def test_a_task_that_ends_before_the_pause_is_written_is_not_forgotten(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row is written with the pause, so the end comes after it."""
    async with serving(dsn, one_task) as client:
        attempts, pause = client.engine.attempts, RunExits.pause

        def paused_then_ended(self: RunExits, run: ActiveRun, request: PauseMessage, inbox_id: int) -> None:
            pause(self, run, request, inbox_id)
            now = time.time_ns() // 1000
            (a,) = (f.assignment for f in attempts.flights.values())
            attempts.reported([Report(a.run_id, a.seq, a.attempt, End.SUCCESS, b"7", None, now, now)])

        monkeypatch.setattr(RunExits, "pause", paused_then_ended)
        handle = await one_task.start()
        await until(lambda: -1 in begun)
        await handle.pause()
        await handle.resume()
        assert await handle.result("3m") == 7
    await clean(dsn)


@pytest.mark.parametrize("question", ["reassigned", "worker lost"])
async def test_an_attempt_is_not_taken_for_stolen_before_the_pause_is_written(
    dsn: str, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """Its row is written with the pause. An engine that asked for it meanwhile stopped the attempt, and its task counted as running for ever."""
    checks: list[asyncio.Task[None]] = []
    async with serving(dsn, slow_alone) as client:
        engine, pause, commit = client.engine, RunExits.pause, client.store.commit

        def paused_then_checked(self: RunExits, run: ActiveRun, request: PauseMessage, inbox_id: int) -> None:
            pause(self, run, request, inbox_id)
            (a,) = (f.assignment for f in engine.attempts.flights.values())
            check = (
                engine.lost_workers.check_reassigned()
                if question == "reassigned"
                else engine.lost_workers.worker_lost([(a.run_id, a.seq, a.attempt)])
            )
            checks.append(asyncio.create_task(check))

        async def after_the_check(*args: Any) -> Any:
            if checks:
                await checks[0]
            return await commit(*args)

        monkeypatch.setattr(RunExits, "pause", paused_then_checked)
        monkeypatch.setattr(client.store, "commit", after_the_check)
        handle = await slow_alone.start()
        await until(lambda: -1 in begun)
        await handle.pause()
        gate.set()
        await handle.resume()
        assert await handle.result("30s") == 7
        assert begun == ([-1] if question == "reassigned" else [-1, -1])
    await clean(dsn)


async def test_tasks_of_a_paused_run_end_as_usual_and_waiting_ones_are_not_claimed(dsn: str) -> None:
    async with serving(dsn, in_flight):
        handle = await in_flight.start()
        await until(lambda: -1 in begun)
        await handle.pause()
        held = await query(dsn, "select name, status, held from perdure.task_queue order by name, seq")
        assert {(r["name"], r["held"]) for r in held} == {("control_slow", True), ("control_step", True)}
        await query(dsn, "update perdure.task_queue set queue = 'default' where name = 'control_step'")
        gate.set()
        await until(lambda: _some(dsn, "select from perdure.inbox"))
        await turns(50)
        assert begun == [-1]
        await handle.resume()
        assert await handle.result("3m") == 7 + 0 + 1 + 2
        assert sorted(begun) == [-1, 0, 1, 2], "each task ran once"
    await clean(dsn)


async def test_timers_of_a_paused_run_keep_their_dates(dsn: str) -> None:
    async with serving(dsn, sleeper) as client:
        handle = await sleeper.start()
        await until(lambda: has(handle, "TimerStarted"))
        await handle.pause()
        await let_time_pass(client)
        await turns(30)
        assert await status(handle) == "running"
        await handle.resume()
        assert await handle.result("3m") == "awake"
        client.store.shift_clock(0.0)
    await clean(dsn)


async def test_a_paused_run_gives_its_slot_to_others_and_waits_for_it_again(dsn: str) -> None:
    async with serving(dsn, limited):
        first = await limited.start()
        await until(lambda: _owns(first))
        second = await limited.start()
        await first.pause()
        await go.send(second.id, 2)
        assert await second.result("3m") == 2
        third = await limited.start()
        await until(lambda: _owns(third))
        await first.resume()
        await go.send(first.id, 1)
        await turns(30)
        assert await status(first) == "running"
        await go.send(third.id, 3)
        assert (await first.result("3m"), await third.result("20s")) == (1, 3)
    await clean(dsn)


async def _owns(handle: Handle[Any]) -> bool:
    return (await handle.describe()).owner is not None


async def test_a_cancel_request_ends_a_pause_and_the_code_unwinds(dsn: str) -> None:
    async with serving(dsn, steps) as client:
        handle = await steps.start()
        await until(lambda: has(handle, "TasksSucceeded"))
        await handle.pause()
        await handle.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await handle.result("10s")
        assert client.engine.counters.runs_ended_without_code == 0
    await clean(dsn)


# -- delete ------------------------------------------------------------------------------------------------------------


async def test_a_deleted_run_leaves_nothing(dsn: str) -> None:
    async with serving(dsn, steps) as client:
        handle = await steps.options(key="control-key").start()
        with pytest.raises(Conflict, match="is active; cancel or terminate it first"):
            await handle.delete()
        await go.send(handle.id, 1)
        assert await handle.result("3m") == 2
        await handle.delete()
        with pytest.raises(NotFound):
            await handle.describe()
        with pytest.raises(NotFound):
            await client.get("key:control-key")
        for table in ("run", "history", "task", "run_state", "task_log", "payload_use", "run_key", "message_key"):
            assert not await query(dsn, f"select from perdure.{table} where run_id = $1", handle.id), table
        again = await steps.options(key="control-key").start()
        await again.terminate()
    await clean(dsn)


async def test_a_child_is_kept_until_its_parent_has_ended(dsn: str) -> None:
    async with serving(dsn, waits_for_child, child) as client:
        parent = await waits_for_child.start("cancel")
        last = await child_of(dsn, client)
        await last.terminate()
        with pytest.raises(RunFailed):
            await parent.result("3m")
        await last.delete()
    await clean(dsn)


# -- later and not at all ----------------------------------------------------------------------------------------------


async def test_a_delayed_run_begins_at_its_time(dsn: str) -> None:
    async with serving(dsn, steps) as client:
        handle = await steps.options(delay="30m", timeout="45m").start()
        await go.send(handle.id, 1)
        await turns(30)
        assert await status(handle) == "pending"
        assert begun == []
        await let_time_pass(client)  # an hour: 30 minutes after its time, and 15 before its deadline
        assert await handle.result("3m") == 2
        client.store.shift_clock(0.0)
        with pytest.raises(InvalidInput, match="not both"):
            steps.options(delay="1s", start_at=datetime.now(UTC))
    await clean(dsn)


async def test_a_delayed_run_waits_for_its_time_before_it_waits_for_a_limit(dsn: str) -> None:
    async with serving(dsn, limited) as client:
        later = await limited.options(start_at=datetime.now(UTC) + timedelta(minutes=30)).start()
        now = await limited.start()
        await go.send(now.id, 1)
        assert await now.result("3m") == 1
        assert await status(later) == "pending"
        await let_time_pass(client)
        await go.send(later.id, 2)
        assert await later.result("3m") == 2
        client.store.shift_clock(0.0)
    await clean(dsn)


async def test_a_delayed_run_is_cancelled_before_its_time(dsn: str) -> None:
    async with serving(dsn, steps):
        handle = await steps.options(delay="1h").start()
        await handle.cancel("not needed")
        with pytest.raises(RunCancelled, match="not needed"):
            await handle.result("10s")
        assert begun == []
    await clean(dsn)


async def test_a_run_that_has_not_begun_in_time_fails_and_one_that_has_goes_on(dsn: str) -> None:
    async with watching(dsn) as client:
        late = await steps.options(start_within="30m").start()
        await let_time_pass(client)
        with pytest.raises(RunExpired, match="did not begin"):
            await late.result("10s")
        client.store.shift_clock(0.0)
    async with serving(dsn, steps) as client:
        handle = await steps.options(start_within="30m").start()
        await until(lambda: has(handle, "TasksSucceeded"))
        await let_time_pass(client)
        await go.send(handle.id, 1)
        assert await handle.result("3m") == 2
        client.store.shift_clock(0.0)
    await clean(dsn)


async def test_no_engine_begins_a_run_that_has_expired(dsn: str) -> None:
    async with watching(dsn):
        handle = await steps.options(start_within="10m").start()
    await query(dsn, "update perdure.run_queue set expires_at = now() - interval '1 second'")
    async with serving(dsn, steps) as client:
        found = await client.get(handle.id)
        with pytest.raises(RunExpired):
            await found.result("10s")
        assert begun == []
    await clean(dsn)


# -- families ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "ends"), [("cancel", "run_cancelled"), ("terminate", "run_terminated"), ("abandon", "")]
)
@pytest.mark.parametrize("way", ["success", "terminate"])
async def test_children_end_by_their_policy_when_their_parent_has(dsn: str, policy: str, ends: str, way: str) -> None:
    async with serving(dsn, family, child) as client:
        parent = await family.start(policy)
        last = await child_of(dsn, client)
        if way == "success":
            await go.send(parent.id, 1)
            assert await parent.result("3m") == 1
        else:
            await parent.terminate("enough")
        if ends:
            await until(lambda: is_over(last), within_s=2.0)
            with pytest.raises(RunCancelled, match="its parent has ended") as error:
                await last.result("5s")
            assert error.value.failure.code == ends
        else:
            await turns(30)
            assert await status(last) == "running"
            await go.send(last.id, 5)
            assert await last.result("3m") == 5
    await clean(dsn)


async def test_the_cancellation_of_a_parent_leaves_an_abandoned_child_alone(dsn: str) -> None:
    async with serving(dsn, waits_for_child, child) as client:
        parent = await waits_for_child.start("abandon")
        last = await child_of(dsn, client)
        await parent.cancel("enough")
        with pytest.raises(RunCancelled):
            await parent.result("10s")
        await go.send(last.id, 5)
        assert await last.result("3m") == 5
    await clean(dsn)


async def test_a_detached_child_is_on_its_own(dsn: str) -> None:
    async with serving(dsn, detacher, child) as client:
        parent = await detacher.start()
        assert await parent.result("3m") == "done"
        last = await client.get("key:control-detached")
        (row,) = await query(dsn, "select parent_id, parent_seq from perdure.run_queue where run_id = $1", last.id)
        assert (ids.text(row["parent_id"].bytes), row["parent_seq"]) == (parent.id, None)
        assert await status(last) == "running"
        page = await backend().call(runs.CHILDREN, runs.ListChildren(parent.id))
        assert [ids.text(i.run_id) for i in page.items] == [last.id]
        await go.send(last.id, 5)
        assert await last.result("3m") == 5
        assert not [r for r in await parent.history() if isinstance(r.event, ev.ChildSucceeded)]
        assert (await parent.describe()).status == RunStatus.SUCCESS
    await clean(dsn)
