"""Ownership at the level of the store: fencing is exact, nothing of a session outlives it, doubt is settled both ways."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Fenced
from perdure.core.retry import TaskOptions
from perdure.engine.commits.rows import (
    AppendRow,
    Batch,
    CloseRow,
    DequeuedRow,
    MessageRow,
    PromiseRow,
    ReleaseRow,
    StateRow,
)
from perdure.engine.commits.store import NotCommitted, Poison
from perdure.engine.tasks.lost_workers import settle_lost
from perdure.store import sessions
from perdure.store.commits import write_batch
from perdure.store.postgres import PostgresStore
from perdure.store.queries import fetch_row
from perdure.wire.codec import decode_message, encode_events, encode_options
from tests.fakes.rows import queued_row, start_row, task_row
from tests.fakes.waiting import until
from tests.store.blocking import until_blocked

NS = 1
NO_HASH = b""
"""These histories are not verified."""
STARTED = encode_events([ev.RunStarted("w", "v", b"{}")])
SUCCEEDED = encode_events([ev.RunSucceeded(b"1")])


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    one = PostgresStore(dsn)
    await one.open()
    yield one
    await one.close()


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Any]:
    """A plain connection that looks at what is really there."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


def new_run() -> bytes:
    return ids.run_id(time.time_ns() // 1_000_000, 0, secrets.randbits(62))


def start_of(
    run_id: bytes, *, own: bool = True, key: str | None = None, body: bytes = STARTED, hash_: bytes = b"h"
) -> Batch:
    batch = Batch()
    batch.starts.append(start_row(run_id, key=key, input_hash=hash_, own=own, body=body, hash=NO_HASH))
    return batch


def end_of(run_id: bytes) -> Batch:
    batch = Batch()
    batch.appends.append(AppendRow(run_id, 2, 2, NS, 1, SUCCEEDED, NO_HASH))
    batch.closes.append(CloseRow(run_id, "success", 2, None, None, None, NO_HASH, False))
    return batch


def queued_task(run_id: bytes, seq: int, status: str, **options: Any) -> Batch:
    batch = Batch()
    packed = encode_options(TaskOptions(**options))
    batch.queued.append(queued_row(run_id, seq, status=status, scheduled_at=time.time_ns() // 1000, options=packed))
    return batch


async def expire(sql: Any, session: int) -> None:
    await sql.execute(
        "update perdure.engine_session set expires_at = now() - interval '1 second' where id = $1", session
    )


# -- fencing --------------------------------------------------------------------------------------------------------------


async def test_a_commit_under_a_reaped_session_writes_nothing_at_all(store: PostgresStore, sql: Any) -> None:
    session = (await store.register("stale", 10, 0)).id
    run_id = new_run()
    await store.commit(session, 1, start_of(run_id))
    await store.commit(session, 2, queued_task(run_id, 7, "pending"))
    await expire(sql, session)
    assert await store.reap(settle_lost) == 1
    before = await everything(sql)
    for number, batch in enumerate([end_of(run_id), start_of(new_run()), queued_task(run_id, 0, "pending")], 2):
        with pytest.raises(Fenced):
            await store.commit(session, number, batch)
    mixed = queued_task(run_id, 1, "dispatched")
    mixed.appends.append(AppendRow(run_id, 2, 2, NS, 1, SUCCEEDED, NO_HASH))
    mixed.messages.append(MessageRow(run_id, b"mail", "signal", "s"))
    mixed.promises.append(PromiseRow(run_id, "p", NS, "promise", None, b"", False))
    mixed.consumed.append(
        await sql.fetchval(
            "insert into perdure.inbox (ns, run_id, body, kind) values (1, $1, '', 'signal') returning id",
            ids.text(run_id),
        )
    )
    mixed.dequeued.append(DequeuedRow(ids.derive(run_id, ids.TASK, 7), 0))
    before = await everything(sql)
    mixed.states.append(StateRow(run_id, "s", NS, b"1"))
    with pytest.raises(Fenced):
        await store.commit(session, 9, mixed)
    assert await everything(sql) == before
    async with store._pool.take() as c:
        assert not (await fetch_row(c, "commit_batch_rest", session=session, **mixed.rest()))["held"]
    assert await everything(sql) == before, "nor does the second statement, if it came to that"


async def everything(sql: Any) -> dict[str, list[Any]]:
    tables = [
        "engine_session",
        "commit_log",
        "run_queue",
        "run",
        "run_key",
        "history",
        "task",
        "task_queue",
        "inbox",
        "set_aside_message",
        "promise",
        "run_state",
    ]
    return {t: [tuple(r) for r in await sql.fetch(f"select * from perdure.{t} order by 1, 2")] for t in tables}


async def test_an_expired_session_that_nobody_reaped_may_still_write(store: PostgresStore, sql: Any) -> None:
    """Expiry alone takes nothing away: only the DELETE does, and it sees everything written before it."""
    session = (await store.register("slow", 10, 0)).id
    await expire(sql, session)
    run_id = new_run()
    await store.commit(session, 1, start_of(run_id))
    assert await store.reap(settle_lost) == 1
    assert await sql.fetchval("select owner from perdure.run_queue where run_id = $1", ids.text(run_id)) is None


async def test_a_renewal_keeps_a_session_and_a_reaped_one_learns_that_it_is_gone(
    store: PostgresStore, sql: Any
) -> None:
    session = (await store.register("one", 10, 5)).id
    other = (await store.register("two", 10, 7)).id
    await expire(sql, session)
    renewed = await store.renew(session, 10, 5, 3)
    assert renewed is not None
    assert (renewed.others, renewed.others_free) == (1, 7)
    assert await store.reap(settle_lost) == 0
    await expire(sql, session)
    watching = await store.renew(other, 10, 7, 7)
    assert watching is not None
    assert watching.expired == 1
    await store.reap(settle_lost)
    assert await store.renew(session, 10, 5, 3) is None


@pytest.mark.parametrize("statement", ["commit_batch", "commit_batch_rest"])
async def test_reaping_waits_for_a_commit_in_flight_and_frees_what_it_wrote(
    store: PostgresStore, sql: Any, dsn: str, statement: str
) -> None:
    """The statements of the commit themselves take the lock: no session is reaped between them and their COMMIT."""
    session = (await store.register("busy", 10, 0)).id
    await expire(sql, session)
    run_id = new_run()
    if statement == "commit_batch":
        args: dict[str, Any] = {"number": 1, "counts": [], **start_of(run_id).main()}
    else:
        await store.commit(session, 1, start_of(run_id))
        args = queued_task(run_id, 0, "dispatched").rest()
    async with committing(dsn) as writing:
        await fetch_row(writing, statement, session=session, **args)
        reaping = asyncio.create_task(store.reap(settle_lost))
        assert await reaping == 0, "a session under which a commit is being written is passed over"
    assert await store.reap(settle_lost) == 1
    row = await sql.fetchrow(
        "select owner, wake_at <= now() as due from perdure.run_queue where run_id = $1", ids.text(run_id)
    )
    assert (row["owner"], row["due"]) == (None, True)
    assert await sql.fetchval("select count(*) from perdure.task_queue where owner is not null") == 0


async def test_a_session_is_reaped_though_its_engine_was_halted_amid_a_statement(
    store: PostgresStore, sql: Any, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for the rest of the statement, as for the rows of a COPY: no timeout of its own ends that."""
    monkeypatch.setattr(sessions, "HALTED_S", 1.0)
    session = (await store.register("halted", 10, 0)).id
    await expire(sql, session)

    engine = await asyncpg.connect(dsn, server_settings={"application_name": "perdure"})
    halted = asyncio.create_task(halt(engine, session))
    await until_halted(sql)
    assert await store.reap(settle_lost) == 0, "it may be about to go on"
    await until(lambda: store.reap(settle_lost), "the session is reaped")
    halted.cancel()
    engine.terminate()


async def halt(engine: asyncpg.Connection, session: int) -> None:
    """Stop in the middle of a statement, in a transaction that holds the session."""

    async def no_rows() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async with engine.transaction():
        await engine.execute("create temp table halted (n int)")
        await engine.execute("select from perdure.engine_session where id = $1 for key share", session)
        await engine.copy_to_table("halted", source=no_rows())


async def until_halted(sql: Any) -> None:
    query = "select count(*) from pg_stat_activity where datname = current_database() and query like 'COPY%' and wait_event = 'ClientRead'"
    await until(lambda: sql.fetchval(query), "the server waits for rows")


@asynccontextmanager
async def committing(dsn: str) -> AsyncIterator[Any]:
    """A connection as the store's, in a transaction that commits at the end."""
    other = PostgresStore(dsn)
    await other.open()
    async with other._pool.take() as c, c.transaction():
        yield c
    await other.close()


async def test_a_session_that_leaves_waits_for_a_commit_in_flight(store: PostgresStore, sql: Any, dsn: str) -> None:
    session = (await store.register("busy", 10, 0)).id
    run_id = new_run()
    async with committing(dsn) as writing:
        await write_batch(writing, session, 1, start_of(run_id))
        leaving = asyncio.create_task(store.leave(session, settle_lost))
        await until_blocked(sql, "engine_session")
        assert not leaving.done()
    await leaving
    assert await sql.fetchval("select owner from perdure.run_queue where run_id = $1", ids.text(run_id)) is None


async def test_two_reapers_do_not_reap_one_session_twice(store: PostgresStore, sql: Any) -> None:
    sessions = [(await store.register(f"dead {n}", 10, 0)).id for n in range(20)]
    for session in sessions:
        await expire(sql, session)
    reaped = await asyncio.gather(*(store.reap(settle_lost) for _ in range(6)))
    left = await store.reap(settle_lost)
    assert sum(reaped) + left == 20


# -- freed rows -----------------------------------------------------------------------------------------------------------


async def test_reaping_frees_runs_requeues_tasks_and_fails_those_that_may_not_run_twice(
    store: PostgresStore, sql: Any
) -> None:
    session = (await store.register("dead", 10, 0)).id
    run_id = new_run()
    await store.commit(session, 1, start_of(run_id))
    for number, (seq, options) in enumerate([(0, {}), (1, {"at_most_once": True}), (2, {"lost_max": 0})], 2):
        await store.commit(session, number, queued_task(run_id, seq, "dispatched", **options))
    await store.commit(session, 9, queued_task(run_id, 3, "pending"))
    await expire(sql, session)
    await store.reap(settle_lost)
    rows = await sql.fetch("select seq, status, owner, attempt, lost from perdure.task_queue order by seq")
    assert [tuple(r) for r in rows] == [(0, "pending", None, 2, 1), (3, "pending", None, 1, 0)]
    mails = [decode_message(r["body"]) for r in await sql.fetch("select body from perdure.inbox order by id")]
    assert sorted((m.seq, m.failure.code) for m in mails) == [(1, "task_lost"), (2, "task_lost")]
    assert await sql.fetchval("select count(*) from perdure.commit_log") == 0
    assert await sql.fetchval("select count(*) from perdure.engine_session") == 0
    heir = (await store.register("heir", 10, 0)).id
    claimed = await store.claim_runs(heir, [(1, "w", "")], 10, with_messages=False, flows=True)
    assert [(c.run_id, c.epoch) for c in claimed] == [(run_id, 2)]


async def test_a_task_that_is_put_back_still_has_to_begin_in_time(store: PostgresStore, sql: Any) -> None:
    """By its limit from the scheduling on and by its limit of waiting, which begins again, whichever comes first."""
    session = (await store.register("dead", 10, 0)).id
    run_id = new_run()
    await store.commit(session, 1, start_of(run_id))
    limits = [
        {"to_close_us": 60_000_000},
        {"to_start_us": 60_000_000},
        {"to_close_us": 60_000_000, "to_start_us": 1},
        {},
    ]
    for seq, options in enumerate(limits):
        await store.commit(session, seq + 2, queued_task(run_id, seq, "dispatched", **options))
    await sql.execute(
        "update perdure.task_queue set scheduled_at = scheduled_at - interval '1 hour', start_deadline_at = null"
    )
    await expire(sql, session)
    assert await store.reap(settle_lost) == 1
    left = (
        "select extract(epoch from start_deadline_at - scheduled_at)::float8 as s from perdure.task_queue order by seq"
    )
    found = [r["s"] for r in await sql.fetch(left)]
    assert found[0] == pytest.approx(60)
    assert found[1] > 3600
    assert found[2] == pytest.approx(60)
    assert found[3] is None


async def test_what_belongs_to_sessions_that_live_is_left_alone(store: PostgresStore, sql: Any) -> None:
    dead, living = (await store.register("dead", 10, 0)).id, (await store.register("living", 10, 0)).id
    for session in (dead, living):
        run_id = new_run()
        await store.commit(session, 1, start_of(run_id))
        await store.commit(session, 2, queued_task(run_id, 0, "dispatched"))
    await expire(sql, dead)
    assert await store.reap(settle_lost) == 1
    for table in ("run_queue", "task_queue"):
        owners = [r["owner"] for r in await sql.fetch(f"select owner from perdure.{table} order by owner nulls last")]
        assert owners == [living, None]
    assert await sql.fetchval("select count(*) from perdure.commit_log where session_id = $1", living) == 2


async def test_leaving_frees_rows_like_reaping_does(store: PostgresStore, sql: Any) -> None:
    session, other = (await store.register("leaver", 10, 0)).id, (await store.register("stays", 10, 0)).id
    for one in (session, other):
        await store.commit(one, 1, start_of(new_run()))
    await store.leave(session, settle_lost)
    await store.leave(session, settle_lost)
    owners = [r["owner"] for r in await sql.fetch("select owner from perdure.run_queue order by owner nulls last")]
    assert owners == [other, None], "and only its own"
    assert [r["id"] for r in await sql.fetch("select id from perdure.engine_session")] == [other]


async def test_a_session_claims_only_what_nobody_owns(store: PostgresStore) -> None:
    one, two = (await store.register("one", 10, 0)).id, (await store.register("two", 10, 0)).id
    runs = [new_run() for _ in range(30)]
    for number, run_id in enumerate(runs, 1):
        await store.commit(one, number, start_of(run_id, own=False))
    claims = await asyncio.gather(
        *(store.claim_runs(s, [(1, "w", "")], 20, with_messages=False, flows=True) for s in (one, two))
    )
    claims = [*claims, *[await store.claim_runs(one, [(1, "w", "")], 50, with_messages=False, flows=True)]]
    taken = [c.run_id for claim in claims for c in claim]
    assert sorted(taken) == sorted(runs)


async def test_a_session_that_is_gone_claims_nothing(store: PostgresStore) -> None:
    session = (await store.register("gone", 10, 0)).id
    await store.commit(session, 1, start_of(new_run(), own=False))
    await store.leave(session, settle_lost)
    assert await store.claim_runs(session, [(1, "w", "")], 10, with_messages=False, flows=True) == []


async def test_only_the_owner_of_a_run_can_end_or_release_it(store: PostgresStore, sql: Any) -> None:
    owner, other = (await store.register("owner", 10, 0)).id, (await store.register("other", 10, 0)).id
    run_id = new_run()
    await store.commit(owner, 1, start_of(run_id))
    release = Batch()
    release.releases.append(ReleaseRow(run_id, time.time_ns() // 1000, None, None, None, None, 1, NO_HASH))
    await store.commit(other, 1, release)
    close = Batch()
    close.closes.append(CloseRow(run_id, "success", 1, None, None, None, NO_HASH, False))
    await store.commit(other, 2, close)
    assert await sql.fetchval("select owner from perdure.run_queue") == owner
    assert await sql.fetchval("select count(*) from perdure.run") == 0


async def test_a_worker_brings_along_only_tasks_of_its_own_namespace_and_the_attempt_that_runs(
    store: PostgresStore, sql: Any
) -> None:
    old, heir = (await store.register("old", 10, 0)).id, (await store.register("heir", 10, 0)).id
    run_id = new_run()
    await store.commit(old, 1, start_of(run_id))
    await store.commit(old, 2, queued_task(run_id, 0, "running"))
    task_id = ids.derive(run_id, ids.TASK, 0)
    for ns, attempt in ((NS + 1, 1), (NS, 2)):
        assert (await store.adopt_tasks(heir, ns, [(task_id, attempt)])).tasks == []
        assert await sql.fetchval("select owner from perdure.task_queue") == old
    assert (await store.adopt_tasks(heir, NS + 1, [(task_id, 1)])).known == set()
    (adopted,) = (await store.adopt_tasks(heir, NS, [(task_id, 1)])).tasks
    assert (adopted.id, adopted.ns, adopted.attempt) == (task_id, NS, 1)
    assert await sql.fetchval("select owner from perdure.task_queue") == heir


# -- doubt ----------------------------------------------------------------------------------------------------------------


async def test_a_commit_whose_answer_was_lost_is_found_to_have_happened(
    store: PostgresStore, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await store.register("doubt", 10, 0)).id
    run_id = new_run()
    write = store._write

    async def lose_the_answer(*args: Any) -> Any:
        await write(*args)
        raise ConnectionResetError("the network went away")

    monkeypatch.setattr(store, "_write", lose_the_answer)
    result = await store.commit(session, 1, start_of(run_id))
    assert result.unconfirmed
    monkeypatch.undo()
    assert await sql.fetchval("select count(*) from perdure.history") == 1
    await store.commit(session, 2, end_of(run_id))
    assert await sql.fetchval("select status from perdure.run") == "success"


async def test_a_commit_that_was_lost_on_the_way_is_found_not_to_have_happened_and_never_will(
    store: PostgresStore, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await store.register("doubt", 10, 0)).id
    run_id = new_run()

    async def never_arrives(*args: Any) -> Any:
        raise ConnectionResetError("the network went away")

    monkeypatch.setattr(store, "_write", never_arrives)
    with pytest.raises(NotCommitted):
        await store.commit(session, 1, start_of(run_id))
    monkeypatch.undo()
    with pytest.raises(Poison, match="commit_log"):
        await store.commit(session, 1, start_of(run_id))
    assert await sql.fetchval("select count(*) from perdure.history") == 0
    await store.commit(session, 2, start_of(run_id))
    assert await sql.fetchval("select count(*) from perdure.history") == 1


async def test_doubt_about_a_commit_still_in_flight_waits_for_it(store: PostgresStore, dsn: str, sql: Any) -> None:
    session = (await store.register("doubt", 10, 0)).id
    for commits in (True, False):
        number = int(commits) + 1
        writing = await asyncpg.connect(dsn)
        try:
            transaction = writing.transaction()
            await transaction.start()
            await writing.execute("insert into perdure.commit_log (session_id, n) values ($1, $2)", session, number)
            asking = asyncio.create_task(store._row("claim_commit_number", session=session, number=number))
            await until_blocked(sql, "commit_log")
            assert not asking.done()
            await (transaction.commit() if commits else transaction.rollback())
            answer = await asking
        finally:
            await writing.close()
        assert answer["alive"]
        assert answer["claimed"] is not commits


async def test_doubt_under_a_session_that_is_gone_is_a_fence(
    store: PostgresStore, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = (await store.register("doubt", 10, 0)).id
    await store.leave(session, settle_lost)

    async def never_arrives(*args: Any) -> Any:
        raise ConnectionResetError("the network went away")

    monkeypatch.setattr(store, "_write", never_arrives)
    with pytest.raises(Fenced):
        await store.commit(session, 1, start_of(new_run()))
    assert await sql.fetchval("select count(*) from perdure.commit_log") == 0, "nobody would ever remove it"


async def test_a_record_the_database_refuses_is_poison_and_leaves_nothing_behind(
    store: PostgresStore, sql: Any
) -> None:
    session = (await store.register("poison", 10, 0)).id
    run_id = new_run()
    await store.commit(session, 1, start_of(run_id))
    for number, batch in enumerate([start_of(run_id), end_of(run_id)], 2):
        batch.tasks.append(task_row(run_id, 0, status="running", error="this status is not final"))
        with pytest.raises(Poison):
            await store.commit(session, number, batch)
    assert await sql.fetchval("select count(*) from perdure.history") == 1


# -- keys -----------------------------------------------------------------------------------------------------------------


async def test_a_start_under_a_taken_key_writes_nothing_and_its_neighbours_go_through(
    store: PostgresStore, sql: Any
) -> None:
    session = (await store.register("keys", 10, 0)).id
    first, second, third = new_run(), new_run(), new_run()
    assert (await store.commit(session, 1, start_of(first, key="k"))).started == {first}
    batch = start_of(second, key="k")
    batch.starts.append(start_row(third, key="other", own=True, body=STARTED, hash=NO_HASH))
    assert (await store.commit(session, 2, batch)).started == {third}
    assert await store.run_by_key(NS, "k") == (first, b"h")
    assert await store.existing(1, [first, second, third]) == {first, third}
    assert await sql.fetchval("select count(*) from perdure.history") == 2


async def test_of_two_starts_under_one_key_in_one_batch_one_wins(store: PostgresStore) -> None:
    session = (await store.register("keys", 10, 0)).id
    first, second = new_run(), new_run()
    batch = start_of(first, key="k")
    batch.starts.append(start_row(second, key="k", own=True, body=STARTED, hash=NO_HASH))
    started = (await store.commit(session, 1, batch)).started
    assert len(started) == 1
    holder = await store.run_by_key(NS, "k")
    assert holder is not None
    assert {holder[0]} == started


async def test_of_two_engines_that_start_under_one_key_one_wins(store: PostgresStore, dsn: str) -> None:
    other = PostgresStore(dsn)
    await other.open()
    try:
        sessions = [(await s.register("k", 10, 0)).id for s in (store, other)]
        for round_ in range(10):
            runs = [new_run(), new_run()]
            results = await asyncio.gather(
                *(
                    s.commit(session, round_ + 1, start_of(run, key=f"k{round_}"))
                    for s, session, run in zip((store, other), sessions, runs, strict=True)
                )
            )
            assert sum(len(r.started) for r in results) == 1
    finally:
        await other.close()


async def test_a_key_that_was_taken_away_can_be_taken_again(store: PostgresStore) -> None:
    session = (await store.register("keys", 10, 0)).id
    first, second = new_run(), new_run()
    await store.commit(session, 1, start_of(first, key="k"))
    await store.forget_key(NS, "k", second)
    assert (await store.commit(session, 2, start_of(second, key="k"))).started == frozenset()
    await store.forget_key(NS, "k", first)
    assert (await store.commit(session, 3, start_of(second, key="k"))).started == {second}
