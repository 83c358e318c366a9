"""Base of the PostgreSQL ports: a pool, and calls of named queries that borrow a connection for one statement."""

from __future__ import annotations

from typing import Any

from perdure.store.connections import Connections
from perdure.store.queries import execute, fetch, fetch_row, fetch_value


class PostgresPort:
    def __init__(self, database: str | Connections) -> None:
        """`database` is a DSN, or a pool that is shared with other ports."""
        self._pool = Connections(database) if isinstance(database, str) else database

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def _fetch(self, name: str, /, **args: Any) -> list[Any]:
        async with self._pool.take() as c:
            return await fetch(c, name, **args)

    async def _row(self, name: str, /, **args: Any) -> Any:
        async with self._pool.take() as c:
            return await fetch_row(c, name, **args)

    async def _value(self, name: str, /, **args: Any) -> Any:
        async with self._pool.take() as c:
            return await fetch_value(c, name, **args)

    async def _execute(self, name: str, /, **args: Any) -> None:
        async with self._pool.take() as c:
            await execute(c, name, **args)
