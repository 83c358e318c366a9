"""How long ended runs are kept: policies of workflows, namespaces and the whole database, and what retention is doing."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class ListPolicies(msgspec.Struct, frozen=True):
    pass


class PolicyView(msgspec.Struct, frozen=True, kw_only=True):
    everywhere: bool
    """Of all namespaces that have none of their own."""
    workflow: str
    """Empty: the namespace, or all of them."""
    days: float | None
    """After the end of a run; None: for ever."""
    updated_us: int
    updated_by: str


class PolicyPage(msgspec.Struct, frozen=True):
    items: list[PolicyView]
    """The widest first."""
    default_days: float | None
    """Where no policy says otherwise: the setting of the server that answers."""


class SetPolicy(msgspec.Struct, frozen=True):
    scope: str
    """`everywhere`, `namespace` or `workflow`."""
    name: str
    """Of the workflow; empty for the other scopes."""
    days: float | None


class PolicyRef(msgspec.Struct, frozen=True):
    scope: str
    name: str


class GetRetentionStatus(msgspec.Struct, frozen=True):
    limit: int = 10


class RetentionJobView(msgspec.Struct, frozen=True, kw_only=True):
    """The removal of the ended runs of one day."""

    id: bytes
    name: str
    """The day, or `rest`: runs whose day has no partition any more."""
    action: str
    """`drop`: the day as a whole; `delete`: run by run."""
    status: str
    """`exporting`, `removing`, `done` or `abandoned`."""
    expected: int
    exported: int
    exported_bytes: int
    removed: int
    kept: int
    address: str | None
    format: str | None
    error: str | None
    created_us: int
    updated_us: int
    finished_us: int | None


class RetentionStatus(msgspec.Struct, frozen=True):
    jobs: list[RetentionJobView]
    """Newest first."""
    export: str
    """Where the server that answers exports to; empty: nowhere."""
    format: str


LIST: Act[ListPolicies, PolicyPage] = Act("retention.list", ListPolicies, PolicyPage, Permission.READ)
SET: Act[SetPolicy, PolicyView] = Act(
    "retention.set", SetPolicy, PolicyView, Permission.ADMIN, ("retention.set",), True
)
REMOVE: Act[PolicyRef, None] = Act("retention.remove", PolicyRef, None, Permission.ADMIN, ("retention.remove",))
STATUS: Act[GetRetentionStatus, RetentionStatus] = Act(
    "retention.status", GetRetentionStatus, RetentionStatus, Permission.READ
)

ACTS = (LIST, SET, REMOVE, STATUS)
