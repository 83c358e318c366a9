"""Ten failures that earlier systems of this kind documented. Each test would catch its failure here."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from harness.fleet import Fleet, at_rest, count

import perdure
from perdure import EngineSettings, Handle, Perdure, Signal, State, task, wf, workflow
from perdure.core import ids
from perdure.core.events import SignalReceived, TasksScheduled
from perdure.core.messages import SignalMessage
from perdure.core.placement import Placement
from perdure.engine.commits.policy import CommitPolicy
from perdure.errors import Conflict
from perdure.store.queries import fetch
from perdure.wire.codec import decode_events, encode_message
from tests.fakes.waiting import busy, busy_thread, until

FORGETFUL = EngineSettings(
    placement=Placement(idle_s=0.0, near_s=0.0), heartbeat_s=1.0, commit=CommitPolicy(lazy_us=10_000)
)
"""Runs leave memory as soon as they wait."""
dsn_for_tasks = ""

IDLE_SHARE_MAX = 0.03
"""Measured 0.016 to 0.020: about twenty statements a second."""


@task(name="documented_add")
async def add(n: int) -> int:
    return n + 1


@task(name="documented_nap")
async def nap(seconds: float) -> None:
    await busy(seconds)


@task(name="documented_block")
def block(seconds: float) -> None:
    busy_thread(seconds)


@task(name="documented_look", queue="documented_elsewhere")
async def look(n: int) -> bool:
    """Whether this task's scheduling is on record while it runs."""
    me = perdure.attempt()
    connection = await asyncpg.connect(dsn_for_tasks)
    try:
        rows = await connection.fetch("select body from perdure.history where run_id = $1", me.run_id)
    finally:
        await connection.close()
    scheduled = [e for r in rows for e in decode_events(r["body"]) if isinstance(e, TasksScheduled)]
    return any(e.first <= me.seq < e.first + len(e.inputs) for e in scheduled)


word = Signal("documented_word", int)
heard = State("documented_heard", 0)


@workflow(name="documented_five")
async def five() -> list[int]:
    return list(await asyncio.gather(*(add(i) for i in range(5))))


@workflow(name="documented_listener")
async def listener(words: int, pause_s: float) -> list[int]:
    await nap(pause_s)
    got = []
    for _ in range(words):
        got.append(await word.next())
        heard.set(len(got))
        if pause_s:
            await add(len(got))
    return got


@workflow(name="documented_looks")
async def looks(width: int) -> list[bool]:
    return await wf.map(look, range(width))


@workflow(name="documented_wide")
async def wide(width: int) -> int:
    return len(await wf.map(add, range(width)))


@workflow(name="documented_naps")
async def naps(width: int, seconds: float) -> None:
    await wf.map(nap, [seconds] * width)


@workflow(name="documented_blocks")
async def blocks(width: int, seconds: float) -> None:
    await wf.map(block, [seconds] * width)


async def _progress(handle: Handle[Any], wanted: int) -> None:
    async def is_heard() -> bool:
        return await heard.read(handle.id) >= wanted

    await until(is_heard, within_s=10)


async def test_five_parallel_tasks_that_end_at_once_do_not_race_for_a_sequence_number(dsn: str) -> None:
    """1. Concurrent completions raced on the sequence number: five parallel tasks hung."""
    async with Perdure(dsn, slots=5), Perdure(dsn, slots=5) as client:
        handles = await asyncio.gather(*(client.start(five) for _ in range(60)))
        for handle in handles:
            assert await handle.result(timeout="20s") == [1, 2, 3, 4, 5]
            history = await handle.history()
            assert [r.seq for r in history] == list(range(1, len(history) + 1))


