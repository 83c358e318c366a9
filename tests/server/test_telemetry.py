"""What nobody waits for is written in sets, bounded in memory, and never in anybody's way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import asyncpg
import pytest

from perdure.core import ids
from perdure.core.errors import Unavailable
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment, LogChunk, LogLine
from perdure.engine.counters import Counters
from perdure.engine.services import task_logs as logs_module
from perdure.engine.services.task_logs import LogRow, TaskLogs
from perdure.engine.services.telemetry import BacklogRow, TaskNote, Telemetry, WorkerRow
from perdure.engine.tasks.backlog import Backlog
from perdure.engine.tasks.flight import Flight
from perdure.engine.tasks.lost_workers import settle_lost
from perdure.store.postgres import PostgresStore
from perdure.store.telemetry import PostgresTelemetry
from perdure.wire.codec import encode_options
from tests.fakes.engine_parts import EngineParts
from tests.fakes.waiting import forever

NOW_US = 1_800_000_000_000_000


def run_id(n: int = 1) -> bytes:
    return ids.run_id(1_800_000_000_000, 0, n)


def chunk(n: int, text: str = "hello", run: bytes | None = None) -> LogChunk:
    return LogChunk(run or run_id(), 0, 1, n, [LogLine(NOW_US, "stdout", "info", text)], 1)


def worker_row(n: int, connected_us: int = NOW_US, **changes: object) -> WorkerRow:
    given: dict[str, object] = {
        "id": run_id(n),
        "ns": 1,
        "name": f"worker-{n}",
        "host": "box",
        "pid": 7,
        "sdk": "python 0.1",
        "queues": ["default", "gpu"],
        "tasks": ["a", "b"],
        "versions": {},
        "build_id": "",
        "slots": 10,
        "slots_used": 3,
        "runs_held": 0,
        "draining": False,
        "connected_us": connected_us,
        "seen_us": connected_us,
    }
    return WorkerRow(**(given | changes))  # type: ignore[arg-type]


@dataclass
class Recording:
    """A store that can be away, or refuse a chunk."""

    rows: list[LogRow] = field(default_factory=list)
    batches: int = 0
    away: bool = False
    refuse: str = ""
    notes: list[TaskNote] = field(default_factory=list)
    known: set[bytes] | None = None

    async def write_logs(self, rows: list[LogRow]) -> None:
        if self.away:
            raise Unavailable("gone fishing")
        if self.refuse and any(self.refuse.encode() in r.body for r in rows):
            raise ValueError("a row that will not do")
        self.batches += 1
        self.rows += rows

    async def write_task_notes(self, session: int, notes: list[TaskNote]) -> set[bytes]:
        if self.away:
            raise Unavailable("gone fishing")
        self.notes += notes
        return {n.id for n in notes} if self.known is None else self.known

    async def write_workers(self, session: int, rows: list[WorkerRow]) -> None:
        if self.away:
            raise Unavailable("gone fishing")

    async def write_backlog(self, session: int, rows: list[BacklogRow]) -> None: ...


def logs_on(store: Recording) -> tuple[TaskLogs, Counters]:
    counters = Counters()
    return TaskLogs(counters, store), counters


def telemetry_on(store: Recording, flights: list[Flight]) -> tuple[Telemetry, Counters]:
    parts = EngineParts()
    parts.attempts.flights.update({(f.assignment.run_id, f.assignment.seq): f for f in flights})
    return Telemetry(parts.context, store, parts.attempts, Backlog()), parts.counters


def flight(seq: int = 0, attempt: int = 1, **changes: object) -> Flight:
    a = Assignment(run_id(), seq, attempt, 1, "t", b"[]", TaskOptions(), 1)
    made = Flight(a, None, "t", "default", 0, NOW_US, NOW_US, NOW_US, True)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


# -- in memory ------------------------------------------------------------------------------------------------------


async def test_chunks_are_written_together() -> None:
    store = Recording()
    notes, counters = logs_on(store)
    notes.add([chunk(n) for n in range(300)])
    notes.add([chunk(n) for n in range(300, 600)])
    assert await notes.write()
    assert [r.n for r in store.rows] == list(range(600))
    assert store.batches == 2
    assert counters.log_chunks == 600
    assert json.loads(store.rows[0].body) == [[NOW_US, "stdout", "info", "hello"]]


async def test_while_the_database_is_away_the_oldest_output_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs_module, "LOG_BYTES_MAX", 20_000)
    store = Recording(away=True)
    notes, counters = logs_on(store)
    for n in range(1_000):
        notes.add([chunk(n, "x" * 100)])
        if n % 100 == 0:
            assert not await notes.write()
    assert notes.waiting * 300 < 25_000
    assert counters.log_chunks_dropped == 1_000 - notes.waiting
    store.away = False
    assert await notes.write()
    assert [r.n for r in store.rows] == list(range(counters.log_chunks_dropped, 1_000))
    assert notes.waiting == 0
    notes.add([chunk(0)])
    assert notes.waiting == 1, "what left is not counted any more"


async def test_one_refused_chunk_does_not_take_its_neighbours_along() -> None:
    store = Recording(refuse="poison")
    notes, counters = logs_on(store)
    notes.add([chunk(n, "poison" if n == 37 else "fine") for n in range(100)])
    assert await notes.write()
    assert [r.n for r in store.rows] == [n for n in range(100) if n != 37]
    assert counters.log_chunks_dropped == 1


async def test_output_that_is_no_text_is_kept_as_well_as_it_can_be() -> None:
    store = Recording()
    notes, _ = logs_on(store)
    notes.add([chunk(0, "half \ud800 a character"), chunk(1, "nul \x00")])
    assert await notes.write()
    assert json.loads(store.rows[0].body)[0][3] == "half ? a character"
    assert json.loads(store.rows[1].body)[0][3] == "nul \x00"


async def test_a_note_whose_row_is_not_there_yet_is_written_again() -> None:
    store = Recording(known=set())
    waiting, done, short = flight(0), flight(1, is_recorded=True), flight(2, row=False)
    notes, _ = telemetry_on(store, [waiting, done, short])
    await notes.write()
    await notes.write()
    assert [n.attempt for n in store.notes] == [1, 1]
    assert not waiting.is_recorded
    store.known = None
    await notes.write()
    assert waiting.is_recorded
    await notes.write()
    assert len(store.notes) == 3
    assert store.notes[0].worker == "fake"


async def test_trouble_with_notes_stays_here() -> None:
    store = Recording(away=True)
    waiting = flight(0)
    notes, counters = telemetry_on(store, [waiting])
    notes.set_workers([worker_row(1)])
    await notes.write()
    assert not waiting.is_recorded
    assert counters.telemetry_write_failures == 2


async def test_closing_writes_the_last_output_and_waits_for_no_one() -> None:
    class Slow(Recording):
        async def write_logs(self, rows: list[LogRow]) -> None:
            await forever()

    notes, _ = logs_on(Recording())
    notes.add([chunk(0)])
    await notes.close()
    assert notes.waiting == 0
    slow, _ = logs_on(Slow())
    slow.add([chunk(0)])
    began = asyncio.get_running_loop().time()
    await slow.close()
    assert asyncio.get_running_loop().time() - began < logs_module.CLOSE_S + 1
    assert slow.waiting == 1


# -- in the database ------------------------------------------------------------------------------------------------


@pytest.fixture
async def store(dsn: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(dsn)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def test_a_chunk_that_is_written_twice_is_there_once(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await store.create_partitions(1)
    notes = PostgresTelemetry(store.pool)
    rows = [LogRow(run_id(), 0, 1, n, 1, 1, b"[]") for n in range(3)]
    await notes.write_logs(rows)
    await notes.write_logs([*rows, LogRow(run_id(), 0, 2, 0, 1, 1, b"[]")])
    assert await sql.fetchval("select count(*) from perdure.task_log") == 4


async def test_output_lies_in_the_partition_of_its_run(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await store.create_partitions(5)
    made = {
        r["relname"]
        for r in await sql.fetch("select relname from pg_class where relname like 'task_log_p%' and relkind = 'r'")
    }
    assert len(made) == 6


async def queued_task(sql: asyncpg.Connection, seq: int, owner: int | None, attempt: int = 1) -> bytes:
    task_id = ids.derive(run_id(), ids.TASK, seq)
    await sql.execute(
        """insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, owner, scheduled_at, options, input)
           values ($1, 1, $2, $3, 't', 'default', $4, $5, 0, now() - interval '1 minute', $6, now(), $7, '')""",
        ids.text(task_id),
        ids.text(run_id()),
        seq,
        "pending" if owner is None else "running",
        attempt,
        owner,
        encode_options(TaskOptions()),
    )
    return task_id


async def test_only_the_owner_of_an_attempt_notes_on_it(store: PostgresStore, sql: asyncpg.Connection) -> None:
    mine = (await store.register("me", 15, 1)).id
    other = (await store.register("other", 15, 1)).id
    own = await queued_task(sql, 0, mine)
    foreign = await queued_task(sql, 1, other)
    later = await queued_task(sql, 2, mine, attempt=2)
    given = [
        TaskNote(i, 1, "w1", NOW_US, NOW_US + 5, b'{"done":1}', "stack\x00 of frames")
        for i in (own, foreign, later, run_id())
    ]
    assert await PostgresTelemetry(store.pool).write_task_notes(mine, given) == {own}
    rows = await sql.fetch(
        "select worker, details, blocked, beat_at - started_at as gap from perdure.task_queue order by seq"
    )
    assert (rows[0]["worker"], rows[0]["details"], rows[0]["blocked"]) == ("w1", b'{"done":1}', "stack of frames")
    assert rows[0]["gap"].microseconds == 5
    assert [r["worker"] for r in rows[1:]] == [None, None]


async def test_a_note_does_not_wait_for_a_commit(store: PostgresStore, sql: asyncpg.Connection) -> None:
    mine = (await store.register("me", 15, 1)).id
    task_id = await queued_task(sql, 0, mine)
    async with sql.transaction():
        await sql.execute("select from perdure.task_queue for update")
        async with asyncio.timeout(2):
            note = TaskNote(task_id, 1, "w", NOW_US, NOW_US, b"", "")
            assert await PostgresTelemetry(store.pool).write_task_notes(mine, [note]) == set()


async def test_workers_come_go_and_move(store: PostgresStore, sql: asyncpg.Connection) -> None:
    notes = PostgresTelemetry(store.pool)
    first, second = (await store.register("one", 15, 1)).id, (await store.register("two", 15, 1)).id

    async def seen() -> dict[str, int]:
        return {
            r["name"]: r["session_id"]
            for r in await sql.fetch("select name, session_id from perdure.worker order by name")
        }

    await notes.write_workers(first, [worker_row(1), worker_row(2)])
    assert await seen() == {"worker-1": first, "worker-2": first}
    assert await sql.fetchval("select queues from perdure.worker limit 1") == ["default", "gpu"]
    await notes.write_workers(second, [worker_row(2, NOW_US + 1, slots_used=9)])
    await notes.write_workers(first, [worker_row(1), worker_row(2)])
    assert await seen() == {"worker-1": first, "worker-2": second}, "the newer connection counts"
    await notes.write_workers(first, [])
    assert await seen() == {"worker-2": second}
    await store.leave(second, settle_lost)
    await notes.write_workers(second, [worker_row(2, NOW_US + 1), worker_row(3)])
    assert await seen() == {"worker-2": second}, "a session that is gone adds nobody"
    await store.sweep()
    assert await seen() == {}


async def test_depths_are_per_queue_and_count_what_is_due(store: PostgresStore, sql: asyncpg.Connection) -> None:
    notes = PostgresTelemetry(store.pool)
    assert await notes.queue_depths() == []
    session = (await store.register("me", 15, 1)).id
    for seq in range(5):
        await queued_task(sql, seq, None)
    await queued_task(sql, 5, session)
    await sql.execute("update perdure.task_queue set queue = 'gpu', name = 'u' where seq = 1")
    await sql.execute("update perdure.task_queue set name = 'v' where seq = 2")
    await sql.execute("update perdure.task_queue set run_at = now() + interval '1 hour' where seq = 3")
    depths = await notes.queue_depths()
    assert [(ns, queue, due) for ns, queue, due, _ in depths] == [("default", "default", 3), ("default", "gpu", 1)]
    assert all(59 < age < 120 for *_, age in depths)
    kinds = [BacklogRow(1, "default", "t", 7, 2, 1_000_000), BacklogRow(1, "cpu", "t", 0, 3, None)]
    await notes.write_backlog(session, kinds)
    await notes.write_backlog(session + 1_000, kinds)
    depths = await notes.queue_depths()
    assert [(queue, due) for _, queue, due, _ in depths] == [("default", 10), ("gpu", 1)], "of a living session alone"
    assert depths[0][3] > 1e9, "the oldest of both"
    await sql.execute("update perdure.engine_session set expires_at = now()")
    assert [due for _, _, due, _ in await notes.queue_depths()] == [3, 1], "its engine is gone"
    await sql.execute("update perdure.engine_session set expires_at = now() + interval '1 minute'")
    await notes.write_backlog(session, [])
    assert [due for _, _, due, _ in await notes.queue_depths()] == [3, 1]
    assert await notes.live_sessions() == 1
    assert await notes.namespaces() == {1: "default"}
