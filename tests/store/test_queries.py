"""Every named query is one statement that the migrated schema understands."""

from __future__ import annotations

import re
from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.engine.commits.node_counts import NodeCountRow
from perdure.engine.commits.rows import FIRST, MAIN, REST
from perdure.store.migrate import migrate
from perdure.store.queries import SqlQuery, queries
from tests.fakes.failures import Failures

SQL = resources.files("perdure.store") / "sql"
FILES = sorted(f.name for f in SQL.iterdir() if f.name.endswith(".sql"))


def _names(file: str) -> list[str]:
    return re.findall(r"^-- name: (\w+)\s*$", (SQL / file).read_text(), re.MULTILINE)


def test_every_query_of_every_file_is_found_once() -> None:
    names = [n for f in FILES for n in _names(f)]
    assert [n for n, times in Counter(names).items() if times > 1] == []
    assert set(queries()) == set(names)


def test_no_query_is_left_over() -> None:
    source = "".join(p.read_text() for p in Path(str(SQL)).parents[1].rglob("*.py"))
    assert [n for n in queries() if f'"{n}"' not in source] == []


def test_parameters_are_numbered_by_name_and_rows_become_columns() -> None:
    text = "select :b::text[], ':no', '-- :no', x::int -- :no\n from unnest(:rows.x::int[], :rows.y::text[]) as u(x, y) where z = :b and y = any(:rows.y)"
    query = SqlQuery("one", text)
    assert query.columns == {"b": (), "rows": ("x", "y")}
    numbered = "select $1::text[], ':no', '-- :no', x::int -- :no\n from unnest($2::int[], $3::text[]) as u(x, y) where z = $1 and y = any($3)"
    assert query.sql == numbered
    assert query.bind({"b": 7, "rows": [(1, "a"), (2, "b")]}) == [7, (1, 2), ("a", "b")]
    assert query.bind({"rows": [], "b": None}) == [None, (), ()]


@pytest.mark.parametrize("args", [{}, {"ns": 1}, {"ns": 1, "nmae": "n"}, {"ns": 1, "name": "n", "more": 1}])
def test_a_call_names_every_parameter_and_no_other(args: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="one takes ns, name, and got"):
        SqlQuery("one", "select :ns, :name").bind(args)


def test_the_rows_of_a_commit_have_their_columns_in_the_order_of_the_statement() -> None:
    main = {**MAIN, "counts": NodeCountRow}
    for query, rows in (("commit_attributes", FIRST), ("commit_batch", main), ("commit_batch_rest", REST)):
        given = {name: tuple(getattr(row, "_fields", ())) for name, row in rows.items()}
        assert {name: columns for name, columns in queries()[query].columns.items() if name in given} == given


def test_every_file_opens_with_its_purpose() -> None:
    with Failures() as failures:
        for file in FILES:
            with failures.of(file):
                first = (SQL / file).read_text().splitlines()[0]
                assert first.startswith("-- ")
                assert not first.startswith("-- name:")


def test_every_query_is_one_statement() -> None:
    with Failures() as failures:
        for name, query in sorted(queries().items()):
            with failures.of(name):
                without_comments = re.sub(r"--[^\n]*", "", query.sql)
                without_text = re.sub(r"'[^']*'|\$\w*\$.*?\$\w*\$", "", without_comments, flags=re.DOTALL)
                assert ";" not in without_text


async def test_every_query_prepares_against_the_migrated_schema(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    refused = {}
    try:
        for file in FILES:
            for name in _names(file):
                try:
                    await connection.prepare(queries()[name].sql)
                except asyncpg.PostgresError as e:
                    refused[f"{file}: {name}"] = str(e)
    finally:
        await connection.close()
    assert refused == {}


async def test_the_fixture_is_at_the_newest_migration(dsn: str) -> None:
    assert await migrate(dsn) == []
