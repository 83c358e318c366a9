"""Delivery of inbox messages into the history of a run in memory.

Laws:

1. A message becomes an event in the same transaction that deletes its row, so it is recorded once.
2. A row that is read twice is one message: what is being consumed (`pending`) and what is gone since the last poll began (`done`) is
   passed over.
3. A message that the run cannot take any more is consumed and records nothing.
"""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core.errors import Failure
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import UPDATES_OPEN_MAX
from perdure.core.messages import (
    CancelMessage,
    ChildEndedMessage,
    Message,
    PromiseMessage,
    SignalMessage,
    TaskEndedMessage,
    UpdateMessage,
)
from perdure.engine.commits.write_queue import WriteQueue
from perdure.engine.ports import InboxRow
from perdure.engine.runs.changes import Extras
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.task_port import TaskPort
from perdure.wire.codec import decode_message, encode_failure

_HANDED_ON = frozenset({ev.SignalReceived, ev.CancelRequested, ev.PromiseResolved})


class InboxDelivery:
    def __init__(self, queue: WriteQueue, tasks: TaskPort) -> None:
        self._queue, self._tasks = queue, tasks
        self.pending: set[int] = set()
        """Inbox rows whose messages are on their way into the history."""
        self.done: set[int] = set()
        """Inbox rows that are gone since the last poll began; what that is reading may still show them."""

    def read(self, run: ActiveRun, row: InboxRow) -> Message | None:
        """The message of a row; None if it was read before or the run takes none. Raises what a row that cannot be read raises."""
        is_new = run.phase.is_active and row.id not in self.pending and row.id not in self.done
        return decode_message(row.body) if is_new else None

    def deliver(self, run: ActiveRun, message: Message, inbox_id: int | None = None) -> None:
        """A message becomes an event. With an inbox id its row goes in the same commit."""
        if not run.phase.is_active:
            return
        if inbox_id is not None:
            self.pending.add(inbox_id)
            run.inbox_used = True
            # The event goes into this same segment: both are written in one transaction or none is.
            run.segment().extras.consumed.append(inbox_id)
        self._record(run, message)
        self._queue.mark(run, urgent=True)

    def poll_begins(self) -> None:
        """A poll begins: rows deleted before it cannot appear in its result."""
        self.done.clear()

    def committed(self, extras: Extras) -> None:
        self.pending.difference_update(extras.consumed)
        self.done.update(extras.consumed)

    def drop_pending(self, run: ActiveRun) -> None:
        """The unwritten changes of the run are void. Their messages are still in the inbox and count as unread again."""
        for s in run.pending:
            if s.has_extras:
                self.pending.difference_update(s.extras.consumed)
        run.pending.clear()

    def forget_all(self) -> None:
        self.pending.clear()
        self.done.clear()

    def child_refused(self, run: ActiveRun, seq: int, key: str) -> None:
        """A child was not created, because its id is taken."""
        if seq in run.state.children and run.phase.is_active:
            why = f"the key {key!r} is taken"
            run.record(ev.ChildFailed(seq, Failure("run_already_exists", why, "RunAlreadyExists")))
            self._queue.mark(run, urgent=True)

    def _record(self, run: ActiveRun, message: Message) -> None:
        match message:
            case SignalMessage():
                run.unseen.append(message)
                run.record(ev.SignalReceived(message.name, message.value, message.starts), len(message.value))
            case CancelMessage():
                # A second request ends the wait for children that do not stop.
                if not run.state.cancel_requested or run.state.stopping:
                    run.unseen.append(message)
                    run.record(ev.CancelRequested(message.reason, message.deadline)).extras.stops = True
            case PromiseMessage():
                name, question = message.name, message.question
                if run.state.takes_value(name, question, authorized=message.authorized):
                    if not question:  # an answer stays with the run that asked
                        run.unseen.append(message)
                    event = ev.PromiseResolved(name, message.value, message.authorized, question, message.event_id)
                    run.record(event, len(message.value))
            case UpdateMessage():
                self._update_asked(run, message)
            case TaskEndedMessage():
                self._tasks.arrived(run, message)
            case ChildEndedMessage():
                self._child_ended(run, message)
            case _:
                raise TypeError(
                    f"{type(message).__name__} is no event of a run"
                )  # RunLoop carries out requests of operators

    def _update_asked(self, run: ActiveRun, message: UpdateMessage) -> None:
        """An update that is sent twice under one id is handled once."""
        if message.id in run.state.updates:
            return
        if message.id in run.state.answered:  # an answer that is still kept stands; this message is a repetition
            refuse_update(
                run, message.id, "conflict", "the run answered this update before, and the answer is no longer kept"
            )
        elif run.decider is not None:
            why = "a declarative flow takes no updates; send it a signal, or resolve a promise"
            refuse_update(run, message.id, "update_rejected", why)
        elif len(run.state.updates) >= UPDATES_OPEN_MAX:
            why = f"the run has UPDATES_OPEN_MAX={UPDATES_OPEN_MAX} updates to answer already; ask again later, under another id"
            refuse_update(run, message.id, "update_rejected", why)
        else:
            run.record(ev.UpdateReceived(message.id, message.name, message.value), len(message.value))

    def _child_ended(self, run: ActiveRun, message: ChildEndedMessage) -> None:
        child = run.state.children.get(message.seq)
        if child is None or (message.child and message.child != child):
            return
        match message.status:
            case RunStatus.SUCCESS:
                run.record(ev.ChildSucceeded(message.seq, message.value), len(message.value))
            case RunStatus.CANCELLED:
                run.record(ev.ChildCancelled(message.seq, message.failure.message if message.failure else ""))
            case _:
                run.record(
                    ev.ChildFailed(message.seq, message.failure or Failure("run_failed", "the child run failed"))
                )


def refuse_update(run: ActiveRun, update: str, code: str, message: str) -> None:
    """An answer that the engine gives in the code's place."""
    run.segment().extras.answers.append((update, b"", encode_failure(Failure(code, message))))


def is_handed_on(event: ev.Event) -> bool:
    """Whether the message of this event goes along when a run continues as new before its code has seen it. An answer does not: its question
    stays behind."""
    return type(event) in _HANDED_ON and not (type(event) is ev.PromiseResolved and event.question)


def message_of(event: ev.Event) -> Message | None:
    """The message that an event was made of, where it is handed on."""
    match event:
        case ev.SignalReceived():
            return SignalMessage(event.name, event.value, event.starts)
        case ev.CancelRequested():
            return CancelMessage(event.reason, event.deadline)
        case ev.PromiseResolved():
            return PromiseMessage(event.name, event.value, event.authorized) if not event.question else None
        case _:
            return None
