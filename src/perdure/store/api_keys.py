"""API keys and the audit log in the database, and the acts that come before there is any key: `perdure api-key`, `perdure namespace`.

A key's secret is drawn here, handed out once and forgotten; the row has its SHA-256.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import msgspec
from asyncpg import exceptions as pg

from perdure.core.access import (
    NAMESPACE_DEFAULT,
    AuditLine,
    KeyCheck,
    KeyView,
    NewKey,
    Permission,
    Principal,
    Role,
    check_namespace_name,
    no_namespace,
)
from perdure.core.api.admin import AuditFilter, AuditPage
from perdure.core.api_keys import ID_ALPHABET, ID_CHARS, SECRET_BYTES, compose, present
from perdure.core.durations import DURATION_US_MAX
from perdure.core.errors import Conflict, InvalidInput, MigrationError, NotFound
from perdure.core.limits import NAME_CHARS_MAX
from perdure.engine.api.ports import SCAN_ROWS_MAX
from perdure.store.clashes import retried
from perdure.store.connections import Connections, connect
from perdure.store.queries import execute, fetch, fetch_row

KEYS_PER_PAGE_MAX: Final = 500
RATE_PER_S_MAX: Final = 1e6

Detail = dict[str, str | int | float | bool | None]


class ConnectionSource(Protocol):
    """Where connections come from."""

    def take(self) -> Any: ...


@retried()
class Keys:
    """The server's port to its keys."""

    def __init__(self, pool: Connections | ConnectionSource) -> None:
        self._pool = pool

    async def find(self, ident: str) -> KeyCheck | None:
        async with self._pool.take() as c:
            r = await fetch_row(c, "find_api_key", id=ident)
        return _check(r) if r is not None else None

    async def touch(self, ident: str) -> None:
        async with self._pool.take() as c:
            await execute(c, "touch_api_key", id=ident)

    async def create(self, new: NewKey) -> tuple[KeyView, str]:
        """The key as it is stored, and the text that its owner gets to see this once."""
        async with self._pool.take() as c:
            return await _create(c, new)

    async def list(self, namespace: str | None, after: str | None, limit: int) -> list[KeyView]:
        async with self._pool.take() as c:
            return await _list(c, namespace, after, limit)

    async def revoke(self, ident: str, namespace: str | None) -> KeyView:
        async with self._pool.take() as c:
            return await _revoke(c, ident, namespace)


@retried()
class PostgresAuditLog:
    """The server's port to the audit log. The database itself refuses to change what is in it."""

    def __init__(self, pool: Connections | ConnectionSource) -> None:
        self._pool = pool

    async def append_all(self, lines: Sequence[tuple[int | None, str, str, str, Detail | None]]) -> None:
        """In their order, in one statement."""
        rows = [(ns, actor, action, target, _detail(detail)) for ns, actor, action, target, detail in lines]
        async with self._pool.take() as c:
            await execute(c, "append_audit_lines", lines=rows)

    async def page(self, namespace: str | None, before: int | None, limit: int, wanted: AuditFilter) -> AuditPage:
        scan = limit if wanted.is_empty else SCAN_ROWS_MAX
        async with self._pool.take() as c:
            rows = await fetch(
                c,
                "page_audit",
                namespace=namespace,
                before_id=before,
                since=wanted.since_us,
                until=wanted.until_us,
                actor=wanted.actor or None,
                action=wanted.action,
                target=wanted.target or None,
                scan_limit=scan,
                limit=limit,
            )
        found = [_line(r) for r in rows if r["id"] is not None]
        if len(found) == limit:
            return AuditPage(found, found[-1].id)
        return AuditPage(found, rows[0]["low_id"] if rows[0]["scanned"] == scan else None)


def _line(r: Any) -> AuditLine:
    return AuditLine(
        id=r["id"],
        at_us=r["at"],
        namespace=r["namespace"],
        actor=r["actor"],
        action=r["action"],
        target=r["target"],
        detail=msgspec.json.decode(r["detail"], type=Detail) if r["detail"] is not None else None,
    )


class NamespaceView(msgspec.Struct, frozen=True):
    name: str
    created_us: int


async def create_key(dsn: str, new: NewKey) -> tuple[KeyView, str]:
    async with _administering(dsn) as c, c.transaction():
        view, secret = await _create(c, new)
        ns = await _number(c, new.namespace)
        await _append(c, ns, new.created_by, "key.create", view.id, {"name": new.name, "role": new.role.value})
        return view, secret


async def list_keys(
    dsn: str, *, namespace: str | None = None, after: str | None = None, limit: int = KEYS_PER_PAGE_MAX
) -> list[KeyView]:
    async with _administering(dsn) as c:
        return await _list(c, namespace, after, limit)


async def revoke_key(dsn: str, ident: str, *, by: str) -> KeyView:
    async with _administering(dsn) as c, c.transaction():
        view = await _revoke(c, ident, None)
        await _append(c, await _number(c, view.namespace), by, "key.revoke", view.id, {"name": view.name})
        return view


