"""Connections to the database: how values travel, how many there are, what happens when one breaks.

On these connections an id is 16 bytes and a moment is Unix microseconds, so that hot paths build no objects. Driver errors leave the
store translated: `Unavailable` for trouble that passes (`Clashed` where others are to blame), everything else as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import asyncpg
from asyncpg import exceptions as pg

from perdure.core.durations import FOREVER_US
from perdure.core.errors import Unavailable
from perdure.store import pooling
from perdure.store.clashes import CLASH, Clashed
from perdure.store.sealing.codec import PayloadCodec
from perdure.store.sealing.registry import codec_for
from perdure.store.stalls import Stalls

_driver: Any = asyncpg  # it ships no types; what crosses this border is typed by hand

PG_EPOCH_US: Final = 946_684_800_000_000
_INFINITY_PG: Final = (1 << 63) - 1

POOL_MAX: Final = 8
CONNECT_S: Final = pooling.CONNECT_S

TROUBLE = (
    OSError,
    asyncio.TimeoutError,
    pg.InterfaceError,
    pg.PostgresConnectionError,
    pg.OperatorInterventionError,
    pg.InsufficientResourcesError,
    pg.CannotConnectNowError,
    pg.ReadOnlySQLTransactionError,  # a primary that has become a standby
    pg.InternalClientError,  # a connection that was given out again before the driver had noticed its end
)
"""What the driver raises when the server is away, going away, starting up, full, or takes no writes any more."""


def encode_moment(us: int) -> tuple[int]:
    return (us - PG_EPOCH_US,) if us != FOREVER_US else (_INFINITY_PG,)


def decode_moment(value: tuple[int]) -> int:
    return value[0] + PG_EPOCH_US if value[0] != _INFINITY_PG else FOREVER_US


def _same(value: Any) -> Any:
    return value


async def _prepare(connection: Any) -> None:
    await connection.set_type_codec("uuid", schema="pg_catalog", encoder=_same, decoder=bytes, format="binary")
    await connection.set_type_codec(
        "timestamptz", schema="pg_catalog", encoder=encode_moment, decoder=decode_moment, format="tuple"
    )


SETTINGS: Final = {
    # Batches are small against their tables: index lookups per row beat any plan that reads a table, also when the statistics are stale.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_memoize": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "application_name": "perdure",
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "10s",
    "timezone": "UTC",
}


async def connect(dsn: str) -> Any:
    """One connection of its own."""
    try:
        connection = await pooling.dial(dsn, SETTINGS)
        await _prepare(connection)
    except TROUBLE as e:
        raise Unavailable(f"cannot reach the database: {e or type(e).__name__}") from e
    return connection


class Connections:
    """A bounded pool for everything but commits."""

    def __init__(self, dsn: str, settings: Mapping[str, str] | None = None) -> None:
        """`settings` of the server that differ from SETTINGS."""
        self.dsn = dsn
        self._settings = SETTINGS | dict(settings or {})
        self._pool: Any = None
        self.clock_offset_s = 0.0
        self._away_since: float | None = None
        self.stalls = Stalls(dsn)

    @property
    def codec(self) -> PayloadCodec:
        """It seals and opens the user data of this database."""
        return codec_for(self.dsn)

    async def open(self) -> None:
        try:
            self._pool = await _driver.create_pool(
                min_size=1, max_size=POOL_MAX, connect=self._dial, init=_prepare, reset=self._reset
            )
        except TROUBLE as e:
            raise Unavailable(f"cannot reach the database: {e or type(e).__name__}") from e

    async def _dial(self, *_: Any, **__: Any) -> Any:
        return await pooling.dial(self.dsn, self._settings)

    async def _reset(self, connection: Any) -> None:
        """Nothing of ours outlives a transaction, so a connection goes back as it is."""

    async def close(self) -> None:
        self.stalls.close()
        if self._pool is not None:
            try:
                async with asyncio.timeout(5):
                    await self._pool.close()
            except TimeoutError:
                self._pool.terminate()

    @property
    def away_s(self) -> float:
        """For how long no connection could be made; 0 when the last one could."""
        return 0.0 if self._away_since is None else asyncio.get_running_loop().time() - self._away_since

    def reached(self, yes: bool) -> None:
        """Whether a connection could be made."""
        if yes:
            self._away_since = None
        elif self._away_since is None:
            self._away_since = asyncio.get_running_loop().time()

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[Any]:
        """A connection for a moment; trouble with it becomes `Unavailable`. Who is cancelled is let go at once: the connection is cut,
        because a server that does not answer does not answer a request to cancel either."""
        try:
            connection = await self._pool.acquire(timeout=CONNECT_S)
        except TROUBLE as e:
            self.reached(False)
            raise Unavailable(f"the database is away: {e or type(e).__name__}") from e
        try:
            with self.stalls.watched():
                if self.clock_offset_s:
                    await shift_clock(connection, self.clock_offset_s)
                yield connection
            self.reached(True)
        except TROUBLE as e:
            if isinstance(e, pg.ReadOnlySQLTransactionError):
                _cut(connection)  # the next connection may reach the new primary
            raise Unavailable(f"the database is away: {e or type(e).__name__}") from e
        except CLASH as e:
            raise Clashed(e) from e
        except asyncio.CancelledError:
            _cut(connection)
            raise
        finally:
            await self._release(connection)

    async def _release(self, connection: Any) -> None:
        with suppress(*TROUBLE):
            await self._pool.release(connection)


def _cut(connection: Any) -> None:
    with suppress(pg.InterfaceError):  # the pool has dropped it already: what is being raised goes on
        connection.terminate()


async def shift_clock(connection: Any, seconds: float) -> None:
    """Tests only: this connection's perdure.clock() runs ahead."""
    offset = f"{seconds:.6f} seconds"
    if pooling.of(connection) is pooling.Pooling.TRANSACTION:
        connection.always({"perdure.clock_offset": offset})
    else:
        await connection.execute("select set_config('perdure.clock_offset', $1, false)", offset)
