"""Day partitions of the tables that grow: created ahead, dropped by age, rows of active runs carried forward.

A partition covers the ids of one day. Rows outside any partition land in the default one: that is where active runs of a dropped
day live on, because their ids belong to that day for ever.

Identifiers cannot be parameters; the names spliced in here are made of a fixed table name and a date, nothing a user can reach.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from asyncpg import exceptions as pg

from perdure.core.ids import lowest_at
from perdure.store.queries import queries

log = logging.getLogger("perdure.store")

TABLES: Final = {"history": "run_id", "run": "run_id", "task": "run_id", "run_state": "run_id"}
"""Table -> the column that names the run a row belongs to."""


def _day(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _bound(day: datetime) -> str:
    return str(lowest_at(int(day.timestamp() * 1000)))


def _name(table: str, day: datetime) -> str:
    return f"{table}_p{day:%Y%m%d}"


async def _existing(c: Any) -> set[str]:
    rows = await c.fetch(queries()["list_partitions"], list(TABLES))
    return {r["name"] for r in rows}


async def create_ahead(c: Any, days: int) -> int:
    """Today and `days` more. Safe when many engines do it at once: one has the lock, the others find it done."""
    today = _day(datetime.now(UTC))
    wanted = [(t, today + timedelta(days=d)) for t in TABLES for d in range(days + 1)]
    have = await _existing(c)
    created = 0
    for table, day in wanted:
        if _name(table, day) not in have:
            created += await _create(c, table, day)
    return created


async def _create(c: Any, table: str, day: datetime) -> int:
    """Made beside and then attached: attaching does not block writers of the other partitions."""
    name, low, high = _name(table, day), _bound(day), _bound(day + timedelta(days=1))
    try:
        async with c.transaction():
            await c.execute("select pg_advisory_xact_lock(hashtext('perdure.partitions'))")
            await c.execute("set local lock_timeout = '5s'")
            if name in await _existing(c):
                return 0
            await c.execute(
                f"create table perdure.{name} (like perdure.{table} including defaults including constraints)"
            )
            await c.execute(
                f"alter table perdure.{table} attach partition perdure.{name} for values from ('{low}') to ('{high}')"
            )
    except (pg.CheckViolationError, pg.LockNotAvailableError, pg.DuplicateTableError) as e:
        # Rows of that day are in the default partition already, or somebody holds a lock: nothing is lost, the day stays there.
        log.warning("partition %s was not created: %s", name, e)
        return 0
    return 1


async def drop_old(c: Any, keep_days: float) -> int:
    """Drop days that ended more than keep_days ago, after moving the rows of runs that are still active."""
    limit = datetime.now(UTC) - timedelta(days=keep_days)
    dropped = 0
    for name in sorted(await _existing(c)):
        table, _, stamp = name.rpartition("_p")
        if table not in TABLES or not stamp.isdigit():
            continue
        day = datetime.strptime(stamp, "%Y%m%d").replace(tzinfo=UTC)
        if day + timedelta(days=1) <= limit:
            dropped += await _drop(c, table, name, day + timedelta(days=1))
    await c.execute(
        "delete from perdure.run_key k where k.run_id < $1 and not exists (select from perdure.run_queue q where q.run_id = k.run_id)",
        lowest_at(int(_day(limit).timestamp() * 1000)).bytes,
    )
    return dropped


async def _drop(c: Any, table: str, name: str, end: datetime) -> int:
    try:
        async with c.transaction():
            if not await c.fetchval(queries()["lock_partitions"]):
                return 0
            await c.execute("set local lock_timeout = '5s'")
            # Detached, the table takes no more writes of this range: late ones go to the default partition.
            await c.execute(f"alter table perdure.{table} detach partition perdure.{name}")
            active = [
                r["run_id"]
                for r in await c.fetch(queries()["carry_runs"], lowest_at(int(end.timestamp() * 1000)).bytes)
            ]
            if active:
                await c.execute(
                    f"insert into perdure.{table} select * from perdure.{name} where {TABLES[table]} = any($1::uuid[])",
                    active,
                )
            await c.execute(f"drop table perdure.{name}")
    except (pg.LockNotAvailableError, pg.DeadlockDetectedError) as e:
        log.warning("partition %s was not dropped, next time: %s", name, e)
        return 0
    return 1
