"""Who one is, and for administrators: namespaces, API keys, the audit log.

An administrator who is bound to a namespace administers that one alone; namespaces themselves belong to those who are bound to none.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from perdure.core.access import (
    NAMESPACE_CHARS_MAX,
    NAMESPACE_DEFAULT,
    KeyView,
    NewKey,
    Permission,
    Principal,
    Role,
    check_issue,
    no_namespace,
)
from perdure.core.errors import Conflict, Forbidden, NotFound
from perdure.core.limits import NAME_CHARS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import Administrator, Caller, GuardedRoute, Somebody
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(tags=["administration"], route_class=GuardedRoute)


@router.get("/whoami", responses=responses(401))
async def whoami(caller: Somebody) -> m.Whoami:
    """Whom the credential of this request belongs to."""
    p = caller.principal
    return m.Whoami(subject=p.subject, role=p.role.value, namespace=p.namespace, scopes=_scopes(p.scopes))


def _scopes(scopes: frozenset[Permission] | None) -> list[Any] | None:
    return None if scopes is None else sorted(s.value for s in scopes)


# -- namespaces ----------------------------------------------------------------------------------------------------


def _everywhere(principal: Principal) -> None:
    if principal.namespace is not None:
        raise Forbidden("namespaces are administered with a credential that is bound to none of them")


@router.get("/namespaces", responses=responses(401, 403, 422))
async def list_namespaces(
    caller: Administrator, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.Namespace]:
    """Namespaces by name, as far as the credential sees them."""
    after = (views.read_cursor(cursor, str) or "").replace("\x00", "")
    found = await caller.server.reads.namespaces(after, limit + 1)
    page = [n for n in found[:limit] if caller.principal.sees(n.name)]
    return m.Page[m.Namespace](
        items=[m.Namespace(name=n.name, created_at=views.moment(n.created_us)) for n in page],
        next=views.cursor_of(found[limit - 1].name) if len(found) > limit else None,
    )


@router.post("/namespaces", status_code=201, responses=responses(401, 403, 422, s200={"model": m.Namespace, "description": "It was there already."}))  # fmt: skip
async def create_namespace(caller: Administrator, body: m.CreateNamespace, response: Response) -> m.Namespace:
    """Make a namespace."""
    _everywhere(caller.principal)
    created = await caller.server.registry.create_namespace(body.name)
    response.status_code = 201 if created else 200
    if created:
        await caller.server.audit(caller.principal, "namespace.create", body.name)
    return m.Namespace(name=body.name)


@router.delete("/namespaces/{name}", status_code=204, responses=responses(401, 403, 404, 409))
async def delete_namespace(
    caller: Administrator, name: Annotated[str, Path(min_length=1, max_length=NAMESPACE_CHARS_MAX)]
) -> None:
    """Close a namespace: its keys end and nobody gets in. What it holds stays until retention drops it."""
    _everywhere(caller.principal)
    if name == NAMESPACE_DEFAULT:
        raise Conflict(f"the namespace {name!r} is where everything goes that names none; it stays")
    if not await caller.server.registry.delete_namespace(name):
        raise no_namespace(name)
    caller.server.engine.forget_namespace(name)
    await caller.server.audit(caller.principal, "namespace.delete", name)


# -- keys ----------------------------------------------------------------------------------------------------------


@router.get("/keys", responses=responses(401, 403, 422))
async def list_keys(caller: Administrator, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> m.Page[m.Key]:
    """API keys, without their secrets."""
    after = views.read_cursor(cursor, str)
    found = await caller.server.keys.list(caller.principal.namespace, after and after.replace("\x00", ""), limit)
    following = views.cursor_of(found[-1].id) if len(found) == limit else None
    return m.Page[m.Key](items=[m.Key(**_key(k)) for k in found], next=following)


@router.post("/keys", status_code=201, responses=responses(401, 403, 404, 422))
async def create_key(caller: Administrator, body: m.CreateKey) -> m.NewKey:
    """Make an API key. Its secret is in this answer and nowhere else."""
    role = Role(body.role)
    scopes = None if body.scopes is None else frozenset(Permission(s) for s in body.scopes)
    namespace = body.namespace if body.namespace is not None else caller.principal.namespace
    check_issue(caller.principal, role, namespace, scopes)
    new = NewKey(
        name=body.name,
        role=role,
        namespace=namespace,
        scopes=scopes,
        rate_per_s=body.rate_per_s,
        expires_in_us=None if body.expires_in is None else views.duration_us(body.expires_in),
        created_by=caller.principal.subject,
    )
    key, secret = await caller.server.keys.create(new)
    await _audit_key(caller, "key.create", key)
    return m.NewKey(**_key(key), secret=secret)


@router.delete("/keys/{id}", status_code=204, responses=responses(401, 403, 404))
async def revoke_key(caller: Administrator, id: Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)]) -> None:
    """Revoke an API key, everywhere and at once."""
    key = await caller.server.keys.revoke(id, caller.principal.namespace)
    await _audit_key(caller, "key.revoke", key)


async def _audit_key(caller: Caller, action: str, key: KeyView) -> None:
    try:
        ns = None if key.namespace is None else (await caller.server.engine.use_of(key.namespace)).ns
    except NotFound:  # a key may outlive its namespace, and can be revoked all the same
        ns = None
    await caller.server.audit(caller.principal, action, key.id, {"name": key.name, "role": key.role.value}, ns=ns)


def _key(k: KeyView) -> dict[str, Any]:
    return {
        "id": k.id, "name": k.name, "role": k.role.value, "namespace": k.namespace, "scopes": _scopes(k.scopes), "rate_per_s": k.rate_per_s,
        "created_at": views.moment(k.created_us), "created_by": k.created_by, "expires_at": views.moment_or_none(k.expires_us),
        "revoked_at": views.moment_or_none(k.revoked_us), "last_used_at": views.moment_or_none(k.last_used_us),
    }  # fmt: skip


# -- audit ---------------------------------------------------------------------------------------------------------


@router.get("/audit", responses=responses(401, 403, 422))
async def list_audit(
    caller: Administrator, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.AuditEntry]:
    """Who did what, newest first."""
    before = views.read_cursor(cursor, int)
    if before is not None and not 0 <= before < 1 << 63:
        raise views.no_cursor()
    found = await caller.server.log.page(caller.principal.namespace, before, limit)
    items = [
        m.AuditEntry(
            id=a.id, at=views.moment(a.at_us), namespace=a.namespace, actor=a.actor, action=a.action, target=a.target, detail=dict(a.detail or {})
        )
        for a in found
    ]  # fmt: skip
    return m.Page[m.AuditEntry](items=items, next=views.cursor_of(found[-1].id) if len(found) == limit else None)
