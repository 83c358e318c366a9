"""Repeat or repair a run by hand: rerun it, fork it, decide about one node of a failed flow."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.api.runs import StartedRun


class RerunRun(msgspec.Struct, frozen=True, kw_only=True):
    run: RunRef
    input: bytes | None = None
    """Another input, as in a start; None: the same."""
    edits: dict[str, bytes] = {}
    """Fields of the input that change: the path of names and indexes, with dots, and a value as JSON."""
    version: str = ""
    """A registered version; empty: the one that a new run gets."""
    key: str = ""
    idempotency_key: str = ""


class ForkRun(msgspec.Struct, frozen=True, kw_only=True):
    run: RunRef
    at: int
    """The last event that is copied."""
    edits: dict[str, bytes] = {}
    """Results that are replaced: a task's number, its node, its name, or `child:NUMBER`, and a value as JSON."""
    code: str = "same"
    """same: the version of the run; current: the one that a new run gets."""
    idempotency_key: str = ""


class OverrideNode(msgspec.Struct, frozen=True):
    """`how`: rerun, skip, or set to `value`."""

    run: RunRef
    node: str
    how: str
    value: bytes = b""


RERUN: Act[RerunRun, StartedRun] = Act(
    "run.rerun", RerunRun, StartedRun, Permission.START, ("run.rerun",), once_by="idempotency_key"
)
FORK: Act[ForkRun, StartedRun] = Act(
    "run.fork", ForkRun, StartedRun, Permission.OPERATE, ("run.fork",), once_by="idempotency_key"
)
OVERRIDE: Act[OverrideNode, None] = Act("node.override", OverrideNode, None, Permission.OPERATE, ("node.override",))

ACTS = (RERUN, FORK, OVERRIDE)
