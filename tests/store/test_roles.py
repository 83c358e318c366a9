"""Database roles: an engine lives on what it is granted, and cannot touch what it must not."""

from __future__ import annotations

import itertools
import os
import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from perdure import Perdure, State, task, workflow
from perdure.core.access import NewKey, Role
from perdure.core.api.admin import AuditFilter
from perdure.core.errors import InvalidInput, MigrationError
from perdure.core.ids import lowest_at
from perdure.engine.retention_port import NewJob
from perdure.engine.services import retention as service
from perdure.store import api_keys, partitions, roles
from perdure.store.connections import Connections
from perdure.store.connections import connect as store_connect
from perdure.store.queries import queries
from perdure.store.retention import PostgresRetention
from tests.fakes.waiting import until

_numbers = itertools.count(1)
DENIED = asyncpg.InsufficientPrivilegeError
note = State("note", "")


@task
def role_step(text: str) -> str:
    return f"<{text}>"


@workflow
async def role_flow(text: str) -> str:
    note.set(text)
    return await role_step(text) + await role_step(text)


@dataclass
class Roles:
    engine: str
    reader: str
    caller: str
    engine_dsn: str
    reader_dsn: str
    caller_dsn: str


def as_user(dsn: str, user: str, password: str) -> str:
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}"))


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def granted(dsn: str, owner: Any) -> AsyncIterator[Roles]:
    """Both groups, and a user of each that can log in. Roles belong to the whole server, hence names of their own."""
    mark = f"{os.getpid()}_{next(_numbers)}"
    groups, password = [f"{name}_{mark}" for name in ("engine", "reader", "caller")], secrets.token_hex(8)
    await roles.apply_roles(dsn, *groups)
    users = [f"{group}_user" for group in groups]
    for user, group in zip(users, groups, strict=True):
        await owner.execute(f"create role {user} login password '{password}' in role {group}")
    yield Roles(*groups, *(as_user(dsn, u, password) for u in users))
    for role in (*users, *groups):
        await owner.execute(f"drop owned by {role}")
        await owner.execute(f"drop role {role}")


async def test_an_engine_works_from_start_to_end_under_its_role(dsn: str, granted: Roles, owner: Any) -> None:
    async with Perdure(granted.engine_dsn, auto_migrate=False) as p:
        assert await role_flow.options(key="one").run("a") == "<a><a>"
        handle = await role_flow.options(key="two").start("b")
        assert await handle.result("3m") == "<b><b>"
        assert len(await handle.history()) > 2
        assert await note.read(handle.id) == "b"
        await p.store.sweep()
    assert await owner.fetchval("select count(*) from perdure.history") > 0
    assert await owner.fetchval("select count(*) from perdure.engine_session") == 0


async def test_an_engine_makes_and_drops_partitions_without_owning_them(dsn: str, granted: Roles, owner: Any) -> None:
    c = await store_connect(granted.engine_dsn)
    try:
        assert await partitions.create_ahead(c, 5) == 2 * len(partitions.TABLES)  # three days ahead are there
        old = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=9)
        for table in partitions.TABLES:
            assert await partitions._create(c, table, old) == 1
        pool = Connections(granted.engine_dsn)
        await pool.open()
        try:
            store = PostgresRetention(pool)
            rules, [_, day, *_] = await store.rules(3.0), await store.ranges()
            new = NewJob(range=day, action="drop", rules=rules, expected=0, url="", format="jsonl")
            job = await store.create(new, 3.0, 60.0)
            assert job is not None and await store.begin_removal(job) == "begun"
            assert [await store.drop(job, table) for table in service.TABLES] == ["dropped"] * len(partitions.TABLES)
        finally:
            await pool.close()
        assert len(await partitions._existing(c)) == 7 * len(partitions.TABLES)
    finally:
        await c.close()
    who = await owner.fetchval("select distinct relowner::regrole::text from pg_class where relname like 'history_p%'")
    assert who == await owner.fetchval("select current_user::text")


BAD_PARTITIONS = [
    ("audit", "audit_p20260101"),
    ("api_key", "api_key_p20260101"),
    ("history", "task_p20260101"),
    ("history", "history_default"),
    ("history", "history_p2026010"),
    ("history", "history_p20260101x"),
    ("history", 'history_p20260101"; drop table perdure.run'),
    ("history", "history_p20261301"),
    ("pg_class", "pg_class_p20260101"),
    ("history", None),
    (None, "history_p20260101"),
    ("", "_p20260101"),
    ("history", "history_p20260101\n"),
]


@pytest.mark.parametrize(("table", "name"), BAD_PARTITIONS)
async def test_the_functions_for_partitions_do_nothing_else(
    granted: Roles, table: str | None, name: str | None
) -> None:
    c = await asyncpg.connect(granted.engine_dsn)
    try:
        low, high = (lowest_at(int(datetime(2026, 1, d, tzinfo=UTC).timestamp() * 1000)) for d in (1, 2))
        with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.DatetimeFieldOverflowError)):
            await c.fetchval("select perdure.create_partition($1, $2, $3, $4)", table, name, low, high)
        with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.DatetimeFieldOverflowError)):
            await c.fetchval("select perdure.drop_partition($1, $2)", table, name)
    finally:
        await c.close()


