"""What is judged: lines of the ledger, and rows of the database."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from perdure.core.lifecycle import TaskStatus
from perdure.core.retry import TaskOptions

Phase = Literal["begin", "effect", "end"]


class LedgerLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task wrote about its own execution. `mono_us` is the machine's monotonic clock, the same for all its processes."""

    run: str
    task: str
    name: str
    attempt: int
    epoch: int
    worker: str
    phase: Phase
    boot: str
    mono_us: int
    after: tuple[str, ...] = ()
    """Ids of the tasks whose results this one was given."""
    failed: bool = False
    """Of an `end`: the execution raised an error by itself."""
    retry_us: int = 0
    """Of an `end`: the delay until the next attempt that the error asks for; 0: none, the policy holds."""


class AcknowledgedSignal(msgspec.Struct, frozen=True):
    """A line of a file of acknowledged signals; see perdure.testing.ledger.Signals."""

    run: str
    name: str
    value: Any = None
    sender: str = ""


class RunColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a run's row that its history determines."""

    ns: int
    workflow: str
    version: str
    kind: str
    key: str | None
    parent_id: bytes | None
    parent_seq: int | None
    created_us: int
    finished_us: int | None
    error_code: str | None
    error: str | None
    successor: bytes | None
    attributes: str | None
    head: bytes | None
    pin: str = ""
    """Of an active run."""


class StoredRun(msgspec.Struct, frozen=True):
    """A row of run_queue (`active`) or of run."""

    active: bool
    status: int
    epoch: int
    events: int | None
    stuck: str | None = None
    due: bool = False
    """Active, not owned by an engine, and its wake_at has passed."""
    columns: RunColumns | None = None


class TaskColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a task's row that the history of its run determines, and its times."""

    ns: int
    queue: str
    node: str | None
    error: str | None
    scheduled_us: int
    started_us: int | None
    finished_us: int
    error_code: str | None = None


class StoredKey(msgspec.Struct, frozen=True):
    """A row of run_key."""

    ns: int
    key: str
    input_hash: bytes


class StoredPromise(msgspec.Struct, frozen=True):
    """A row of promise."""

    name: str
    kind: str
    is_resolved: bool
    is_asked: bool
    """False: the value came before anything asked for it, or what asked for it was taken back."""
    question: bytes


class StoredTask(msgspec.Struct, frozen=True):
    """A row of task."""

    id: bytes
    seq: int
    name: str
    status: int
    attempts: int
    lost: int
    epoch: int
    columns: TaskColumns | None = None
    copied: bool = False
    """It ended in the run that this one is a fork of."""


class TaskPath(msgspec.Struct):
    """What the history says about one task."""

    options: TaskOptions
    scheduled: int
    """Number of the event that scheduled it."""
    status: TaskStatus = TaskStatus.PENDING
    ended: int = 0
    ended_us: int = 0
    name: str = ""
    queue: str = ""
    node: str | None = None
    error: str | None = None
    attempts: int | None = None
    """Where the history has it."""
