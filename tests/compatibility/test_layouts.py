"""What crosses a border between processes has grown since the released version, and has not changed: the laws of N-1 and N.

- Fields are added with a default, at the end where a struct is an array; none is taken away or gets another type.
- A process ignores fields that it does not know.
- A reply, an event, a command or a message holds no value of an enumeration that the version before does not know, unless it is listed in LATER:
  then it is written only after `perdure migrate --finish`, or only to a peer that has said that it knows it.
- A number of a protobuf field keeps its name and type. A route of REST keeps its parameters and its properties, and demands no more of a request.
- Each statement of the released version is valid on the schema of this one, and has the columns that it had.
"""

from __future__ import annotations

import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest
from harness.servers import TREE, Release

from perdure.store.queries import _NAME, SqlQuery, queries
from tests.compatibility import steps

PROGRAM = Path(__file__).with_name("layouts.py")
RELEASED = Path(__file__).parent / "released"
LATER: Final[set[str]] = set()
"""Names of events, commands and messages, and values of enumerations as `struct.field: value`, that the version before does not know."""

READ_BY_NAME: Final = {
    *("start_bulk_job", "bulk_job_of_key", "get_bulk_job", "list_bulk_jobs", "cancel_bulk_job", "claim_bulk_job"),
    *("put_schedule", "get_schedule", "lock_schedule", "list_schedules", "pause_schedule", "resume_schedule"),
    *("put_notification_rule", "notification_rules"),
}
"""Statements that answer with all columns of a table: the store takes those that it knows, by name, so that more of them do no harm."""


