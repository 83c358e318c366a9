"""Counters of ended runs: they equal the runs themselves, whatever ends, retries or deletes a run, and however upkeep merges them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Perdure, Promise, Retry, task, wf, workflow
from perdure.core import ids
from perdure.core.durations import us_of
from perdure.core.run_counts import DAY_S, STEP_S, Bins, bins_of, days_until
from perdure.errors import RunFailed
from perdure.store import run_counts
from perdure.store.connections import connect
from perdure.store.queries import fetch_value, queries
from perdure.store.reads import PostgresReads
from tests.store.counted import differences

closed = asyncio.Event()
never = Promise("counted_never", int)


@task(name="counted_step", retry=Retry(1))
async def step(n: int) -> int:
    if n < 0 and not closed.is_set():
        raise ValueError("broken")
    return n


@workflow(name="counted")
async def counted(n: int) -> int:
    return await step(n)


@workflow(name="counted_wait")
async def counted_wait() -> None:
    await never.wait()


@workflow(name="counted_chain")
async def counted_chain(n: int) -> int:
    if n:
        wf.continue_as_new(n - 1)
    return n


@pytest.fixture
async def c(dsn: str) -> AsyncIterator[Any]:
    connection = await connect(dsn)
    yield connection
    await connection.close()


async def totals(c: Any, workflow: str = "") -> tuple[int, int, int]:
    row = await c.fetchrow(
        "select sum(success)::int, sum(failed)::int, sum(cancelled)::int from perdure.run_count where workflow = $1",
        workflow,
    )
    return row[0], row[1], row[2]


async def failed(p: Perdure) -> Any:
    handle = await p.start(counted, -1)
    with pytest.raises(RunFailed):
        await handle.result("3m")
    return handle


async def test_every_way_a_run_ends_is_counted_with_it(dsn: str, c: Any) -> None:
    closed.clear()
    async with Perdure(dsn) as p:
        for n in range(5):
            assert await counted.run(n) == n
        assert await counted_chain.run(2) == 0
        broken = [await failed(p) for _ in range(3)]
        stopped, killed = await p.start(counted_wait), await p.start(counted_wait)
        await stopped.cancel("enough")
        await killed.terminate("enough")
        for handle in (stopped, killed):
            with pytest.raises(Exception, match="enough"):
                await handle.result("3m")
        assert await totals(c) == (8, 3, 2)
        assert await totals(c, "counted") == (5, 3, 0)
        assert await totals(c, "counted_chain") == (3, 0, 0)
        assert await totals(c, "counted_wait") == (0, 0, 2)
        closed.set()
        await broken[0].retry()
        assert await broken[0].result("3m") == -1
        assert await totals(c, "counted") == (6, 2, 0)
        await broken[1].delete()
        assert await totals(c) == (9, 1, 2)
        done = await p.start(counted, 1)
        await done.result("3m")
        await done.delete()
        assert await totals(c) == (9, 1, 2)
    assert await differences(dsn) == []


async def test_a_retry_that_fails_again_counts_once(dsn: str, c: Any) -> None:
    closed.clear()
    async with Perdure(dsn) as p:
        handle = await failed(p)
        for _ in range(3):
            await handle.retry()
            with pytest.raises(RunFailed):
                await handle.result("3m")
        assert await totals(c) == (0, 1, 0)
    assert await differences(dsn) == []


async def test_a_transaction_that_is_undone_counts_nothing(dsn: str, c: Any) -> None:
    async with Perdure(dsn) as p:
        done = await p.start(counted, 1)
        await done.result("3m")
    run_id = ids.parse(done.id)
    low, high = ids.task_range(run_id)
    transaction = c.transaction()
    await transaction.start()
    assert await fetch_value(c, "delete_run", run_id=run_id, ns=1, low=low, high=high) == "deleted"
    await transaction.rollback()
    assert await totals(c) == (1, 0, 0)
    assert await differences(dsn) == []


SEED = """
insert into perdure.run (run_id, ns, workflow, version, status, created_at, finished_at, epoch, events)
select perdure.first_id(at), 1, 'w' || i % 3, 'v', (array['success', 'success', 'failed', 'cancelled'])[1 + i % 4], at,
       at + (i % 50 + 1) * interval '100 milliseconds', 1, 2
  from generate_series(1, $1::int) i, lateral (select $2::timestamptz - i * $3::interval as at) a;
