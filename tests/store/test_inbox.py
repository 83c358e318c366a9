"""Messages into inboxes, many at a time: order, keys, ends of runs, neighbours of what the database refuses."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import InvalidInput, LimitReached, NotFound, RunFinished, Unavailable
from perdure.core.limits import MESSAGES_PENDING_MAX
from perdure.core.message_life import Ending, InboxKind
from perdure.core.message_limits import HELD, NOT_THERE, REPEATED, TAKEN
from perdure.core.messages import CancelMessage, Message, SignalMessage, TerminateMessage, kind_of, name_of
from perdure.core.work import RunView
from perdure.engine.commits.rows import Batch, CloseRow, EndedRow, MessageRow, PromiseRow
from perdure.engine.commits.store import EndsRefused, NotCommitted
from perdure.engine.events import EngineEvents
from perdure.engine.ports import SendRow
from perdure.engine.runs import inbox as module
from perdure.engine.runs.inbox import InboxWriter
from perdure.store.approvals import PostgresApprovals
from perdure.store.definitions import PostgresDefinitions
from perdure.store.postgres import PostgresStore
from perdure.store.updates import PostgresUpdates
from perdure.wire.codec import decode_message, encode_events, encode_message
from tests.fakes.rows import start_row
from tests.fakes.waiting import holds, turns, until

NS = 1
NO_HASH = b""
"""These histories are not verified."""
STARTED = encode_events([ev.RunStarted("w", "v", b"{}")])


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


def new_run() -> bytes:
    return ids.run_id(time.time_ns() // 1_000_000, 0, secrets.randbits(62))


class Session:
    """An engine's writes, without the engine."""

    def __init__(self, store: PostgresStore, number: int) -> None:
        self.store, self.id, self.number = store, number, 0
        self._firsts: dict[bytes, bytes] = {}
        """Of runs that continue another: the first run of the chain."""

    async def commit(self, batch: Batch) -> None:
        self.number += 1
        await self.store.commit(self.id, self.number, batch)

    async def start(self, count: int = 1) -> list[bytes]:
        batch = Batch()
        made = [new_run() for _ in range(count)]
        for run_id in made:
            batch.starts.append(start_row(run_id, input_hash=b"", own=True, body=STARTED, hash=NO_HASH))
        await self.commit(batch)
        return made

    async def end(self, run_id: bytes, successor: bytes | None = None, ending: Ending = Ending.SUCCESS) -> None:
        """For good, whatever messages there are."""
        ending = Ending.CONTINUED if successor is not None else ending
        status = "success" if successor is not None else ending
        batch = Batch()
        batch.closes.append(CloseRow(run_id, status, 2, None, None, successor, NO_HASH, True))
        first = self._firsts.get(run_id, run_id) if successor is not None else None
        batch.ended.append(EndedRow(run_id, NS, ending, False, successor, first, successor))
        if successor is not None and first is not None:
            self._firsts[successor] = first
            batch.starts.append(start_row(successor, input_hash=b"", own=True, body=STARTED, hash=NO_HASH))
        await self.commit(batch)


@pytest.fixture
async def session(store: PostgresStore) -> Session:
    return Session(store, (await store.register("test", 60, 0)).id)


def box(store: Any, told: list[bytes] | None = None) -> InboxWriter:
    events = EngineEvents()
    if told is not None:
        events.message_sent.subscribe(told.append)
    return InboxWriter(store, events)


def signal(value: bytes) -> Message:
    return SignalMessage("s", value)


def row(run_id: bytes, value: bytes, key: str | None = None, ns: int = NS) -> SendRow:
    return message_row(run_id, signal(value), key, ns)


def message_row(run_id: bytes, message: Message, key: str | None = None, ns: int = NS) -> SendRow:
    return run_id, ns, encode_message(message), key, run_id, kind_of(message), name_of(message)


async def inbox(sql: Any, run_id: bytes, table: str = "inbox") -> list[bytes]:
    """The values of its signals, in the order of the ids. Each row says what its message is."""
    found = await sql.fetch(
        f"select body, kind, name from perdure.{table} where run_id = $1 order by id", _uuid(run_id)
    )
    messages = [decode_message(r["body"]) for r in found]
    assert [(r["kind"], r["name"]) for r in found] == [(kind_of(m), name_of(m)) for m in messages]
    return [m.value for m in messages if isinstance(m, SignalMessage)]


