"""One short-lived connection for administration, with the driver's errors put in our words."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg
from asyncpg.exceptions import InterfaceError, PostgresError

from perdure.core.errors import InvalidInput, Unavailable
from perdure.store import hosts
from perdure.store.pooling import split

CONNECT_S_MAX = 10.0
# The driver ships no types that hold; what crosses this border is typed by hand.
_connect: Any = asyncpg.connect


async def _open(host: str) -> Any:
    return await _connect(host, statement_cache_size=0, timeout=CONNECT_S_MAX)


@asynccontextmanager
async def connect(dsn: str) -> AsyncGenerator[Any]:
    """Prepared statements are not kept, so that it works through a transaction-pooling proxy."""
    try:
        connection = await hosts.first(split(dsn)[0], _open)
    except (ValueError, InterfaceError) as error:
        raise InvalidInput(
            f"this is not a usable DSN: {error}. Write postgresql://user:password@host:port/database."
        ) from error
    except (OSError, PostgresError) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable(f"PostgreSQL at {without_password(dsn)} does not let us in: {reason}") from error
    try:
        try:
            yield connection
        finally:
            await connection.close(timeout=CONNECT_S_MAX)
    except (OSError, PostgresError, InterfaceError) as error:
        reason = str(error) or type(error).__name__
        raise Unavailable(f"PostgreSQL at {without_password(dsn)} broke off: {reason}") from error


def without_password(dsn: str) -> str:
    """A DSN that may be shown: query parameters can hold secrets too."""
    parts = urlsplit(dsn)
    if not parts.scheme:
        return "the given DSN"
    user, at, address = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{address}{parts.path}"