async def test_a_message_that_arrives_while_the_run_is_busy_is_not_lost(dsn: str) -> None:
    """2. A resume that arrived while the run was still RUNNING was lost. Here: while a task runs, and around every eviction."""
    async with Perdure(dsn, settings=FORGETFUL) as client:
        occupied = await client.start(listener, 1, 0.3)
        await word.send(occupied.id, 7)
        with pytest.raises(Conflict, match="neither paused nor stuck"):
            await occupied.resume()
        assert await occupied.result(timeout="10s") == [7]
        forgetful = await client.start(listener, 40, 0.0)
        for n in range(40):
            await word.send(forgetful.id, n)
            await asyncio.sleep(0.037 if n % 3 else 0.0)
            if n % 10 == 9 and n < 39:  # at times long enough to be forgotten
                before = client.engine.counters.runs_evicted
                await until(lambda before=before: client.engine.counters.runs_evicted > before, within_s=10)  # type: ignore[misc]
        assert await forgetful.result(timeout="20s") == list(range(40))


async def test_a_task_is_not_visible_to_other_engines_before_its_scheduling_is_on_record(dsn: str) -> None:
    """3. A task became visible before its scheduling event."""
    global dsn_for_tasks
    dsn_for_tasks = dsn
    async with Perdure(dsn, queues=["none"]) as client, Perdure(dsn, queues=["documented_elsewhere"], slots=10):
        handles = await asyncio.gather(*(client.start(looks, 4) for _ in range(20)))
        for handle in handles:
            assert await handle.result(timeout="30s") == [True] * 4


@pytest.mark.usefixtures("processes")
async def test_an_idle_engine_does_not_burn_a_quarter_of_a_core(dsn: str, tmp_path: Path) -> None:
    """4. An idle loop without a wait burned a quarter of a core."""
    with Fleet(tmp_path, dsn) as fleet:
        engine = fleet.launch(target=20, lease=15.0)
        await until(
            lambda: engine.counters.get("runs_ended", 0) >= 20 and not engine.counters["runs"], "it has worked", 40
        )
        await at_rest(dsn, 20)
        process = psutil.Process(engine.process.pid)
        shares: list[float] = []
        # Others on the machine make its work dearer, never cheaper.
        while len(shares) < 3 and min(shares, default=1.0) >= IDLE_SHARE_MAX:
            before, began = process.cpu_times(), time.monotonic()
            await busy(5.0)
            after, elapsed = process.cpu_times(), time.monotonic() - began
            shares.append((after.user - before.user + after.system - before.system) / elapsed)
        print(f"\nidle engine: {min(shares):.2%} of a core")
        assert min(shares) < IDLE_SHARE_MAX


async def test_one_event_does_not_wake_every_engine(dsn: str) -> None:
    """5. A broadcast wake-up stampeded every worker."""
    async with Perdure(dsn) as one, Perdure(dsn) as two, Perdure(dsn) as three, Perdure(dsn, worker=False) as client:
        bystanders = [two.engine.counters, three.engine.counters]
        one.engine.session.others = two.engine.session.others = three.engine.session.others = (
            client.engine.session.others
        ) = 3
        before, began = [c.polls for c in bystanders], time.monotonic()
        events = 0
        for _ in range(100):
            handle = await one.start(five)
            await handle.result(timeout="10s")
            events += len(await handle.history())
        elapsed = time.monotonic() - began
        for counters, polls in zip(bystanders, before, strict=True):
            assert counters.polls - polls < 5 + 2 * elapsed, f"{events} events elsewhere"
        everybody = [one.engine.counters, *bystanders]
        before = [c.polls for c in everybody]
        handles = await asyncio.gather(*(client.start(five) for _ in range(300)))
        await asyncio.gather(*(h.result(timeout="30s") for h in handles))
        polls = [c.polls - b for c, b in zip(everybody, before, strict=True)]
        assert sum(polls) < 300, f"300 starts for anybody, and each engine asked {polls} times"


@pytest.mark.keep
@pytest.mark.usefixtures("processes")
async def test_the_runs_of_a_killed_engine_are_taken_over_in_time(dsn: str, tmp_path: Path) -> None:
    """6. Reclaiming existed but was never called."""
    lease_s = 2.0
    with Fleet(tmp_path, dsn) as fleet:
        heir = fleet.launch(lease=lease_s)
        await until(lambda: heir.counters, "the heir is up", 20)
        victim = fleet.launch(target=40, lease=lease_s, shapes="6", idle=60.0)
        await until(lambda: victim.counters.get("runs", 0) >= 30, "it holds runs", 30)
        victim.kill()
        session = await count(dsn, "select max(id) from perdure.engine_session")
        orphans = f"select count(*) from perdure.run_queue where owner = {session}"
        assert await count(dsn, orphans) > 0

        async def taken_over() -> bool:
            return not await count(dsn, orphans)

        await until(taken_over, "take-over within the lease and two seconds", lease_s + 2.0)
        await until(lambda: heir.counters["sessions_reaped"] == 1, "the heir says so", 5)


