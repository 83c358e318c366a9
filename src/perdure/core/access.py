"""Who may do what. Pure: the server asks, this answers.

A principal belongs to one namespace, or to all of them (`namespace` None), has one role, and may be narrowed further by scopes.
Deny by default: what no table here grants is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, TypeVar

import msgspec

from perdure.core.errors import Forbidden, InvalidInput, NotFound

NAMESPACE_DEFAULT: Final = "default"
NAMESPACE_CHARS_MAX: Final = 100


class Permission(Enum):
    """What an operation needs. Every REST route and gRPC method names exactly one."""

    __hash__ = object.__hash__  # each is one object, and every call is checked: that of Enum hashes the name

    READ = "read"
    """See runs, histories, tasks, logs, workflows, workers, queues."""
    START = "start"
    """Start runs."""
    OPERATE = "operate"
    """Cancel, retry, resume, signal, resolve."""
    DEVELOP = "develop"
    """Publish and delete workflows."""
    COMMANDS = "commands"
    """Publish flows that run commands on workers (`run:`), beside DEVELOP."""
    WORK = "work"
    """Hold a worker stream: get tasks and workflow code's events, report results."""
    ADMIN = "admin"
    """Keys, namespaces, audit."""


class Role(Enum):
    __hash__ = object.__hash__

    VIEWER = "viewer"
    OPERATOR = "operator"
    DEVELOPER = "developer"
    WORKER = "worker"
    ADMIN = "admin"


GRANTS: Final[dict[Role, frozenset[Permission]]] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.OPERATOR: frozenset({Permission.READ, Permission.START, Permission.OPERATE}),
    Role.DEVELOPER: frozenset(
        {Permission.READ, Permission.START, Permission.OPERATE, Permission.DEVELOP, Permission.WORK}
    ),
    Role.WORKER: frozenset({Permission.WORK}),
    Role.ADMIN: frozenset(Permission),
}


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated identity of a caller."""

    subject: str
    """For the audit log: `key:abc123`, `user:ada@example.com`, `dev`."""
    role: Role
    namespace: str | None = None
    """None: every namespace."""
    scopes: frozenset[Permission] | None = None
    """None: all that the role grants."""
    rate_per_s: float | None = None
    """None: the server's default."""
    expires_s: float | None = None
    """Unix seconds after which a signed token no longer holds. None for keys: the database knows."""

    def may(self, permission: Permission) -> bool:
        return permission in GRANTS[self.role] and (self.scopes is None or permission in self.scopes)

    def sees(self, namespace: str) -> bool:
        return self.namespace is None or self.namespace == namespace

    def powers(self) -> frozenset[Permission]:
        """Everything this principal may do."""
        return GRANTS[self.role] if self.scopes is None else GRANTS[self.role] & self.scopes


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """What may be shown of an API key: everything except its secret, which is not stored, and its hash."""

    id: str
    name: str
    role: Role
    namespace: str | None
    scopes: frozenset[Permission] | None
    rate_per_s: float | None
    created_us: int
    created_by: str
    expires_us: int | None
    revoked_us: int | None
    last_used_us: int | None


class KeyCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A stored key, as looked up by its id. The database's clock decides whether it has expired."""

    principal: Principal
    hash: bytes
    expired: bool
    revoked: bool
    """Or its namespace was deleted."""
    use_is_stale: bool
    """Its `last_used_at` is old enough to be written again."""
    name: str = ""


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that is about to be stored."""

    name: str
    role: Role
    namespace: str | None = None
    scopes: frozenset[Permission] | None = None
    rate_per_s: float | None = None
    expires_in_us: int | None = None
    created_by: str = ""


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, when. `detail` holds ids and names, never payloads."""

    id: int
    at_us: int
    namespace: str | None
    actor: str
    action: str
    target: str
    detail: dict[str, str | int | float | bool | None] | None


def check_namespace_name(name: str) -> None:
    """A name that fits into a header, an address and a terminal."""
    fits = 0 < len(name) <= NAMESPACE_CHARS_MAX and name.isascii() and name[0].isalnum()
    if not fits or not all(ch.isalnum() or ch in "-_." for ch in name):
        raise InvalidInput(
            f"{name[:NAMESPACE_CHARS_MAX]!r} cannot name a namespace: use up to {NAMESPACE_CHARS_MAX} letters, digits and - _ . "
            "and begin with a letter or a digit"
        )


def namespace_of(principal: Principal, requested: str | None) -> str:
    """The namespace a request works in. One that the principal may not see does not exist for it."""
    if requested is None or requested == "":
        return principal.namespace or NAMESPACE_DEFAULT
    if not principal.sees(requested):
        raise no_namespace(requested)
    return requested


def no_namespace(name: str) -> NotFound:
    return NotFound(f"there is no namespace {name[:NAMESPACE_CHARS_MAX]!r} for this credential: check the name")


def check_issue(issuer: Principal, role: Role, namespace: str | None, scopes: frozenset[Permission] | None) -> None:
    """A principal cannot grant more than it has: no other namespace, and no permission that it lacks."""
    if issuer.namespace is not None and namespace != issuer.namespace:
        raise Forbidden(
            f"a credential of namespace {issuer.namespace!r} can only issue keys of that namespace: name it, "
            "or use a credential for all namespaces"
        )
    wanted = GRANTS[role] if scopes is None else GRANTS[role] & scopes
    beyond = wanted - issuer.powers()
    if beyond:
        raise Forbidden(f"this credential has no permission {listed(beyond)} and cannot hand it out")


E = TypeVar("E", Role, Permission)


def parse(kind: type[E], text: str) -> E:
    """A role or a permission by its word."""
    try:
        return kind(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no {kind.__name__.lower()}: choose from {listed(kind)}") from None


def listed(words: Iterable[Role | Permission]) -> str:
    return ", ".join(sorted(w.value for w in words))
