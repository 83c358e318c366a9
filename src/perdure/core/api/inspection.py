"""Look into a run: its state as of an event, where it parts from another run, its history as a document."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.undo import UndoableTask


class GetRunAt(msgspec.Struct, frozen=True):
    run: RunRef
    at: int
    """An event; 0: the last one."""


class OutstandingStep(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """task, timer, child, promise, approval or event"""
    seq: int
    name: str
    since: int
    """The event that asked for it."""
    until_us: int | None = None
    """When a timer fires."""
    run_id: bytes = b""
    """Of a child."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    event: int
    step: str
    value: bytes = b""
    error: str | None = None


class RunAt(msgspec.Struct, frozen=True, kw_only=True):
    """A run as of one of its events."""

    run_id: bytes
    workflow: str
    version: str
    status: str
    at: int
    at_us: int
    event: str
    """The type of the event."""
    events: int
    """Events that the run has by now."""
    outstanding: list[OutstandingStep]
    states: dict[str, bytes]
    attributes: bytes
    results: list[StepResult]
    """The latest ones, newest first."""
    undo: list[UndoableTask]
    nodes: dict[str, str] = {}
    """Statuses of the nodes of a flow."""


class DiffRuns(msgspec.Struct, frozen=True):
    run: RunRef
    other: RunRef


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one run."""

    event: int
    """The event that asked for it."""
    name: str
    input: bytes = b""
    outcome: str = ""
    """success, failed, cancelled, skipped, or nothing while it is outstanding"""
    value: bytes = b""
    error: str | None = None
    took_us: int | None = None


class StepDiff(msgspec.Struct, frozen=True, kw_only=True):
    step: str
    """Kind and number: `task 3`."""
    one: StepView | None
    other: StepView | None
    differs: list[str]
    """Of name, input, outcome, result; `missing`: only one of the runs has this step. Empty: nothing but durations may differ."""


class DiffSide(msgspec.Struct, frozen=True, kw_only=True):
    run_id: bytes
    workflow: str
    version: str
    status: str
    input: bytes
    result: bytes = b""
    error: str | None = None
    events: int
    took_us: int


class RunDiff(msgspec.Struct, frozen=True, kw_only=True):
    one: DiffSide
    other: DiffSide
    differs: list[str]
    """Of workflow, version, input, status, result, error."""
    same: int
    """Steps that are the same before the runs part."""
    parted: StepDiff | None
    """The first step that differs."""
    after: list[StepDiff]
    """Every step from there on."""
    omitted: int = 0
    """Further ones that are left out."""


class ExportRun(msgspec.Struct, frozen=True):
    run: RunRef


class ExportedRun(msgspec.Struct, frozen=True):
    document: bytes
    """As perdure.export_history writes it."""


AT: Act[GetRunAt, RunAt] = Act("run.at", GetRunAt, RunAt, Permission.READ)
DIFF: Act[DiffRuns, RunDiff] = Act("run.diff", DiffRuns, RunDiff, Permission.READ)
EXPORT: Act[ExportRun, ExportedRun] = Act("run.export", ExportRun, ExportedRun, Permission.READ)

ACTS = (AT, DIFF, EXPORT)