async def test_the_defaults_run_many_tasks_side_by_side(dsn: str) -> None:
    """7. A default concurrency of 1 made ten-minute delays."""
    async with Perdure(dsn) as client:
        began = time.monotonic()
        await (await client.start(naps, 50, 0.3)).result(timeout="20s")
        assert time.monotonic() - began < 3.0, "50 tasks of 0.3 s"
        began = time.monotonic()
        threads = min(6, (os.cpu_count() or 1) + 4)
        await (await client.start(blocks, threads, 0.5)).result(timeout="20s")
        assert time.monotonic() - began < 0.5 * threads / 2, f"{threads} blocking tasks of 0.5 s"


async def test_signals_keep_their_order_through_eviction_and_replay(dsn: str) -> None:
    """8. Signals replayed out of causal order."""
    async with Perdure(dsn, settings=FORGETFUL) as client:
        handle = await client.start(listener, 30, 0.01)
        for n in range(12):
            await word.send(handle.id, n)
        await _progress(handle, 5)
    async with Perdure(dsn, settings=FORGETFUL) as client:
        handle = await client.get(handle.id, workflow=listener)
        for n in range(12, 30):
            await word.send(handle.id, n)
        assert await handle.result(timeout="20s") == list(range(30))
        values = [int(r.event.value) for r in await handle.history() if isinstance(r.event, SignalReceived)]
        assert values == list(range(30))


async def test_rows_committed_out_of_id_order_are_all_found(dsn: str) -> None:
    """9. A cursor over time-ordered ids stranded rows, because id order is not commit order (2 of 900 runs hung)."""
    async with Perdure(dsn) as client:
        handle = await client.start(listener, 2, 0.0)
        late = await asyncpg.connect(dsn)
        try:
            transaction = late.transaction()
            await transaction.start()
            body = encode_message(SignalMessage(word.name, b"1"))
            await fetch(late, "send_message", run_id=handle.id, ns=1, body=body, kind="signal", name=word.name)
            await word.send(handle.id, 2)
            await _progress(handle, 1)
            await transaction.commit()
        finally:
            await late.close()
        assert await handle.result(timeout="10s") == [2, 1]
        async with Perdure(dsn, worker=False) as outside:
            hour_ago_ms = outside.engine.clock.now_us() // 1000 - 3_600_000
            newest = await outside.start(five)
            outside.engine.new_run_id = lambda: ids.run_id(hour_ago_ms, 0, 1)  # type: ignore[method-assign]
            oldest = await outside.start(five)
            assert oldest.id < newest.id
            for one in (newest, oldest):
                assert await one.result(timeout="10s") == [1, 2, 3, 4, 5]


async def test_a_commit_takes_the_same_few_statements_however_many_rows_it_has(dsn: str) -> None:
    """10. "Batch update" was one UPDATE per row."""
    async with Perdure(dsn) as client:
        await (await client.start(wide, 1)).result(timeout="10s")
        statements: list[str] = []
        client.store._committing.connection.add_query_logger(lambda record: statements.append(record.query))
        counters = client.engine.counters
        commits, rows = counters.commits, counters.commit_rows
        await (await client.start(wide, 2_000)).result(timeout="30s")
        commits, rows = counters.commits - commits, counters.commit_rows - rows
        print(f"\n{rows} rows, {commits} commits, {len(statements)} statements")
        assert rows > 2_000
        assert rows / commits > 20, "the fan-out was not written in batches, so this says nothing"
        assert commits <= len(statements) <= 4 * commits, "begin, two statements, commit"
