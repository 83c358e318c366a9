"""The caller's identity; namespaces, API keys and the audit log."""

from __future__ import annotations

import msgspec

from perdure.core.access import AuditLine, KeyView, Permission, Principal, Role
from perdure.core.api.act import Act


class WhoAmI(msgspec.Struct, frozen=True):
    pass


class ListNamespaces(msgspec.Struct, frozen=True):
    after: str = ""
    limit: int = 50


class NamespaceItem(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created_us: int


class NamespacePage(msgspec.Struct, frozen=True):
    items: list[NamespaceItem]
    next: str | None


class NamespaceRef(msgspec.Struct, frozen=True):
    name: str


class NamespaceCreated(msgspec.Struct, frozen=True):
    name: str
    is_new: bool


class ListKeys(msgspec.Struct, frozen=True):
    after: str | None = None
    limit: int = 50


class KeyPage(msgspec.Struct, frozen=True):
    items: list[KeyView]
    next: str | None


class CreateKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    role: Role
    namespace: str | None = None
    """None: the caller's own; all namespaces for a caller that is bound to none."""
    scopes: frozenset[Permission] | None = None
    rate_per_s: float | None = None
    expires_in_us: int | None = None


class KeyCreated(msgspec.Struct, frozen=True):
    key: KeyView
    secret: str
    """In this reply and nowhere else."""


class KeyRef(msgspec.Struct, frozen=True):
    id: str


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which lines of the audit log; an empty text leaves nothing out."""

    actor: str = ""
    """A subject, or what follows its colon: `user:ada` and `ada` are the same."""
    action: str = ""
    """An action, or how it begins: `run.`."""
    target: str = ""
    since_us: int | None = None
    """At this time or later."""
    until_us: int | None = None
    """Before this time."""

    @property
    def is_empty(self) -> bool:
        """Whether every line of the time that is asked for matches."""
        return not (self.actor or self.action or self.target)


class ListAudit(msgspec.Struct, frozen=True):
    before: int | None = None
    limit: int = 50
    wanted: AuditFilter = AuditFilter()


class AuditPage(msgspec.Struct, frozen=True):
    items: list[AuditLine]
    next: int | None


_ADMIN = Permission.ADMIN

WHOAMI: Act[WhoAmI, Principal] = Act("whoami", WhoAmI, Principal, None)
LIST_NAMESPACES: Act[ListNamespaces, NamespacePage] = Act("namespace.list", ListNamespaces, NamespacePage, _ADMIN)
CREATE_NAMESPACE: Act[NamespaceRef, NamespaceCreated] = Act(
    "namespace.create", NamespaceRef, NamespaceCreated, _ADMIN, ("namespace.create",), True
)
DELETE_NAMESPACE: Act[NamespaceRef, None] = Act("namespace.delete", NamespaceRef, None, _ADMIN, ("namespace.delete",))
LIST_KEYS: Act[ListKeys, KeyPage] = Act("key.list", ListKeys, KeyPage, _ADMIN)
CREATE_KEY: Act[CreateKey, KeyCreated] = Act("key.create", CreateKey, KeyCreated, _ADMIN, ("key.create",))
REVOKE_KEY: Act[KeyRef, KeyView] = Act("key.revoke", KeyRef, KeyView, _ADMIN, ("key.revoke",), True)
LIST_AUDIT: Act[ListAudit, AuditPage] = Act("audit.list", ListAudit, AuditPage, _ADMIN)

ACTS = (WHOAMI, LIST_NAMESPACES, CREATE_NAMESPACE, DELETE_NAMESPACE, LIST_KEYS, CREATE_KEY, REVOKE_KEY, LIST_AUDIT)
