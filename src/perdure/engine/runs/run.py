"""A run in the memory of the engine that owns it, and the changes it wants to write.

Changes gather in segments of bounded size. A segment is written whole, so an event and the rows that belong to it are never in
two transactions. Segments of one run are written in order.

Law: rows and messages that belong to an event are put down before it (`unqueue`, `send`), or into the very segment that `record` answers.
After it, the segment may be full and the next thing go into another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from perdure.core import chain, ids
from perdure.core import events as ev
from perdure.core.durations import FOREVER_US
from perdure.core.errors import Failure
from perdure.core.late_messages import MESSAGES
from perdure.core.lazy_sets import EMPTY, LazySet, added, discard
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.message_life import Ending
from perdure.core.messages import Message
from perdure.core.payload_fields import payloads_of
from perdure.core.payloads import MARK, Reference
from perdure.core.run_retry import NO_PAUSE
from perdure.core.runstate import RunState
from perdure.engine.commits.rows import (
    NO_ERROR,
    RUN_WORDS,
    TASK_WORDS,
    AnswerRow,
    AppendRow,
    AttributesRow,
    Batch,
    ChangeRow,
    CloseRow,
    DequeuedRow,
    EndedRow,
    GroupRow,
    QueuedRow,
    ReleaseRow,
    Spent,
    StateRow,
    TaskRow,
    error_columns,
    make_row,
)
from perdure.engine.commits.write_queue import EndingUnit
from perdure.engine.flow_control import FlowControl
from perdure.engine.runs.changes import Changes
from perdure.engine.runs.run_rows import fill_start, message_row, promise_row
from perdure.engine.runs.transitions import IDLE, LOADING, Phase
from perdure.flows.decide.decider import Decider
from perdure.wire.codec import decode_message, encode_events, encode_options

SEGMENT_ROWS = 500
SEGMENT_BYTES = 2 * 1024 * 1024


class ActiveRun:
    __slots__ = (
        "computed_s",
        "decider",
        "deliver",
        "end",
        "end_stands",
        "epoch",
        "flow_control",
        "full",
        "head",
        "head_us",
        "heir",
        "id",
        "idle_since",
        "inbox_used",
        "keys",
        "ns",
        "operations",
        "own_start",
        "pending",
        "phase",
        "pin",
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
        self.pin = ""
        """The version of code that alone may execute it; empty: any."""
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
        self.full: list[str] = []
        """Signals of which its code has left too many unread, as the run's row has them after its next commit; no more of them are taken."""
        self.suspect = False
        """Earlier engines died while they had it."""
        self.computed_s = 0.0
        """CPU time of the decision of a flow that is being made."""
        self.writing: RunUnit | None = None
        """The commit with changes of this run that is on its way."""
        self.queued: LazySet[int] = EMPTY
        """Tasks that have a row in task_queue."""
        self.operations = 0
        self.retried = NO_PAUSE
        """Its last retry, or its fork."""
        self.inbox_used = False
        """Rows of its inbox were consumed, so that more of them may be there when it ends."""
        self.end_stands = False
        """It was decided once more because of late messages, and they changed nothing: its end is written even if more of them come."""
        self.end: Changes | None = None
        """The first segment of what is decided together with the end."""
        self.own_start: ev.Recorded | None = None
        """How it was started, where another run is to be started like it."""
        self.heir: bytes | None = None
        """The run that is started in the commit of its end, with the messages that its code did not read."""
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

    def written(self, unit: RunUnit, at_us: int) -> None:
        """A commit of it is durable."""
        self.writing = None
        if unit.events:
            self.seq += len(unit.events)
            self.head, self.head_us = unit.head, at_us

    def begin_end(self) -> None:
        """What follows is decided together with the end of the run, and is written with it or not at all."""
        self.end = Changes()
        self.pending.append(self.end)

    def first_message(self, undelivered: Iterable[ev.Recorded]) -> int:
        """Number of the first message among these records and those that are not durable yet; 0: there is none."""
        for r in undelivered:
            if type(r.event) in MESSAGES:
                return r.seq
        n = self.seq
        for events in (self.writing.events if self.writing is not None else (), *(s.events for s in self.pending)):
            for event in events:
                n += 1
                if type(event) in MESSAGES:
                    return n
        return 0

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
        spent: Spent,
        failure: Failure | None = None,
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
            *spent,
            *(NO_ERROR if failure is None else error_columns(failure)),
            ev.label(scheduled, seq) if scheduled.nodes else None,
        )
        return make_row(TaskRow, fields)

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
        started_us: int | None = None,
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
            started_at=started_us,
        )

    def unqueue(self, seq: int, attempt: int = 0) -> None:
        """The task ends with this attempt; 0: with none."""
        if seq in self.queued:
            discard(self.queued, seq)
            task_id = ids.derive(self.id, ids.TASK, seq)
            self.segment().extras.queue_ops[task_id] = DequeuedRow(task_id, attempt)

    def send(self, run_id: bytes, message: Message) -> None:
        self.segment().extras.messages.append(message_row(run_id, message))

    @property
    def is_idle(self) -> bool:
        """Waits for something outside: nothing to write, nothing to see, nothing running here."""
        return self.phase is IDLE and not self.writing and not self.pending and not self.operations

    def unit(self, segments: list[Changes]) -> RunUnit:
        """What one commit writes of it. Until its answer is here, the run is `writing`."""
        return RunUnit(self, segments)


