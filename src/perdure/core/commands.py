"""Commands of a decider, in the imperative. Each becomes exactly one event when it is recorded.

A batch of commands is one transaction. Sequence numbers come from the journal; ids are derived from them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.errors import Failure
from perdure.core.events import PromiseKind
from perdure.core.retry import TaskOptions


class _Command(msgspec.Struct, frozen=True, array_like=True, tag_field="type", gc=False):
    pass


class ScheduleTasks(_Command, frozen=True, gc=False, tag=1):
    first: int
    name: str
    queue: str
    inputs: list[bytes]
    options: TaskOptions
    nodes: list[str] = []
    """Nodes of a declarative flow: one for each task, or the one node that they are executions of (then `index` is set)."""
    index: int = -1
    """Place of the first one among the executions of its node."""


class CancelTasks(_Command, frozen=True, gc=False, tag=2):
    seqs: list[int]


class StartTimer(_Command, frozen=True, gc=False, tag=3):
    seq: int
    fire_at_us: int


class CancelTimer(_Command, frozen=True, gc=False, tag=4):
    seq: int


UNNUMBERED: Final = -1
"""In place of a number that the journal gives."""


class StartChild(_Command, frozen=True, gc=False, tag=5):
    seq: int
    workflow: str
    version: str
    input: bytes
    key: str = ""
    timeout_us: int = 0
    attributes: bytes = b""
    """Search attributes of the child as a JSON object; empty for none."""
    parent_close: str = "cancel"
    detached: bool = False
    """Both as in the event."""


class CancelChild(_Command, frozen=True, gc=False, tag=6):
    seq: int
    awaited: bool = False
    """As in the event."""


class CreatePromise(_Command, frozen=True, gc=False, tag=7):
    seq: int
    name: str
    spec: bytes = b""
    kind: PromiseKind = PromiseKind.PLAIN
    """Both as in the event."""


class RecordOperation(_Command, frozen=True, gc=False, tag=8):
    seq: int
    name: str
    value: bytes
    failure: Failure | None = None


class SetState(_Command, frozen=True, gc=False, tag=9):
    name: str
    value: bytes


class ClearState(_Command, frozen=True, gc=False, tag=10):
    name: str


class RecordPatch(_Command, frozen=True, gc=False, tag=11):
    name: str


class CompleteRun(_Command, frozen=True, gc=False, tag=12):
    result: bytes
    unread: list[tuple[str, bytes]] = []
    """Signals that the code was given and did not read."""
    late: list[int] = []
    """Numbers of the messages that it was given after it had ended."""


class FailRun(_Command, frozen=True, gc=False, tag=13):
    failure: Failure
    cause: int = 0
    """Number of the first event whose failure brought the code down; 0 when none is known."""


class CancelRun(_Command, frozen=True, gc=False, tag=14):
    """The run has unwound after a cancel request."""

    reason: str = ""


class ContinueAsNew(_Command, frozen=True, gc=False, tag=15):
    input: bytes
    signals: list[tuple[str, bytes]] = []
    """Signals received and not consumed: they open the new run's history, so that none is lost."""
    promises: list[tuple[str, bytes]] = []
    """Promises resolved that the code never waited for."""
    cancels: list[tuple[str, bool]] = []
    """Cancel requests that arrived after the code had decided: reason, and whether it was the deadline."""


class SkipTasks(_Command, frozen=True, gc=False, tag=16):
    """Nodes of a declarative flow that will not run."""

    first: int
    nodes: list[str]
    reason: str = ""


class AnswerUpdate(_Command, frozen=True, gc=False, tag=17):
    id: str
    value: bytes
    failure: Failure | None = None


class SetAttributes(_Command, frozen=True, gc=False, tag=18):
    change: bytes
    """As in the event."""


Command = (
    ScheduleTasks
    | CancelTasks
    | StartTimer
    | CancelTimer
    | StartChild
    | CancelChild
    | CreatePromise
    | RecordOperation
    | SetState
    | ClearState
    | RecordPatch
    | CompleteRun
    | FailRun
    | CancelRun
    | ContinueAsNew
    | SkipTasks
    | AnswerUpdate
    | SetAttributes
)

COMMAND_TYPES: tuple[type[_Command], ...] = (
    ScheduleTasks,
    CancelTasks,
    StartTimer,
    CancelTimer,
    StartChild,
    CancelChild,
    CreatePromise,
    RecordOperation,
    SetState,
    ClearState,
    RecordPatch,
    CompleteRun,
    FailRun,
    CancelRun,
    ContinueAsNew,
    SkipTasks,
    AnswerUpdate,
    SetAttributes,
)
