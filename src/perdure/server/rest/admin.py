"""The caller's identity; and for administrators namespaces, API keys and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import BaseModel, Field

from perdure.core.access import NAMESPACE_CHARS_MAX, KeyView, Permission, Role
from perdure.core.api import admin
from perdure.core.api.admin import (
    AuditFilter,
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


class Identity(BaseModel):
    subject: str
    role: m.RoleWord
    namespace: str | None = Field(description="Null: every namespace.")
    scopes: list[m.PermissionWord] | None


class CreateNamespaceRequest(m.Body):
    name: Annotated[
        str, Field(min_length=1, max_length=NAMESPACE_CHARS_MAX, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    ] = Field(examples=["shop"])


class NamespaceInfo(BaseModel):
    name: str
    created_at: m.Moment | None = None


class CreateApiKeyRequest(m.Body):
    name: m.Name
    role: m.RoleWord
    namespace: Annotated[str, Field(min_length=1, max_length=NAMESPACE_CHARS_MAX)] | None = Field(
        default=None, description="Null: every namespace."
    )
    scopes: Annotated[list[m.PermissionWord], Field(max_length=6)] | None = Field(
        default=None, description="Narrows what the role grants."
    )
    expires_in: m.Seconds | m.DurationText | None = None
    rate_per_s: Annotated[float, Field(gt=0, le=m.RATE_PER_S_MAX)] | None = None


class ApiKey(BaseModel):
    id: str
    name: str
    role: m.RoleWord
    namespace: str | None
    scopes: list[m.PermissionWord] | None
    rate_per_s: float | None
    created_at: m.Moment
    created_by: str
    expires_at: m.Moment | None
    revoked_at: m.Moment | None
    last_used_at: m.Moment | None


class CreatedApiKey(ApiKey):
    secret: str = Field(description="Shown this once.")


class AuditEntry(BaseModel):
    id: int
    at: m.Moment
    namespace: str | None
    actor: str
    action: str
    target: str
    detail: dict[str, Any] | None


router = APIRouter(tags=["administration"], route_class=GuardedRoute)


@router.get("/whoami", responses=responses(401))
async def whoami(caller: Annotated[RestCaller, asks(admin.WHOAMI)]) -> Identity:
    """The principal of this request's credential."""
    p = await caller.call(admin.WHOAMI, WhoAmI())
    return Identity(subject=p.subject, role=p.role.value, namespace=p.namespace, scopes=_scopes(p.scopes))


def _scopes(scopes: frozenset[Permission] | None) -> list[Any] | None:
    return None if scopes is None else sorted(s.value for s in scopes)


@router.get("/namespaces", responses=responses(401, 403, 422))
async def list_namespaces(
    caller: Annotated[RestCaller, asks(admin.LIST_NAMESPACES)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[NamespaceInfo]:
    """Namespaces by name, as far as the credential sees them."""
    page = await caller.call(admin.LIST_NAMESPACES, ListNamespaces(views.read_text_cursor(cursor), limit))
    items = [NamespaceInfo(name=n.name, created_at=views.moment(n.created_us)) for n in page.items]
    return m.Page[NamespaceInfo](items=items, next=views.next_cursor(page.next))


@router.post(
    "/namespaces",
    status_code=201,
    responses=responses(401, 403, 422, s200={"model": NamespaceInfo, "description": "It existed before."}),
)
async def create_namespace(
    caller: Annotated[RestCaller, asks(admin.CREATE_NAMESPACE)], body: CreateNamespaceRequest, response: Response
) -> NamespaceInfo:
    """Create a namespace."""
    made = await caller.call(admin.CREATE_NAMESPACE, NamespaceRef(body.name))
    response.status_code = 201 if made.is_new else 200
    return NamespaceInfo(name=made.name)


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
) -> m.Page[ApiKey]:
    """API keys, without their secrets."""
    page = await caller.call(admin.LIST_KEYS, ListKeys(views.read_text_cursor(cursor) or None, limit))
    return m.Page[ApiKey](items=[ApiKey(**_key(k)) for k in page.items], next=views.next_cursor(page.next))


@router.post("/api-keys", status_code=201, responses=responses(401, 403, 404, 422))
async def create_api_key(
    caller: Annotated[RestCaller, asks(admin.CREATE_KEY)], body: CreateApiKeyRequest
) -> CreatedApiKey:
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
    return CreatedApiKey(**_key(made.key), secret=made.secret)


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


class AuditQuery:
    """Query parameters that say which entries are meant."""

    def __init__(
        self,
        actor: Annotated[
            str,
            Query(
                max_length=NAME_CHARS_MAX,
                description="Who: a subject such as `user:ada`, or what follows its colon.",
                examples=["user:ada"],
            ),
        ] = "",
        action: Annotated[
            str, Query(max_length=NAME_CHARS_MAX, description="What, or how it begins.", examples=["run."])
        ] = "",
        target: Annotated[
            str, Query(max_length=NAME_CHARS_MAX, description="The id or name of what it was done to.")
        ] = "",
        since: Annotated[
            str | None,
            Query(
                max_length=m.TIME_CHARS_MAX,
                description="At this time or later; a time, or how long ago.",
                examples=["24h"],
            ),
        ] = None,
        until: Annotated[
            str | None,
            Query(max_length=m.TIME_CHARS_MAX, description="Before this time.", examples=["2026-10-21T14:00:00Z"]),
        ] = None,
    ) -> None:
        self._texts = AuditFilter(actor=actor, action=action, target=target)
        self._since, self._until = since, until

    def wanted(self, caller: RestCaller) -> AuditFilter:
        since_us = views.read_moment(self._since, "since", caller.now_us)
        until_us = views.read_moment(self._until, "until", caller.now_us)
        return msgspec.structs.replace(self._texts, since_us=since_us, until_us=until_us)


@router.get("/audit", responses=responses(401, 403, 422))
async def list_audit(
    caller: Annotated[RestCaller, asks(admin.LIST_AUDIT)],
    query: Annotated[AuditQuery, Depends()],
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> m.Page[AuditEntry]:
    """Who did what, newest first. A page of few matches may be short: `next` says whether there is more."""
    wanted = ListAudit(views.read_number_cursor(cursor), limit, query.wanted(caller))
    page = await caller.call(admin.LIST_AUDIT, wanted)
    items = [
        AuditEntry(
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
    return m.Page[AuditEntry](items=items, next=views.next_cursor(page.next))
