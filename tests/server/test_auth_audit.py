"""The audit log: lines are added, read newest first, and never changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from perdure.core.access import NewKey, Permission, Principal, Role, check_issue
from perdure.core.api.admin import AuditFilter, AuditPage
from perdure.core.errors import Conflict, Forbidden, InvalidInput, MigrationError, NotFound
from perdure.engine.api.audit import Audit
from perdure.store import api_keys
from perdure.store.api_keys import PostgresAuditLog
from perdure.store.connections import Connections

ADA = Principal(subject="user:ada", role=Role.ADMIN)


@pytest.fixture
async def audit(dsn: str) -> AsyncIterator[Audit]:
    pool = Connections(dsn)
    await pool.open()
    yield Audit(PostgresAuditLog(pool))
    await pool.close()


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def test_lines_are_read_newest_first_in_pages(audit: Audit) -> None:
    for n in range(7):
        await audit.record(ADA, "run.cancel", f"run-{n}", 1, {"reason": "test", "n": n})
    await audit.record(ADA, "key.create", "abc", None)
    seen: list[str] = []
    before = None
    while True:
        page = await audit.page(None, before, 3)
        seen += [line.target for line in page.items]
        before = page.next
        if before is None:
            break
    assert seen == ["abc", *(f"run-{n}" for n in reversed(range(7)))]
    newest = (await audit.page("default", None, 1)).items[0]
    assert (newest.actor, newest.action, newest.target, newest.namespace) == (
        "user:ada",
        "run.cancel",
        "run-6",
        "default",
    )
    assert newest.detail == {"reason": "test", "n": 6}
    assert await audit.page("elsewhere") == AuditPage([], None)


async def test_lines_are_found_by_who_what_and_when(audit: Audit, sql: Any) -> None:
    grace = Principal(subject="key:grace", role=Role.ADMIN)
    await audit.record(ADA, "run.cancel", "run-1", 1)
    await audit.record(grace, "run.retry", "run-1", 1)
    await audit.record(grace, "runaway", "run-2", None)
    await audit.record(ADA, "key.create", "run-2", None)

    async def found(**wanted: Any) -> list[str]:
        page = await audit.page(None, wanted=AuditFilter(**wanted))
        assert page.next is None
        return [line.action for line in page.items]

    assert await found(actor="user:ada") == await found(actor="ada") == ["key.create", "run.cancel"]
    assert await found(actor="da") == []
    assert await found(action="run.") == ["run.retry", "run.cancel"]
    assert await found(action="run%") == []
    assert await found(target="run-1", actor="grace") == ["run.retry"]
    middle: int = await sql.fetchval(
        "select (extract(epoch from at) * 1000000)::bigint from perdure.audit order by id offset 2 limit 1"
    )
    assert await found(since_us=middle) == ["key.create", "runaway"]
    assert await found(until_us=middle) == ["run.retry", "run.cancel"]
    assert await found(since_us=middle, until_us=middle) == []


async def test_the_lines_of_a_long_ago_day_are_found_without_reading_those_since(
    audit: Audit, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sql.execute(
        "insert into perdure.audit (at, actor, action, target)"
        " select timestamptz '2026-01-01' + n * interval '1 hour', 'user:ada', case when n % 50 = 0 then 'rare' else 'common' end, n::text"
        "  from generate_series(0, 999) n"
    )
    day = int(datetime(2026, 1, 5, tzinfo=UTC).timestamp() * 1_000_000)
    page = await audit.page(None, limit=500, wanted=AuditFilter(since_us=day, until_us=day + 86_400_000_000))
    assert [line.target for line in page.items] == [str(n) for n in reversed(range(96, 120))]
    assert page.next is None
    monkeypatch.setattr(api_keys, "SCAN_ROWS_MAX", 120)
    seen, sizes, before = [], [], None
    while True:
        page = await audit.page(None, before, 2, AuditFilter(action="rare"))
        seen += [int(line.target) for line in page.items]
        sizes.append(len(page.items))
        before = page.next
        if before is None:
            break
    assert seen == list(range(950, -1, -50))
    assert max(sizes) == 2
    seen, before, pages = [], None, 0
    while pages == 0 or before is not None:  # pages of no match lead on
        page = await audit.page(None, before, 50, AuditFilter(target="0"))
        seen += page.items
        before, pages = page.next, pages + 1
    assert (len(seen), pages) == (1, 9)


@pytest.mark.parametrize(
    "change", ["update perdure.audit set actor = 'nobody'", "delete from perdure.audit", "truncate perdure.audit"]
)
async def test_not_even_the_owner_of_the_database_changes_a_line(audit: Audit, sql: Any, change: str) -> None:
    await audit.record(ADA, "key.revoke", "abc", None)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
        await sql.execute(change)
    assert len((await audit.page(None)).items) == 1


async def test_texts_are_cut_and_cleaned(audit: Audit) -> None:
    await audit.record(ADA, "run.cancel", "x" * 9999, 1, {"why\x00": "y" * 9999} | {str(n): n for n in range(50)})
    (line,) = (await audit.page(None)).items
    assert len(line.target) == 200
    assert line.detail is not None
    assert len(line.detail) == 16
    assert line.detail["why?"] == "y" * 200


async def test_what_is_done_with_the_database_at_hand_is_recorded_too(dsn: str, audit: Audit) -> None:
    await api_keys.create_namespace(dsn, "team", by="cli:ada")
    view, secret = await api_keys.create_key(
        dsn, NewKey(name="ci", role=Role.WORKER, namespace="team", created_by="cli:ada")
    )
    await api_keys.revoke_key(dsn, view.id, by="cli:ada")
    await api_keys.delete_namespace(dsn, "team", by="cli:ada")
    lines = (await audit.page(None)).items
    assert [(x.action, x.target) for x in lines] == [
        ("namespace.delete", "team"),
        ("key.revoke", view.id),
        ("key.create", view.id),
        ("namespace.create", "team"),
    ]
    assert {x.actor for x in lines} == {"cli:ada"}
    assert secret[16:] not in repr(lines)


async def test_namespaces_come_go_and_come_back(dsn: str) -> None:
    await api_keys.create_namespace(dsn, "team", by="t")
    with pytest.raises(Conflict):
        await api_keys.create_namespace(dsn, "team", by="t")
    assert [n.name for n in await api_keys.list_namespaces(dsn)] == ["default", "team"]
    await api_keys.delete_namespace(dsn, "team", by="t")
    with pytest.raises(NotFound):
        await api_keys.delete_namespace(dsn, "team", by="t")
    with pytest.raises(Conflict, match="it stays"):
        await api_keys.delete_namespace(dsn, "default", by="t")
    assert [n.name for n in await api_keys.list_namespaces(dsn)] == ["default"]
    await api_keys.create_namespace(dsn, "team", by="t")
    for bad in ("", " ", "a b", "-x", "é", "x" * 101, "a/b", "a\n", "*", "../x"):
        with pytest.raises(InvalidInput):
            await api_keys.create_namespace(dsn, bad, by="t")


async def test_a_database_without_the_schema_says_what_to_do(bare_dsn: str) -> None:
    with pytest.raises(MigrationError, match="perdure migrate"):
        await api_keys.create_key(bare_dsn, NewKey(name="x", role=Role.ADMIN))


def test_nobody_hands_out_more_than_they_have() -> None:
    bound = Principal(subject="key:a", role=Role.ADMIN, namespace="team")
    narrow = Principal(subject="key:b", role=Role.ADMIN, scopes=frozenset({Permission.ADMIN, Permission.READ}))
    check_issue(ADA, Role.ADMIN, None, None)
    check_issue(bound, Role.ADMIN, "team", None)
    check_issue(narrow, Role.VIEWER, None, None)
    check_issue(narrow, Role.ADMIN, None, frozenset({Permission.READ}))
    for issuer, role, namespace, scopes in (
        (bound, Role.VIEWER, None, None),
        (bound, Role.VIEWER, "default", None),
        (narrow, Role.ADMIN, None, None),
        (narrow, Role.WORKER, None, None),
        (narrow, Role.OPERATOR, None, frozenset({Permission.START})),
    ):
        with pytest.raises(Forbidden):
            check_issue(issuer, role, namespace, scopes)