"""
COUNT = """
with written as (
  insert into perdure.run_count (ns, workflow, at, writer, success, failed, cancelled)
  select r.ns, w.name, date_bin('15 minutes', r.created_at, 'epoch'), 1 + abs(hashtext(r.run_id::text)) % 3,
         count(*) filter (where r.status = 'success'), count(*) filter (where r.status = 'failed'), count(*) filter (where r.status = 'cancelled')
    from perdure.run r, lateral (values (r.workflow), ('')) as w(name) group by 1, 2, 3, 4
)
insert into perdure.run_duration (ns, workflow, day, size, writer, n)
select ns, workflow, date_bin('1 day', created_at, 'epoch'), perdure.duration_size(created_at, finished_at), 7, count(*)
  from perdure.run where status = 'success' group by 1, 2, 3, 4;
"""


async def seed(c: Any, runs: int, apart: timedelta, now: datetime | None = None) -> None:
    """Runs that ended, the newest now, and their counters as three connections would have written them."""
    await c.execute("set timezone = 'UTC'")
    raw = await c.fetchval("select now()") if now is None else us_of(now)
    await c.execute(SEED, runs, raw, apart)
    await c.execute(COUNT)


async def test_merging_changes_no_sum_and_leaves_few_rows(dsn: str, c: Any) -> None:
    await seed(c, 4_000, timedelta(minutes=17))
    before = await c.fetchval("select count(*) from perdure.run_count"), await totals(c), await totals(c, "w1")
    assert await run_counts.merge_counts(c) > 0
    after = await c.fetchval("select count(*) from perdure.run_count"), await totals(c), await totals(c, "w1")
    assert after[1:] == before[1:] and after[0] < before[0]
    assert await differences(dsn) == []
    await run_counts.merge_counts(c)  # rounding down may bring a row across the border to the next step
    assert await run_counts.merge_counts(c) == 0
    steps = await c.fetch(
        "select merged_s, min(now() - at) as youngest, max(now() - at) as oldest, count(*) from perdure.run_count group by 1 order by 1"
    )
    assert [row["merged_s"] for row in steps] == [0, STEP_S, 3_600, DAY_S]
    # A run that ends, or is retried, long after its creation.
    await c.execute(
        "insert into perdure.run_count (ns, workflow, at, writer, failed) values (1, '', now() - interval '40 days', 9, -1)"
    )
    assert await run_counts.merge_counts(c) == 1
    assert (await totals(c))[1] == before[1][1] - 1


async def test_counters_that_are_too_old_go(c: Any) -> None:
    await c.execute(
        "insert into perdure.run_count (ns, workflow, at, writer, failed) values "
        "(1, '', now() - interval '402 days', 1, 1), (1, '', now() - interval '398 days', 1, 1)"
    )
    await c.execute(
        "insert into perdure.run_duration (ns, workflow, day, size, writer, n) values "
        "(1, 'w', now() - interval '402 days', 1, 1, 1), (1, 'w', now() - interval '398 days', 1, 1, 1)"
    )
    await run_counts.merge_counts(c)
    assert await totals(c) == (0, 1, 0)
    assert await c.fetchval("select count(*) from perdure.run_duration") == 1


async def test_merging_takes_bounded_batches(c: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_counts, "MERGED_ROWS", 10)
    monkeypatch.setattr(run_counts, "MERGE_ROUNDS", 2)
    await seed(c, 200, timedelta(minutes=20))
    done = await run_counts.merge_counts(c)
    assert 0 < done <= 5 * 10 * 2
    before = await totals(c)
    while await run_counts.merge_counts(c):
        pass
    assert await totals(c) == before


async def test_two_engines_do_not_merge_at_once(dsn: str, c: Any) -> None:
    await seed(c, 200, timedelta(minutes=20))
    other = await connect(dsn)
    try:
        transaction = other.transaction()
        await transaction.start()
        await other.execute("select pg_advisory_xact_lock(hashtext('perdure.run_counts'))")
        assert await run_counts.merge_counts(c) == 0
        await transaction.rollback()
        assert await run_counts.merge_counts(c) > 0
    finally:
        await other.close()


async def test_commits_of_two_connections_never_wait_for_each_other(dsn: str) -> None:
    """Each ends runs of the same workflow within a transaction that stays open."""
    sql = queries()["commit_batch"]
    one, two = await connect(dsn), await connect(dsn)
    try:
        for n, connection in enumerate((one, two)):
            await connection.execute("set lock_timeout = '2s'")
            session = await connection.fetchval(
                "insert into perdure.engine_session (engine, expires_at) values ($1, now() + interval '1 hour') returning id",
                f"e{n}",
            )
            run_id = ids.run_id(1_790_000_000_000, 0, n + 1)
            await connection.execute(
                "insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, owner, epoch) "
                "values ($1, 1, 'w', 'v', 'running', now(), now(), $2, 1)",
                run_id,
                session,
            )
            await connection.execute("begin")
            given: dict[str, Any] = dict.fromkeys(sql.columns, ())
            given |= {"session": session, "number": 1, "closes": [(run_id, "success", 2, None, None, None, b"", False)]}
            await connection.fetch(sql.sql, *sql.bind(given))
        for connection in (one, two):
            await connection.execute("commit")
    finally:
        await one.close()
        await two.close()
    assert await differences(dsn) == []


# -- reads -------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def reads(dsn: str) -> AsyncIterator[PostgresReads]:
    one = PostgresReads(dsn)
    await one.open()
    yield one
    await one.close()


async def test_a_histogram_says_what_the_runs_say(dsn: str, c: Any, reads: PostgresReads) -> None:
    await seed(c, 600, timedelta(minutes=7))
    await c.execute(
        "insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at) "
        "select perdure.first_id(at), 1, 'w1', 'v', case when i % 3 = 0 then 'pending' else 'running' end, at, now() "
        "from generate_series(1, 30) i, lateral (select now() - i * interval '11 minutes' as at) a"
    )
    now_us = await reads.clock_us()
    for merged in (False, True):
        if merged:
            assert await run_counts.merge_counts(c)
        for name in ("", "w1"):
            bins = bins_of(now_us - 24 * 3_600_000_000, now_us, 96, now_us)
            found = await reads.histogram(1, name, bins)
            assert (len(found.bins), found.bin_s, found.capped) == (96, 900, False)
            rows = await c.fetch(
                "select date_bin('15 minutes', created_at, 'epoch') as at, status, count(*) as n from "
                "(select ns, workflow, created_at, status from perdure.run union all "
                "select ns, workflow, created_at, status from perdure.run_queue) r "
                "where created_at >= $1 and created_at < $2 and ($3 = '' or workflow = $3) group by 1, 2",
                bins.from_us,
                bins.to_us,
                name,
            )
            wanted = {(r["at"], r["status"]): r["n"] for r in rows}
            shown = {
                (b.at_us, status): getattr(b, status)
                for b in found.bins
                for status in ("success", "failed", "cancelled", "running", "pending")
                if getattr(b, status)
            }
            assert shown == wanted
            sums = Counter[str]()
            for (_, status), n in wanted.items():
                sums[status] += n
            assert {s: getattr(found.totals, s) for s in sums} == sums and sums["running"] and sums["pending"]


async def test_more_active_runs_than_are_counted_are_said_to_be_more(
    c: Any, reads: PostgresReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_counts, "ACTIVE_RUNS_COUNTED_MAX", 10)
    await c.execute(
        "insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at) "
        "select perdure.first_id(at), 1, 'w', 'v', 'pending', at, now() "
        "from generate_series(1, 30) i, lateral (select now() - i * interval '1 minute' as at) a"
    )
    now_us = await reads.clock_us()
    bins = bins_of(now_us - 3_600_000_000, now_us, 96, now_us)
    for name, shown in (("", 10), ("w", 10), ("other", 0)):
        found = await reads.histogram(1, name, bins)
        assert (found.totals.pending, found.capped) == (shown, True)
    assert (await reads.counts(1)).active == 10 and (await reads.counts(1)).capped
    assert not (await reads.counts(2)).capped


async def test_statistics_of_a_workflow_by_day(c: Any, reads: PostgresReads) -> None:
    now_us = await reads.clock_us()
    days = days_until(now_us, 10)
    await seed(c, 400, timedelta(hours=1))
    await c.execute("delete from perdure.run_duration")
    await c.executemany(
        "insert into perdure.run_duration (ns, workflow, day, size, writer, n) "
        "values (1, 'w1', $1, perdure.duration_size($1::timestamptz, $1::timestamptz + $2::interval), 1, $3)",
        [(days.from_us, timedelta(seconds=2), 60), (days.from_us, timedelta(seconds=40), 40)],
    )
    found = await reads.workflow_stats(1, "w1", days)
    assert len(found.days) == 10
    assert found.days[0].p50_s == pytest.approx(2, rel=0.05) and found.days[0].p95_s == pytest.approx(40, rel=0.05)
    assert found.p50_s == found.days[0].p50_s and found.days[1].p50_s is None
    rows = await c.fetch(
        "select date_bin('1 day', created_at, 'epoch') as at, count(*) as n, count(*) filter (where status = 'success') as success, "
        "count(*) filter (where status = 'failed') as failed from perdure.run where workflow = 'w1' and created_at >= $1 group by 1",
        days.from_us,
    )
    by_day = {r["at"]: (r["n"], r["success"], r["failed"]) for r in rows}
    assert by_day.keys() <= {d.at_us for d in found.days}
    assert [(d.started, d.success, d.failed) for d in found.days] == [
        by_day.get(d.at_us, (0, 0, 0)) for d in found.days
    ]
    good, bad = sum(s for _, s, _ in by_day.values()), sum(f for *_, f in by_day.values())
    assert found.success_rate == pytest.approx(good / (good + bad))


async def test_usual_durations_of_all_workflows(c: Any, reads: PostgresReads) -> None:
    await seed(c, 400, timedelta(minutes=10))
    await c.execute(
        "insert into perdure.workflow (ns, name, current) values (1, 'w0', 'v'), (1, 'w1', 'v'), (1, 'never', 'v'), (2, 'w1', 'v')"
    )
    found = await reads.durations(1, await reads.clock_us() - 7 * DAY_S * 1_000_000)
    assert [d.workflow for d in found] == ["w0", "w1"]
    exact = await c.fetchrow(
        "select percentile_disc(0.5) within group (order by s) as p50, percentile_disc(0.95) within group (order by s) as p95, count(*) as n "
        "from (select extract(epoch from finished_at - created_at)::float8 as s from perdure.run where workflow = 'w0' and status = 'success') r"
    )
    assert found[0].p50_s == pytest.approx(exact["p50"], rel=0.1) and found[0].p95_s == pytest.approx(
        exact["p95"], rel=0.1
    )
    assert found[0].runs == exact["n"]
    assert await reads.durations(2, 0) == []


async def test_counts_of_a_namespace(c: Any, reads: PostgresReads) -> None:
    await seed(c, 100, timedelta(minutes=30))
    bins = Bins(await reads.clock_us() // 900_000_000 * 900_000_000 - 86_400_000_000, 900, 97)
    found = await reads.counts(1)
    assert found.failed_24h == (await reads.histogram(1, "", bins)).totals.failed > 0
    assert (found.active, found.approvals, found.workers, found.engines, found.dead_letters) == (0, 0, 0, 0, 0)
    await c.execute(
        "insert into perdure.engine_session (engine, expires_at) values ('a', now() + interval '1 hour'), ('b', now() - interval '1 hour');"
        "insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at) values "
        "('00000000-0000-7000-8000-000000000001', 1, 'w', 'v', 'pending', now(), now()), "
        "('00000000-0000-7000-8000-000000000002', 1, 'w', 'v', 'running', now(), now());"
        "insert into perdure.promise (run_id, name, ns, created_at, kind, assignees, quorum, deadline_at) values "
        "('00000000-0000-7000-8000-000000000001', 'open', 1, now(), 'approval', '{}', 1, null), "
        "('00000000-0000-7000-8000-000000000001', 'late', 1, now(), 'approval', '{}', 1, now() - interval '1 hour');"
    )
    one_of = "select run_id from perdure.run where status = $1 limit 1"
    for n, run_id in enumerate([await c.fetchval(one_of, "failed"), await c.fetchval(one_of, "success")]):
        await c.execute(
            "insert into perdure.task (id, ns, run_id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, finished_at) "
            "values (gen_random_uuid(), 1, $1, $2, 't', 'q', 'failed', 1, 0, 1, now(), now())",
            run_id,
            n,
        )
    found = await reads.counts(1)
    assert (found.active, found.pending, found.approvals, found.engines, found.dead_letters) == (2, 1, 1, 1, 1)


def test_bins_are_whole_steps_that_end_now() -> None:
    now_us = int(datetime(2026, 10, 21, 14, 7, tzinfo=UTC).timestamp()) * 1_000_000
    day_us = DAY_S * 1_000_000
    bins = bins_of(now_us - day_us, now_us, 96, now_us)
    assert (bins.bin_s, bins.number) == (900, 96)
    assert bins.to_us - 900_000_000 <= now_us < bins.to_us
    for since_days, number, wanted in (
        (2, 96, 1_800),
        (2, 500, 900),
        (7, 96, 7_200),
        (7, 500, 3_600),
        (30, 30, DAY_S),
        (90, 500, DAY_S),
        (400, 3, 134 * DAY_S),
    ):
        found = bins_of(now_us - since_days * day_us, now_us, number, now_us)
        assert found.bin_s == wanted and found.number <= number and found.from_us % (wanted * 1_000_000) == 0
