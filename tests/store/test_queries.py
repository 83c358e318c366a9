"""Every named query is one statement that the migrated schema understands."""

from __future__ import annotations

import re
from collections import Counter
from importlib import resources
from pathlib import Path

import asyncpg
import pytest

from perdure.store.migrate import migrate
from perdure.store.queries import queries

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


@pytest.mark.parametrize("file", FILES)
def test_every_file_opens_with_its_purpose(file: str) -> None:
    first = (SQL / file).read_text().splitlines()[0]
    assert first.startswith("-- ")
    assert not first.startswith("-- name:")


@pytest.mark.parametrize("name", sorted(queries()))
def test_a_query_is_one_statement(name: str) -> None:
    without_comments = re.sub(r"--[^\n]*", "", queries()[name])
    without_text = re.sub(r"'[^']*'|\$\w*\$.*?\$\w*\$", "", without_comments, flags=re.DOTALL)
    assert ";" not in without_text


async def test_every_query_prepares_against_the_migrated_schema(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    refused = {}
    try:
        for file in FILES:
            for name in _names(file):
                try:
                    await connection.prepare(queries()[name])
                except asyncpg.PostgresError as e:
                    refused[f"{file}: {name}"] = str(e)
    finally:
        await connection.close()
    assert refused == {}


async def test_the_fixture_is_at_the_newest_migration(dsn: str) -> None:
    assert await migrate(dsn) == []
