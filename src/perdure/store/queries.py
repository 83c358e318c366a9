"""The named queries of a package's sql/*.sql files, and calls that pass their parameters by name.

A file holds statements, each under a line `-- name: the_name`. A statement names its parameters:

    :ns               one value
    :tasks.attempt    the column `attempt` of a parameter `tasks`, which is a sequence of tuples

All columns of one parameter stand in the order of the tuples' fields: the rows are transposed in one step, and no call
counts columns. PostgreSQL sees $1, $2 and so on, numbered once when the file is read. Statements unnest all columns of a parameter together:
one that holds nothing but nulls is sent empty, and unnest fills it up.

User data is sealed here on its way out, in parameters that a line `-- seals:` of the statement names, and opened on its way in: see
sealing/rows.py. The codec is that of the connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from perdure.store.sealing.codec import PayloadCodec
from perdure.store.sealing.kinds import HISTORY, binding
from perdure.store.sealing.rows import (
    has_sealed,
    is_marked,
    open_rows,
    opened_columns,
    seal_arguments,
    sealed_parameters,
)

_NAME: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"--[^\n]*|'(?:[^']|'')*'|(?<![:\w]):(?P<name>[a-z]\w*)(?:\.(?P<column>[a-z]\w*))?")
_SEALS: Final = re.compile(r"^-- seals: (.+)$", re.MULTILINE)
_TABLE: Final = re.compile(r"\bperdure\.([a-z_]+)\b(?!\()")
_NO_CODEC: Final = PayloadCodec()
"""For connections of administration, which read no user data."""


class SqlQuery:
    """One statement, prepared once per connection by the driver."""

    __slots__ = ("columns", "name", "opens", "seals", "sql", "tables", "user_bytes")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.columns: dict[str, tuple[str, ...]] = {}
        """Parameters in the order of their numbers, with their columns; none for a single value."""
        for match in _PARAMETER.finditer(text):
            if match["name"] is not None:
                known = self.columns.setdefault(match["name"], ())
                if match["column"] is not None and match["column"] not in known:
                    self.columns[match["name"]] = (*known, match["column"])
        self.seals = sealed_parameters(", ".join(_SEALS.findall(text)))
        self.opens: tuple[str, ...] | None = None
        """Columns of its rows that may hold sealed values; None until it has returned a row."""
        self.tables = frozenset(_TABLE.findall(text))
        self.user_bytes = tuple(
            (one.parameter, self.columns[one.parameter].index(one.column) if one.column else None)
            for one in self.seals
            if not one.kind.in_text
        )
        """Parameters with bytes of users, and their place in the tuples."""
        numbers: dict[str, int] = {}
        for parameter, columns in self.columns.items():
            for column in columns or ("",):
                numbers[f"{parameter}.{column}" if column else parameter] = len(numbers) + 1

        def number(match: re.Match[str]) -> str:
            return match[0] if match["name"] is None else f"${numbers[match[0][1:]]}"

        self.sql = _PARAMETER.sub(number, text)

    def bind(self, args: Mapping[str, Any]) -> list[Any]:
        """The arguments in the order of the statement's numbers."""
        bound: list[Any] = []
        try:
            for parameter, columns in self.columns.items():
                value = args[parameter]
                if not columns:
                    bound.append(value)
                elif value:
                    bound.extend(map(_sent, zip(*value, strict=True)))
                else:
                    bound.extend([()] * len(columns))
        except KeyError:
            pass
        if len(args) != len(self.columns) or not args.keys() <= self.columns.keys():
            raise TypeError(f"{self.name} takes {', '.join(self.columns) or 'nothing'}, and got {', '.join(args)}")
        return bound


def _sent(column: tuple[Any, ...]) -> tuple[Any, ...]:
    """A column without values, as errors mostly are, is left empty."""
    return () if column[0] is None and column.count(None) == len(column) else column


@cache
def queries(package: str = "perdure.store") -> dict[str, SqlQuery]:
    """Every query by name. Two of the same name are a mistake."""
    found: dict[str, SqlQuery] = {}
    for file in sorted((resources.files(package) / "sql").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        parts = _NAME.split(file.read_text(encoding="utf-8"))[1:]
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            assert name not in found, f"two queries are called {name}"
            found[name] = SqlQuery(name, text.strip().rstrip(";"))
    return found


def codec_of(connection: Any) -> PayloadCodec:
    codec: PayloadCodec = getattr(connection, "payload_codec", _NO_CODEC)
    return codec


def bound_arguments(connection: Any, query: SqlQuery, args: Mapping[str, Any]) -> list[Any]:
    """The arguments as they are sent, with user data sealed."""
    if query.seals:
        codec = codec_of(connection)
        if codec.writes or (query.user_bytes and is_marked(query.user_bytes, args)):
            args = seal_arguments(codec, query.seals, query.columns, args)
    return query.bind(args)


async def opened(connection: Any, query: SqlQuery, rows: list[Any], args: Mapping[str, Any]) -> list[Any]:
    """The rows that a statement returned, with user data opened."""
    if not rows:
        return rows
    if query.opens is None:
        query.opens = opened_columns(rows[0])
    if not query.opens or not has_sealed(rows, query.opens):
        return rows
    return await open_rows(codec_of(connection), connection, rows, query.opens, query.tables, args)


def sealed_history(connection: Any, run_id: bytes, body: bytes) -> bytes:
    """Encoded events as a row of the history stores them, for statements that are given the hash of the row as well."""
    codec = codec_of(connection)
    return codec.seal(HISTORY, binding([run_id]), body) if codec.writes else body


async def fetch(connection: Any, name: str, /, **args: Any) -> list[Any]:
    """All rows."""
    query = queries()[name]
    return await opened(
        connection, query, await connection.fetch(query.sql, *bound_arguments(connection, query, args)), args
    )


async def fetch_row(connection: Any, name: str, /, **args: Any) -> Any:
    """The first row, or None."""
    query = queries()[name]
    row = await connection.fetchrow(query.sql, *bound_arguments(connection, query, args))
    return row if row is None else (await opened(connection, query, [row], args))[0]


async def fetch_value(connection: Any, name: str, /, **args: Any) -> Any:
    """The first column of the first row, or None."""
    row = await fetch_row(connection, name, **args)
    return row if row is None else row[0]


async def execute(connection: Any, name: str, /, **args: Any) -> None:
    query = queries()[name]
    await connection.execute(query.sql, *bound_arguments(connection, query, args))
