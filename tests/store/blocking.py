"""Tests that make one transaction wait for another: how they know that it waits."""

from __future__ import annotations

from typing import Any

from tests.fakes.waiting import until

BLOCKED = """
select count(*) from pg_stat_activity
where wait_event_type = 'Lock' and datname = current_database() and query like '%' || $1 || '%'
"""


async def until_blocked(observer: Any, statement: str = "", count: int = 1) -> None:
    """That many connections to this database wait for a lock, in a statement that contains the text."""

    async def are_blocked() -> bool:
        return bool(await observer.fetchval(BLOCKED, statement) >= count)

    await until(are_blocked)


async def is_blocked(observer: Any, waiting: Any) -> bool:
    """The connection `waiting` waits for a lock that another one holds."""
    return bool(await observer.fetchval("select pg_blocking_pids($1) <> '{}'", waiting.get_server_pid()))
