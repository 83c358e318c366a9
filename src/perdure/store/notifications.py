"""NOTIFY and LISTEN between engines."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from asyncpg import exceptions as pg

from perdure.core.errors import Unavailable
from perdure.store import pooling
from perdure.store.clashes import retried
from perdure.store.connections import TROUBLE, connect
from perdure.store.port import PostgresPort

log = logging.getLogger("perdure.store")

CHANNEL: Final = "perdure"


@retried()
class PostgresNotifications(PostgresPort):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._dsn = dsn
        self._listening: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await super().close()

    async def notify(self, topics: str) -> None:
        async with self._pool.take() as c:
            await c.execute("select pg_notify($1, $2)", CHANNEL, topics)

    async def listen(self, heard: Callable[[str], None]) -> None:
        """Receive notifications of other engines. Without them work is found by polling."""
        self._listening = asyncio.create_task(self._listen(heard), name="perdure-listen")

    async def _listen(self, heard: Callable[[str], None]) -> None:
        while True:
            connection: Any = None
            try:
                connection = await connect(self._dsn)
                if pooling.of(connection) is pooling.Pooling.TRANSACTION:
                    log.info(
                        "a pooler gives every transaction another connection: NOTIFY is not heard, new work is found by polling"
                    )
                    return
                lost = asyncio.Event()
                connection.add_termination_listener(partial(_set, lost))
                await connection.add_listener(CHANNEL, partial(_hear, heard))
                await lost.wait()
            except (*TROUBLE, Unavailable, pg.PostgresError) as e:
                log.debug("not listening: %s", e)
            finally:
                if connection is not None and not connection.is_closed():
                    connection.terminate()
            await asyncio.sleep(random.uniform(0.5, 1.5))


def _set(event: asyncio.Event, *_: object) -> None:
    event.set()


def _hear(heard: Callable[[str], None], *message: object) -> None:
    heard(str(message[-1]))
