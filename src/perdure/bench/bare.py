"""What bare PostgreSQL does with the rows of a task: the limit that an engine on it is measured against.

Three patterns on one connection, in batches that are each committed under the server's own durability settings:

    life3    insert as pending, claim with SKIP LOCKED, complete: what a queue on PostgreSQL does at the least
    life2    insert, complete: the scheduler knows who executes, so nothing is claimed
    append   one COPY of finished rows: the least that can be called durable

Beside it, what else the bench needs from a database and no engine does: one to throw away, copies of an ended run.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import msgspec
from asyncpg.pgproto import pgproto

from perdure.core import ids
from perdure.store.connect import connect
from perdure.store.queries import queries

Pattern = Literal["life3", "life2", "append"]
BATCH_TASKS: Final = 500
INPUT: Final = b'{"n":12345}'
RESULT: Final = b"12345"
DAY_MS: Final = 86_400_000
COPY_TASKS: Final = 250_000
"""Tasks copied by one statement of `copy_run`, so that progress can be shown."""
HISTORY_ROWS: Final = 5_000
"""Rows of histories that are fetched at a time."""
_HISTORY_COLUMNS: Final = ("run_id", "seq", "kind", "task_id", "body")
# The driver's own id type: it is sent without a conversion, which a plain UUID is not.
_Uuid: Any = pgproto.UUID


class BareServer(msgspec.Struct, frozen=True):
    """The server as it answers. `pid` is that of a backend on this machine, None where it runs on another."""

    version: str
    fsync: str
    synchronous_commit: str
    shared_buffers: str
    pid: int | None


class Bare:
    """One connection that writes tasks with no engine."""

    def __init__(self, connection: Any) -> None:
        self._c = connection
        self._q = queries("perdure.bench")

    async def _row(self, name: str, /, **args: Any) -> Any:
        query = self._q[name]
        return await self._c.fetchrow(query.sql, *query.bind(args))

    async def _value(self, name: str, /, **args: Any) -> Any:
        query = self._q[name]
        return await self._c.fetchval(query.sql, *query.bind(args))

    async def execute(self, name: str, /, **args: Any) -> None:
        query = self._q[name]
        await self._c.execute(query.sql, *query.bind(args))

    async def server(self) -> BareServer:
        r = await self._row("bare_server")
        pid = r["pid"] if r["is_near"] else None
        return BareServer(r["version"], r["fsync"], r["synchronous_commit"], r["shared_buffers"], pid)

    async def tasks_per_s(self, pattern: Pattern, tasks: int) -> float:
        """Write this many tasks, rounded up to whole batches, into new tables."""
        batches = [_batch() for _ in range(-(-tasks // BATCH_TASKS))]
        for name in ("bare_drop", "bare_schema", "bare_task_table", "bare_task_index", "bare_history_table"):
            await self.execute(name)
        seconds = await (self._append(batches) if pattern == "append" else self._live(batches, pattern == "life3"))
        await self.execute("bare_drop")
        return len(batches) * BATCH_TASKS / seconds

    async def _live(self, batches: list[tuple[Any, list[Any]]], with_claim: bool) -> float:
        insert, claim, complete = [
            await self._c.prepare(self._q[name].sql) for name in ("bare_insert", "bare_claim", "bare_complete")
        ]
        results, names, inputs = [RESULT] * BATCH_TASKS, ["noop"] * BATCH_TASKS, [INPUT] * BATCH_TASKS
        seqs = list(range(BATCH_TASKS))
        began = time.perf_counter()
        for run_id, task_ids in batches:
            await insert.fetch(task_ids, [run_id] * BATCH_TASKS, seqs, names, inputs)
            mine = [r[0] for r in await claim.fetch(BATCH_TASKS)] if with_claim else task_ids
            await complete.fetch(mine, results)
        seconds = time.perf_counter() - began
        completed = await self._value("bare_completed")
        assert completed == len(batches) * BATCH_TASKS, completed
        return seconds

    async def _append(self, batches: list[tuple[Any, list[Any]]]) -> float:
        rows = [[(run_id, i, 1, task_id, RESULT) for i, task_id in enumerate(task_ids)] for run_id, task_ids in batches]
        began = time.perf_counter()
        for batch in rows:
            await self._c.copy_records_to_table(
                "history", schema_name="perdure_bare", columns=_HISTORY_COLUMNS, records=batch
            )
        return time.perf_counter() - began

    async def copy_run(self, run_id: str, tasks_of_run: int, tasks: int, copied: Callable[[int], None]) -> None:
        """Leave the rows that so many tasks of ended runs leave, as copies of one such run.

        The copies are dated today, so that they share their partitions with what is measured next to them.
        """
        copies = tasks // tasks_of_run
        now_ms = _now_ms()
        midnight_ms = now_ms - now_ms % DAY_MS
        step_us = (now_ms - midnight_ms) * 1000 // max(copies, 1)
        at_once = max(1, COPY_TASKS // tasks_of_run)
        template = _Uuid(run_id)
        for first in range(0, copies, at_once):
            last = min(first + at_once, copies) - 1
            await self.execute(
                "bare_copy_run", run_id=template, first=first, last=last, midnight_ms=midnight_ms, step_us=step_us
            )
            copied((last + 1) * tasks_of_run)

    async def tasks_kept(self) -> int:
        return int(await self._value("bare_tasks_kept"))

    async def sleeping(self) -> int:
        return int(await self._value("bare_sleeping"))

    async def sizes_mb(self) -> tuple[float, float]:
        """Of the whole database, and of the table of active runs with its indexes."""
        r = await self._row("bare_sizes")
        return r["of_database"] / 2**20, r["of_runs"] / 2**20

    async def now_us(self) -> int:
        return int(await self._value("bare_now"))

    async def ends(self, workflow: str) -> tuple[int, int | None]:
        """How many runs of a workflow ended well, and the moment of the last end."""
        r = await self._row("bare_ends", workflow=workflow)
        return r["runs"], r["last_us"]

    async def has_runs(self, workflow: str) -> bool:
        return bool(await self._value("bare_has_runs", workflow=workflow))

    async def engines(self) -> int:
        return int(await self._value("bare_engines"))

    async def histories(self, workflow: str) -> AsyncGenerator[tuple[int, int, bytes]]:
        """Rows of the ended runs of a workflow, run by run: first event, moment, body."""
        async with self._c.transaction():
            async for r in self._c.cursor(self._q["bare_histories"].sql, workflow, prefetch=HISTORY_ROWS):
                yield r["seq"], r["at_us"], r["body"]

    async def written(self) -> tuple[int, int]:
        """Bytes of WAL and transactions that wrote, of the whole server and since its beginning."""
        r = await self._row("bare_written")
        return r["wal_bytes"], r["transactions"]

    async def tables(self) -> dict[str, tuple[int, int]]:
        """Bytes and rows of each table of Perdure, after a vacuum of those that keep rows."""
        await self.execute("bare_vacuum_rows")
        query = self._q["bare_tables"]
        return {r["name"]: (r["bytes"], r["row_count"]) for r in await self._c.fetch(query.sql)}

    async def settle(self) -> None:
        """Do now what the server would do about past writes in the middle of the next measurement."""
        await self.execute("bare_vacuum")
        try:
            await self.execute("bare_checkpoint")
        except asyncpg.InsufficientPrivilegeError:
            pass  # a server that was given by DSN; its checkpoints come when they come


@asynccontextmanager
async def bare(dsn: str) -> AsyncGenerator[Bare]:
    async with connect(dsn) as connection:
        made = Bare(connection)
        await made.execute("bare_planner")
        yield made


@asynccontextmanager
async def scratch_database(dsn: str) -> AsyncGenerator[str]:
    """The DSN of a database made for this purpose on the server of `dsn`, and dropped afterwards."""
    # Not a parameter, since identifiers cannot be; nothing of it comes from outside.
    name = f"perdure_bench_{secrets.token_hex(6)}"
    async with connect(dsn) as c:
        await c.execute(f"create database {name}")
    try:
        yield urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
    finally:
        async with connect(dsn) as c:
            await c.execute(f"drop database if exists {name} with (force)")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _batch() -> tuple[Any, list[Any]]:
    """A run's id and its tasks' ids, in the order in which an engine would make them."""
    run = ids.run_id(_now_ms(), 0, secrets.randbits(62))
    return _Uuid(run), [_Uuid(ids.derive(run, ids.TASK, seq)) for seq in range(BATCH_TASKS)]
