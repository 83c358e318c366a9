"""The named queries of a package's sql/*.sql files, and calls that pass their parameters by name.

A file holds statements, each under a line `-- name: the_name`. A statement names its parameters:

    :ns               one value
    :tasks.attempt    the column `attempt` of a parameter `tasks`, which is a sequence of tuples

All columns of one parameter stand in the order of the tuples' fields: the rows are transposed in one step, and no call
counts columns. PostgreSQL sees $1, $2 and so on, numbered once when the file is read. Statements unnest all columns of a parameter together:
one that holds nothing but nulls is sent empty, and unnest fills it up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

_NAME: Final = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PARAMETER: Final = re.compile(r"--[^\n]*|'(?:[^']|'')*'|(?<![:\w]):(?P<name>[a-z]\w*)(?:\.(?P<column>[a-z]\w*))?")


class SqlQuery:
    """One statement, prepared once per connection by the driver."""

    __slots__ = ("columns", "name", "sql")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.columns: dict[str, tuple[str, ...]] = {}
        """Parameters in the order of their numbers, with their columns; none for a single value."""
        for match in _PARAMETER.finditer(text):
            if match["name"] is not None:
                known = self.columns.setdefault(match["name"], ())
                if match["column"] is not None and match["column"] not in known:
                    self.columns[match["name"]] = (*known, match["column"])
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


async def fetch(connection: Any, name: str, /, **args: Any) -> list[Any]:
    """All rows."""
    query = queries()[name]
    rows: list[Any] = await connection.fetch(query.sql, *query.bind(args))
    return rows


async def fetch_row(connection: Any, name: str, /, **args: Any) -> Any:
    """The first row, or None."""
    query = queries()[name]
    return await connection.fetchrow(query.sql, *query.bind(args))


async def fetch_value(connection: Any, name: str, /, **args: Any) -> Any:
    """The first column of the first row, or None."""
    query = queries()[name]
    return await connection.fetchval(query.sql, *query.bind(args))


async def execute(connection: Any, name: str, /, **args: Any) -> None:
    query = queries()[name]
    await connection.execute(query.sql, *query.bind(args))