def read(release: Release) -> dict[str, Any]:
    done = subprocess.run(
        [release.python, PROGRAM], env=release.environment(), capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def both(processes: None, old: Release) -> tuple[dict[str, Any], dict[str, Any]]:
    return read(old), read(TREE)


class Comparison:
    """Of the types of two versions. Yields what breaks a mix of the two."""

    def __init__(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        self._before, self._now = before["structs"], now["structs"]
        self._seen: set[tuple[str, str]] = set()

    def types(self, before: Any, now: Any, place: str, *, is_sent_back: bool) -> Iterator[str]:
        if isinstance(before, str) and isinstance(now, str) and before in self._before and now in self._now:
            if (before, now) not in self._seen:
                self._seen.add((before, now))
                yield from self.structs(self._before[before], self._now[now], now.rpartition(".")[2], is_sent_back)
        elif isinstance(before, dict) and isinstance(now, dict) and before.keys() == now.keys():
            (kind,) = before
            if kind == "one of":
                yield from self._values(before[kind], now[kind], place, is_sent_back)
            elif isinstance(before[kind], list):
                yield from self._lists(before[kind], now[kind], place, is_sent_back)
            else:
                yield from self.types(before[kind], now[kind], place, is_sent_back=is_sent_back)
        elif before != now:
            yield f"{place} was {before}, and is {now}"

    def structs(self, before: Any, now: Any, name: str, is_sent_back: bool) -> Iterator[str]:
        for what in ("array", "tag", "strict"):
            if before[what] != now[what]:
                yield f"{name} has another form: {what} was {before[what]}, and is {now[what]}"
        if now["strict"]:
            yield f"{name} refuses fields of a later version"
        if now["array"] and list(now["fields"])[: len(before["fields"])] != list(before["fields"]):
            yield f"{name} is an array, and its first fields are not those it had: {list(before['fields'])}"
        for field, (kind, required) in before["fields"].items():
            if field not in now["fields"]:
                yield f"{name}.{field} is gone"
                continue
            later, demanded = now["fields"][field]
            yield from self.types(kind, later, f"{name}.{field}", is_sent_back=is_sent_back)
            if demanded and not required:
                yield f"{name}.{field} has lost its default"
        for field in now["fields"].keys() - before["fields"].keys():
            if now["fields"][field][1]:
                yield f"{name}.{field} is new and has no default"

    def _values(self, before: list[str], now: list[str], place: str, is_sent_back: bool) -> Iterator[str]:
        for value in sorted(set(before) - set(now)):
            yield f"{place} does not take {value!r} any more"
        for value in sorted(set(now) - set(before)):
            if is_sent_back and f"{place}: {value}" not in LATER:
                yield f"{place} may be {value!r}, which the version before does not know"

    def _lists(self, before: list[Any], now: list[Any], place: str, is_sent_back: bool) -> Iterator[str]:
        """Of a union or a tuple; what a union has more is a name of LATER."""
        known = [t for t in now if not (isinstance(t, str) and t.rpartition(".")[2] in LATER)]
        if len(before) != len(known):
            yield f"{place} was {before}, and is {now}"
            return
        for one, other in zip(before, known, strict=True):
            yield from self.types(one, other, place, is_sent_back=is_sent_back)


def test_requests_and_replies_have_only_grown(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, now = both
    assert before["acts"].keys() <= now["acts"].keys()
    found = []
    for act, kinds in before["acts"].items():
        for kind, later, is_sent_back in zip(kinds, now["acts"][act], (False, True), strict=True):
            found += Comparison(before, now).types(kind, later, act, is_sent_back=is_sent_back)
    assert found == []


def test_events_commands_and_messages_have_only_grown(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, now = both
    found: list[str] = []
    for what in ("events", "commands"):
        tags = {now["structs"][name]["tag"]: name for name in now["recorded"][what]}
        was = {before["structs"][name]["tag"]: name for name in before["recorded"][what]}
        found += [f"{name} is gone" for tag, name in was.items() if tag not in tags]
        found += [
            f"{n} is not known to the version before"
            for t, n in tags.items()
            if t not in was and n.rpartition(".")[2] not in LATER
        ]
        for tag in was.keys() & tags.keys():
            found += Comparison(before, now).types(was[tag], tags[tag], "", is_sent_back=True)
    for what in ("messages", "options", "failure"):
        found += Comparison(before, now).types(before["recorded"][what], now["recorded"][what], what, is_sent_back=True)
    assert found == []


def test_the_messages_of_the_worker_protocol_have_only_grown(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, now = both
    gone = [
        f"{message}.{field[0]} = {number}"
        for message, fields in before["protobuf"].items()
        for number, field in fields.items()
        if now["protobuf"].get(message, {}).get(number) != field
    ]
    assert gone == []


def test_rest_has_only_grown(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, now = (one["rest"] for one in both)
    found: list[str] = []
    for path, methods in before["paths"].items():
        for method, operation in methods.items():
            later = now["paths"].get(path, {}).get(method)
            found += [f"{method} {path} is gone"] if later is None else _operation(f"{method} {path}", operation, later)
    for name, schema in before["components"]["schemas"].items():
        later = now["components"]["schemas"].get(name, {})
        found += [
            f"{name}.{p} is gone" for p in schema.get("properties", {}).keys() - later.get("properties", {}).keys()
        ]
    assert found == []


def _operation(name: str, before: Any, now: Any) -> Iterator[str]:
    was, parameters = ({p["name"]: p for p in one.get("parameters", ())} for one in (before, now))
    yield from (f"{name} does not take {p}" for p in was.keys() - parameters.keys())
    yield from (f"{name} demands {p}" for p, given in parameters.items() if given.get("required") and p not in was)
    yield from (f"{name} does not answer {status}" for status in before["responses"].keys() - now["responses"].keys())


# -- SQL ---------------------------------------------------------------------------------------------------------------


def released_queries() -> dict[str, SqlQuery]:
    (wheel,) = RELEASED.glob("perdure_core-*.whl")
    found: dict[str, SqlQuery] = {}
    with zipfile.ZipFile(wheel) as files:
        for file in files.namelist():
            if file.startswith("perdure/store/sql/") and file.endswith(".sql"):
                parts = _NAME.split(files.read(file).decode())[1:]
                found |= {
                    n: SqlQuery(n, text.strip().rstrip(";")) for n, text in zip(parts[::2], parts[1::2], strict=True)
                }
    return found


async def shapes(dsn: str, asked: dict[str, SqlQuery]) -> dict[str, Any]:
    """What each statement takes and answers on this database; or why it is not valid there."""
    c = await asyncpg.connect(dsn)
    found: dict[str, Any] = {}
    try:
        for name, query in asked.items():
            try:
                statement = await c.prepare(query.sql)
            except asyncpg.PostgresError as error:
                found[name] = str(error)
                continue
            columns = [(a.name, a.type.name) for a in statement.get_attributes()]
            found[name] = ([p.name for p in statement.get_parameters()], columns)
        return found
    finally:
        await c.close()


async def test_the_statements_of_the_released_version_answer_as_before_on_this_schema(
    dsn: str, bare_dsn: str, old: Release
) -> None:
    steps.migrate(old, bare_dsn)
    before, now = await shapes(bare_dsn, released_queries()), await shapes(dsn, released_queries())
    assert {name: shape for name, shape in now.items() if shape != before[name]} == {}


async def test_a_column_more_changes_the_answer_of_no_statement(dsn: str) -> None:
    """What the next migration adds is not in the way of this version."""
    before = await shapes(dsn, queries())
    c = await asyncpg.connect(dsn)
    tables = await c.fetch(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace"
        " where n.nspname = 'perdure' and c.relkind in ('r', 'p') and not c.relispartition"
    )
    for table in tables:
        await c.execute(f"alter table perdure.{table['relname']} add column of_the_next_version int not null default 1")
    await c.close()
    now = await shapes(dsn, queries())
    changed = {name for name, shape in now.items() if shape != before[name]}
    assert changed == READ_BY_NAME
