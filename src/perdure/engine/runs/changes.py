"""What a run wants to write: a segment of changes, and the runs it starts."""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core.errors import Failure
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.lifecycle import RunStatus
from perdure.core.messages import PauseMessage
from perdure.engine.commits.rows import (
    AttemptRow,
    DequeuedRow,
    GroupRow,
    MessageRow,
    QueuedRow,
    RecoveredRow,
    TaskRow,
)


class ChildStart:
    """A run to be created together with the event that mentions it."""

    __slots__ = ("group", "head", "input_hash", "key", "own", "run_id", "seq", "started", "version")

    def __init__(
        self,
        run_id: bytes,
        seq: int,
        version: str,
        key: str,
        input_hash: bytes,
        own: bool,
        started: ev.RunStarted,
        group: FlowControlGroup | None = None,
    ) -> None:
        """`input_hash` of a run with a key; empty: it takes over the key of the run that starts it, which ends."""
        self.run_id, self.seq, self.version, self.key = run_id, seq, version, key
        self.input_hash, self.own, self.started, self.group = input_hash, own, started, group
        self.head = b""
        """Hash of its first row, once it is written."""


class Extras:
    """Rows that most segments do not have."""

    __slots__ = (
        "answers",
        "attempts",
        "attributes",
        "consumed",
        "full",
        "groups",
        "messages",
        "paused",
        "promises",
        "queue_ops",
        "recovered",
        "settles",
        "starts",
        "states",
        "stops",
        "version",
        "wait_reason",
    )

    def __init__(self) -> None:
        self.queue_ops: dict[bytes, QueuedRow | DequeuedRow] = {}
        """Task id -> its row in task_queue."""
        self.attempts: list[AttemptRow] = []
        self.recovered: list[RecoveredRow] = []
        self.messages: list[MessageRow] = []
        """Messages to other runs."""
        self.consumed: list[int] = []
        self.starts: list[ChildStart] = []
        self.promises: list[ev.PromiseCreated] = []
        """Name, and what makes it more than a plain promise."""
        self.groups: dict[bytes, GroupRow] = {}
        """Flow-control groups that tasks or runs of this segment join: id -> row."""
        self.wait_reason: tuple[str | None, str | None] | None = None
        """Wait reason of a run that stays in memory: the short form, and all of it as JSON."""
        self.answers: list[tuple[str, bytes, bytes | None]] = []
        """Answers to updates: id, value, failure."""
        self.states: dict[str, bytes | None] = {}
        self.attributes: bytes | None = None
        """Search attributes after the last change of them in this segment."""
        self.stops = False
        """A cancel request is among the events."""
        self.paused: PauseMessage | None = None
        """The run is released and paused."""
        self.full: list[str] | None = None
        """Signals of which the run takes no more from now on; None: as before."""
        self.settles = False
        """The run was a suspect and has been decided."""
        self.version: tuple[str, str] | None = None
        """The version that executes the run from here on, and what it is pinned to."""


class Changes:
    """One segment. The common one is small on purpose: there is one per run and commit."""

    __slots__ = ("_extras", "bytes", "close", "events", "release", "rows", "tasks")

    def __init__(self) -> None:
        self.events: list[ev.Event] = []
        self.tasks: list[TaskRow] = []
        self.close: tuple[RunStatus, Failure | None, bytes | None] | None = None
        self.release: tuple[int | None, str | None, str | None, str | None] | None = None
        """Wake at, stuck with, and the wait reason: the short form, and all of it as JSON."""
        self._extras: Extras | None = None
        self.rows = 0
        self.bytes = 0

    @property
    def extras(self) -> Extras:
        if self._extras is None:
            self._extras = Extras()
        return self._extras

    @property
    def has_extras(self) -> bool:
        return self._extras is not None
