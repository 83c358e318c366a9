"""The engine's view of a run: what is outstanding, folded from its events.

Law: `RunState` is a function of the history alone. `apply` over all events from 1 gives the state that the store must
agree with; the verifier relies on that. A history with a retry is folded as `run_retry.effective` returns it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.core import events as ev
from perdure.core.attributes import changed
from perdure.core.errors import IllegalTransition, InvalidInput
from perdure.core.lazy_sets import EMPTY, LazySet, added, discard
from perdure.core.lifecycle import RunStatus, next_run_status
from perdure.core.limits import UNWIND_GRACE_US
from perdure.core.questions import BY_NAME, Values, is_restricted
from perdure.core.undo import COMMITTED


class RunState:
    __slots__ = (
        "answered",
        "attributes",
        "cancel_requested",
        "children",
        "close_policies",
        "deadline_us",
        "event_ids",
        "events",
        "failed_children",
        "first",
        "inherits",
        "is_successor",
        "key",
        "known_as",
        "operations",
        "parent_id",
        "parent_seq",
        "pinned",
        "promises",
        "signals",
        "start_at_us",
        "starts_again",
        "state",
        "status",
        "stopping",
        "tasks",
        "timed_out",
        "timers",
        "trace",
        "undoable",
        "updates",
        "values",
        "version",
    )

    def __init__(self) -> None:
        self.events = 0
        self.status = RunStatus.PENDING
        self.tasks: dict[int, ev.TasksScheduled] = {}
        """Scheduled and not ended: sequence number -> the event that holds its input."""
        self.timers: dict[int, int] = {}
        """Started and not fired or cancelled: sequence number -> fire_at_us."""
        self.children: dict[int, bytes] = {}
        self.close_policies: dict[int, str] = {}
        """Parent-close policies of outstanding children, where they are not `cancel`."""
        self.stopping: LazySet[int] = EMPTY
        """Children that were asked to stop, and whose end the run waits for."""
        self.failed_children: dict[int, bytes] = {}
        """Ended, and not well; the retry of a declarative run may wait for them again."""
        self.promises: dict[str, ev.PromiseCreated] = {}
        """Created, by name."""
        self.values: Values | None = None
        """Values of promises; None: none so far."""
        self.event_ids: dict[str, int] | None = None
        """Named events that waits got, by promise; None: there are none."""
        self.updates: dict[str, ev.UpdateReceived] = {}
        """Asked for and not answered, by id."""
        self.answered: LazySet[str] = EMPTY
        """Ids of updates that were answered; asked for again, they are not handled again."""
        self.inherits = False
        """It was started for signals that the run before it had left unread."""
        self.signals = 0
        """How many it has received."""
        self.starts_again = False
        """A sender of signals wants a run under its key: one that ends without having read all of them is followed by another."""
        self.state: dict[str, bytes] = {}
        self.attributes = b""
        """Search attributes as a JSON object; empty for none."""
        self.operations: LazySet[int] = EMPTY
        """Side effects whose outcome is recorded; a second outcome of the same one is dropped."""
        self.cancel_requested = False
        self.deadline_us = 0
        self.start_at_us = 0
        """When it was to begin; 0: at once."""
        self.timed_out = False
        """The deadline has passed, and the run is undoing what it did; `deadline_us` is when that has to end."""
        self.undoable = 0
        """Tasks with an undo that have succeeded, and undos that code pushed: a run with any of them unwinds before it fails at its deadline."""
        self.parent_id = b""
        self.parent_seq = -1
        self.is_successor = False
        """It continues another run."""
        self.key = ""
        """The key of the user's own that names the run, or the chain whose last run it is."""
        self.first = b""
        """The first run of its chain; empty: it is the first itself."""
        self.known_as = b""
        """The id that the parent knows this run by, when that is not its own."""
        self.trace = ""
        """W3C traceparent of the caller that started the run."""
        self.version = ""
        """Of the code that executes it."""
        self.pinned = False
        """Only workers that serve this version execute it."""

    def apply(self, event: ev.Event) -> None:
        self.events += 1
        try:
            _APPLY[type(event)](self, event)
        except KeyError as e:
            raise IllegalTransition(
                f"event {self.events} ({type(event).__name__}) ends something that is not outstanding: {e}"
            ) from None

    @property
    def is_terminal(self) -> bool:
        return self.status in (RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELLED)

    @property
    def has_waiting_parent(self) -> bool:
        """A detached child has a parent that does not wait for it."""
        return bool(self.parent_id) and self.parent_seq >= 0

    def is_resolved(self, promise: str) -> bool:
        """Whether there is a value for what is asked under this name, or for the name where nothing is."""
        if self.values is None:
            return False
        created = self.promises.get(promise)
        return self.values.has(promise, BY_NAME) if created is None else self.values.of(created) is not None

    def takes_value(self, promise: str, question: bytes, *, authorized: bool) -> bool:
        """Whether a value is the first of its question, and its sender may give it."""
        if self.values is not None and self.values.has(promise, question):
            return False
        created = self.promises.get(promise)
        if question or created is None:
            return True
        return not self.is_resolved(promise) and (authorized or not is_restricted(created))

    @property
    def resolved(self) -> set[str]:
        """Names with a value."""
        return {name for name in self.values.names() if self.is_resolved(name)} if self.values is not None else set()

    def open_promises(self) -> list[ev.PromiseCreated]:
        """Asked for and without a value."""
        return [created for name, created in self.promises.items() if not self.is_resolved(name)]

    def next_wake_us(self) -> int | None:
        """When this run must be loaded even if no message arrives."""
        wakes = list(self.timers.values())
        if self.deadline_us:
            wakes.append(self.deadline_us)
        return min(wakes, default=None)


