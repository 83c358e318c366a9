"""A run in the memory of the engine that owns it, and the changes it wants to write.

Changes gather in segments of bounded size. A segment is written whole, so an event and the rows that belong to it are never in
two transactions. Segments of one run are written in order.

Law: rows and messages that belong to an event are put down before it (`unqueue`, `send`), or into the very segment that `record` answers.
After it, the segment may be full and the next thing go into another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from perdure.core import chain, ids
from perdure.core import events as ev
from perdure.core.durations import FOREVER_US
from perdure.core.errors import Failure
from perdure.core.events import PROMISE_WORDS
from perdure.core.flow_control.groups import FlowControlGroup
from perdure.core.lazy_sets import EMPTY, LazySet, added, discard
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.messages import CancelMessage, Message
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import MARK, Reference
from perdure.core.runstate import RunState
from perdure.core.work import run_kind
from perdure.engine.commits.rows import (
    RUN_WORDS,
    TASK_WORDS,
    AnswerRow,
    AppendRow,
    Batch,
    CloseRow,
    EndedRow,
    GroupRow,
    MessageRow,
    PromiseRow,
    QueuedRow,
    ReleaseRow,
    StartRow,
    StateRow,
    TaskRow,
    VersionRow,
    WaitRow,
    make_row,
)
from perdure.engine.flow_control import FlowControl
from perdure.engine.runs.transitions import IDLE, LOADING, Phase
from perdure.flows.decide.decider import Decider
from perdure.wire.codec import decode_message, encode_events, encode_message, encode_options

SEGMENT_ROWS = 500
SEGMENT_BYTES = 2 * 1024 * 1024


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
        self.run_id, self.seq, self.version, self.key = run_id, seq, version, key
        self.input_hash, self.own, self.started, self.group = input_hash, own, started, group
        self.head = b""
        """Hash of its first row, once it is written."""


class Extras:
    """Rows that most segments do not have."""

    __slots__ = (
        "answers",
        "consumed",
        "groups",
        "messages",
        "promises",
        "queue_ops",
        "starts",
        "states",
        "stops",
        "version",
        "wait_reason",
    )

    def __init__(self) -> None:
        self.queue_ops: dict[bytes, QueuedRow | None] = {}
        """Task id -> its row in task_queue, or None to delete it."""
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
        self.stops = False
        """A cancel request is among the events."""
        self.version: str | None = None
        """Of the code that the run begins with, where that is not the one it was started with."""


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


class ActiveRun:
    __slots__ = (
        "computed_s",
        "decider",
        "deliver",
        "epoch",
        "flow_control",
        "head",
        "head_us",
        "id",
        "idle_since",
        "inbox_used",
        "keys",
        "ns",
        "operations",
        "pending",
        "phase",
        "queued",
        "retried",
        "seq",
        "state",
        "stored",
        "suspect",
        "trace",
        "unloaded",
        "unseen",
        "version",
        "wait_reason",
        "waiting",
        "workflow",
        "writing",
    )

    def __init__(self, run_id: bytes, ns: int, workflow: str, version: str, epoch: int) -> None:
        self.id, self.ns, self.workflow, self.version, self.epoch = run_id, ns, workflow, version, epoch
        self.state = RunState()
        self.phase: Phase = LOADING
        self.flow_control: FlowControl | None = None
        """The loop gives it to every run that it takes in."""
        self.keys: tuple[str, ...] = ()
        """Keys of the slots that the run itself holds."""
        self.decider: Decider | None = None
        """Decides a declarative run; None for code, which a worker holds."""
        self.stored: dict[bytes, bytes] | None = None
        """Stored values that expressions of a declarative run read, by SHA-256; None: none so far."""
        self.unloaded: Sequence[Reference] = ()
        """Further stored values that it knows of, in the order of its history, once it has read one."""
        self.trace = ""
        """W3C traceparent of the run's span, for its tasks."""
        self.seq = 0
        """Number of the last durable event."""
        self.head, self.head_us = chain.BEGINNING, 0
        """Hash and time of the last durable row of its history."""
        self.pending: deque[Changes] = deque()
        self.deliver: list[ev.Recorded] = []
        """Durable facts that the code has not seen yet."""
        self.unseen: list[Message] = []
        """Facts from outside that are recorded, or on their way there, and that the code has not been given yet."""
        self.waiting: list[str] = []
        """Waits of its code that no event records: `signal:NAME`, `update:NAME`."""
        self.suspect = False
        """Earlier engines died while they had it."""
        self.computed_s = 0.0
        """CPU time of the decision of a flow that is being made."""
        self.writing = False
        """A commit with changes of this run is on its way."""
        self.queued: LazySet[int] = EMPTY
        """Tasks that have a row in task_queue."""
        self.operations = 0
        self.retried: tuple[int, int] = (0, 0)
        """When the run was last retried, and how long it had been failed before."""
        self.inbox_used = False
        """Rows of its inbox were consumed, so that more of them may be there when it ends."""
        self.wait_reason: tuple[str | None, str | None] = (None, None)
        """The wait reason that was last written while it is in memory."""
        self.idle_since = float("-inf")

    @property
    def known_as(self) -> bytes:
        """The id that the parent of this run knows it by; empty where an old record does not have it."""
        return self.state.known_as or (b"" if self.state.is_successor else self.id)

    def segment(self) -> Changes:
        pending = self.pending
        if pending:
            last = pending[-1]
            if last.rows < SEGMENT_ROWS and last.bytes < SEGMENT_BYTES:
                return last
        made = Changes()
        pending.append(made)
        return made

    def record(self, event: ev.Event, size: int = 0) -> Changes:
        self.state.apply(event)
        changes = self.segment()
        changes.events.append(event)
        changes.rows += 1
        changes.bytes += size
        return changes

    def record_success(self, seq: int, value: bytes, row: TaskRow) -> None:
        """Successes that meet in a segment share one event."""
        changes = self.segment()
        last = changes.events[-1] if changes.events else None
        if type(last) is ev.TasksSucceeded:
            self.state.undoable += bool(self.state.tasks.pop(seq).options.undo)
            last.seqs.append(seq)
            last.results.append(value)
        else:
            event = ev.TasksSucceeded([seq], [value])
            self.state.apply(event)
            changes.events.append(event)
        changes.tasks.append(row)
        changes.rows += 1
        changes.bytes += len(value)

    def task_row(
        self,
        seq: int,
        scheduled: ev.TasksScheduled,
        status: TaskStatus,
        attempts: int,
        lost: int,
        times: tuple[int, int | None, int],
        error: str | None,
    ) -> TaskRow:
        fields = (
            ids.derive(self.id, ids.TASK, seq),
            self.ns,
            self.id,
            seq,
            scheduled.name,
            scheduled.queue,
            TASK_WORDS[status],
            attempts,
            lost,
            self.epoch,
            *times,
            error,
            ev.label(scheduled, seq) if scheduled.nodes else None,
        )
        return make_row(TaskRow, fields)

    def skipped_row(self, seq: int, node: str, reason: str, now_us: int) -> TaskRow:
        return TaskRow(
            id=ids.derive(self.id, ids.TASK, seq),
            ns=self.ns,
            run_id=self.id,
            seq=seq,
            name=node,
            queue="",
            status="skipped",
            attempts=0,
            lost=0,
            epoch=self.epoch,
            scheduled_at=now_us,
            started_at=None,
            finished_at=now_us,
            error=reason or None,
            node=node,
        )

    def queue_row(
        self,
        seq: int,
        scheduled: ev.TasksScheduled,
        status: TaskStatus,
        attempt: int,
        lost: int,
        delay_us: int,
        scheduled_us: int,
        error: str | None,
        expires_us: int | None = None,
    ) -> None:
        """Insert or update the task's row in the shared queue. `expires_us`: it fails if it has not begun by then."""
        self.queued = added(self.queued, seq)
        task_id = ids.derive(self.id, ids.TASK, seq)
        changes = self.segment()
        changes.rows += 1
        group = None
        if status is TaskStatus.PENDING and self.flow_control is not None:
            group = self.flow_control.of_task(self.ns, self.workflow, scheduled, seq)
            if group is not None:
                joined = changes.extras.groups.get(group.id)
                if joined is None or delay_us < joined.delay_us:
                    changes.extras.groups[group.id] = GroupRow(*group.row(), delay_us)
        changes.extras.queue_ops[task_id] = QueuedRow(
            id=task_id,
            ns=self.ns,
            run_id=self.id,
            seq=seq,
            name=scheduled.name,
            queue=scheduled.queue,
            status=TASK_WORDS[status],
            attempt=attempt,
            lost=lost,
            delay_us=delay_us,
            scheduled_at=scheduled_us,
            options=encode_options(scheduled.options),
            input=scheduled.inputs[seq - scheduled.first],
            error=error,
            trace=self.trace or None,
            node=ev.label(scheduled, seq) if scheduled.nodes else None,
            group_id=group.id if group is not None else None,
            start_deadline_at=expires_us,
        )

    def unqueue(self, seq: int) -> None:
        if seq in self.queued:
            discard(self.queued, seq)
            self.segment().extras.queue_ops[ids.derive(self.id, ids.TASK, seq)] = None

    def send(self, run_id: bytes, message: Message) -> None:
        self.segment().extras.messages.append(
            MessageRow(run_id, encode_message(message), isinstance(message, CancelMessage))
        )

    @property
    def is_idle(self) -> bool:
        """Waits for something outside: nothing to write, nothing to see, nothing running here."""
        return self.phase is IDLE and not self.writing and not self.pending and not self.operations

    def unit(self, segments: list[Changes]) -> RunUnit:
        """What one commit writes of it. Until its answer is here, the run is `writing`."""
        return RunUnit(self, segments)


