"""Databases whose runs began and ended days ago: the clock of the database is set back while an engine makes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from perdure import EngineSettings, Perdure
from perdure.store import partitions
from perdure.store.connections import connect


def day_ago(days: float) -> datetime:
    return partitions._day(datetime.now(UTC) - timedelta(days=days))


@asynccontextmanager
async def days_ago(dsn: str, days: float, settings: EngineSettings | None = None) -> AsyncIterator[Perdure]:
    """An engine that lives so many days ago, with partitions of its day."""
    name = dsn.rpartition("/")[2].partition("?")[0]
    c = await connect(dsn)
    try:
        for table in partitions.TABLES:
            await partitions._create(c, table, day_ago(days))
        await c.execute(f"alter database \"{name}\" set perdure.clock_offset = '-{days} days'")
        try:
            async with Perdure(dsn, settings=settings or EngineSettings()) as client:
                yield client
        finally:
            await c.execute(f'alter database "{name}" reset perdure.clock_offset')
    finally:
        await c.close()


async def fetched(dsn: str, query: str, *args: Any) -> list[Any]:
    c = await connect(dsn)
    try:
        return list(await c.fetch(query, *args))
    finally:
        await c.close()


async def retain(dsn: str, **settings: Any) -> Perdure:
    """Let retention do all that is to be done, in an engine that does nothing else."""
    async with Perdure(dsn, settings=EngineSettings(retention_share=1.0, **settings)) as client:
        while await client.engine.retention.work_once():
            pass
        return client
