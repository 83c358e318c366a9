"""The undo stack of a run: what it did that can be taken back, and how that is done.

    task with an undo succeeds -> entry on the stack
    the run is about to fail or to be cancelled -> entries from the newest to the oldest, each an ordinary task -> the run ends

Theory. Nothing is stored for it. Which task takes back another is among the options that were recorded when it was scheduled, and the
stack is what follows from the history: successes in their order, without those that were undone or committed. So it survives every crash,
and the history is enough to show it.

Laws:

1. Only what is recorded as a success is undone, and each success at most once.
2. The order is exactly the reverse of the order of successes. One undo ends before the next begins.
3. An undo that fails for good does not stop the others, and does not change how the run ends; the text of the end mentions it.
4. A run does not end failed or cancelled before its stack is empty, unless the engine itself has to end it.

Tasks that undo are known by their label, which begins with `undo:`. In a flow the label of the node follows; in code the name of the task,
and its number in brackets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar, cast

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.calls import OFFER
from perdure.core.errors import Conflict, Failure, clip
from perdure.core.limits import UNDO_FAILURES_SHOWN
from perdure.core.retry import TaskOptions

PREFIX: Final = "undo:"
COMMITTED: Final = "perdure.undo"
"""The state in which code records that there is no way back: successes up to this event stay. 0: it has pushed an undo by itself."""
DEADLINE: Final = "run_timeout: the run did not end before its deadline"
"""The text of the cancel request by which a run that has reached its deadline undoes what it did before it fails."""

TIMED_OUT: Final = Failure("run_timeout", "the run did not end before its deadline", "TimeoutError")

E = TypeVar("E")
Status = Literal["ready", "undoing", "undone", "failed", "kept"]
"""`ready` would be undone if the run failed now; `kept` stays: it was committed, or the run has ended well."""


class UndoableTask(msgspec.Struct, kw_only=True):
    """One entry of the undo stack, for display."""

    task: int
    """Number of the task that did it."""
    name: str
    """Its node in a flow, its name in code."""
    undo: str
    """The task that takes it back."""
    status: Status = "ready"
    by: int = -1
    """Number of the task that took it back."""
    error: str = ""
    """Why it could not be taken back."""


def is_undo(nodes: list[str] | None) -> bool:
    """Whether the tasks with these labels take something back."""
    return nodes is not None and len(nodes) > 0 and nodes[0].startswith(PREFIX)


def refuse_undone(history: list[ev.Recorded]) -> None:
    """A run that took back what it had done cannot go on from the middle: its successes mean nothing any more."""
    if any(type(r.event) is ev.TasksScheduled and is_undo(r.event.nodes) for r in history):
        raise Conflict("the run has undone what it did and cannot be retried from where it failed; start it anew")


def stack_of(history: list[ev.Recorded]) -> list[UndoableTask]:
    """The stack with all that was ever on it, in the order of successes. `history` is an effective one (core/run_retry.py)."""
    fold = _Fold()
    for record in history:
        fold.apply(record.seq, record.event)
    return [line for _, line in fold.lines]


class _Fold:
    def __init__(self) -> None:
        self.lines: list[tuple[int, UndoableTask]] = []
        """With the number of the event that put it there."""
        self._scheduled: dict[int, ev.TasksScheduled] = {}
        self._undoing: dict[int, UndoableTask] = {}

    def apply(self, number: int, event: ev.Event) -> None:
        match event:
            case ev.TasksScheduled() if is_undo(event.nodes):
                self._begun(event)
            case ev.TasksScheduled() if event.options.undo:
                self._scheduled |= dict.fromkeys(range(event.first, event.first + len(event.inputs)), event)
            case ev.TasksSucceeded():
                for seq in event.seqs:
                    self._succeeded(number, seq)
            case ev.TaskFailed() if event.seq in self._undoing:
                line = self._undoing.pop(event.seq)
                line.status, line.error = "failed", event.failure.message
            case ev.StateSet() if event.name == COMMITTED:
                self._keep(cast(int, msgspec.json.decode(event.value)))
            case ev.RunSucceeded() | ev.RunContinued():
                self._keep(number)
            case _:
                pass

    def _begun(self, event: ev.TasksScheduled) -> None:
        what = event.nodes[0].removeprefix(PREFIX)
        for _, line in reversed(self.lines):
            if line.status == "ready" and (line.task == event.index if event.index >= 0 else line.name == what):
                line.status, line.by = "undoing", event.first
                self._undoing[event.first] = line
                return

    def _succeeded(self, number: int, seq: int) -> None:
        done = self._undoing.pop(seq, None)
        if done is not None:
            done.status = "undone"
            return
        event = self._scheduled.pop(seq, None)
        if event is not None:
            name = ev.label(event, seq) or event.name
            self.lines.append((number, UndoableTask(task=seq, name=name, undo=event.options.undo)))

    def _keep(self, until: int) -> None:
        for number, line in self.lines:
            if number <= until and line.status == "ready":
                line.status = "kept"


def error_value(error: Failure | None) -> dict[str, str] | None:
    """The reason that is passed to an undo."""
    return None if error is None else {"code": error.code, "type": error.type, "message": error.message}


def offer(call: bytes, result: bytes, error: Failure | None) -> bytes:
    """The default arguments of an undo: those of the call that it undoes, plus `result` and `error`."""
    given: dict[str, msgspec.Raw] = {}
    try:
        given = msgspec.json.decode(call or b"{}", type=dict[str, msgspec.Raw])
        if call.startswith(OFFER):
            given = msgspec.json.decode(given["**"], type=dict[str, msgspec.Raw])
        given.pop("*", None)  # by position: their names are not known here
    except msgspec.DecodeError:  # no object at all: a child that takes a plain value
        given = {"input": msgspec.Raw(call)}
    offered = {**given, "result": msgspec.Raw(result or b"null"), "error": error_value(error)}
    return OFFER + msgspec.json.encode(offered) + b"}"


def without_undo(options: TaskOptions) -> TaskOptions:
    """What takes something back is not taken back itself."""
    return msgspec.structs.replace(options, undo="") if options.undo else options


class CannotUndo(Exception):
    """The undo of an entry cannot even be called."""


class UndoSequence(Generic[E]):
    """Entries that are being taken back. It knows nothing of tasks but their numbers: `call` schedules one and answers its own.

    With a barrier nothing begins before that is lifted. It makes sure that every success has arrived that was recorded
    before they were stopped: a timer that is due at once fires after those facts, and none follows it.
    """

    def __init__(self, entries: list[E], call: Callable[[E], int], shown: Callable[[E], str]) -> None:
        self._entries, self._call, self._shown = entries, call, shown
        self._current: E | None = None
        self.seq = -1
        """Of the task in flight."""
        self.barrier = False
        self.failures: list[str] = []

    @property
    def done(self) -> bool:
        return self.seq < 0 and not self.barrier and not self._entries

    def push(self, entry: E) -> None:
        """A success that is delivered late is the newest entry."""
        self._entries.append(entry)

    def go_on(self) -> None:
        while self.step():
            pass

    def step(self) -> bool:
        """Begin to take back the next entry, if it is its turn. True: it could not be called, and there may be another."""
        if self.seq >= 0 or self.barrier or not self._entries:
            return False
        self._current = entry = self._entries.pop()
        try:
            self.seq = self._call(entry)
        except CannotUndo as e:
            self._note(entry, str(e))
        return self.seq < 0

    def ended(self, failure: Failure | None) -> None:
        """The task in flight is over; on with the next."""
        self.over(failure)
        self.go_on()

    def over(self, failure: Failure | None) -> None:
        assert self._current is not None
        if failure is not None:
            self._note(self._current, failure.message)
        self.seq, self._current = -1, None

    def _note(self, entry: E, why: str) -> None:
        self.failures.append(f"undoing {self._shown(entry)!r} failed: {why}")


def why(end: cm.FailRun | cm.CancelRun) -> Failure:
    """The error that is passed to undos."""
    return end.failure if isinstance(end, cm.FailRun) else Failure("run_cancelled", end.reason or "it was cancelled")


def told_of(end: cm.FailRun | cm.CancelRun, failures: list[str]) -> cm.Command:
    """The same end, with the failed undos added to its text."""
    if isinstance(end, cm.CancelRun):
        return cm.CancelRun(with_failures(end.reason, failures))
    f = end.failure
    return cm.FailRun(Failure(f.code, with_failures(f.message, failures), f.type, f.traceback), end.cause)


def with_failures(text: str, failures: list[str]) -> str:
    """The text of a run's end, and which undos failed."""
    if not failures:
        return text
    more = len(failures) - UNDO_FAILURES_SHOWN
    told = [*failures[:UNDO_FAILURES_SHOWN], *([f"{more} more undos failed"] if more > 0 else [])]
    return clip("; and ".join([text, *told] if text else told))