def _uuid(run_id: bytes) -> Any:
    from uuid import UUID

    return UUID(bytes=run_id)


# -- the statement -----------------------------------------------------------------------------------------------------


async def test_messages_lie_in_the_inbox_in_the_order_of_the_rows(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    runs = await session.start(7)
    rows = [row(runs[i % 7], str(i).encode()) for i in range(500)]
    assert await store.send_many(rows) == [TAKEN] * 500
    for n, run_id in enumerate(runs):
        assert await inbox(sql, run_id) == [str(i).encode() for i in range(500) if i % 7 == n]


async def test_each_row_is_answered_for_itself(store: PostgresStore, session: Session, sql: Any) -> None:
    here, ended = await session.start(2)
    await session.end(ended)
    assert await store.send_many([row(here, b"1", "k")]) == [TAKEN]
    outcomes = await store.send_many(
        [
            row(here, b"2"),
            row(ended, b"3"),
            row(here, b"4", "k"),
            row(new_run(), b"5"),
            row(here, b"6", ns=99),
            row(here, b"7", "j"),
        ]
    )
    assert outcomes == [TAKEN, NOT_THERE, REPEATED, NOT_THERE, NOT_THERE, TAKEN]
    assert await inbox(sql, here) == [b"1", b"2", b"7"]


async def test_nobody_waits_for_a_run_whose_row_is_held_and_all_its_messages_stay_together(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    held, free = await session.start(2)
    async with sql.transaction():
        await sql.execute("select 1 from perdure.run_queue where run_id = $1 for update", _uuid(held))
        rows = [row(held, b"1"), row(free, b"2"), row(held, b"3", "k")]
        assert await asyncio.wait_for(store.send_many(rows), 5) == [HELD, TAKEN, HELD]
    assert await store.send_many([rows[0], rows[2]]) == [TAKEN, TAKEN]
    assert await inbox(sql, held) == [b"1", b"3"]


async def test_a_key_that_somebody_else_writes_at_this_moment_is_no_second_message(
    store: PostgresStore, session: Session, sql: Any, dsn: str
) -> None:
    (run_id,) = await session.start()
    other = PostgresStore(dsn)
    await other.open()
    try:
        answers = await asyncio.gather(
            *(s.send_many([row(run_id, b"x", f"k{i}")]) for i in range(40) for s in (store, other)),
            return_exceptions=True,
        )
    finally:
        await other.close()
    taken = sum(1 for a in answers if a == [TAKEN])
    assert all(a in ([TAKEN], [REPEATED]) or isinstance(a, NotCommitted) for a in answers), answers
    assert taken == len(await inbox(sql, run_id)) == await sql.fetchval("select count(*) from perdure.message_key")
    assert taken == 40


async def test_a_run_that_waits_to_be_admitted_comes_out_of_its_line_to_hear_that_it_is_to_stop(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    waiting, other = await session.start(2)
    await sql.execute(
        "update perdure.run_queue set owner = null, group_id = gen_random_uuid(), wake_at = 'infinity' where run_id = any($1)",
        [_uuid(waiting), _uuid(other)],
    )
    rows = [message_row(waiting, CancelMessage()), row(other, b"hello")]
    assert await store.send_many(rows) == [TAKEN, TAKEN]
    found = await sql.fetch("select run_id, group_id, wake_at < now() + interval '1 s' as due from perdure.run_queue")
    assert {r["run_id"].bytes: (r["group_id"] is None, r["due"]) for r in found} == {
        waiting: (True, True),
        other: (False, False),
    }


# -- the postbox -------------------------------------------------------------------------------------------------------


async def test_a_sender_that_does_not_wait_is_served_in_order(store: PostgresStore, session: Session, sql: Any) -> None:
    runs = await session.start(5)
    told: list[bytes] = []
    one = box(store, told)
    answers = [one.put(NS, runs[i % 5], signal(str(i).encode())) for i in range(2_000)]
    assert all(await asyncio.gather(*answers))
    for n, run_id in enumerate(runs):
        assert await inbox(sql, run_id) == [str(i).encode() for i in range(2_000) if i % 5 == n]
    assert set(told) == set(runs)


async def test_a_key_is_taken_once_also_within_a_batch(store: PostgresStore, session: Session, sql: Any) -> None:
    (run_id,) = await session.start()
    one = box(store)
    answers = [one.put(NS, run_id, signal(str(i).encode()), key=f"k{i // 2}") for i in range(20)]
    assert await asyncio.gather(*answers) == [True, False] * 10
    assert await inbox(sql, run_id) == [str(i).encode() for i in range(0, 20, 2)]


async def test_messages_follow_a_run_that_continues_and_keep_their_order(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    (first,) = await session.start()
    one = box(store)
    await one.send(NS, first, signal(b"0"), key="k0")
    second, third = new_run(), new_run()
    await session.end(first, second)
    answers = [one.put(NS, first, signal(str(i).encode()), key=f"k{i}") for i in range(1, 50)]
    await turns()
    await session.end(second, third)
    answers += [one.put(NS, first, signal(str(i).encode()), key=f"k{i}") for i in range(50, 100)]
    assert all(await asyncio.gather(*answers))
    # What was forwarded by the commit comes first; all of it is there once, whichever of the two it was posted to.
    assert [int(b) for b in [*await inbox(sql, second), *await inbox(sql, third)]] == list(range(100))
    assert not any([await one.send(NS, first, signal(b"again"), key=f"k{i}") for i in (0, 7, 99)])


async def test_a_run_that_continued_often_is_looked_up_once(store: PostgresStore, session: Session, sql: Any) -> None:
    (first,) = await session.start()
    chain = [first, *(new_run() for _ in range(5))]
    for before, after in itertools.pairwise(chain):
        await session.end(before, after)
    asked: list[bytes] = []

    class Asked:
        send_many = store.send_many

        async def describe(self, run_id: bytes, ns: int) -> RunView | None:
            asked.append(run_id)
            return await store.describe(run_id, ns)

    one = box(Asked())
    answers = [one.put(NS, first, signal(str(i).encode())) for i in range(100)]
    await answers[0]
    answers += [one.put(NS, first, signal(str(i).encode())) for i in range(100, 200)]
    await asyncio.gather(*answers)
    assert asked == [first], "the id of a chain leads to its last run"
    for i in range(200, 300):
        await one.send(NS, chain[3], signal(str(i).encode()))
    assert asked == [first, *chain[3:-1]]
    assert [int(b) for b in await inbox(sql, chain[-1])] == list(range(300))


async def test_a_run_that_has_ended_or_never_was_refuses(store: PostgresStore, session: Session) -> None:
    (ended,) = await session.start()
    await session.end(ended)
    one = box(store)
    with pytest.raises(RunFinished):
        await one.send(NS, ended, signal(b"x"))
    with pytest.raises(NotFound):
        await one.send(NS, new_run(), signal(b"x"))
    assert one.is_idle


async def test_a_message_that_the_database_refuses_takes_nobody_along(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    (run_id,) = await session.start()
    one = box(store)
    answers = [one.put(NS, run_id, signal(str(i).encode()), key="a\x00b" if i == 11 else f"k{i}") for i in range(30)]
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert isinstance(found[11], InvalidInput)
    assert [f for i, f in enumerate(found) if i != 11] == [True] * 29
    assert await inbox(sql, run_id) == [str(i).encode() for i in range(30) if i != 11]


async def test_a_held_run_does_not_hold_up_the_others_and_gets_its_messages_in_order(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    held, free = await session.start(2)
    one = box(store)
    async with sql.transaction():
        await sql.execute("select 1 from perdure.run_queue where run_id = $1 for update", _uuid(held))
        late = [one.put(NS, held, signal(str(i).encode())) for i in range(10)]
        assert await asyncio.wait_for(one.send(NS, free, signal(b"x")), 5)
        late += [one.put(NS, held, signal(str(i).encode())) for i in range(10, 20)]
        await holds(lambda: not any(a.done() for a in late), 0.05)
    assert all(await asyncio.wait_for(asyncio.gather(*late), 5))
    assert await inbox(sql, held) == [str(i).encode() for i in range(20)]


async def test_a_run_that_stays_held_is_given_up(
    store: PostgresStore, session: Session, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_S_MAX", 0.05)
    (run_id,) = await session.start()
    async with sql.transaction():
        await sql.execute("select 1 from perdure.run_queue where run_id = $1 for update", _uuid(run_id))
        with pytest.raises(Unavailable, match="could not be reached"):
            await box(store).send(NS, run_id, signal(b"x"))


async def test_what_waits_is_bounded(store: PostgresStore, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_id,) = await session.start()
    one = box(store)
    monkeypatch.setattr(module, "MESSAGES_QUEUED_MAX", 10)
    answers = [one.put(NS, run_id, signal(b"x")) for _ in range(10)]
    with pytest.raises(Unavailable, match="MESSAGES_QUEUED_MAX=10"):
        one.put(NS, run_id, signal(b"x"))
    await asyncio.gather(*answers)
    assert await one.send(NS, run_id, signal(b"x"))
    monkeypatch.setattr(module, "MESSAGES_QUEUED_BYTES_MAX", 10)
    with pytest.raises(Unavailable):
        one.put(NS, run_id, signal(b"x" * 11))


# -- limits ------------------------------------------------------------------------------------------------------------


async def through_inbox(store: PostgresStore, run_id: bytes) -> None:
    await box(store).send(NS, run_id, signal(b"x"))


async def through_idempotency_key(store: PostgresStore, run_id: bytes) -> None:
    once = PostgresDefinitions(store.pool)
    sent = await once.send_once(NS, f"k-{run_id.hex()}", b"h", run_id, SignalMessage("s", b"x"))
    assert sent.sent


async def through_promise(store: PostgresStore, run_id: bytes) -> None:
    assert await store.resolve_promise(run_id, NS, "p", b"x", authorized=False) == (True, True)


async def through_question(store: PostgresStore, run_id: bytes) -> None:
    """An approval that asks nobody in particular is resolved by its question."""
    assert await store.resolve_promise(run_id, NS, "open", b"x", authorized=False, question=b"q") == (True, True)


async def through_update(store: PostgresStore, run_id: bytes) -> None:
    assert (await PostgresUpdates(store.pool).ask((NS, run_id, "u"), "n", b"x")).known


async def through_approval(store: PostgresStore, run_id: bytes) -> None:
    async with PostgresApprovals(store.pool).hold(NS, run_id, "approval") as held:
        await held.decide(b"x")


async def through_link(store: PostgresStore, run_id: bytes) -> None:
    async with PostgresApprovals(store.pool).hold(NS, run_id, "linked") as held:
        assert await held.use_link(run_id, 2_000_000_000_000_000) and await held.resolve(b"x")


DOORS = [
    through_inbox,
    through_idempotency_key,
    through_promise,
    through_question,
    through_update,
    through_approval,
    through_link,
]
ASK = """
insert into perdure.promise (run_id, name, ns, created_at, kind, spec, assignees, escalate_to, quorum, question)
select $1, u.name, 1, now(), 'approval', '{"title": "t", "quorum": 1, "reject_quorum": 1}', '{}', '{}', 1, 'q' from unnest('{approval,open}'::text[]) as u(name)
"""
FILL = """
insert into perdure.inbox (ns, run_id, body, kind, name)
select 1, $1, 'x', 'signal', 'other' from generate_series(1, $2::int)
"""


@pytest.mark.parametrize("door", DOORS)
async def test_full_inbox_of_idle_run_refuses_sender_at_every_door(
    store: PostgresStore, session: Session, sql: Any, door: Any
) -> None:
    idle, owned, room = await session.start(3)
    for run_id, waiting in (
        (idle, MESSAGES_PENDING_MAX),
        (owned, MESSAGES_PENDING_MAX),
        (room, MESSAGES_PENDING_MAX - 1),
    ):
        await sql.execute(ASK, _uuid(run_id))
        await sql.execute(FILL, _uuid(run_id), waiting)
    await sql.execute("update perdure.run_queue set owner = null where run_id <> $1", _uuid(owned))
    count = "select count(*) from perdure.inbox where run_id = $1"
    with pytest.raises(LimitReached) as refused:
        await door(store, idle)
    assert str(refused.value) == (
        f"run {ids.text(idle)} has MESSAGES_PENDING_MAX=10000 unread messages and no engine executes it. Resume it if it is paused, "
        "or start a worker that serves it."
    )
    assert await sql.fetchval(count, _uuid(idle)) == MESSAGES_PENDING_MAX
    await door(store, owned)
    assert await sql.fetchval(count, _uuid(owned)) == MESSAGES_PENDING_MAX + 1, "its engine reads them"
    await door(store, room)
    assert await sql.fetchval(count, _uuid(room)) == MESSAGES_PENDING_MAX
    await sql.execute("delete from perdure.inbox where run_id = $1", _uuid(idle))
    await door(store, idle)
    assert await sql.fetchval(count, _uuid(idle)) == 1, "a refusal leaves nothing behind"


async def test_requests_to_stop_a_run_with_full_inbox_are_taken(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    (idle,) = await session.start()
    await sql.execute(FILL, _uuid(idle), MESSAGES_PENDING_MAX)
    await sql.execute("update perdure.run_queue set owner = null, full_signals = '[\"s\"]'")
    assert await box(store).send(NS, idle, CancelMessage())
    assert await box(store).send(NS, idle, TerminateMessage("", ""))


@pytest.mark.parametrize("door", [through_inbox, through_idempotency_key])
async def test_full_signal_refuses_its_name_at_every_door(
    store: PostgresStore, session: Session, sql: Any, door: Any
) -> None:
    (run_id,) = await session.start()
    await sql.execute('update perdure.run_queue set full_signals = \'["r", "s"]\'')
    with pytest.raises(LimitReached) as refused:
        await door(store, run_id)
    assert str(refused.value) == (
        f"run {ids.text(run_id)} has SIGNALS_BUFFERED_MAX=10000 unread signals 's'. Send more when its code has read half of them."
    )
    assert await store.send_many([message_row(run_id, SignalMessage("t", b"x"))]) == [TAKEN]
    await through_update(store, run_id)
    assert await store.resolve_promise(run_id, NS, "s", b"x", authorized=False) == (True, True), (
        "a promise, not a signal"
    )
    await sql.execute("update perdure.run_queue set full_signals = '[]'")
    await door(store, run_id)


async def test_repetition_is_recognized_before_a_limit_refuses(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    (run_id,) = await session.start()
    updates, once = PostgresUpdates(store.pool), PostgresDefinitions(store.pool)
    assert await box(store).send(NS, run_id, signal(b"x"), key="k")
    await through_idempotency_key(store, run_id)
    await through_promise(store, run_id)
    await through_update(store, run_id)
    await sql.execute(FILL, _uuid(run_id), MESSAGES_PENDING_MAX)
    await sql.execute("update perdure.run_queue set owner = null, full_signals = '[\"s\"]'")
    assert not await box(store).send(NS, run_id, signal(b"x"), key="k")
    sent = await once.send_once(NS, f"k-{run_id.hex()}", b"h", run_id, SignalMessage("s", b"x"))
    assert (sent.sent, sent.held) == (False, b"h")
    assert await store.resolve_promise(run_id, NS, "p", b"x", authorized=False) == (True, False)
    assert (await updates.ask((NS, run_id, "u"), "n", b"x")).known


async def test_a_connection_that_breaks_leaves_the_sender_in_doubt_and_a_key_settles_it(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    (run_id,) = await session.start()
    one = box(store)
    assert await one.send(NS, run_id, signal(b"0"))
    await sql.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database()"
    )

    async def is_sent(i: int) -> bool:
        try:
            await one.send(NS, run_id, signal(str(i).encode()), key=f"k{i}")
        except Unavailable:
            return False
        return True

    for i in range(20):
        await until(lambda i=i: is_sent(i))
    assert await inbox(sql, run_id) == [b"0", *(str(i).encode() for i in range(20))]


async def test_what_waits_is_written_before_it_closes(store: PostgresStore, session: Session, sql: Any) -> None:
    (run_id,) = await session.start()
    one = box(store)
    answers = [one.put(NS, run_id, signal(str(i).encode())) for i in range(1_200)]
    await one.close()
    assert all(await asyncio.gather(*answers))
    with pytest.raises(Unavailable):
        one.put(NS, run_id, signal(b"late"))
    assert len(await inbox(sql, run_id)) == 1_200


async def test_old_keys_are_forgotten_and_those_of_an_ended_run_at_once(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    lasting, ending, continuing, failing = await session.start(4)
    await store.send_many([row(r, b"x", k) for r in (lasting, ending, continuing, failing) for k in ("old", "new")])
    await sql.execute("update perdure.message_key set at = now() - interval '2 days' where key = 'old'")
    await session.end(ending)
    await session.end(continuing, new_run())
    await session.end(failing, ending=Ending.FAILED)
    await store.sweep()
    left = await sql.fetch("select run_id, key from perdure.message_key order by 1")
    assert sorted((r["run_id"].bytes, r["key"]) for r in left) == sorted(
        (r, "new") for r in (lasting, continuing, failing)
    ), "a run that failed may be retried"


# -- the end of a run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [Ending.SUCCESS, Ending.FAILED, Ending.CANCELLED])
async def test_messages_of_a_run_that_ended_before_it_read_them_are_set_aside_in_their_order(
    store: PostgresStore, session: Session, sql: Any, ending: Ending
) -> None:
    (run_id,) = await session.start()
    await store.send_many([*(row(run_id, str(i).encode()) for i in range(5)), message_row(run_id, CancelMessage())])
    await session.end(run_id, ending=ending)
    assert await inbox(sql, run_id, "set_aside_message") == [str(i).encode() for i in range(5)]
    assert {r["reason"] for r in await sql.fetch("select reason from perdure.set_aside_message")} == {ending}
    assert await sql.fetchval("select count(*) from perdure.inbox") == 0, "the end overtook the request to stop"


async def test_an_end_whose_engine_knows_of_no_messages_is_refused_while_there_are_some(
    store: PostgresStore, session: Session, sql: Any
) -> None:
    (run_id,) = await session.start()
    close = CloseRow(run_id, "success", 2, None, None, None, NO_HASH, False)
    batch = Batch()
    batch.closes.append(close)
    await store.send_many([row(run_id, b"x")])
    with pytest.raises(EndsRefused) as refused:
        await session.commit(batch)
    assert (refused.value.run_ids, refused.value.examined) == (frozenset({run_id}), False)
    assert await inbox(sql, run_id) == [b"x"]
    batch.closes[0] = close._replace(has_messages=True)
    batch.ended.append(EndedRow(run_id, NS, Ending.SUCCESS, True, None, None, None))
    with pytest.raises(EndsRefused) as refused:
        await session.commit(batch)
    assert (refused.value.run_ids, refused.value.examined) == (frozenset({run_id}), True)
    assert await inbox(sql, run_id) == [b"x"], "nothing of such a commit is written"
    assert await sql.fetchval("select count(*) from perdure.run") == 0


TALK = {InboxKind.SIGNAL, InboxKind.PROMISE, InboxKind.ANSWER, InboxKind.UPDATE}
"""What senders were promised to be kept."""
REQUESTS = {InboxKind.CANCEL, InboxKind.TERMINATE, InboxKind.PAUSE}


async def put(sql: Any, run_id: bytes, *kinds: InboxKind) -> None:
    for kind in kinds:
        await sql.execute(
            "insert into perdure.inbox (ns, run_id, body, kind, name) values (1, $1, '', $2, 'p')", _uuid(run_id), kind
        )


async def kinds(sql: Any, run_id: bytes, table: str = "inbox") -> list[str]:
    found = await sql.fetch(f"select kind from perdure.{table} where run_id = $1 order by id", _uuid(run_id))
    return [r["kind"] for r in found]


@pytest.mark.parametrize("ending", [Ending.SUCCESS, Ending.FAILED, Ending.CANCELLED])
async def test_an_end_sets_aside_what_senders_were_promised_and_nothing_else(
    session: Session, sql: Any, ending: Ending
) -> None:
    run_id, other = await session.start(2)
    await put(sql, run_id, *InboxKind)
    await put(sql, other, *InboxKind)
    await session.end(run_id, ending=ending)
    assert await kinds(sql, run_id, "set_aside_message") == [kind for kind in InboxKind if kind in TALK]
    assert await kinds(sql, run_id) == []
    assert await kinds(sql, other) == [*InboxKind]


async def test_a_run_that_continues_takes_along_all_but_answers_and_results(session: Session, sql: Any) -> None:
    (run_id,) = await session.start()
    following = new_run()
    await put(sql, run_id, *InboxKind)
    await session.end(run_id, following)
    left_behind = {InboxKind.ANSWER, InboxKind.CHILD, InboxKind.TASK}
    assert await kinds(sql, following) == [kind for kind in InboxKind if kind not in left_behind]
    assert await kinds(sql, run_id, "set_aside_message") == [InboxKind.ANSWER]
    assert await kinds(sql, run_id) == []


@pytest.mark.parametrize("kind", InboxKind)
async def test_success_gives_way_to_what_senders_were_promised_and_to_nothing_else(
    session: Session, sql: Any, kind: InboxKind
) -> None:
    (run_id,) = await session.start()
    await put(sql, run_id, kind)
    batch = Batch()
    batch.closes.append(CloseRow(run_id, "success", 2, None, None, None, NO_HASH, True))
    batch.ended.append(EndedRow(run_id, NS, Ending.SUCCESS, True, None, None, None))
    if kind not in TALK:
        await session.commit(batch)
        return
    with pytest.raises(EndsRefused):
        await session.commit(batch)
    assert await kinds(sql, run_id) == [kind]
    (message_id,) = (await sql.fetchrow("select id from perdure.inbox")).values()
    batch.consumed.append(message_id)
    await session.commit(batch)
    assert await kinds(sql, run_id) == await kinds(sql, run_id, "set_aside_message") == [], "the commit records it"


@pytest.mark.parametrize("kind", sorted(TALK))
async def test_an_end_without_knowledge_of_a_message_is_refused_for_each_kind(
    session: Session, sql: Any, kind: InboxKind
) -> None:
    (run_id,) = await session.start()
    await put(sql, run_id, kind)
    batch = Batch()
    batch.closes.append(CloseRow(run_id, "success", 2, None, None, None, NO_HASH, False))
    with pytest.raises(EndsRefused):
        await session.commit(batch)


async def test_signals_that_nobody_read_go_to_the_next_run_under_the_key(session: Session, sql: Any) -> None:
    (run_id,) = await session.start()
    heir = new_run()
    await sql.execute("insert into perdure.run_key values (1, 'k', $1, '')", _uuid(run_id))
    await put(sql, run_id, *InboxKind)
    batch = Batch()
    batch.closes.append(CloseRow(run_id, "success", 2, None, None, None, NO_HASH, True))
    batch.ended.append(EndedRow(run_id, NS, Ending.SUCCESS, False, None, run_id, heir))
    batch.starts.append(start_row(heir, key="k", input_hash=b"", own=True, body=STARTED, hash=NO_HASH))
    batch.messages.append(MessageRow(heir, b"", "signal", "older"))
    await session.commit(batch)
    assert await sql.fetch("select name, kind from perdure.inbox where run_id = $1 order by id", _uuid(heir)) == [
        ("older", "signal"),
        ("p", "signal"),
    ]
    assert await kinds(sql, run_id, "set_aside_message") == ["promise", "answer", "update"]
    assert await sql.fetchval("select run_id from perdure.run_key") == _uuid(heir)
    assert await sql.fetchval("select count(*) from perdure.run_chain") == 0, "it is another run, not a chain"


async def test_key_and_first_id_of_a_chain_name_its_last_run(session: Session, sql: Any) -> None:
    (first,) = await session.start()
    second, third = new_run(), new_run()
    await sql.execute("insert into perdure.run_key values (1, 'k', $1, '')", _uuid(first))
    for before, after in ((first, second), (second, third)):
        batch = Batch()
        batch.closes.append(CloseRow(before, "success", 2, None, None, after, NO_HASH, True))
        batch.ended.append(EndedRow(before, NS, Ending.CONTINUED, False, after, first, after))
        batch.starts.append(start_row(after, key="k", input_hash=b"", own=True, body=STARTED, hash=NO_HASH))
        await session.commit(batch)
        assert await sql.fetchval("select run_id from perdure.run_key") == _uuid(after)
        assert await sql.fetch("select run_id, head from perdure.run_chain") == [(_uuid(first), _uuid(after))]


async def test_a_value_that_moves_on_is_still_the_first_one(store: PostgresStore, session: Session, sql: Any) -> None:
    (run_id,) = await session.start()
    following = new_run()
    assert await store.resolve_promise(run_id, NS, "p", b"", authorized=True, question=b"") == (True, True)
    await session.end(run_id, following)
    assert await store.resolve_promise(following, NS, "p", b"", authorized=True, question=b"") == (True, False)


async def answered(store: PostgresStore, session: Session, sql: Any, question: bytes) -> tuple[bytes, Batch]:
    """A run with an open approval that has a vote and was delegated; and what asks it, or something else, again."""
    (run_id,) = await session.start()
    spec = '{"quorum": 2, "assignees": ["ada", "ben"]}'
    batch = Batch()
    batch.promises.append(PromiseRow(run_id, "p", NS, "approval", spec, b"pay 5?", False))
    await session.commit(batch)
    await sql.execute("update perdure.promise set assignees = '{ada, dan}'")
    await sql.execute(
        "insert into perdure.vote (run_id, name, who, approved, via) values ($1, 'p', 'ada', true, 'link')",
        _uuid(run_id),
    )
    again = Batch()
    again.promises.append(PromiseRow(run_id, "p", NS, "approval", spec, question, False))
    return run_id, again


@pytest.mark.parametrize("ending", [Ending.SUCCESS, Ending.FAILED, Ending.CANCELLED])
async def test_questions_and_votes_outlive_a_failure_alone(
    store: PostgresStore, session: Session, sql: Any, ending: Ending
) -> None:
    run_id, _ = await answered(store, session, sql, b"pay 5?")
    await session.end(run_id, ending=ending)
    kept = 1 if ending is Ending.FAILED else 0
    assert await sql.fetchval("select count(*) from perdure.promise") == kept
    assert await sql.fetchval("select count(*) from perdure.vote") == kept
    assert await sql.fetchval("select count(*) from perdure.promise where asked") == 0, "nobody answers an ended run"


@pytest.mark.parametrize("question", [b"pay 5?", b"pay 1,000,000?"])
async def test_votes_and_delegations_count_if_the_same_is_asked_again(
    store: PostgresStore, session: Session, sql: Any, question: bytes
) -> None:
    run_id, again = await answered(store, session, sql, question)
    await sql.execute("update perdure.promise set asked = false")
    await session.commit(again)
    is_same = question == b"pay 5?"
    found = await sql.fetchrow("select asked, assignees, question, resolved_at from perdure.promise")
    assert found == (True, ["ada", "dan" if is_same else "ben"], question, None)
    assert await sql.fetchval("select count(*) from perdure.vote") == is_same
    assert await store.resolve_promise(run_id, NS, "p", b"", authorized=True, question=b"refund?") == (True, False)
    assert await store.resolve_promise(run_id, NS, "p", b"", authorized=True, question=question) == (True, True)
    await sql.execute("update perdure.promise set asked = false")
    await session.commit(again)
    assert await sql.fetchval("select resolved_at is not null from perdure.promise"), "the answer was to this question"
    other = Batch()
    other.promises.append(again.promises[0]._replace(question=b"something else?"))
    await session.commit(other)
    assert await sql.fetchval("select resolved_at is null from perdure.promise")