class RunUnit(EndingUnit):
    """What one run writes in one commit."""

    __slots__ = ("events", "extras", "first", "head", "is_withdrawn", "run", "segments")

    def __init__(self, run: ActiveRun, segments: list[Changes]) -> None:
        self.run, self.segments, self.first = run, segments, run.seq + 1
        run.writing = self
        self.is_withdrawn = False
        """The run was about to end, and does not."""
        self.events = segments[0].events if len(segments) == 1 else [e for s in segments for e in s.events]
        self.extras = [s.extras for s in segments if s.has_extras]
        self.head = self.run.head
        """Hash of the last row, this one's if it has events."""

    @property
    def run_id(self) -> bytes:
        return self.run.id

    def has_messages(self) -> None:
        self.run.inbox_used = True

    def withdraw_end(self) -> bool:
        """All that was decided with the end is void: the code decides again."""
        self.is_withdrawn = True
        at = self.segments.index(self.run.end) if self.run.end in self.segments else 0
        self.segments = self.segments[:at]
        self.events = [event for s in self.segments for event in s.events]
        self.extras = [s.extras for s in self.segments if s.has_extras]
        self.head = self.run.head
        return bool(self.segments)

    def fill(self, batch: Batch) -> None:
        run = self.run
        if self.events:
            last = self.first + len(self.events) - 1
            plain = encode_events(self.events)
            body = batch.seal(run.id, plain)
            self.head = chain.link(run.head, run.head_us, run.id, run.ns, self.first, last, run.epoch, body)
            row = make_row(AppendRow, (run.id, self.first, last, run.ns, run.epoch, body, self.head))
            batch.appends.append(row)
            if MARK in plain:
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
        queue_ops: dict[bytes, QueuedRow | DequeuedRow] = {}
        states: dict[str, bytes | None] = {}
        groups: dict[bytes, GroupRow] = {}
        wait_reason: tuple[str | None, str | None] | None = None
        answers: dict[str, tuple[bytes, bytes | None]] = {}
        attributes: bytes | None = None
        for x in self.extras:
            queue_ops.update(x.queue_ops)
            states.update(x.states)
            for child in x.starts:
                fill_start(batch, child, run.ns)
                if child.group is not None:
                    groups[child.group.id] = GroupRow(*child.group.row(), 0)
            batch.messages.extend(x.messages)
            for message in x.messages:
                if MARK in message.body:
                    batch.use(message.run_id, run.ns, payloads_of(decode_message(message.body)))
            batch.consumed.extend(x.consumed)
            batch.recovered.extend(x.recovered)
            batch.attempts.extend(x.attempts)
            batch.promises.extend(
                promise_row(run.id, run.ns, p, is_resolved=run.state.is_resolved(p.name)) for p in x.promises
            )
            groups.update(x.groups)
            wait_reason = x.wait_reason or wait_reason
            attributes = x.attributes if x.attributes is not None else attributes
            for id, value, failure in x.answers:
                answers.setdefault(id, (value, failure))
        for row in queue_ops.values():
            if isinstance(row, DequeuedRow):
                batch.dequeued.append(row)
            else:
                batch.queued.append(row)
        batch.states.extend(StateRow(run.id, name, run.ns, value) for name, value in states.items())
        batch.groups.extend(groups.values())
        batch.answers.extend(AnswerRow(run.id, id, run.ns, *answer) for id, answer in answers.items())
        if attributes is not None:
            batch.attributes.append(AttributesRow(run.id, attributes.decode()))
        self._fill_change(batch, wait_reason)

    def _fill_change(self, batch: Batch, wait_reason: tuple[str | None, str | None] | None) -> None:
        is_released = any(s.release is not None for s in self.segments)
        waits = wait_reason if not is_released else None  # a release says itself what the run waits for
        is_cancelled, is_settled = any(x.stops for x in self.extras), any(x.settles for x in self.extras)
        full: list[str] | None = None
        for x in self.extras:
            if x.full is not None:
                full = x.full
        moved = next((x.version for x in reversed(self.extras) if x.version is not None), None)
        paused = next((x.paused for x in self.extras if x.paused is not None), None)
        is_given = waits is not None or moved is not None or paused is not None or full is not None
        if is_cancelled or is_settled or is_given:
            word, reasons = waits or (None, None)
            version, pin = moved or (None, None)
            batch.changes.append(
                ChangeRow(
                    run_id=self.run.id,
                    is_released=is_released,
                    has_waits=waits is not None,
                    waiting_on=word,
                    wait_reasons=reasons,
                    is_cancelled=is_cancelled,
                    is_settled=is_settled,
                    version=version,
                    paused_by=paused.by if paused is not None else None,
                    pause_reason=paused.reason if paused is not None else None,
                    pin=pin,
                    full_signals=msgspec.json.encode(full).decode() if full is not None else None,
                )
            )

    def _fill_close(self, batch: Batch, status: RunStatus, failure: Failure | None, successor: bytes | None) -> None:
        run = self.run
        code, text = (failure.code, failure.message) if failure is not None else (None, None)
        last = self.first + len(self.events) - 1
        state = run.state
        heir = successor or run.heir
        has_messages = run.inbox_used or bool(state.promises) or state.values is not None or heir is not None
        row = (run.id, RUN_WORDS[status], last, code, text, successor, self.head, has_messages)
        batch.closes.append(make_row(CloseRow, row))
        if has_messages:
            ending = Ending.CONTINUED if successor is not None else Ending(RUN_WORDS[status])
            gives_way = ending is Ending.SUCCESS and not run.end_stands
            first = (state.first or run.id) if heir is not None else None
            batch.ended.append(EndedRow(run.id, run.ns, ending, gives_way, successor, first, heir))
