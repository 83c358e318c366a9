"""Transactions of tasks, on PostgreSQL: asyncpg for async tasks, psycopg for plain functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg

from perdure.core.errors import PerdureError
from perdure.store.hosts import with_writes
from perdure.store.pooling import split

BEGIN: Final = "select perdure.begin_effect({}::text::uuid, {})"
END: Final = "select perdure.end_effect({}::text::uuid, {}, {})"
CONNECTIONS_MAX: Final = 20
"""Transactional tasks of one worker that have a connection at the same time; others wait."""


class Effect:
    """A transaction of one task."""

    def __init__(self, connection: Any, recorded: bytes | None) -> None:
        self.connection, self.recorded, self.result = connection, recorded, b""


class PostgresTaskTransactions:
    """Connections of their own: user code may keep one for long."""

    def __init__(self, dsn: str) -> None:
        self._dsn = with_writes(split(dsn)[0])
        self._pool: Any = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()

    @asynccontextmanager
    async def begin(self, run_id: str, seq: int) -> AsyncGenerator[Effect]:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(self._dsn, min_size=0, max_size=CONNECTIONS_MAX)  # type: ignore[no-untyped-call]
        async with self._pool.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                effect = Effect(connection, await connection.fetchval(BEGIN.format("$1", "$2"), run_id, seq))
                yield effect
                if effect.recorded is None:
                    await connection.execute(END.format("$1", "$2", "$3"), run_id, seq, effect.result)
            except BaseException:
                await transaction.rollback()
                raise
            await transaction.commit()

    @contextmanager
    def begin_now(self, run_id: str, seq: int) -> Generator[Effect]:
        try:
            import psycopg
        except ImportError:
            raise PerdureError(
                "a transactional task that is a plain function needs psycopg: pip install psycopg[binary], or make the task async"
            ) from None
        with psycopg.connect(self._dsn) as connection:  # commits, or rolls back if an exception leaves it
            row = connection.execute(BEGIN.format("%s", "%s"), (run_id, seq)).fetchone()
            assert row is not None
            effect = Effect(connection, row[0])
            yield effect
            if effect.recorded is None:
                connection.execute(END.format("%s", "%s", "%s"), (run_id, seq, effect.result))
