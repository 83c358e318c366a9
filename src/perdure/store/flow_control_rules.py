"""The RuleStore port on PostgreSQL. A change, its moment and the lines of those it is about are one transaction."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from perdure.core.api.flow_control import RateRule, RuleView
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.flow_control import assign_lines
from perdure.store.queries import queries


@retried()
class PostgresRulebook:
    def __init__(self, database: str | Connections) -> None:
        """`database` is a DSN, or a pool that somebody else opens and closes."""
        self._q = queries()
        self._pool = Connections(database) if isinstance(database, str) else database

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def _change(self) -> AsyncGenerator[tuple[Any, int]]:
        """A transaction that changes a rule, alone, and the moment of the change."""
        async with self._pool.take() as c, c.transaction():
            await c.execute(self._q["lock_rulebook"])
            row = await c.fetchrow(self._q["next_change"])
            yield c, row["at"]

    async def set(
        self, ns: int, scope: str, name: str, concurrency: int | None, rate: RateRule | None, by: str
    ) -> None:
        limits = (rate.count, rate.per_us, rate.burst) if rate is not None else (None, None, None)
        async with self._change() as (c, at_us):
            await c.execute(self._q["set_rule"], ns, scope, name, concurrency, *limits, by, at_us)
            await assign_lines(c, ns, scope, name)

    async def clear(self, ns: int, scope: str, name: str, by: str) -> bool:
        async with self._change() as (c, at_us):
            return await c.fetchrow(self._q["clear_rule"], ns, scope, name, by, at_us) is not None

    async def pause(self, ns: int, scope: str, name: str, reason: str | None, by: str) -> None:
        async with self._change() as (c, at_us):
            await c.execute(self._q["pause_scope"], ns, scope, name, by, reason, at_us)
            await assign_lines(c, ns, scope, name)

    async def unpause(self, ns: int, scope: str, name: str, by: str) -> bool:
        async with self._change() as (c, at_us):
            return await c.fetchrow(self._q["unpause_scope"], ns, scope, name, by, at_us) is not None

    async def page(self, ns: int, after: tuple[str, str], limit: int) -> list[RuleView]:
        async with self._pool.take() as c:
            return [_view(r) for r in await c.fetch(self._q["list_rules"], ns, *after, limit)]

    async def get(self, ns: int, scope: str, name: str) -> RuleView | None:
        async with self._pool.take() as c:
            row = await c.fetchrow(self._q["get_rule"], ns, scope, name)
        return _view(row) if row is not None else None


def _view(r: Any) -> RuleView:
    return RuleView(
        scope=r["scope"],
        name=r["name"],
        concurrency=r["concurrency"],
        rate=RateRule(r["rate"], r["per_us"], r["burst"]) if r["rate"] is not None else None,
        paused_us=r["paused_at"],
        paused_by=r["paused_by"],
        pause_reason=r["pause_reason"],
        updated_us=r["updated_at"],
        updated_by=r["updated_by"],
    )
