"""Acts of administrators: namespaces, API keys, the audit log; and who the caller is.

An administrator who is bound to a namespace administers that one alone; namespaces themselves belong to credentials that are bound to none.
"""

from __future__ import annotations

from perdure.core.access import (
    NAMESPACE_DEFAULT,
    KeyView,
    NewKey,
    Principal,
    check_issue,
    check_namespace_name,
    no_namespace,
)
from perdure.core.api import admin as acts
from perdure.core.api.admin import (
    AuditPage,
    CreateKey,
    KeyCreated,
    KeyPage,
    KeyRef,
    ListAudit,
    ListKeys,
    ListNamespaces,
    NamespaceCreated,
    NamespacePage,
    NamespaceRef,
    WhoAmI,
)
from perdure.core.errors import Conflict, Forbidden, NotFound
from perdure.engine.api.api import NamespaceApi, handles, page_limit


@handles(acts.WHOAMI)
async def whoami(api: NamespaceApi, r: WhoAmI) -> Principal:
    return api.caller.principal


@handles(acts.LIST_NAMESPACES)
async def list_namespaces(api: NamespaceApi, r: ListNamespaces) -> NamespacePage:
    """The namespaces that the credential may see."""
    limit = page_limit(r.limit)
    found = await api.ports.reads.namespaces(r.after, limit + 1)
    seen = [n for n in found[:limit] if api.caller.principal.sees(n.name)]
    return NamespacePage(seen, found[limit - 1].name if len(found) > limit else None)


@handles(acts.CREATE_NAMESPACE)
async def create_namespace(api: NamespaceApi, r: NamespaceRef) -> NamespaceCreated:
    _check_unbound(api)
    check_namespace_name(r.name)
    is_new = await api.ports.definitions.create_namespace(r.name)
    if is_new:
        await _record(api, None, "namespace.create", r.name)
    return NamespaceCreated(r.name, is_new)


@handles(acts.DELETE_NAMESPACE)
async def delete_namespace(api: NamespaceApi, r: NamespaceRef) -> None:
    """Its keys are revoked and no credential can reach it. Its rows stay until retention drops them."""
    _check_unbound(api)
    if r.name == NAMESPACE_DEFAULT:
        raise Conflict(f"the namespace {r.name!r} is where everything goes that names none; it cannot be deleted")
    if not await api.ports.definitions.delete_namespace(r.name):
        raise no_namespace(r.name)
    api.api.forget_namespace(r.name)
    await _record(api, None, "namespace.delete", r.name)


def _check_unbound(api: NamespaceApi) -> None:
    if api.caller.principal.namespace is not None:
        raise Forbidden("namespaces are administered with a credential that is bound to none of them")


@handles(acts.LIST_KEYS)
async def list_keys(api: NamespaceApi, r: ListKeys) -> KeyPage:
    """Without their secrets."""
    limit = page_limit(r.limit)
    found = await api.ports.keys.list(api.caller.principal.namespace, r.after, limit)
    return KeyPage(found, found[-1].id if len(found) == limit else None)


@handles(acts.CREATE_KEY)
async def create_key(api: NamespaceApi, r: CreateKey) -> KeyCreated:
    principal = api.caller.principal
    namespace = r.namespace if r.namespace is not None else principal.namespace
    check_issue(principal, r.role, namespace, r.scopes)
    new = NewKey(
        name=r.name,
        role=r.role,
        namespace=namespace,
        scopes=r.scopes,
        rate_per_s=r.rate_per_s,
        expires_in_us=r.expires_in_us,
        created_by=api.by,
    )
    key, secret = await api.ports.keys.create(new)
    await _record_key(api, "key.create", key)
    return KeyCreated(key, secret)


@handles(acts.REVOKE_KEY)
async def revoke_key(api: NamespaceApi, r: KeyRef) -> KeyView:
    """Everywhere and at once."""
    key = await api.ports.keys.revoke(r.id, api.caller.principal.namespace)
    await _record_key(api, "key.revoke", key)
    return key


async def _record_key(api: NamespaceApi, action: str, key: KeyView) -> None:
    try:
        ns = None if key.namespace is None else await api.api.number_of(key.namespace)
    except NotFound:  # a key may outlive its namespace, and can be revoked all the same
        ns = None
    await _record(api, ns, action, key.id, name=key.name, role=key.role.value)


async def _record(api: NamespaceApi, ns: int | None, action: str, target: str, **detail: str) -> None:
    """Audit in the namespace that the act concerns, which need not be the caller's; None for no namespace."""
    if api.ports.is_audited:
        await api.ports.audit.record(api.caller.principal, action, target, ns, dict(detail) if detail else None)


@handles(acts.LIST_AUDIT)
async def list_audit(api: NamespaceApi, r: ListAudit) -> AuditPage:
    """Newest first. A page of few matches may be short, and says where the next one begins."""
    return await api.ports.audit.page(api.caller.principal.namespace, r.before, page_limit(r.limit), r.wanted)
