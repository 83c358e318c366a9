"""A failed run goes on: what failed runs again, what succeeded keeps its result."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator

import asyncpg
import pytest

from perdure import Handle, Perdure, Promise, Retry, Signal, State, SyncPerdure, TestEnv, task, wf, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.engine.settings import EngineSettings
from perdure.errors import ChildFailed, Conflict, NotFound, RunFailed, TaskFailed
from perdure.store.postgres import PostgresStore
from perdure.store.verify import verify
from tests.fakes.waiting import busy_thread, forever, until

broken: set[str] = set()
executed: Counter[str] = Counter()
stage = State("stage", "")
word = Signal("word", str)
answer = Promise("answer", str)
second_began = threading.Event()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    broken.clear()
    executed.clear()
    second_began.clear()
    yield


@task(retry=Retry(1))
async def do(name: str) -> str:
    executed[name] += 1
    if name in broken:
        raise ValueError(f"{name} is broken")
    return name.upper()


@task(retry=Retry(1))
async def slow(name: str) -> str:
    executed[name] += 1
    if executed[name] == 1:
        await forever()
    return name.upper()


@task(at_most_once=True)
async def once(name: str) -> str:
    executed[name] += 1
    if name in broken:
        raise ValueError(f"{name} is broken")
    return name.upper()


@workflow
async def pipeline(n: int) -> list[str]:
    first = await do("first")
    stage.set("spread")
    spread = await asyncio.gather(*(do(f"part {i}") for i in range(n)))
    last = await do("last")
    stage.set("done")
    return [first, *spread, last]


@workflow
async def naps_after(x: int) -> str:
    await do("first")
    if "the code" in broken:
        raise ValueError("a mistake in the code")
    await wf.sleep("10m")
    return "slept"


@workflow
async def mapped(n: int) -> list[str]:
    return await wf.map(do, [f"item {i}" for i in range(n)])


@workflow
async def tolerant(n: int) -> int:
    results = await wf.map(do, [f"item {i}" for i in range(n)], on_error="collect")
    bad = [r for r in results if isinstance(r, TaskFailed)]
    if bad:
        raise RuntimeError(f"{len(bad)} of {n} failed")
    return len(results)


@workflow
async def saga(amount: int) -> str:
    booked = await do("book")
    stage.set("booked")
    try:
        await do("charge")
    except TaskFailed:
        stage.set("undoing")
        await do("unbook")
        await do("apologise")
        raise
    return booked + " " + await do("thank")


@workflow
async def resourceful(x: int) -> str:
    try:
        a = await do("preferred")
    except TaskFailed:
        a = await do("substitute")
    b = await do("rest")
    return f"{a} {b}"


@workflow
async def child(name: str) -> str:
    await do(f"{name} begins")
    return await do(f"{name} ends")


@workflow
async def parent(x: int) -> str:
    good = await child("good")
    try:
        return good + " " + await child.options(key="the-bad-one")("bad")
    except ChildFailed as e:
        raise RuntimeError("no child, no parent") from e


@workflow
async def siblings(x: int) -> list[str]:
    """One fails while the other one waits; the failure of the run stops both."""
    return await asyncio.gather(child("bad"), patient("slow"))


@workflow
async def patient(name: str) -> str:
    return await slow(name)


@workflow
async def hurried(x: int) -> str:
    async with asyncio.timeout(1.0):
        return await slow("slow")


@task(retry=Retry(1))
def blocking() -> str:
    """The first attempt ends while the second one runs."""
    executed["blocking"] += 1
    mine = executed["blocking"]
    if mine == 1:
        second_began.wait(60)
    else:
        second_began.set()
        busy_thread(0.5)
    return str(mine)


@task(retry=Retry(1))
async def swift() -> str:
    await until(lambda: executed["blocking"])
    if "swift" in broken:
        raise RuntimeError("swift is broken")
    return "SWIFT"


@workflow
async def beside(x: int) -> list[str]:
    return await asyncio.gather(blocking(), swift())


@workflow
async def careful(x: int) -> str:
    return await once("once")


@workflow
async def waiting(x: int) -> str:
    said = await word.next()
    await do("work")
    given = await answer.wait()
    return f"{said} {given}"


def rolled() -> int:
    executed["roll"] += 1
    if "roll" in broken:
        raise ValueError("no dice")
    return 4


@workflow
async def rolling(x: int) -> int:
    await do("first")
    return await wf.run("roll", rolled)


@workflow
async def guarded(x: int) -> str:
    """A parallel branch with a timeout of its own is under way when the other one fails."""

    async def limited() -> str:
        await do("quick")
        async with asyncio.timeout(30):
            return await do("limited")

    a, b = await asyncio.gather(limited(), do("fragile"))
    return f"{a} {b}"


async def clean(dsn: str) -> None:
    """After upkeep: mail that arrived while its run was ending lies there until it is five seconds old."""
    store = PostgresStore(dsn)
    await store.open()
    connection = await asyncpg.connect(dsn)
    try:

        async def is_swept() -> bool:
            await store.sweep()
            return not await connection.fetchval("select exists(select from perdure.inbox)")

        await until(is_swept, within_s=20)
    finally:
        await connection.close()
        await store.close()
    tallies = await verify(dsn, at_rest=True)
    assert {t.number: t.examples for t in tallies if t.violations} == {}


async def kinds(handle: Handle[object]) -> list[str]:
    return [type(r.event).__name__ for r in await handle.history()]


async def test_a_failed_task_runs_again_and_nothing_else_does(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("part 2")
        handle = await client.start(pipeline, 4)
        with pytest.raises(RunFailed, match="part 2 is broken"):
            await handle.result("3m")
        assert await handle.status() == "failed"
        broken.clear()
        await handle.retry()
        assert await handle.result("3m") == ["FIRST", "PART 0", "PART 1", "PART 2", "PART 3", "LAST"]
        assert await handle.status() == "success"
        assert await stage.read(handle.id) == "done"
        assert executed["first"] == executed["last"] == 1
        assert executed["part 2"] == 2
        assert (await kinds(handle)).count("RunRetried") == 1
    await clean(dsn)


async def failed(client: Perdure, handle: Handle[object], match: str) -> None:
    with pytest.raises(RunFailed, match=match):
        try:
            await handle.result("3m")
        except TimeoutError:
            print(f"executed {dict(executed)}, in flight {client.engine.attempts.flights}, {client.engine.counters}")
            print(await handle.describe(), *await handle.history(), sep="\n")
            raise


async def test_only_the_failed_items_of_a_fan_out_run_again(dsn: str) -> None:
    async with Perdure(dsn) as client:
        for flow, match in ((mapped, "item 3 is broken"), (tolerant, "1 of 6 failed")):
            executed.clear()
            broken.add("item 3")
            handle = await client.start(flow, 6)  # type: ignore[arg-type]
            await failed(client, handle, match)
            ended = [r.event for r in await handle.history() if isinstance(r.event, ev.TasksSucceeded)]
            kept = {f"item {seq}" for e in ended for seq in e.seqs}
            broken.clear()
            await handle.retry()
            await handle.result("3m")
            assert {n for n, times in executed.items() if times == 1} >= kept
            assert executed["item 3"] == 2
    await clean(dsn)


async def test_what_a_compensation_did_is_taken_back_and_its_rows_are_replaced(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("charge")
        handle = await client.start(saga, 5)
        await failed(client, handle, "charge is broken")
        assert await stage.read(handle.id) == "undoing"
        broken.clear()
        await handle.retry()
        assert await handle.result("3m") == "BOOK THANK"
        assert await stage.read(handle.id) == "booked", "what was set while undoing never happened"
        assert executed == {"book": 1, "charge": 2, "unbook": 1, "apologise": 1, "thank": 1}
        retried = next(r.event for r in await handle.history() if isinstance(r.event, ev.RunRetried))
        assert (retried.voided_tasks, retried.voided_children) == ([1], [])
    await clean(dsn)


async def test_a_failure_that_the_code_got_over_stays(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.update({"preferred", "rest"})
        handle = await client.start(resourceful, 1)
        await failed(client, handle, "rest is broken")
        broken.clear()
        await handle.retry()
        assert await handle.result("3m") == "SUBSTITUTE REST"
        assert executed == {"preferred": 1, "substitute": 1, "rest": 2}
    await clean(dsn)


async def test_a_run_may_be_retried_as_often_as_it_fails(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.update({"part 0", "part 1", "last"})
        handle = await client.start(pipeline, 2)
        for repaired in ("part 0", "part 1", "last"):
            await failed(client, handle, "is broken")
            broken.discard(repaired)
            await handle.retry()
        assert await handle.result("3m") == ["FIRST", "PART 0", "PART 1", "LAST"]
        assert executed["first"] == 1
        assert executed["last"] == 2
        assert (await kinds(handle)).count("RunRetried") == 3
        seqs = [r.seq for r in await handle.history()]
        assert seqs == list(range(1, len(seqs) + 1))
    await clean(dsn)


async def test_a_failed_child_is_retried_and_keeps_what_it_did(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("bad ends")
        handle = await client.start(parent, 1)
        await failed(client, handle, "no child, no parent")
        its = (await client.get(key="the-bad-one")).id
        broken.clear()
        await handle.retry()
        assert await handle.result("3m") == "GOOD ENDS BAD ENDS"
        assert executed == {"good begins": 1, "good ends": 1, "bad begins": 1, "bad ends": 2}
        assert (await client.get(key="the-bad-one")).id == its
        assert "RunRetried" in await kinds(await client.get(its))
    await clean(dsn)


async def test_a_parent_takes_up_a_child_that_was_retried_by_itself(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("bad ends")
        handle = await client.start(parent, 1)
        await failed(client, handle, "no child, no parent")
        broken.clear()
        its = await client.get(key="the-bad-one", workflow=child)
        await its.retry()
        assert await its.result("3m") == "BAD ENDS"
        assert await handle.status() == "failed"
        await handle.retry()
        assert await handle.result("3m") == "GOOD ENDS BAD ENDS"
        assert executed["bad ends"] == 2
    await clean(dsn)


async def test_a_child_whose_parent_goes_on_without_it_may_be_retried(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("bad ends")
        handle = await client.start(stoic, 1)
        first = await until(lambda: found(client, "the-lost-one"))
        await failed(client, first, "bad ends is broken")
        broken.clear()
        await first.retry()
        assert await first.result("3m") == "BAD ENDS"
        await word.send(handle.id, "go on")
        assert await handle.result("3m") == "went on without it"
    await clean(dsn)


async def found(client: Perdure, key: str) -> Handle[str] | None:
    try:
        return await client.get(key=key, workflow=child)
    except NotFound:
        return None


@workflow
async def stoic(x: int) -> str:
    try:
        await child.options(key="the-lost-one")("bad")
    except ChildFailed:
        await word.next()
    return "went on without it"


async def test_a_child_that_the_failure_stopped_is_started_anew(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("bad ends")
        handle = await client.start(siblings, 1)
        await failed(client, handle, "bad ends is broken")
        broken.clear()
        executed["slow"] += 1  # the child that waits must not wait the second time, however early it was stopped
        await handle.retry()
        assert await handle.result("3m") == ["BAD ENDS", "SLOW"]
        started = [r.event for r in await handle.history() if isinstance(r.event, ev.ChildStarted)]
        assert [c.seq for c in started] == [0, 1, 1]
        first = await client.get(ids.text(started[1].run_id))

        async def is_stopped() -> bool:
            return await first.status() == "cancelled"

        await until(is_stopped)
    await clean(dsn)


async def test_a_run_whose_time_was_up_has_none_after_a_retry(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(patient.options(timeout="1s"), "slow")
        await failed(client, handle, "did not end before its deadline")
        await handle.retry()
        assert await handle.result("3m") == "SLOW"
        assert executed["slow"] == 2
    await clean(dsn)


async def test_a_step_that_took_too_long_gets_its_time_again(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(hurried, 1)
        await failed(client, handle, "TimeoutError|^$")
        await asyncio.sleep(1.0)  # as long as the step may take: that time does not count
        await handle.retry()
        assert await handle.result("3m") == "SLOW"
    await clean(dsn)


async def test_timers_stand_still_between_failure_and_retry() -> None:
    async with TestEnv() as env:
        broken.add("fragile")
        handle = await env.start(guarded, 1)
        await env.advance("1s")
        assert await handle.status() == "failed"
        await env.advance("3h")
        broken.clear()
        await handle.retry()
        await env.advance("1s")
        assert await handle.result() == "LIMITED FRAGILE"


async def test_a_sleep_that_the_code_reaches_only_after_a_retry_counts_from_the_retry() -> None:
    """The code goes through what it heard an hour ago, and its clock says so; the time at rest is added to what it sets then."""
    async with TestEnv() as env:
        broken.add("the code")
        handle = await env.start(naps_after, 1)
        await env.advance("1s")
        assert await handle.status() == "failed"
        await env.advance("1h")
        broken.clear()
        await handle.retry()
        await env.advance("9m")
        assert await handle.status() == "running"
        await env.advance("2m")
        assert await handle.result() == "slept"


async def test_an_at_most_once_task_runs_once_more(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("once")
        handle = await client.start(careful, 1)
        await failed(client, handle, "once is broken")
        assert executed["once"] == 1
        broken.clear()
        await handle.retry()
        assert await handle.result("3m") == "ONCE"
        assert executed["once"] == 2
    await clean(dsn)


async def test_an_attempt_that_outlives_the_failure_does_not_answer_for_its_successor(dsn: str) -> None:
    """A thread cannot be stopped: it ends while the same task runs again."""
    async with Perdure(dsn) as client:
        broken.add("swift")
        handle = await client.start(beside, 1)
        await failed(client, handle, "swift is broken")
        broken.clear()
        await handle.retry()
        assert await handle.result("3m") == ["2", "SWIFT"]
        assert executed["blocking"] == 2
        assert client.engine.counters.tasks_lost == 0
    await clean(dsn)


async def test_a_side_effect_that_failed_is_executed_again(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("roll")
        handle = await client.start(rolling, 1)
        await failed(client, handle, "no dice")
        broken.clear()
        await handle.retry()
        assert await handle.result("3m") == 4
        assert executed == {"first": 1, "roll": 2}
    await clean(dsn)


async def test_signals_and_promises_survive_a_retry(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("work")
        handle = await client.start(waiting, 1)
        await word.send(handle.id, "hello")
        await failed(client, handle, "work is broken")
        broken.clear()
        await handle.retry()
        await answer.resolve(handle.id, "yes")
        assert await handle.result("3m") == "hello yes"
    await clean(dsn)


async def test_a_bug_is_repaired_and_the_run_goes_on(dsn: str) -> None:
    @workflow(name="buggy")
    async def buggy(x: int) -> str:
        await do("a")
        raise KeyError("typo")

    @workflow(name="buggy")
    async def repaired(x: int) -> str:
        return await do("a") + await do("b")

    async with Perdure(dsn, worker=True) as client:
        handle = await client.start(buggy, 1)
        await failed(client, handle, "typo")
        client.serve(repaired)
        await handle.retry()
        assert await (await client.get(handle.id, workflow=repaired)).result("3m") == "AB"
        assert executed == {"a": 1, "b": 1}
    await clean(dsn)


async def test_only_failed_runs_can_be_retried(dsn: str) -> None:
    async with Perdure(dsn) as client:
        handle = await client.start(waiting, 1)
        with pytest.raises(Conflict, match="is running, only failed runs can be retried"):
            await handle.retry()
        await word.send(handle.id, "x")
        await answer.resolve(handle.id, "y")
        await handle.result("3m")
        with pytest.raises(Conflict, match="is success, only failed runs can be retried"):
            await handle.retry()
        with pytest.raises(NotFound):
            await (await client.get(ids.text(ids.run_id(1, 0, 1)))).retry()
        broken.add("first")
        mine = await client.start(pipeline, 1)
        await failed(client, mine, "first is broken")
        async with Perdure(dsn, settings=EngineSettings(namespace="other")) as stranger:
            with pytest.raises(NotFound):
                await (await stranger.get(mine.id)).retry()


async def test_of_two_retries_at_once_one_wins(dsn: str) -> None:
    async with Perdure(dsn) as one, Perdure(dsn) as other:
        broken.add("first")
        handle = await one.start(pipeline, 1)
        await failed(one, handle, "first is broken")
        broken.clear()
        handles = [await c.get(handle.id) for c in (one, other)] * 4
        answers = await asyncio.gather(*(h.retry() for h in handles), return_exceptions=True)
        assert sorted(type(a).__name__ for a in answers) == ["Conflict"] * 7 + ["NoneType"]
        assert await handle.result("3m") == ["FIRST", "PART 0", "LAST"]
        assert executed["first"] == 2
    await clean(dsn)


async def test_a_history_is_followed_beyond_a_failure_that_was_retried(dsn: str) -> None:
    async with Perdure(dsn) as client:
        broken.add("first")
        handle = await client.start(pipeline, 1)
        await failed(client, handle, "first is broken")
        assert [e.type async for e in handle.events()][-1] == "RunFailed"
        broken.clear()
        await handle.retry()
        assert [e.type async for e in handle.events()][-1] == "RunSucceeded"


async def test_a_retried_run_survives_an_engine_that_leaves(dsn: str) -> None:
    """What is in memory after a retry is nothing that another engine could not read again."""
    broken.update({"charge", "thank"})
    async with Perdure(dsn) as client:
        handle = await client.start(saga, 1)
        await failed(client, handle, "charge is broken")
        broken.discard("charge")
        await handle.retry()
        await failed(client, handle, "thank is broken")
    broken.clear()
    async with Perdure(dsn, worker=False) as client:
        await (await client.get(handle.id)).retry()
    async with Perdure(dsn) as client:
        client.serve(saga)
        assert await (await client.get(handle.id, workflow=saga)).result("3m") == "BOOK THANK"
    assert executed == {"book": 1, "charge": 2, "unbook": 1, "apologise": 1, "thank": 2}
    await clean(dsn)


def test_sync_code_retries_too(dsn: str) -> None:
    with SyncPerdure(dsn) as client:
        broken.add("last")
        handle = client.start(pipeline, 1)
        with pytest.raises(RunFailed, match="last is broken"):
            handle.result("3m")
        broken.clear()
        handle.retry()
        assert handle.result("3m") == ["FIRST", "PART 0", "LAST"]
