"""Connection pooling between this process and PostgreSQL: none, or a pooler such as PgBouncer.

    direct       planner settings are startup parameters; statements are prepared once; NOTIFY is heard.
    session      a pooler that gives a client one server connection for as long as it stays. It refuses startup parameters, so the
                 settings are SET once per connection. The rest is as with direct.
    transaction  a pooler that may give every transaction another server connection. Settings are SET LOCAL in every transaction, in
                 the same message as its BEGIN; no statement stays prepared; NOTIFY cannot be heard. Each statement outside a
                 transaction gets one, so it takes three round trips more.

The DSN may say which (`?pooling=direct`, `session`, `transaction`; `pgbouncer=true` is the last). Unless it does, the first connection
finds out whether the server takes our startup parameters and obeys them. If not, `transaction` is used: it works through both kinds
of pooler, and one connection cannot prove that a pooler keeps sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from weakref import WeakSet

import asyncpg
from asyncpg import exceptions as pg
from asyncpg import transaction

from perdure.core.errors import InvalidInput
from perdure.store import hosts
from perdure.store.queries import fetch_value
from perdure.store.sealing.codec import PayloadCodec
from perdure.store.sealing.registry import codec_for

_driver: Any = asyncpg  # it ships no types; what crosses this border is typed by hand
_Transaction: Any = transaction.Transaction

CONNECT_S: Final = 10.0
COMMAND_S: Final = 60.0
STATEMENTS_KEPT: Final = 256
PASSED_ON: Final = frozenset({"application_name", "timezone"})
"""Startup parameters that PgBouncer knows and passes on to the server connection it uses."""
REFUSED: Final = "unsupported startup parameter"


class Pooling(StrEnum):
    DIRECT = "direct"
    SESSION = "session"
    TRANSACTION = "transaction"


_found: dict[str, Pooling] = {}
"""What was found out, by DSN. A pooler that is put in front later is noticed when it refuses the startup parameters."""


def split(dsn: str) -> tuple[str, Pooling | None]:
    """The DSN as the driver takes it, and the pooling that it names."""
    parts = urlsplit(dsn)
    said: Pooling | None = None
    rest: list[tuple[str, str]] = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "pooling":
            said = _named(value)
        elif name == "pgbouncer":
            said = Pooling.TRANSACTION if value.lower() in ("true", "1", "yes", "on") else said
        else:
            rest.append((name, value))
    if len(rest) == len(parse_qsl(parts.query, keep_blank_values=True)):
        return dsn, None
    return urlunsplit(parts._replace(query=urlencode(rest))), said


def _named(value: str) -> Pooling:
    try:
        return Pooling(value)
    except ValueError:
        known = ", ".join(p.value for p in Pooling)
        raise InvalidInput(f"the DSN says pooling={value}, which is not one of {known}") from None


class CodedConnection(_driver.Connection):  # type: ignore[misc]
    """A connection that seals and opens user data."""

    payload_codec: PayloadCodec


class Block(_Transaction):  # type: ignore[misc]
    """A transaction that does not lose a cancellation: an error of its rollback would take the place of the CancelledError, and the task
    would go on as after an outage. The connection ends, and the server rolls back."""

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        except Exception:
            if not isinstance(error, asyncio.CancelledError):
                raise
            self._connection.terminate()


class Uncancelled(CodedConnection):
    """A connection that ends when a statement of it exceeds its time, instead of asking the server to cancel the statement.

    A COMMIT that waits for a synchronous standby must not be cancelled: the server would then show the transaction although no standby
    has it, and a repetition under the same key would be answered from it. A COMMIT whose client is gone goes on waiting, unseen."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.server, self.dsn, self.loop = "", "", asyncio.get_running_loop()
        """The server that answered when the connection was made, the DSN, and the event loop that uses it."""

    def _cancel_current_command(self, *_: Any) -> None:
        self.terminate()

    def transaction(self, *, isolation: Any = None, readonly: bool = False, deferrable: bool = False) -> Any:
        self._check_open()
        return Block(self, isolation, readonly, deferrable)


