"""The RuleStore port on PostgreSQL. A change, its moment and the lines of those it is about are one transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from perdure.core.api.flow_control import LimitHolder, LimitUsage, RateRule, RuleView
from perdure.core.flow_control.groups import decode_needs
from perdure.engine.api.ports import QUEUE_COUNT_MAX
from perdure.store.clashes import retried
from perdure.store.flow_control import assign_lines
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row

HOLDERS_SHOWN_MAX: Final = 20
"""Runs that hold a limit, of each limit."""
LIMITS_SHOWN_MAX: Final = 200
"""Limits in use in one answer."""


@retried()
class PostgresFlowControlRules(PostgresPort):
    @asynccontextmanager
    async def _change(self) -> AsyncGenerator[tuple[Any, int]]:
        """A transaction that changes a rule, alone, and the moment of the change."""
        async with self._pool.take() as c, c.transaction():
            await execute(c, "lock_flow_control_rules")
            row = await fetch_row(c, "next_rule_change")
            yield c, row["at"]

    async def set(
        self, ns: int, scope: str, name: str, concurrency: int | None, rate: RateRule | None, by: str
    ) -> None:
        async with self._change() as (c, at_us):
            await execute(
                c,
                "set_rule",
                ns=ns,
                scope=scope,
                name=name,
                concurrency=concurrency,
                rate=rate.count if rate is not None else None,
                per_us=rate.per_us if rate is not None else None,
                burst=rate.burst if rate is not None else None,
                updated_by=by,
                updated_at=at_us,
            )
            await assign_lines(c, ns, scope, name)

    async def clear(self, ns: int, scope: str, name: str, by: str) -> bool:
        async with self._change() as (c, at_us):
            return (
                await fetch_row(c, "clear_rule", ns=ns, scope=scope, name=name, updated_by=by, updated_at=at_us)
                is not None
            )

    async def pause(self, ns: int, scope: str, name: str, reason: str | None, by: str) -> None:
        async with self._change() as (c, at_us):
            await execute(
                c, "pause_scope", ns=ns, scope=scope, name=name, paused_by=by, pause_reason=reason, updated_at=at_us
            )
            await assign_lines(c, ns, scope, name)

    async def unpause(self, ns: int, scope: str, name: str, by: str) -> bool:
        async with self._change() as (c, at_us):
            return (
                await fetch_row(c, "unpause_scope", ns=ns, scope=scope, name=name, updated_by=by, updated_at=at_us)
                is not None
            )

    async def page(self, ns: int, after: tuple[str, str], limit: int) -> list[RuleView]:
        rows = await self._fetch("list_rules", ns=ns, after_scope=after[0], after_name=after[1], limit=limit)
        rules = [_view(r) for r in rows]
        async with self._pool.take() as c:
            use = await _use(c, ns, [_key(r) for r in rules])
        return [msgspec.structs.replace(r, use=use[_key(r)]) for r in rules]

    async def in_use(self, ns: int) -> list[LimitUsage]:
        async with self._pool.take() as c:
            keys = [r["key"] for r in await fetch(c, "limit_keys_in_use", ns=ns, limit=LIMITS_SHOWN_MAX)]
            return list((await _use(c, ns, keys)).values())

    async def get(self, ns: int, scope: str, name: str) -> RuleView | None:
        row = await self._row("get_rule", ns=ns, scope=scope, name=name)
        return _view(row) if row is not None else None


def _key(r: RuleView) -> str:
    return f"{r.scope}/{r.name}" if r.name else r.scope


async def _use(c: Any, ns: int, keys: list[str]) -> dict[str, LimitUsage]:
    if not keys:
        return {}
    holders: defaultdict[str, list[LimitHolder]] = defaultdict(list)
    for r in await fetch(c, "limit_holders", ns=ns, keys=keys, limit=HOLDERS_SHOWN_MAX, count_max=QUEUE_COUNT_MAX):
        holders[r["key"]].append(LimitHolder(r["run_id"], r["workflow"], r["held"]))
    rows = await fetch(c, "limit_use", ns=ns, keys=keys, count_max=QUEUE_COUNT_MAX)
    return {
        r["key"]: LimitUsage(
            key=r["key"],
            limit=_limit(r["key"], r["needs"]),
            held=r["held"],
            waiting=r["waiting"],
            holders=holders[r["key"]],
        )
        for r in rows
    }


def _limit(key: str, needs: str | None) -> int | None:
    """What those that wait are allowed."""
    limits = decode_needs(needs).limits if needs else ()
    return next((need.max for need in limits if need.key == key), None)


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
