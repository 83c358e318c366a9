"""Runs that their engines do not survive: counted by the reaper, taken up one by one, and in the end not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, Signal, workflow
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.durations import FOREVER_US
from perdure.core.limits import SUSPECT_TAKEOVERS, TAKEOVERS_MAX
from perdure.engine.commits.rows import AppendRow, Batch, ReleaseRow
from perdure.engine.tasks.lost_workers import settle_lost
from perdure.store.postgres import PostgresStore
from perdure.wire.codec import encode_events
from tests.fakes.rows import change_row
from tests.store.test_sessions import NS, expire, new_run, start_of

SERVED = [(NS, "w", "")]


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    one = PostgresStore(dsn)
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def row(sql: Any, run_id: bytes) -> Any:
    return await sql.fetchrow("select * from perdure.run_queue where run_id = $1", ids.text(run_id))


async def claim(store: PostgresStore, session: int) -> list[bytes]:
    """As an engine does: all that is due, and one suspect."""
    claimed = await store.claim_runs(session, SERVED, 100, with_messages=False, flows=True)
    claimed += await store.claim_suspect(session, SERVED, flows=True)
    return [c.run_id for c in claimed]


async def died(store: PostgresStore, sql: Any, session: int) -> None:
    await expire(sql, session)
    assert await store.reap(settle_lost) == 1


async def begun(store: PostgresStore, *run_ids: bytes) -> int:
    session = (await store.register("first", 60, 0)).id
    for n, run_id in enumerate(run_ids):
        await store.commit(session, n + 1, start_of(run_id))
    return session


async def test_a_run_that_ends_every_engine_is_quarantined_and_its_neighbours_are_not(
    store: PostgresStore, sql: Any
) -> None:
    poison, *others = sorted(new_run() for _ in range(4))
    await died(store, sql, await begun(store, poison, *others))
    for n in range(2, TAKEOVERS_MAX + 1):
        session = (await store.register(f"engine {n}", 60, 0)).id
        claimed = await claim(store, session)
        assert poison in claimed
        if n > SUSPECT_TAKEOVERS:
            assert claimed == [poison], "a suspect is taken up by itself"
        await died(store, sql, session)
        assert (await row(sql, poison))["takeovers"] == n
    assert (await row(sql, poison))["stuck"].startswith("quarantined: ")
    assert f"TAKEOVERS_MAX={TAKEOVERS_MAX}" in (await row(sql, poison))["stuck"]
    session = (await store.register("last", 60, 0)).id
    for run_id in others:
        assert (await row(sql, run_id))["takeovers"] == SUSPECT_TAKEOVERS
        assert await claim(store, session) == [run_id]
        batch = Batch()
        batch.changes.append(change_row(run_id, is_settled=True))
        await store.commit(session, others.index(run_id) + 1, batch)
        assert not (await row(sql, run_id))["suspect"]
    assert await claim(store, session) == []
    due = await store.next_due(SERVED, [], flows=True)
    assert not due.suspects
    assert await store.resume(poison, NS, None)
    assert await claim(store, session) == [poison]
    assert (await row(sql, poison))["takeovers"] == 0


async def test_progress_begins_the_count_anew(store: PostgresStore, sql: Any) -> None:
    run_id = new_run()
    await died(store, sql, await begun(store, run_id))
    for n in range(2, 3 * TAKEOVERS_MAX):
        session = (await store.register(f"engine {n}", 60, 0)).id
        assert await claim(store, session) == [run_id]
        batch = Batch()
        batch.appends.append(AppendRow(run_id, n, n, NS, n, encode_events([ev.SignalReceived("s", b"1")]), b""))
        await store.commit(session, 1, batch)
        await died(store, sql, session)
        assert (await row(sql, run_id))["takeovers"] == 1


async def test_a_run_that_waits_outlives_any_number_of_engines(store: PostgresStore, sql: Any) -> None:
    waits, left = sorted([new_run(), new_run()])
    session = await begun(store, waits, left)
    for n in range(3 * TAKEOVERS_MAX):
        noted = Batch()
        noted.changes.append(change_row(waits, has_waits=True, waiting_on="task", wait_reasons="[]"))
        await store.commit(session, 10, noted)
        if n % 2:
            await died(store, sql, session)
        else:
            await store.leave(session, settle_lost)
        for run_id in waits, left:
            assert (await row(sql, run_id))["takeovers"] <= 1
        session = (await store.register(f"engine {n}", 60, 0)).id
        assert sorted(await claim(store, session)) == [waits, left]
        if n % 2:
            await store.leave(session, settle_lost)  # a restart on purpose counts for nobody
            session = (await store.register(f"engine {n} again", 60, 0)).id
            assert sorted(await claim(store, session)) == [waits, left]
        await sql.execute("update perdure.run_queue set takeovers = 0 where run_id = $1", ids.text(left))


async def test_mail_does_not_bring_a_suspect_along(store: PostgresStore, sql: Any) -> None:
    run_id = new_run()
    await died(store, sql, await begun(store, run_id))
    session = (await store.register("second", 60, 0)).id
    assert await claim(store, session) == [run_id]
    await died(store, sql, session)
    await sql.execute(
        "insert into perdure.inbox (ns, run_id, body, kind) values (1, $1, '', 'signal')", ids.text(run_id)
    )
    session = (await store.register("third", 60, 0)).id
    assert await store.claim_runs(session, SERVED, 10, with_messages=True, flows=True) == []
    assert await store.claim_runs(session, SERVED, 10, with_messages=False, flows=True) == []
    assert [c.run_id for c in await store.claim_suspect(session, SERVED, flows=True)] == [run_id]


stop = Signal("takeovers_stop", int)


@workflow(name="takeovers_waits")
async def waits() -> int:
    return await stop.next()


async def test_an_engine_takes_suspects_up_one_after_the_other_and_settles_them(dsn: str, sql: Any) -> None:
    async with Perdure(dsn) as p:
        for _ in range(5):
            await p.start(waits)
    await sql.execute(
        "update perdure.run_queue set takeovers = 4, suspect = true, wake_at = 'infinity', seen_events = 99"
    )
    async with Perdure(dsn) as p, asyncio.timeout(120):
        while await sql.fetchval("select count(*) from perdure.run_queue where suspect"):
            assert await sql.fetchval("select count(*) from perdure.run_queue where suspect and owner is not null") <= 1
        assert p.engine.counters.runs_claimed == 5
    assert await sql.fetchval("select count(*) from perdure.run_queue where takeovers = 0") == 5


async def test_a_commit_changes_a_row_in_several_ways_at_once(store: PostgresStore, sql: Any) -> None:
    """Two updates of a row in one statement: only one would take effect."""
    run_id = new_run()
    session = await begun(store, run_id)
    batch = Batch()
    batch.changes.append(
        change_row(
            run_id,
            has_waits=True,
            waiting_on="task",
            wait_reasons="[]",
            is_cancelled=True,
            is_settled=True,
            version="other",
        )
    )
    await sql.execute("update perdure.run_queue set suspect = true, takeovers = 2 where run_id = $1", ids.text(run_id))
    await store.commit(session, 2, batch)
    found = await row(sql, run_id)
    assert (found["waiting_on"], found["version"], found["suspect"], found["takeovers"]) == ("task", "other", False, 0)
    assert found["cancel_at"] is not None


async def test_a_cancel_request_is_noted_of_a_run_that_the_same_commit_releases(store: PostgresStore, sql: Any) -> None:
    """Otherwise nothing would find it, and it would wait for ever if no worker had its code any more."""
    run_id = new_run()
    session = await begun(store, run_id)
    batch = Batch()
    batch.releases.append(ReleaseRow(run_id, FOREVER_US, None, None, None, None, 1, b""))
    batch.changes.append(change_row(run_id, is_released=True, is_cancelled=True))
    await store.commit(session, 2, batch)
    found = await row(sql, run_id)
    assert found["owner"] is None
    assert found["cancel_at"] is not None