class RunUnit:
    """What one run writes in one commit."""

    __slots__ = ("events", "extras", "first", "head", "run", "segments")
    outlives_session: ClassVar[bool] = False

    def __init__(self, run: ActiveRun, segments: list[Changes]) -> None:
        self.run, self.segments = run, segments
        run.writing = True
        self.events = segments[0].events if len(segments) == 1 else [e for s in segments for e in s.events]
        self.extras = [s.extras for s in segments if s.has_extras]
        self.first = run.seq + 1
        self.head = run.head
        """Hash of the last row, this one's if it has events."""

    def fill(self, batch: Batch) -> None:
        run = self.run
        if self.events:
            last = self.first + len(self.events) - 1
            body = encode_events(self.events)
            self.head = chain.link(run.head, run.head_us, run.id, run.ns, self.first, last, run.epoch, body)
            row = make_row(AppendRow, (run.id, self.first, last, run.ns, run.epoch, body, self.head))
            batch.appends.append(row)
            if MARK in body:
                batch.use(run.id, run.ns, (p for e in self.events for p in payloads_of(e)))
        for s in self.segments:
            batch.tasks.extend(s.tasks)
            if s.close is not None:
                self._fill_close(batch, *s.close)
            if s.release is not None:
                wake_us = FOREVER_US if s.release[0] is None else s.release[0]
                last = self.first + len(self.events) - 1
                batch.releases.append(
                    ReleaseRow(run.id, wake_us, *s.release[1:], run.state.deadline_us or None, last, self.head)
                )
        if self.extras:
            self._fill_extras(batch)

    def _fill_extras(self, batch: Batch) -> None:
        """Of several writes to one queue row or state in a commit only the last one counts, of several answers the first."""
        run = self.run
        queue_ops: dict[bytes, QueuedRow | None] = {}
        states: dict[str, bytes | None] = {}
        groups: dict[bytes, GroupRow] = {}
        wait_reason: tuple[str | None, str | None] | None = None
        answers: dict[str, tuple[bytes, bytes | None]] = {}
        for x in self.extras:
            queue_ops.update(x.queue_ops)
            states.update(x.states)
            for child in x.starts:
                _fill_start(batch, child, run)
                if child.group is not None:
                    groups[child.group.id] = GroupRow(*child.group.row(), 0)
            batch.messages.extend(x.messages)
            for message in x.messages:
                if MARK in message.body:
                    batch.use(message.run_id, run.ns, payloads_of(decode_message(message.body)))
            batch.consumed.extend(x.consumed)
            batch.promises.extend(
                PromiseRow(run.id, p.name, run.ns, PROMISE_WORDS[p.kind], p.spec.decode() or None) for p in x.promises
            )
            groups.update(x.groups)
            wait_reason = x.wait_reason or wait_reason
            for id, value, failure in x.answers:
                answers.setdefault(id, (value, failure))
        for task_id, row in queue_ops.items():
            if row is None:
                batch.dequeued.append(task_id)
            else:
                batch.queued.append(row)
        batch.states.extend(StateRow(run.id, name, run.ns, value) for name, value in states.items())
        batch.groups.extend(groups.values())
        batch.answers.extend(AnswerRow(run.id, id, run.ns, *answer) for id, answer in answers.items())
        if wait_reason is not None:
            batch.waits.append(WaitRow(run.id, *wait_reason))
        if any(x.stops for x in self.extras):
            batch.cancelling.append(run.id)
        batch.versions.extend(VersionRow(run.id, x.version) for x in self.extras if x.version is not None)

    def _fill_close(self, batch: Batch, status: RunStatus, failure: Failure | None, successor: bytes | None) -> None:
        run = self.run
        code, text = (failure.code, failure.message) if failure is not None else (None, None)
        last = self.first + len(self.events) - 1
        batch.closes.append(make_row(CloseRow, (run.id, RUN_WORDS[status], last, code, text, successor, self.head)))
        if run.inbox_used or run.state.promises or run.state.resolved or successor is not None:
            batch.ended.append(EndedRow(run.id, successor))


def attributes_text(attributes: bytes) -> str | None:
    return attributes.decode() if attributes else None


def _fill_start(batch: Batch, child: ChildStart, parent: ActiveRun) -> None:
    e = child.started
    body = encode_events([e])
    child.head = chain.first(child.run_id, parent.ns, int(child.own), body)
    if MARK in body:
        batch.use(child.run_id, parent.ns, payloads_of(e))
    batch.starts.append(
        StartRow(
            run_id=child.run_id,
            ns=parent.ns,
            workflow=e.workflow,
            version=child.version,
            kind=run_kind(child.version),
            key=child.key or None,
            input_hash=child.input_hash,
            parent_id=e.parent_id or None,
            parent_seq=e.parent_seq if e.parent_id else None,
            own=child.own,
            body=body,
            attributes=attributes_text(e.attributes),
            group_id=child.group.id if child.group is not None else None,
            deadline_at=e.deadline_us or None,
            hash=child.head,
        )
    )
