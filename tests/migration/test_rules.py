"""Migrations after the first one expand, and are done in a moment: the rules of docs/reference/compatibility.md.

- It says which code still works on its schema: `-- needs: NNNN`.
- It adds: tables, columns, functions, triggers, views. A column is null at first or has a constant default, so that no row is rewritten.
- It builds indexes on its own tables, and on those that never grow (SMALL). It reads no table from end to end.
- It writes rows of its own tables only. What has to be filled in is filled in by a service, a page at a time.
- It takes away only what code that is still allowed does not use: `-- contract: NNNN` names the last migration whose code does, and is before `needs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pytest

from perdure.store.migrate import load
from tests.fakes.failures import Failures

SMALL: Final = {
    "namespace",
    "workflow",
    "workflow_version",
    "task_type",
    "schedule",
    "calendar",
    "flow_control_rule",
    "webhook",
    "notification_rule",
}
"""Tables with as many rows as people have declared."""
NEW_TABLE: Final = re.compile(r"create table (?:if not exists )?perdure\.(\w+)")
COLUMN: Final = re.compile(r"add column (\w+) (.*)")
CONSTANT: Final = re.compile(
    r"default (?:'[^']*'(?:::[\w\[\]]+)?|-?[\d.]+|true|false|null|now\(\)|perdure\.clock\(\))(?= |$)"
)
CONTRACT: Final = re.compile(r"^-- contract: (\d{4})$", re.MULTILINE)
ADDS: Final = (
    r"create table perdure\.",
    r"create (?:or replace )?(?:function|view) perdure\.",
    r"create trigger ",
    r"create type perdure\.",
    r"alter table perdure\.\w+ set \((?:fillfactor|autovacuum|toast)",
    r"comment on ",
    r"(?:grant|revoke) ",
    r"alter function perdure\.\w+.* (?:owner to|set|security) ",
)
TAKES_AWAY: Final = re.compile(r"drop (?:table|column|function|view|index|trigger|constraint|type) |rename ")


def statements(sql: str) -> Iterator[str]:
    """Without comments and with single spaces. What stands between $$ is one word."""
    sql = re.sub(r"(\$\w*\$).*?\1", "$$", sql, flags=re.DOTALL)
    sql = re.sub(r"--[^\n]*", "", sql)
    for part in re.split(r";(?=(?:[^']*'[^']*')*[^']*$)", sql):
        if text := " ".join(part.split()):
            yield text


def complaints(sql: str) -> Iterator[str]:
    if "\n-- needs: " not in "\n" + sql:
        yield "a line `-- needs: NNNN` is missing"
    own = set(NEW_TABLE.findall(sql))
    contract = CONTRACT.search(sql)
    needs = re.search(r"^-- needs: (\d{4})$", sql, re.MULTILINE)
    for text in statements(sql):
        why = next(_complaints(text, own), None)
        if why is not None and contract is not None and TAKES_AWAY.search(text):
            why = None if needs is not None and contract[1] < needs[1] else "code that `needs` allows still uses it"
        if why is not None:
            yield f"{why}: {text[:100]}"


def _complaints(text: str, own: set[str]) -> Iterator[str]:
    if any(re.match(form, text) for form in ADDS):
        return
    if index := re.match(r"create (?:unique )?index (?:if not exists )?\w+ on (?:only )?perdure\.(\w+)", text):
        if index[1] not in own | SMALL:
            yield f"an index blocks all writes of {index[1]} while it is built"
        return
    if written := re.match(r"(?:insert into|update|delete from) perdure\.(\w+)", text):
        if written[1] not in own:
            yield f"it writes {written[1]} in one transaction"
        return
    if altered := re.match(r"alter table perdure\.(\w+) (.*)", text):
        if altered[1] in own:
            return
        for action in re.split(r", (?=(?:add|drop|alter|rename|set|validate) )", altered[2]):
            yield from _action(action)
        return
    yield "it is not among the forms that only add"


def _action(action: str) -> Iterator[str]:
    if re.match(r"add constraint \w+ .* not valid$", action):
        return
    column = COLUMN.match(action)
    if column is None:
        yield "it changes what old code uses, or reads the table from end to end"
    elif re.search(r"\b(?:references|unique|primary key|check|generated)\b", column[2]):
        yield f"the column {column[1]} has a constraint that reads the table from end to end"
    elif "default" in column[2] and not CONSTANT.search(column[2]):
        yield f"the default of the column {column[1]} rewrites the table"
    elif "not null" in column[2] and "default" not in column[2]:
        yield f"the column {column[1]} is not null and has no default: old code cannot write a row"


def test_migrations_only_add_and_are_done_in_a_moment() -> None:
    with Failures() as failures:
        for migration in load()[1:]:
            with failures.of(migration.file):
                assert list(complaints(migration.sql)) == []


@pytest.mark.parametrize(
    "sql",
    [
        "create table perdure.a (id int primary key, b text not null); create index a_b on perdure.a (b);",
        "alter table perdure.run_queue add column a int not null default 7, add column b text;",
        "alter table perdure.run add column a timestamptz not null default now();",
        "alter table perdure.task add constraint a check (attempts > 0) not valid;",
        "create index workflow_a on perdure.workflow (name);",
        "create function perdure.f() returns int language plpgsql as $$ begin drop table x; update perdure.run set a = 1; end $$;",
        "insert into perdure.a values (1); create table perdure.a (n int);",
        "comment on column perdure.run.key is 'a; b';",
        "-- contract: 0001\n-- needs: 0002\nalter table perdure.run drop column attributes;",
    ],
)
def test_what_a_migration_may_do(sql: str) -> None:
    assert list(complaints(sql if "needs" in sql else f"-- needs: 0001\n{sql}")) == []


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("create index run_a on perdure.run (key);", "blocks all writes of run"),
        ("alter table perdure.run drop column key;", "changes what old code uses"),
        ("alter table perdure.run rename column key to name;", "changes what old code uses"),
        ("alter table perdure.run add column a int, alter column key type int;", "changes what old code uses"),
        ("alter table perdure.run alter column key set not null;", "changes what old code uses"),
        ("alter table perdure.run add column a int not null;", "old code cannot write a row"),
        ("alter table perdure.run add column a uuid default gen_random_uuid();", "rewrites the table"),
        ("alter table perdure.run add column a int check (a > 0);", "reads the table from end to end"),
        ("alter table perdure.run add constraint a check (attempts > 0);", "reads the table from end to end"),
        ("update perdure.run set key = '';", "writes run in one transaction"),
        ("drop table perdure.vote;", "not among the forms"),
        ("do $$ begin perform 1; end $$;", "not among the forms"),
        ("truncate perdure.run;", "not among the forms"),
        ("-- contract: 0001\nalter table perdure.run drop column key;", "still uses it"),
    ],
)
def test_what_a_migration_may_not_do(sql: str, why: str) -> None:
    (complaint,) = complaints(f"-- needs: 0001\n{sql}")
    assert why in complaint


def test_a_migration_says_which_code_it_needs() -> None:
    assert list(complaints("create table perdure.a (n int);")) == ["a line `-- needs: NNNN` is missing"]