class PerTransaction(Uncancelled):
    """A connection whose settings hold for each transaction by itself; every statement outside one gets a transaction."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._always: dict[str, str] = {}

    def always(self, settings: Mapping[str, str]) -> None:
        """Apply these settings in every transaction from the next one on."""
        self._always.update(settings)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        if self.is_in_transaction():
            return await super().execute(query, *args, timeout=timeout)
        if query.startswith("BEGIN"):  # by `transaction()`; the settings travel in the same message
            return await super().execute(query + _sets("set local", self._always), timeout=timeout)
        async with self.transaction():
            return await super().execute(query, *args, timeout=timeout)

    async def fetch(self, query: str, *args: Any, **options: Any) -> Any:
        if self.is_in_transaction():
            return await super().fetch(query, *args, **options)
        async with self.transaction():
            return await super().fetch(query, *args, **options)

    async def fetchrow(self, query: str, *args: Any, **options: Any) -> Any:
        if self.is_in_transaction():
            return await super().fetchrow(query, *args, **options)
        async with self.transaction():
            return await super().fetchrow(query, *args, **options)

    async def fetchval(self, query: str, *args: Any, **options: Any) -> Any:
        if self.is_in_transaction():
            return await super().fetchval(query, *args, **options)
        async with self.transaction():
            return await super().fetchval(query, *args, **options)


def _sets(verb: str, settings: Mapping[str, str]) -> str:
    """Names are ours; values are quoted."""
    return "".join(f"{verb} {name} = '{value.replace(chr(39), chr(39) * 2)}';" for name, value in settings.items())


_live: WeakSet[Any] = WeakSet()
"""Connections that `dial` made."""


async def dial(dsn: str, settings: Mapping[str, str]) -> Any:
    """A connection on which these settings hold for every statement. Raises what the driver raises."""
    connection = await _dial(dsn, settings)
    connection.payload_codec = codec_for(dsn)
    return connection


async def _dial(dsn: str, settings: Mapping[str, str]) -> Any:
    clean, said = split(dsn)
    connection = await hosts.first(clean, lambda host: _dial_host(host, clean, said, settings))
    connection.dsn = clean
    _live.add(connection)
    return connection


def cut_others(dsn: str, server: str) -> int:
    """End the connections of this event loop that were made to another server than this one. Returns how many."""
    loop, clean = asyncio.get_running_loop(), split(dsn)[0]
    found = [c for c in _live if c.loop is loop and c.dsn == clean and c.server != server and not c.is_closed()]
    for connection in found:
        connection.terminate()
    return len(found)


async def _dial_host(host: str, clean: str, said: Pooling | None, settings: Mapping[str, str]) -> Any:
    async with asyncio.timeout(CONNECT_S):
        connection = await _dial_pooling(host, clean, said, settings)
        try:
            connection.server = await fetch_value(connection, "server_identity")
        except BaseException:
            connection.terminate()
            raise
        return connection


async def _dial_pooling(host: str, clean: str, said: Pooling | None, settings: Mapping[str, str]) -> Any:
    mode = said or _found.get(clean)
    if mode is None or mode is Pooling.DIRECT:
        try:
            connection = await _open(host, settings)
            if mode is None:
                mode = _found[clean] = await _accepted(connection, settings)
        except pg.ProtocolViolationError as e:
            if said is Pooling.DIRECT or REFUSED not in str(e):
                raise
            mode = _found[clean] = Pooling.TRANSACTION
        else:
            if mode is Pooling.DIRECT:
                return connection
            await connection.close(timeout=CONNECT_S)
    passed = {name: value for name, value in settings.items() if name in PASSED_ON}
    own = {name: value for name, value in settings.items() if name not in PASSED_ON}
    if mode is Pooling.SESSION:
        connection = await _open(host, passed)
        try:
            await connection.execute(_sets("set", own))
        except BaseException:
            connection.terminate()
            raise
        return connection
    connection = await _open(host, passed, statement_cache_size=0, connection_class=PerTransaction)
    connection.always(own)
    return connection


async def _open(dsn: str, startup: Mapping[str, str], **options: Any) -> Any:
    given = {
        "statement_cache_size": STATEMENTS_KEPT,
        "max_cached_statement_lifetime": 0,
        "connection_class": Uncancelled,
        **options,
    }
    return await _driver.connect(
        dsn, timeout=CONNECT_S, command_timeout=COMMAND_S, server_settings=dict(startup), **given
    )


async def _accepted(connection: Any, settings: Mapping[str, str]) -> Pooling:
    """A pooler can be configured to drop startup parameters instead of refusing them."""
    try:
        held = await hold(connection, settings)
    except BaseException:
        connection.terminate()
        raise
    return Pooling.DIRECT if held else Pooling.TRANSACTION


async def hold(connection: Any, settings: Mapping[str, str]) -> bool:
    """Whether these settings are in force for a statement of this connection."""
    return bool(await fetch_value(connection, "settings_hold", settings=settings.items()))


def found(dsn: str) -> Pooling | None:
    """What the first connection found out; None while there was none, or where the DSN says it."""
    return _found.get(split(dsn)[0])


def of(connection: Any) -> Pooling:
    """How a connection that `dial` made is used: by the transaction, or as one session."""
    return Pooling.TRANSACTION if hasattr(connection, "always") else Pooling.SESSION