def _started(s: RunState, e: ev.RunStarted) -> None:
    s.status = next_run_status(s.status, "claim")
    s.deadline_us, s.parent_id, s.parent_seq, s.trace = e.deadline_us, e.parent_id, e.parent_seq, e.trace
    s.attributes = e.attributes
    s.known_as, s.is_successor, s.version, s.pinned = e.known_as, bool(e.continued_from), e.version, e.pinned
    s.start_at_us = e.start_at_us
    s.key, s.first, s.inherits = e.key, e.first, e.inherits


def _began(s: RunState, e: ev.RunBegan) -> None:
    s.version, s.pinned = e.version or s.version, e.pinned or s.pinned


def _version_changed(s: RunState, e: ev.VersionChanged) -> None:
    s.version = e.version


def _cancel_requested(s: RunState, e: ev.CancelRequested) -> None:
    s.cancel_requested = True
    if e.deadline and not s.timed_out:
        s.timed_out = True
        if s.deadline_us:
            s.deadline_us += UNWIND_GRACE_US


def _end(act: str) -> Callable[[RunState, Any], None]:
    def close(s: RunState, e: Any) -> None:
        s.status = next_run_status(s.status, act)

    return close


def _scheduled(s: RunState, e: ev.TasksScheduled) -> None:
    for i in range(e.first, e.first + len(e.inputs)):
        s.tasks[i] = e


def _succeeded(s: RunState, e: ev.TasksSucceeded) -> None:
    for seq in e.seqs:
        s.undoable += bool(s.tasks.pop(seq).options.undo)


def _failed(s: RunState, e: ev.TaskFailed) -> None:
    del s.tasks[e.seq]


def _tasks_cancelled(s: RunState, e: ev.TasksCancelled) -> None:
    for seq in e.seqs:
        del s.tasks[seq]


def _timer_started(s: RunState, e: ev.TimerStarted) -> None:
    s.timers[e.seq] = e.fire_at_us


def _timer_ended(s: RunState, e: ev.TimerFired | ev.TimerCancelled) -> None:
    del s.timers[e.seq]


def _child_started(s: RunState, e: ev.ChildStarted) -> None:
    if e.detached:
        return
    s.children[e.seq] = e.run_id
    if e.parent_close != "cancel":
        s.close_policies[e.seq] = e.parent_close


def _child_stopping(s: RunState, e: ev.ChildCancelRequested) -> None:
    if e.awaited:
        s.stopping = added(s.stopping, e.seq)