async def test_bounds_must_be_those_of_the_day(granted: Roles) -> None:
    c = await asyncpg.connect(granted.engine_dsn)
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)

    def bounds(low: datetime, high: datetime) -> tuple[Any, Any]:
        return lowest_at(int(low.timestamp() * 1000)), lowest_at(int(high.timestamp() * 1000))

    try:
        day = timedelta(days=1)
        for low, high in ((today - day, today + day), (today, today + 2 * day), (today + day, today)):
            with pytest.raises(asyncpg.InvalidParameterValueError, match="bounds"):
                await c.fetchval(
                    "select perdure.create_partition('run', $1, $2, $3)", f"run_p{today:%Y%m%d}", *bounds(low, high)
                )
        far = today + timedelta(days=500)
        with pytest.raises(asyncpg.InvalidParameterValueError):
            await c.fetchval(
                "select perdure.create_partition('run', $1, $2, $3)", f"run_p{far:%Y%m%d}", *bounds(far, far + day)
            )
        assert await c.fetchval("select perdure.drop_partition('run', 'run_p20200101')") is False, (
            "retention drops, for a job"
        )
    finally:
        await c.close()


ENGINE_MUST_NOT = [
    "update perdure.history set body = ''",
    "delete from perdure.history",
    "truncate perdure.history",
    "update perdure.task set error = null",
    "update perdure.task_log set body = ''",
    "update perdure.audit set actor = ''",
    "delete from perdure.audit",
    "truncate perdure.audit",
    "delete from perdure.api_key",
    "update perdure.api_key set role = 'admin'",
    "update perdure.api_key set hash = ''",
    "update perdure.api_key set expires_at = null",
    "update perdure.api_key set ns = null",
    "update perdure.web_session set role = 'admin'",
    "update perdure.web_session set expires_at = 'infinity'",
    "update perdure.run set status = 'success'",
    "delete from perdure.namespace",
    "update perdure.namespace set created_at = now()",
    "insert into perdure.migration (number, name, checksum) values (99, 'x', 'x')",
    "delete from perdure.migration",
    "create table perdure.mine (id int)",
    "create schema mine",
    "drop table perdure.run",
    "alter table perdure.run add column x int",
    "alter table perdure.audit disable trigger all",
    "drop trigger audit_append_only on perdure.audit",
    "create or replace function perdure.clock() returns timestamptz language sql return now()",
    "create function perdure.evil() returns int language sql return 1",
    "create role another",
    "create database another",
    "alter role current_user superuser",
    "set session_replication_role = replica",
    "copy (select 1) to program 'true'",
    "select pg_read_file('/etc/passwd')",
    "select * from pg_authid",
]


@pytest.mark.parametrize("statement", ENGINE_MUST_NOT)
async def test_an_engine_cannot_touch_what_it_must_not(granted: Roles, statement: str) -> None:
    c = await asyncpg.connect(granted.engine_dsn)
    try:
        with pytest.raises(DENIED):
            await c.execute(statement)
    finally:
        await c.close()


async def test_a_server_checks_creates_and_revokes_keys_under_its_role(granted: Roles) -> None:
    pool = Connections(granted.engine_dsn)
    await pool.open()
    try:
        store = api_keys.Keys(pool)
        view, _ = await store.create(NewKey(name="k", role=Role.VIEWER, namespace="default"))
        await store.touch(view.id)
        assert (await store.revoke(view.id, None)).last_used_us is not None
        await api_keys.PostgresAuditLog(pool).append_all([(1, "a", "b", "c", {"d": 1})])
        assert len((await api_keys.PostgresAuditLog(pool).page(None, None, 5, AuditFilter())).items) == 1
    finally:
        await pool.close()


READER_MUST_NOT = [
    "select wrapped from perdure.payload_key",
    "select hash from perdure.api_key",
    "select hash from perdure.web_session",
    "select * from perdure.api_key",
    "insert into perdure.audit (actor, action, target) values ('', '', '')",
    "insert into perdure.inbox (ns, run_id, body, kind) values (1, gen_random_uuid(), '', 'signal')",
    "update perdure.run_queue set stuck = null",
    "delete from perdure.run_queue",
    "select perdure.create_partition('run', 'run_p20260101', null, null)",
    "select perdure.drop_partition('run', 'run_p20200101')",
    "select from perdure.run_queue for update",
]


READER_COLUMNS = {
    "api_key": "id, name",
    "secret": "name",
    "webhook": "name, event",
    "web_session": "subject",
    "notification_rule": "name, address",
    "payload_key": "id, master",
}
"""Of tables with columns that a reader does not see."""


@pytest.mark.parametrize("statement", READER_MUST_NOT)
async def test_a_reader_reads_and_does_nothing_else(granted: Roles, statement: str) -> None:
    c = await asyncpg.connect(granted.reader_dsn)
    try:
        with pytest.raises(DENIED):
            await c.execute(statement)
        for table in roles.READER_GRANTS:
            columns = READER_COLUMNS.get(table, "*")
            await c.execute(f"select {columns} from perdure.{table} limit 1")
    finally:
        await c.close()


