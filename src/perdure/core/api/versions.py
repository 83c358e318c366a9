"""Versions of a workflow: which ones have runs in flight, which one new runs get, and moving to another one and back."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act
from perdure.core.api.definitions import WorkflowRef


class VersionUse(msgspec.Struct, frozen=True, kw_only=True):
    """One version and what uses it. Runs are counted up to RUNS_PER_VERSION_COUNTED_MAX."""

    version: str
    kind: str
    hash: str | None
    """Of its code; None for flows, and for code that no worker has served."""
    build_id: str | None
    """Of the worker that last registered it."""
    pinned: bool
    """New runs of it stay with it."""
    registered_us: int
    seen_us: int | None
    """When a worker last served it."""
    workers: int
    runs_pinned: int
    """Runs in flight that only this version may execute."""
    runs_other: int
    """Runs in flight that this version executes, and that another one may."""
    is_current: bool
    can_drain: bool
    """Its workers may be stopped: new runs do not get it, and no run is pinned to it."""


class WorkflowVersions(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    current: str
    """The version of new runs."""
    previous: str | None
    """The version that was current before; a rollback goes back to it."""
    ramp: str | None
    """The version that a part of new runs gets."""
    ramp_percent: float
    by_hand: bool
    """The current version or the ramp was set by hand; a version that a worker registers does not become current."""
    versions: list[VersionUse]
    """The newest ones, newest first."""


class SetCurrent(msgspec.Struct, frozen=True):
    name: str
    version: str
    """A version, or the first characters of one. Empty: the newest one, and so on with each that a worker registers."""
    ramp_percent: float = 100.0
    """Of new runs; the others get the version that is current."""


class MoveRuns(msgspec.Struct, frozen=True):
    """Pin the runs of one version that no worker serves to another one."""

    name: str
    version: str
    to: str


class RunsMoved(msgspec.Struct, frozen=True):
    runs: int


LIST: Act[WorkflowRef, WorkflowVersions] = Act("version.list", WorkflowRef, WorkflowVersions, Permission.READ)
SET_CURRENT: Act[SetCurrent, WorkflowVersions] = Act(
    "version.set_current", SetCurrent, WorkflowVersions, Permission.DEVELOP, ("version.set_current",), True
)
ROLLBACK: Act[WorkflowRef, WorkflowVersions] = Act(
    "version.rollback", WorkflowRef, WorkflowVersions, Permission.DEVELOP, ("version.rollback",)
)
MOVE: Act[MoveRuns, RunsMoved] = Act("version.move", MoveRuns, RunsMoved, Permission.DEVELOP, ("version.move",), True)

ACTS = (LIST, SET_CURRENT, ROLLBACK, MOVE)
