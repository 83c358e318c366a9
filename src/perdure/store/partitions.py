"""Day partitions of the tables that grow, created ahead. Retention drops them: store/retention.py.

A partition covers the ids of one day. Rows outside any partition land in the default one: that is where active runs of a dropped
day live on, because their ids belong to that day for ever.

The schema is changed by functions in the database that check what they are asked for, so that an engine's role need own nothing.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from asyncpg import exceptions as pg

from perdure.core.ids import lowest_at
from perdure.store.queries import fetch, fetch_value

log = logging.getLogger("perdure.store")

TABLES: Final = ("history", "run", "task", "task_attempt", "node_count", "run_state", "task_log", "payload_use")
"""Each has a column `run_id` that names the run a row belongs to."""


def _day(moment: datetime) -> datetime:
    return moment.replace(hour=0, minute=0, second=0, microsecond=0)


def _bound(day: datetime) -> bytes:
    return lowest_at(int(day.timestamp() * 1000)).bytes


def _name(table: str, day: datetime) -> str:
    return f"{table}_p{day:%Y%m%d}"


async def _existing(c: Any) -> set[str]:
    rows = await fetch(c, "list_partitions", tables=list(TABLES))
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
    name = _name(table, day)
    try:
        return int(
            await fetch_value(
                c, "create_partition", parent=table, name=name, low=_bound(day), high=_bound(day + timedelta(days=1))
            )
        )
    except (pg.CheckViolationError, pg.LockNotAvailableError, pg.DuplicateTableError) as e:
        # Rows of that day are in the default partition already, or another transaction holds a lock: nothing is lost, the day stays there.
        log.warning("partition %s was not created: %s", name, e)
        return 0