async def denied_queries(dsn: str, files: set[str]) -> list[str]:
    """EXPLAIN checks the rights to everything a statement names, and executes nothing."""
    folder = resources.files("perdure.store") / "sql"
    names = [n for f in sorted(files) for n in re.findall(r"^-- name: (\w+)", (folder / f).read_text(), re.MULTILINE)]
    assert len(names) > 3
    c = await asyncpg.connect(dsn)
    denied = []
    try:
        for name in names:
            given = len((await c.prepare(queries()[name].sql)).get_parameters())
            await c.execute(f"prepare {name} as {queries()[name].sql}")
            arguments = f"({', '.join(['null'] * given)})" if given else ""
            try:
                await c.execute(f"explain execute {name}{arguments}")
            except DENIED as e:
                denied.append(f"{name}: {e}")
    finally:
        await c.close()
    return denied


NOT_ENGINES = {"migrations.sql", "doctor.sql"}
"""Migrations are the owner's; doctor says itself what it may not see."""


async def test_every_query_of_an_engine_is_granted(granted: Roles) -> None:
    files = {f.name for f in (resources.files("perdure.store") / "sql").iterdir() if f.name.endswith(".sql")}
    # To retire a key is the owner's act: what a key that is gone had sealed can never be read again.
    assert await denied_queries(granted.engine_dsn, files - NOT_ENGINES) == [
        "delete_payload_key: permission denied for table payload_key"
    ]


async def test_a_reader_can_verify(granted: Roles) -> None:
    assert await denied_queries(granted.reader_dsn, {"verify.sql"}) == []


async def test_every_table_has_its_line(owner: Any) -> None:
    rows = await owner.fetch(
        "select c.relname from pg_class c where c.relnamespace = 'perdure'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition"
    )
    assert {r["relname"] for r in rows} == set(roles.ENGINE_GRANTS) == set(roles.READER_GRANTS)


async def test_applying_again_takes_back_what_somebody_added(dsn: str, granted: Roles, owner: Any) -> None:
    await owner.execute(f"grant all on perdure.history to {granted.engine}")
    await owner.execute(f"grant all on all functions in schema perdure to {granted.reader}")
    await roles.apply_roles(dsn, granted.engine, granted.reader, granted.caller)
    assert not await owner.fetchval("select has_table_privilege($1, 'perdure.history', 'delete')", granted.engine)
    assert not await owner.fetchval(
        "select has_function_privilege($1, 'perdure.drop_partition(text, text)', 'execute')", granted.reader
    )


@pytest.mark.parametrize("name", ["", "Perdure", "a b", "x;drop role y", 'x"', "pg_monitor", "1x", "x" * 64, "é"])
async def test_a_name_that_is_no_plain_identifier_is_refused(dsn: str, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a role"):
        await roles.apply_roles(dsn, name)


async def test_a_role_that_owns_everything_cannot_be_narrowed(dsn: str, owner: Any) -> None:
    me = await owner.fetchval("select current_user::text")
    with pytest.raises(InvalidInput, match="Choose another name"):
        await roles.apply_roles(dsn, me, "reader_never_made")
    with pytest.raises(InvalidInput):
        await roles.apply_roles(dsn, "same", "same", "other")
    assert not await owner.fetchval("select exists(select from pg_roles where rolname = 'reader_never_made')")


async def test_roles_come_after_the_schema(bare_dsn: str) -> None:
    with pytest.raises(MigrationError, match="perdure migrate"):
        await roles.apply_roles(bare_dsn, "engine_never_made", "reader_never_made")


async def test_an_engine_s_role_cannot_apply_roles(granted: Roles) -> None:
    with pytest.raises(InvalidInput, match="CREATEROLE"):
        await roles.apply_roles(granted.engine_dsn, "engine_never_made", "reader_never_made")


async def test_a_caller_starts_runs_and_sends_messages_and_reads_nothing(dsn: str, granted: Roles) -> None:
    async with Perdure(dsn, tune_gc=False) as p:
        p.serve(role_flow)
        await p.engine.refresh()
        c = await asyncpg.connect(granted.caller_dsn)
        try:
            run = await c.fetchval("select perdure.start('role_flow', '{\"text\": \"c\"}', 'by-caller')")
            await c.execute("select perdure.signal($1::uuid, 'any', '1')", run)
            await c.execute("select perdure.emit('any', '1')")
            for table in ("run_queue", "sql_request", "history", "run_key"):
                with pytest.raises(DENIED):
                    await c.execute(f"select from perdure.{table}")
            with pytest.raises(DENIED):
                await c.execute("insert into perdure.sql_request (ns, act, name) values (1, 'emit', 'x')")
        finally:
            await c.close()
        reader = await asyncpg.connect(granted.reader_dsn)
        try:
            with pytest.raises(DENIED):
                await reader.execute("select perdure.start('role_flow', '{}')")
        finally:
            await reader.close()

        async def is_there() -> bool:
            return bool(await p.list())

        await until(is_there)
        assert await (await p.get(key="by-caller", workflow=role_flow)).result("3m") == "<c><c>"
