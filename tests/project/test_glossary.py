"""Names on docs/glossary.md exist, and words that were retired do not come back."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from perdure.cli.commands import COMMANDS
from tests.fakes.failures import Failures

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "perdure"
GENERATED: Final = SOURCE / "wire" / "pb"
PAGE: Final = (ROOT / "docs" / "glossary.md").read_text()
SCHEMA: Final = "\n".join(file.read_text() for file in sorted((SOURCE / "store" / "migrations").glob("*.sql")))

RETIRED: Final = (
    "occasion",
    "rulebook",
    "postbox",
    "mail",
    "reopen",
    "revive",
    "poke",
    "homeless",
    "stray",
    "hungry",
    "thirsty",
    "nearby",
    "usecase",
    "put off",
    "in line",
    "line up",
    "noted",
    "wish",
    "stolen",
    "unsure",
)
"""Words that identifiers of Python and SQL had before. `put off` is `put_off` and `PutOff`."""


def words_of(identifier: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", identifier)]


@cache
def stem_of(word: str) -> str:
    return next((stem for stem in RETIRED if word in forms(stem)), word)


@cache
def forms(stem: str) -> frozenset[str]:
    bare = stem.removesuffix("e")
    return frozenset({stem, stem + "s", bare + "ed", bare + "ing", stem + "es"})


@cache
def identifiers() -> Counter[str]:
    """Every name in the source, and the names of its files."""
    found: Counter[str] = Counter()
    for file in SOURCE.rglob("*.py"):
        if GENERATED in file.parents:
            continue
        found.update(file.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            for field in ("name", "id", "attr", "arg"):
                value = getattr(node, field, None)
                if isinstance(value, str):
                    found[value] += 1
    return found


@cache
def sql_identifiers() -> Counter[str]:
    """Words of SQL, without comments and texts."""
    found: Counter[str] = Counter()
    for file in SOURCE.rglob("*.sql"):
        text = re.sub(r"--(?! name:).*|'[^']*'", "", file.read_text())
        found.update(re.findall(r"\w+", text))
    return found


def uses(identifiers: Counter[str]) -> dict[str, Counter[str]]:
    """Retired word -> identifiers that hold it."""
    found: dict[str, Counter[str]] = {word: Counter() for word in RETIRED}
    for identifier, times in identifiers.items():
        words = words_of(identifier)
        for phrase in {*map(stem_of, words), *(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))}:
            if phrase in found:
                found[phrase][identifier] = times
    return found


@pytest.mark.keep
def test_retired_words_do_not_come_back() -> None:
    with Failures() as failures:
        for language, names in (("python", identifiers()), ("sql", sql_identifiers())):
            for word, holders in uses(names).items():
                with failures.of(f"{language}: {word}"):
                    assert not holders, f"is part of {dict(holders)}"


def test_docs_do_not_use_retired_words() -> None:
    """Words that could only mean what they meant here; `mail` and `in line` are English."""
    words = [word for word in RETIRED if word not in ("mail", "in line", "line up", "wish", "nearby")]
    pattern = re.compile(rf"(?:{'|'.join(form for word in words for form in forms(word))})", re.IGNORECASE)
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    found = {f"{page.relative_to(ROOT)}: {use}" for page in pages for use in pattern.findall(page.read_text())}
    assert not found


def rows() -> list[list[str]]:
    found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")
    ]
    return [row for row in found if row[0] not in ("term", "---")]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_term_has_one_row() -> None:
    terms = [row[0] for row in rows()]
    assert len(terms) > 50
    assert len(terms) == len(set(terms))
    assert all(len(row) == 6 for row in rows())


def test_the_names_of_all_terms_exist() -> None:
    paths = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text())["paths"]
    commands = (ROOT / "docs" / "reference" / "cli.md").read_text()
    with Failures() as failures:
        for term, _, python, sql, rest, cli in rows():
            for name in names_in(python):
                with failures.of(term):
                    assert name in identifiers(), f"the source has no name {name}"
            for name in names_in(sql):
                with failures.of(term):
                    check_column(name)
            for name in names_in(rest):
                with failures.of(term):
                    assert f"/api/v1{name}" in paths, f"REST has no path {name}"
            for name in names_in(cli):
                with failures.of(term):
                    assert name.partition(" ")[0] in COMMANDS, f"`{name}` does not begin with a command"
                    assert f"### perdure {name}\n" in commands, f"docs/reference/cli.md has no command {name}"


def check_column(name: str) -> None:
    table, _, column = name.partition(".")
    body = re.search(rf"create table perdure\.{table} \((.*?)^\)", SCHEMA, re.DOTALL | re.MULTILINE)
    assert body is not None, f"the schema has no table {table}"
    assert not column or re.search(rf"^  {column} ", body[1], re.MULTILINE), f"{table} has no column {column}"
