"""A fork goes on from the middle of another run, by itself, and leaves the other run alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from perdure import Approval, Handle, Perdure, Promise, Retry, State, TestEnv, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api import repairs
from perdure.core.api.repairs import ForkRun
from perdure.core.retry import TaskOptions
from perdure.core.run_fork import ForkSpec, fork
from perdure.errors import InvalidInput, RunFailed, TaskFailed
from perdure.store.verify import verify
from tests.fakes.waiting import until

executed: Counter[str] = Counter()
broken: set[str] = set()
stage = State("fork_stage", "")
given = Promise("fork_given", str)
pause = wf.sleep
ok = Approval("fork_ok", timeout="1h")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    executed.clear()
    broken.clear()
    yield


@task(name="fork_do", retry=Retry(1))
async def do(name: str) -> str:
    executed[name] += 1
    if name in broken:
        raise ValueError(f"{name} is broken")
    return name.upper()


@task(name="fork_charge", retry=Retry(1))
async def charge(amount: int) -> dict[str, Any]:
    executed["charge"] += 1
    raise ValueError("the card was declined")


@workflow(name="fork_order")
async def order(amount: int) -> dict[str, Any]:
    first = await do("first")
    stage.set("charging")
    paid = await charge(amount)
    stage.set("charged")
    return {"first": first, "paid": paid, "last": await do("last")}


@workflow(name="fork_identity")
async def identity() -> list[str]:
    number = wf.uuid()
    a = await do(f"{wf.run_id()} {number}")
    b = await do(f"second {a.lower()}")
    return [a, b, str(number), wf.run_id()]


@workflow(name="fork_child")
async def child(name: str) -> str:
    return f"{await do(name)} {await given.wait()}"


@workflow(name="fork_parent")
async def parent() -> str:
    done = await do("before")
    return f"{done} {await child('child')}"


@workflow(name="fork_spread")
async def spread(n: int) -> list[str]:
    parts = await asyncio.gather(*(do(f"part {i}") for i in range(n)), return_exceptions=True)
    return [str(p) for p in parts] + [await do("last")]


@workflow(name="fork_asks")
async def asks() -> str:
    await do("before")
    answer = await ok.wait()
    await pause("10m")
    return "answered" if answer is None else "no"


@workflow(name="fork_recovers")
async def recovers() -> str:
    try:
        return await do("preferred")
    except TaskFailed:
        return await do("substitute")


async def clean(dsn: str) -> None:
    tallies = await verify(dsn)
    assert {t.number: [e.what for e in t.examples] for t in tallies if t.violations} == {}


async def events(handle: Handle[Any]) -> list[ev.Event]:
    return [r.event for r in await handle.history()]


async def number_of(handle: Handle[Any], kind: type, nth: int = 1) -> int:
    """Number of the nth event of a kind."""
    return [r.seq for r in await handle.history() if isinstance(r.event, kind)][nth - 1]


async def failed(handle: Handle[Any], match: str) -> None:
    with pytest.raises(RunFailed, match=match):
        await handle.result("3m")


async def test_a_fork_with_an_edited_result_succeeds_where_the_original_failed(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(order, 5)
        await failed(handle, "declined")
        before = await handle.history()
        at = await number_of(handle, ev.TaskFailed)
        forked = await handle.fork(at, {"fork_charge": {"paid": 5}})
        assert await forked.result("3m") == {"first": "FIRST", "paid": {"paid": 5}, "last": "LAST"}
        assert forked.id != handle.id
        assert executed == {"first": 1, "charge": 1, "last": 1}, "what was copied is not executed again"
        assert await handle.history() == before
        assert await handle.status() == "failed"
        assert await stage.read(forked.id) == "charged"
        started, marker = (
            (await events(forked))[0],
            next(e for e in await events(forked) if isinstance(e, ev.RunForked)),
        )
        assert isinstance(started, ev.RunStarted)
        assert (started.lineage, started.forked_at) == ([ids.parse(handle.id)], at)
        assert (ids.text(marker.run_id), marker.at, marker.edited, marker.by) == (handle.id, at, ["task 1"], "embedded")
    await clean(dsn)


async def test_a_fork_of_the_end_of_a_run_is_made_before_it_was_closed(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(order, 5)
        await failed(handle, "declined")
        last = (await handle.history())[-1].seq
        for at in range(1, last + 1):
            forked = await handle.fork(at)
            await failed(forked, "declined")
        edited = await handle.fork(last, {"1": {}})
        assert (await edited.result("3m"))["paid"] == {}
    await clean(dsn)


async def test_a_fork_repeats_identity_and_randomness(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(identity)
        first, second, number, _ = await handle.result("3m")
        forked = await handle.fork(await number_of(handle, ev.TasksSucceeded, 2))
        assert await forked.result("3m") == [first, second, number, forked.id]
        again = await forked.fork(await number_of(forked, ev.RunForked))
        assert await again.result("3m") == [first, second, number, again.id]
        assert sum(executed.values()) == 2
        assert (await events(again))[0].lineage == [ids.parse(handle.id), ids.parse(forked.id)]  # type: ignore[union-attr]
    await clean(dsn)


async def test_a_fork_has_children_of_its_own(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(parent)
        at = await until(lambda: _started_child(handle))
        forked = await handle.fork(at)
        other = await until(lambda: _child_of(forked))
        mine = await _child_of(handle)
        assert mine != other
        await given.resolve(ids.text(other), "fork")
        assert await forked.result("3m") == "BEFORE CHILD fork"
        assert await handle.status() == "running"
        await given.resolve(ids.text(mine or b""), "original")
        assert await handle.result("3m") == "BEFORE CHILD original"
        assert executed == {"before": 1, "child": 2}
        ended = await handle.fork(await number_of(handle, ev.ChildSucceeded))
        assert await ended.result("3m") == "BEFORE CHILD original"
        assert await _child_of(ended) == mine, "a child that had ended keeps its record"
        edited = await handle.fork(await number_of(handle, ev.ChildStarted), {"child:0": "by hand"})
        assert await edited.result("3m") == "BEFORE by hand"
        assert executed == {"before": 1, "child": 2}
    await clean(dsn)


async def _started_child(handle: Handle[Any]) -> int:
    return next((r.seq for r in await handle.history() if isinstance(r.event, ev.ChildStarted)), 0)


async def _child_of(handle: Handle[Any]) -> bytes | None:
    return next((e.run_id for e in await events(handle) if isinstance(e, ev.ChildStarted)), None)


async def test_results_of_a_spread_stay_and_what_followed_an_edited_one_is_done_again(dsn: str) -> None:
    broken.update({"part 1"})
    async with Perdure(dsn) as client:
        handle = await client.start(spread, 4)
        assert "part 1 is broken" in (await handle.result("3m"))[1]
        last = (await handle.history())[-1].seq
        forked = await handle.fork(last, {"1": "MENDED"})
        assert await forked.result("3m") == ["PART 0", "MENDED", "PART 2", "PART 3", "LAST"]
        assert executed == {"part 0": 1, "part 1": 1, "part 2": 1, "part 3": 1, "last": 2}
    await clean(dsn)


async def test_a_step_that_has_not_ended_gets_its_result(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(order, 1)
        await failed(handle, "declined")
        scheduled = await number_of(handle, ev.TasksScheduled, 2)
        forked = await handle.fork(scheduled, {"fork_charge": {"by": "hand"}})
        assert (await forked.result("3m"))["paid"] == {"by": "hand"}
        assert executed["charge"] == 1
    await clean(dsn)


async def test_tasks_that_were_under_way_run_in_the_fork_too(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(order, 1)
        await failed(handle, "declined")
        forked = await handle.fork(await number_of(handle, ev.TasksScheduled, 2))
        await failed(forked, "declined")
        assert executed["charge"] == 2
    await clean(dsn)


async def test_timers_and_approvals_have_as_much_time_as_they_had_left() -> None:
    async with TestEnv() as env:
        handle = await env.start(asks)
        asked = await until(lambda: _number(handle, ev.PromiseCreated))
        await env.advance("50m")
        forked = await handle.fork(asked)
        await env.advance("20m")
        await failed(handle, "(?i)time")
        assert await forked.status() == "running", "an hour from the fork on, less what had passed at the event"
        await ok.approve(forked.id)
        slept = await until(lambda: _number(forked, ev.TimerStarted, 2))
        await env.advance("5m")
        again = await forked.fork(slept)
        await env.advance("6m")
        assert await forked.result("3m") == "answered"
        assert await again.status() == "running"
        await env.advance("5m")
        assert await again.result("3m") == "answered"


async def _number(handle: Handle[Any], kind: type, nth: int = 1) -> int:
    found = [r.seq for r in await handle.history() if isinstance(r.event, kind)]
    return found[nth - 1] if len(found) >= nth else 0


async def test_the_copies_are_marked_and_the_steps_are_checked(dsn: str) -> None:
    broken.add("preferred")
    async with Perdure(dsn) as client:
        handle = await client.start(recovers)
        assert await handle.result("3m") == "SUBSTITUTE"
        forked = await handle.fork(await number_of(handle, ev.TaskFailed))
        assert await forked.result("3m") == "SUBSTITUTE"
        connection = await asyncpg.connect(dsn)
        try:
            rows = await connection.fetch(
                "select seq, status, copied from perdure.task where run_id = $1 order by seq", forked.id
            )
        finally:
            await connection.close()
        assert [tuple(r) for r in rows] == [(0, "failed", True), (1, "success", False)]
        for at, steps, match in (
            (99, {}, "events 1 to"),
            (1, {"0": 1}, "no step '0'"),
            (6, {"nothing": 1}, "no step 'nothing'"),
            (6, {"fork_do": 1}, "2 tasks are called 'fork_do'; give a number: 0, 1"),
            (6, {"child:3": 1}, "no child 3"),
        ):
            with pytest.raises(InvalidInput, match=match):
                await handle.fork(at, steps)
    await clean(dsn)


async def test_a_repeated_fork_is_the_first_one(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(recovers)
        await handle.result("3m")
        wanted = ForkRun(run=handle.id, at=2, idempotency_key="twice")
        one = await client._backend.call(repairs.FORK, wanted)
        two = await client._backend.call(repairs.FORK, wanted)
        assert (one.run_id, one.is_new, two.is_new) == (two.run_id, True, False)
    await clean(dsn)


async def test_a_fork_that_fails_can_be_retried(dsn: str) -> None:
    broken.add("last")
    async with Perdure(dsn) as client:
        handle = await client.start(order, 1)
        await failed(handle, "declined")
        forked = await handle.fork(await number_of(handle, ev.TaskFailed), {"fork_charge": {}})
        await failed(forked, "last is broken")
        broken.clear()
        await forked.retry()
        assert (await forked.result("3m"))["last"] == "LAST"
        assert executed["first"] == executed["charge"] == 1
    await clean(dsn)


async def test_a_rerun_begins_anew_with_the_same_or_an_edited_input(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(order, 5)
        await failed(handle, "declined")
        again = await handle.rerun({"amount": 7})
        await failed(again, "declined")
        assert executed["first"] == 2
        started, first = (await events(again))[0], (await events(handle))[0]
        assert isinstance(started, ev.RunStarted) and isinstance(first, ev.RunStarted)
        assert (started.rerun_of, first.rerun_of) == (ids.parse(handle.id), b"")
        scheduled = [e for e in await events(again) if isinstance(e, ev.TasksScheduled)]
        assert b"7" in scheduled[1].inputs[0]
        with pytest.raises(InvalidInput, match="nothing at 'amount.x'"):
            await handle.rerun({"amount.x": 7})
    await clean(dsn)


def test_a_fork_of_a_run_that_changed_its_version_has_one_of_its_own() -> None:
    """What is copied says nothing of versions; the start of the fork does, and its row agrees."""
    started = ev.RunStarted("w", "v1", b"{}", pinned=True, start_at_us=5, expires_us=9)
    scheduled = ev.TasksScheduled(0, "t", "default", [b"{}"], TaskOptions())
    history = [
        ev.Recorded(n, n * 100, e)
        for n, e in enumerate(
            (started, scheduled, ev.VersionChanged("v2", "v1", "ada"), ev.TasksSucceeded([0], [b"1"])), 1
        )
    ]
    run_id = ids.run_id(1, 0, 1)
    same = fork(history, ForkSpec(run_id=run_id, at=4, now_us=1_000))
    other = fork(history, ForkSpec(run_id=run_id, at=4, now_us=1_000, version="v3"))
    for made, version in ((same, "v2"), (other, "v3")):
        first = made.records[0].event
        assert isinstance(first, ev.RunStarted)
        assert (first.version, first.pinned, first.start_at_us, first.expires_us) == (version, True, 0, 0)
        assert (made.state.version, made.state.pinned) == (version, True)
        assert [type(r.event).__name__ for r in made.records] == ["RunStarted", "TasksScheduled", "TasksSucceeded"]