def _child_succeeded(s: RunState, e: ev.ChildSucceeded) -> None:
    del s.children[e.seq]
    discard(s.stopping, e.seq)


def _child_failed(s: RunState, e: ev.ChildFailed | ev.ChildCancelled) -> None:
    s.failed_children[e.seq] = s.children.pop(e.seq)
    discard(s.stopping, e.seq)


def _promise_created(s: RunState, e: ev.PromiseCreated) -> None:
    s.promises.setdefault(e.name, e)


def _update_received(s: RunState, e: ev.UpdateReceived) -> None:
    s.updates[e.id] = e


def _update_answered(s: RunState, e: ev.UpdateAnswered) -> None:
    del s.updates[e.id]
    s.answered = added(s.answered, e.id)


def _signal_received(s: RunState, e: ev.SignalReceived) -> None:
    s.signals += 1
    s.starts_again |= e.starts


def _promise_resolved(s: RunState, e: ev.PromiseResolved) -> None:
    if s.values is None:
        s.values = Values()
    s.values.put(e.name, e.question, b"", authorized=e.authorized)
    if e.event_id:
        s.event_ids = s.event_ids if s.event_ids is not None else {}
        s.event_ids[e.name] = e.event_id


def _state_set(s: RunState, e: ev.StateSet) -> None:
    s.undoable += e.name == COMMITTED
    s.state[e.name] = e.value


def _state_cleared(s: RunState, e: ev.StateCleared) -> None:
    s.state.pop(e.name, None)


def _attributes_set(s: RunState, e: ev.AttributesSet) -> None:
    try:
        s.attributes = changed(s.attributes, e.change)
    except InvalidInput as error:
        raise IllegalTransition(f"event {s.events} changes attributes: {error}") from None


def _operation(s: RunState, e: ev.OperationRecorded) -> None:
    s.operations = added(s.operations, e.seq)


def _retried(s: RunState, e: ev.RunRetried) -> None:
    if e.cut:
        raise IllegalTransition("a history with a retry is folded through run_retry.effective()")
    s.status = next_run_status(s.status, "retry")
    s.deadline_us = 0
    s.stopping = EMPTY
    for seq in e.retried_children:
        s.children[seq] = s.failed_children.pop(seq)


def _nothing(s: RunState, e: Any) -> None:
    pass


_APPLY: dict[type, Callable[[RunState, Any], None]] = {
    ev.RunStarted: _started,
    ev.CancelRequested: _cancel_requested,
    ev.RunSucceeded: _end("succeed"),
    ev.RunFailed: _end("fail"),
    ev.RunCancelled: _end("cancel"),
    ev.RunTerminated: _end("cancel"),
    ev.RunContinued: _end("succeed"),
    ev.RunRetried: _retried,
    ev.RunBegan: _began,
    ev.RunForked: _nothing,
    ev.NodeOverridden: _nothing,
    ev.EndWithdrawn: _nothing,
    ev.VersionChanged: _version_changed,
    ev.TasksScheduled: _scheduled,
    ev.TasksSucceeded: _succeeded,
    ev.TaskFailed: _failed,
    ev.TasksCancelled: _tasks_cancelled,
    ev.TasksSkipped: _nothing,
    ev.TimerStarted: _timer_started,
    ev.TimerFired: _timer_ended,
    ev.TimerCancelled: _timer_ended,
    ev.ChildStarted: _child_started,
    ev.ChildSucceeded: _child_succeeded,
    ev.ChildFailed: _child_failed,
    ev.ChildCancelled: _child_failed,
    ev.ChildCancelRequested: _child_stopping,
    ev.SignalReceived: _signal_received,
    ev.PromiseCreated: _promise_created,
    ev.PromiseResolved: _promise_resolved,
    ev.UpdateReceived: _update_received,
    ev.UpdateAnswered: _update_answered,
    ev.OperationRecorded: _operation,
    ev.StateSet: _state_set,
    ev.StateCleared: _state_cleared,
    ev.PatchRecorded: _nothing,
    ev.AttributesSet: _attributes_set,
}
