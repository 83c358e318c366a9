"""Starts, signals and events in a transaction of the caller: they happen if and only if that transaction commits.

    async with connection.transaction():
        await connection.execute("insert into orders ...")
        run_id = await in_transaction(connection).start(ship.options(key="order-42"), 42)

They call the SQL functions perdure.start, perdure.signal and perdure.emit through the caller's own connection, which must lead to the database of
Perdure. An engine carries them out after the commit, usually within a second. A run is found by its id and its key at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, ParamSpec, Protocol, TypeVar

import msgspec

from perdure.core.calls import encode_json
from perdure.core.errors import InvalidInput
from perdure.core.payloads import MARK
from perdure.sdk.startable import Startable

P = ParamSpec("P")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

START: Final = ("start", 4)
SIGNAL: Final = ("signal", 4)
EMIT: Final = ("emit", 3)
_JSON: Final = {("start", 1), ("start", 3), ("signal", 2), ("emit", 1)}
"""Arguments that are JSON, by function and place."""


class MessageKey(Protocol[T_contra]):
    """A `Signal` or a `NamedEvent`."""

    name: str

    def encode(self, value: T_contra) -> bytes: ...


class InTransaction:
    """Acts in the transaction of an async connection. `in_transaction()` makes one."""

    def __init__(self, call: Callable[[str, int, tuple[Any, ...]], Any]) -> None:
        self._call = call

    async def start(self, workflow: Startable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """A run that is started after the commit. Returns its id; under a key that has a run already, the id of that one.

        Of the options of the workflow `key`, `timeout`, `attributes` and `delay` count. Raises InvalidInput for others.
        """
        return str(await self._call(*START, _start(workflow, args, kwargs)))

    async def signal(self, signal: MessageKey[T], run: str, value: T, *, key: str | None = None) -> None:
        """A message to a run, which is named by its id, or by `key:` and its key. It may be one that this transaction starts."""
        await self._call(*SIGNAL, (run, signal.name, _json(signal.encode(value)), key))

    async def emit(self, event: MessageKey[T], value: T, *, key: str | None = None) -> None:
        """A named event."""
        await self._call(*EMIT, (event.name, _json(event.encode(value)), key))


class InSyncTransaction:
    """Acts in the transaction of a blocking connection. `in_sync_transaction()` makes one."""

    def __init__(self, call: Callable[[str, int, tuple[Any, ...]], Any]) -> None:
        self._call = call

    def start(self, workflow: Startable[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """See `InTransaction.start`."""
        return str(self._call(*START, _start(workflow, args, kwargs)))

    def signal(self, signal: MessageKey[T], run: str, value: T, *, key: str | None = None) -> None:
        """See `InTransaction.signal`."""
        self._call(*SIGNAL, (run, signal.name, _json(signal.encode(value)), key))

    def emit(self, event: MessageKey[T], value: T, *, key: str | None = None) -> None:
        """See `InTransaction.emit`."""
        self._call(*EMIT, (event.name, _json(event.encode(value)), key))


def in_transaction(connection: Any) -> InTransaction:
    """Acts in the transaction of an async connection.

    Args:
        connection: a connection of asyncpg, an AsyncConnection of psycopg, or an AsyncConnection or AsyncSession of SQLAlchemy. Its transaction
            has been begun: outside of one the act happens at once.

    Raises InvalidInput for anything else.
    """
    match _driver(connection):
        case "asyncpg":
            return InTransaction(lambda f, n, args: connection.fetchval(_sql(f, n, "$"), *args))
        case "psycopg" if "Async" in type(connection).__name__:

            async def psycopg(f: str, n: int, args: tuple[Any, ...]) -> Any:
                row = await (await connection.execute(_sql(f, n, "%s"), args)).fetchone()
                return row[0]

            return InTransaction(psycopg)
        case "sqlalchemy" if "Async" in type(connection).__name__:

            async def sqlalchemy(f: str, n: int, args: tuple[Any, ...]) -> Any:
                return (await connection.execute(*_sqlalchemy(f, n, args))).scalar()

            return InTransaction(sqlalchemy)
        case _:
            raise _unknown(
                "in_transaction",
                connection,
                "asyncpg, psycopg (AsyncConnection) or SQLAlchemy (AsyncConnection, AsyncSession)",
            )


def in_sync_transaction(connection: Any) -> InSyncTransaction:
    """Acts in the transaction of a blocking connection.

    Args:
        connection: a Connection of psycopg, a Connection or Session of SQLAlchemy, or `django.db.connection`.

    Raises InvalidInput for anything else.
    """
    driver = _driver(connection)
    if driver == "sqlalchemy" and "Async" not in type(connection).__name__:
        return InSyncTransaction(lambda f, n, args: connection.execute(*_sqlalchemy(f, n, args)).scalar())
    if (
        driver in ("psycopg", "psycopg2", "django")
        and hasattr(connection, "cursor")
        and "Async" not in type(connection).__name__
    ):

        def cursor(f: str, n: int, args: tuple[Any, ...]) -> Any:
            with connection.cursor() as c:
                c.execute(_sql(f, n, "%s"), args)
                return c.fetchone()[0]

        return InSyncTransaction(cursor)
    raise _unknown("in_sync_transaction", connection, "psycopg, SQLAlchemy (Connection, Session) or Django")


def _driver(connection: Any) -> str:
    """The first part of the module of its class, or of a class that it derives from or stands for."""
    roots = [c.__module__.partition(".")[0] for c in type(connection).__mro__]
    return next((r for r in roots if r in ("asyncpg", "psycopg", "psycopg2", "sqlalchemy", "django")), roots[0])


def _unknown(function: str, connection: Any, known: str) -> InvalidInput:
    return InvalidInput(
        f"{function}() does not know connections such as {type(connection).__module__}.{type(connection).__name__}: give one of {known}, or call "
        "the SQL functions perdure.start, perdure.signal and perdure.emit"
    )


def _sql(function: str, count: int, mark: str) -> str:
    """`mark`: how a parameter is written; `$` and `:p` get its number."""
    places = [
        f"{mark if mark == '%s' else mark + str(n + 1)}" + ("::jsonb" if (function, n) in _JSON else "::text")
        for n in range(count)
    ]
    return f"select perdure.{function}({', '.join(places)})"


def _sqlalchemy(function: str, count: int, args: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    import sqlalchemy  # it is there: the connection is one of its own

    casts = ", ".join(f"cast(:p{n} as {'jsonb' if (function, n) in _JSON else 'text'})" for n in range(count))
    return sqlalchemy.text(f"select perdure.{function}({casts})"), {f"p{n}": value for n, value in enumerate(args)}


def _start(workflow: Startable[Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    given = workflow.transaction_options()
    return workflow.name, _json(workflow.encode_call(args, kwargs)), given.pop("key", None), encode_json(given).decode()


def _json(data: bytes) -> str:
    if data >= MARK and data.startswith(MARK):
        raise InvalidInput("a blob or a stored value cannot be part of a transaction; store it first, and pass its key")
    msgspec.json.decode(data)
    return data.decode()
