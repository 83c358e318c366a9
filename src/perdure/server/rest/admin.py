"""The caller's identity; and for administrators namespaces, API keys and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Response

from perdure.core.access import NAMESPACE_CHARS_MAX, KeyView, Permission, Role
from perdure.core.api import admin
from perdure.core.api.admin import (
    CreateKey,
    KeyRef,
    ListAudit,
    ListKeys,
    ListNamespaces,
    NamespaceRef,
    WhoAmI,
)
from perdure.core.limits import NAME_CHARS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(tags=["administration"], route_class=GuardedRoute)


@router.get("/whoami", responses=responses(401))
async def whoami(caller: Annotated[RestCaller, asks(admin.WHOAMI)]) -> m.Identity:
    """The principal of this request's credential."""
    p = await caller.call(admin.WHOAMI, WhoAmI())
    return m.Identity(subject=p.subject, role=p.role.value, namespace=p.namespace, scopes=_scopes(p.scopes))


def _scopes(scopes: frozenset[Permission] | None) -> list[Any] | None:
    return None if scopes is None else sorted(s.value for s in scopes)


@router.get("/namespaces", responses=responses(401, 403, 422))
async def list_namespaces(
    caller: Annotated[RestCaller, asks(admin.LIST_NAMESPACES)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.NamespaceInfo]:
    """Namespaces by name, as far as the credential sees them."""
    page = await caller.call(admin.LIST_NAMESPACES, ListNamespaces(views.read_text_cursor(cursor), limit))
    items = [m.NamespaceInfo(name=n.name, created_at=views.moment(n.created_us)) for n in page.items]
    return m.Page[m.NamespaceInfo](items=items, next=views.next_cursor(page.next))


@router.post(
    "/namespaces",
    status_code=201,
    responses=responses(401, 403, 422, s200={"model": m.NamespaceInfo, "description": "It existed before."}),
)
async def create_namespace(
    caller: Annotated[RestCaller, asks(admin.CREATE_NAMESPACE)], body: m.CreateNamespaceRequest, response: Response
) -> m.NamespaceInfo:
    """Create a namespace."""
    made = await caller.call(admin.CREATE_NAMESPACE, NamespaceRef(body.name))
    response.status_code = 201 if made.is_new else 200
    return m.NamespaceInfo(name=made.name)


@router.delete("/namespaces/{name}", status_code=204, responses=responses(401, 403, 404, 409))
async def delete_namespace(
    caller: Annotated[RestCaller, asks(admin.DELETE_NAMESPACE)],
    name: Annotated[str, Path(min_length=1, max_length=NAMESPACE_CHARS_MAX)],
) -> None:
    """Close a namespace: its keys end and no credential reaches it. Its data stays until retention drops it."""
    await caller.call(admin.DELETE_NAMESPACE, NamespaceRef(name))


@router.get("/api-keys", responses=responses(401, 403, 422))
async def list_api_keys(
    caller: Annotated[RestCaller, asks(admin.LIST_KEYS)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.ApiKey]:
    """API keys, without their secrets."""
    page = await caller.call(admin.LIST_KEYS, ListKeys(views.read_text_cursor(cursor) or None, limit))
    return m.Page[m.ApiKey](items=[m.ApiKey(**_key(k)) for k in page.items], next=views.next_cursor(page.next))


@router.post("/api-keys", status_code=201, responses=responses(401, 403, 404, 422))
async def create_api_key(
    caller: Annotated[RestCaller, asks(admin.CREATE_KEY)], body: m.CreateApiKeyRequest
) -> m.CreatedApiKey:
    """Create an API key. Its secret is in this answer and nowhere else."""
    made = await caller.call(
        admin.CREATE_KEY,
        CreateKey(
            name=body.name,
            role=Role(body.role),
            namespace=body.namespace,
            scopes=None if body.scopes is None else frozenset(Permission(s) for s in body.scopes),
            rate_per_s=body.rate_per_s,
            expires_in_us=None if body.expires_in is None else views.duration_us(body.expires_in),
        ),
    )
    return m.CreatedApiKey(**_key(made.key), secret=made.secret)


@router.delete("/api-keys/{id}", status_code=204, responses=responses(401, 403, 404))
async def revoke_api_key(
    caller: Annotated[RestCaller, asks(admin.REVOKE_KEY)],
    id: Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX)],
) -> None:
    """Revoke an API key, everywhere and at once."""
    await caller.call(admin.REVOKE_KEY, KeyRef(id))


def _key(k: KeyView) -> dict[str, Any]:
    return {
        "id": k.id,
        "name": k.name,
        "role": k.role.value,
        "namespace": k.namespace,
        "scopes": _scopes(k.scopes),
        "rate_per_s": k.rate_per_s,
        "created_at": views.moment(k.created_us),
        "created_by": k.created_by,
        "expires_at": views.moment_or_none(k.expires_us),
        "revoked_at": views.moment_or_none(k.revoked_us),
        "last_used_at": views.moment_or_none(k.last_used_us),
    }


@router.get("/audit", responses=responses(401, 403, 422))
async def list_audit(
    caller: Annotated[RestCaller, asks(admin.LIST_AUDIT)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.AuditEntry]:
    """Who did what, newest first."""
    page = await caller.call(admin.LIST_AUDIT, ListAudit(views.read_number_cursor(cursor), limit))
    items = [
        m.AuditEntry(
            id=a.id,
            at=views.moment(a.at_us),
            namespace=a.namespace,
            actor=a.actor,
            action=a.action,
            target=a.target,
            detail=dict(a.detail or {}),
        )
        for a in page.items
    ]
    return m.Page[m.AuditEntry](items=items, next=views.next_cursor(page.next))