async def create_namespace(dsn: str, name: str, *, by: str) -> None:
    check_namespace_name(name)
    async with _administering(dsn) as c, c.transaction():
        row = await fetch_row(c, "open_namespace", name=name)
        if row is None:
            raise Conflict(f"there is a namespace {name!r} already")
        await _append(c, row["id"], by, "namespace.create", name, None)


async def list_namespaces(dsn: str) -> list[NamespaceView]:
    async with _administering(dsn) as c:
        return [NamespaceView(r["name"], r["created_at"]) for r in await fetch(c, "open_namespaces")]


async def delete_namespace(dsn: str, name: str, *, by: str) -> None:
    """Its keys stop working and every access is refused; its rows stay until retention drops them."""
    if name == NAMESPACE_DEFAULT:
        raise Conflict(f"the namespace {name!r} is where everything goes that names none; it stays")
    async with _administering(dsn) as c, c.transaction():
        row = await fetch_row(c, "close_namespace", name=name)
        if row is None:
            raise NotFound(f"there is no namespace {name!r}: `perdure namespace list` shows those there are")
        await _append(c, row["id"], by, "namespace.delete", name, None)


@asynccontextmanager
async def _administering(dsn: str) -> AsyncGenerator[Any]:
    c = await connect(dsn)
    try:
        yield c
    except (pg.UndefinedTableError, pg.UndefinedColumnError, pg.InvalidSchemaNameError):
        raise MigrationError(
            "the database has no schema of this version of Perdure: run `perdure migrate` on it first"
        ) from None
    finally:
        await c.close()


async def _create(c: Any, new: NewKey) -> tuple[KeyView, str]:
    _check_new(new)
    ident = "".join(secrets.choice(ID_ALPHABET) for _ in range(ID_CHARS))
    key = compose(ident, secrets.token_urlsafe(SECRET_BYTES))
    presented = present(key)
    assert presented is not None
    scopes = sorted(p.value for p in new.scopes) if new.scopes is not None else None
    r = await fetch_row(
        c,
        "create_api_key",
        id=ident,
        namespace=new.namespace,
        name=new.name,
        role=new.role.value,
        scopes=scopes,
        hash=presented.hash,
        rate_per_s=new.rate_per_s,
        lifetime_us=new.expires_in_us,
        created_by=new.created_by,
    )
    if r is None:
        raise no_namespace(new.namespace or "")
    return _view(r), key


def _check_new(new: NewKey) -> None:
    if not 0 < len(new.name) <= NAME_CHARS_MAX or not new.name.isprintable():
        raise InvalidInput(f"a key's name has 1 to {NAME_CHARS_MAX} printable characters: say what the key is for")
    if new.rate_per_s is not None and not 0 < new.rate_per_s <= RATE_PER_S_MAX:
        raise InvalidInput(f"rate_per_s is {new.rate_per_s}: it must lie above 0 and not above {RATE_PER_S_MAX:g}")
    if new.expires_in_us is not None and not 0 < new.expires_in_us <= DURATION_US_MAX:
        raise InvalidInput("a key expires in the future, within 100 years")


async def _list(c: Any, namespace: str | None, after: str | None, limit: int) -> list[KeyView]:
    return [_view(r) for r in await fetch(c, "list_api_keys", namespace=namespace, after_id=after, limit=limit)]


async def _revoke(c: Any, ident: str, namespace: str | None) -> KeyView:
    r = await fetch_row(c, "revoke_api_key", id=ident, namespace=namespace)
    if r is None:
        raise NotFound(f"there is no API key {ident[:ID_CHARS]!r}: give its id, the 12 characters after `pd_`")
    return _view(r)


async def _append(c: Any, ns: int | None, actor: str, action: str, target: str, detail: Detail | None) -> None:
    await execute(c, "append_audit", ns=ns, actor=actor, action=action, target=target, detail=_detail(detail))


def _detail(detail: Detail | None) -> str | None:
    return msgspec.json.encode(detail).decode() if detail is not None else None


async def _number(c: Any, namespace: str | None) -> int | None:
    row = await fetch_row(c, "namespace_id", name=namespace) if namespace is not None else None
    return row["id"] if row is not None else None


def _scopes(words: list[str] | None) -> frozenset[Permission] | None:
    """A word that this version does not know grants nothing."""
    return None if words is None else frozenset(p for p in Permission if p.value in words)


def _check(r: Any) -> KeyCheck:
    principal = Principal(
        subject=f"key:{r['id']}",
        role=Role(r["role"]),
        namespace=r["namespace"],
        scopes=_scopes(r["scopes"]),
        rate_per_s=r["rate_per_s"],
    )
    return KeyCheck(
        principal=principal,
        hash=r["hash"],
        expired=r["expired"],
        revoked=r["revoked"],
        use_is_stale=r["use_is_stale"],
        name=r["name"],
    )


def _view(r: Any) -> KeyView:
    return KeyView(
        id=r["id"],
        name=r["name"],
        role=Role(r["role"]),
        namespace=r["namespace"],
        scopes=_scopes(r["scopes"]),
        rate_per_s=r["rate_per_s"],
        created_us=r["created_at"],
        created_by=r["created_by"],
        expires_us=r["expires_at"],
        revoked_us=r["revoked_at"],
        last_used_us=r["last_used_at"],
    )
