"""One live workflow run inside a worker: the user's coroutine, its journal and its loop.

Laws:

1. `activate` never raises: whatever the user's code does becomes commands, or a `Stuck` with the reason.
2. Events are applied one at a time, in history order, and the code runs until it can go no further after each. So how
   events were grouped into activations makes no difference, and a replay takes the same path as the first run.
3. Nothing outside the history reaches the code: time, randomness and identity all come from it.

    Activation(events) -> apply event -> run_until_idle -> ... -> Completion(commands, operations to execute)
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import traceback
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from functools import partial
from math import inf
from time import perf_counter  # bound here, before workflow guards wrap it
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.approvals import is_guarded
from perdure.core.errors import (
    ChildFailed,
    Failure,
    InvalidInput,
    NondeterminismError,
    PerdureError,
    RecordedError,
    UpdateRejected,
    WorkflowRuleBroken,
    clip,
    task_error,
)
from perdure.core.journal import NO_HANDLER, Journal
from perdure.core.limits import SIGNALS_BUFFERED_MAX, WAITING_NAMES_MAX
from perdure.core.retry import TaskOptions
from perdure.core.undo import DEADLINE, TIMED_OUT, told_of, why
from perdure.sdk.captured_output import OutputBuffer, OutputSink
from perdure.sdk.workflow.loop import WorkflowLoop
from perdure.sdk.workflow.step import Step
from perdure.sdk.workflow.undo import UndoStack

current: contextvars.ContextVar[Runtime] = contextvars.ContextVar("perdure_run")
"""The run whose workflow code is executing; unset everywhere else."""


UPDATES_NAMED = 10
"""Updates that a refusal lists."""
CONTINUED = "the run continued as a new one while it was handling the update; it may have begun to act on it"


T = TypeVar("T")

_THROWN_AWAY = {"_stopping", "_promises", "_operations", "_signal_waiters", "_update_waiters", "_update_handlers"}
"""What may refer to the coroutines of a run that leaves memory."""

update_names: set[str] = set()
"""Names of all `Update`s that this program defines. One that is asked for under another name can never be handled."""


def _unhandled(name: str) -> Failure:
    near = get_close_matches(name, update_names, 1)
    hint = (
        f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(update_names)[:UPDATES_NAMED]) or 'none'}"
    )
    return Failure(UpdateRejected.code, f"the code of this run has no update {name!r}; {hint}", NO_HANDLER)


class ContinueAsNewRequest(BaseException):
    """Raised through workflow code by wf.continue_as_new(); not an Exception, so that `except Exception` lets it pass."""

    def __init__(self, data: bytes) -> None:
        super().__init__("continue as new")
        self.data = data


class Operation:
    """A side effect that the worker is to execute outside the loop and record."""

    __slots__ = ("call", "encode", "name", "seq")

    def __init__(self, seq: int, name: str, call: Callable[[], Any], encode: Callable[[Any], bytes]) -> None:
        self.seq, self.name, self.call, self.encode = seq, name, call, encode


class Completion:
    """What an activation led to."""

    __slots__ = ("commands", "operations", "run_id", "stuck", "waiting")

    def __init__(
        self,
        run_id: bytes,
        commands: list[cm.Command],
        operations: list[Operation],
        stuck: Failure | None = None,
        waiting: list[str] | None = None,
    ) -> None:
        self.run_id, self.commands, self.operations, self.stuck = run_id, commands, operations, stuck
        self.waiting: list[str] = waiting or []


class Waiter:
    """Something that a fact will resolve: `resolve(value bytes)` or `reject(exception)`."""

    __slots__ = ("decode", "step")

    def __init__(self, step: Step[Any], decode: Callable[[bytes], Any]) -> None:
        self.step, self.decode = step, decode

    @property
    def done(self) -> bool:
        return self.step.done()

    def succeed(self, seq: int, value: bytes) -> None:
        if not self.step.done():
            try:
                self.step.set_result(self.decode(value))
            except PerdureError as e:
                self.step.set_exception(e)

    def fail(self, seq: int, error: BaseException) -> None:
        if not self.step.done():
            self.step.set_exception(error)


class Lazily(Generic[T]):
    """An attribute that is made when it is first used. Thousands of runs begin in a second, and each uses few of these."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> T:
        made = self._make()
        setattr(instance, self.name, made)
        return made


class Runtime:
    # Set by a worker that captures output; see capture.py.
    sink: OutputSink | None = None
    output: OutputBuffer | None = None
    ns = 0
    event_seq = 0
    """Number of the event that is being applied."""

    _stopping = Lazily[dict[int, tuple[Step[Any], Any]]](dict)
    """Children that were cancelled and have not ended: who waits for that, and the words of the cancellation."""
    _promises = Lazily[dict[str, list[Waiter]]](dict)
    _promise_values = Lazily[dict[str, bytes]](dict)
    _unsure = Lazily[set[str]](set)
    """Resolved by somebody who may not answer for others."""
    _awaited = Lazily[set[str]](set)
    _waits_left = Lazily[dict[bytes, list[tuple[str, int]]]](dict)
    """Waits for events that nobody waits for any more, by spec: names and numbers of their promises."""
    _asked = Lazily[dict[str, int]](dict)
    """How often an approval of a name was asked for."""
    _operations = Lazily[dict[int, Waiter]](dict)
    _signals = Lazily[dict[str, deque[bytes]]](dict)
    _signal_waiters = Lazily[dict[str, deque[Waiter]]](dict)
    _updates = Lazily[dict[str, deque[ev.UpdateReceived]]](dict)
    """Updates that nobody has begun to handle, by name."""
    _update_handlers = Lazily[dict[str, Callable[[ev.UpdateReceived], None]]](dict)
    _update_waiters = Lazily[dict[str, deque[Waiter]]](dict)
    _updates_begun = Lazily[dict[str, None]](dict)
    """Ids of updates that the code has taken and not answered, in their order."""
    state = Lazily[dict[str, bytes]](dict)
    _barriers = Lazily[set[int]](set)
    """Timers by which unwinding waits for what was said before."""
    _listens = False
    """The code waits, or has waited, for signals or updates."""

    def __init__(self, run_id: bytes, workflow: Any) -> None:
        self.run_id = run_id
        self._workflow = workflow
        self.now_us = 0
        self.journal = Journal()
        self.loop = WorkflowLoop(self, int.from_bytes(run_id[9:], "big"))
        self.started: ev.RunStarted | None = None
        self._main: asyncio.Task[Any] | None = None
        self._context = contextvars.copy_context()
        self._context.run(current.set, self)
        self._steps = 0
        self._tasks: dict[int, Any] = {}
        self._segments: list[tuple[int, int, Any]] = []  # (first, end, waiter) of fan-outs, ascending
        self._timers: dict[int, Callable[[], None]] = {}
        self._children: dict[int, Any] = {}
        self._new_operations: list[Operation] = []
        self._handover: cm.ContinueAsNew | None = None
        """Set once the code has asked to continue in a new run: what arrives from then on is for that one."""
        self._cancel_reason: str | None = None
        self._undo: UndoStack | None = None
        self._ending: cm.FailRun | cm.CancelRun | None = None
        """How the run ends once everything is undone. From then on the code does not run any more."""
        self._random: random.Random | None = None
        self._timer_fired = 0
        """Number of the event by which a timer last fired."""
        self.closed = False
        self._given: list[ev.Recorded] = []
        self._applied = 0
        """How many of the given events have been applied."""
        self._running = False
        """The last one has been, and the code has not gone as far as it can."""
        self._replaying = self._loading = False

    # -- activation -------------------------------------------------------------------------------------------------

    def activate(self, events: list[ev.Recorded], *, replay: bool) -> Completion:
        """Apply events. `replay` says that they are a whole history, whose commands the code must issue again."""
        self.give(events, replay=replay)
        done = self.advance(inf)
        assert done is not None
        return done

    def give(self, events: list[ev.Recorded], *, replay: bool) -> None:
        """Events to be applied by `advance`. The former ones have been."""
        self._given, self._applied, self._replaying, self._loading = events, 0, replay, replay

    def advance(self, until_s: float) -> Completion | None:
        """Apply what was given. None: that moment (by perf_counter) has come before the code can go no further; call it again."""
        journal = self.journal
        try:
            if self._loading:
                self._loading = False
                self._given = ev.from_beginning(self._given)
                journal.load(self._given)
            given = self._given
            while True:
                if self._running:
                    if not self.loop.run_until_idle(until_s):
                        return None
                    self._running = False
                    if self._main is not None and self._main.done() and not self.closed and self._ending is None:
                        self._finish(self._main)
                applied = self._applied
                if applied == len(given) or journal.mismatch is not None:
                    break
                if applied and perf_counter() >= until_s:
                    return None
                self._applied = applied + 1
                self._apply(given[applied])
            if self._replaying and journal.mismatch is None:
                journal.check_all_matched(self._whereabouts)
        except NondeterminismError as e:
            journal.mismatch = journal.mismatch or e
        except Exception as e:
            return self._stuck(Failure("internal", clip("".join(traceback.format_exception(e))), type(e).__name__))
        if journal.mismatch is not None:
            return self._stuck(journal.mismatch.to_failure())
        operations, self._new_operations = self._new_operations, []
        waiting = self._waiting() if self._listens else None
        return Completion(self.run_id, journal.take_commands(), operations, None, waiting)

    def _waiting(self) -> list[str]:
        """What the code waits for that no record shows. Waiters that gave up are thrown out on the way."""
        if self.closed:
            return []
        names = []
        for kind, book in (("signal", self._signal_waiters), ("update", self._update_waiters)):
            for name in list(book):
                waiters = book[name]
                while waiters and waiters[0].done:
                    waiters.popleft()
                if waiters:
                    names.append(f"{kind}:{name}")
                else:
                    del book[name]
        return names[:WAITING_NAMES_MAX]

    def _stuck(self, failure: Failure) -> Completion:
        return Completion(self.run_id, [], [], failure)

    def _apply(self, record: ev.Recorded) -> None:
        event = record.event
        apply = _APPLY.get(type(event))
        if apply is None:
            return
        if self.journal.facts_ahead:
            self.journal.facts_ahead -= 1
        self.now_us, self.event_seq = record.at_us, record.seq
        if self._ending is None:
            apply(self, event)
            if self._ending is None:
                self._running = True
        elif type(event) in _UNWINDS:
            apply(self, event)
            self._close_undone()

    def _finish(self, main: asyncio.Task[Any]) -> None:
        try:
            command = self._closing_command(main)
        except PerdureError as e:  # the result does not fit its declared type, or is too large
            command = cm.FailRun(e.to_failure())
        self._end_with(command)

    def _end_with(self, command: cm.Command) -> None:
        """A run that does not end well takes back first what it did."""
        if not isinstance(command, cm.FailRun | cm.CancelRun) or self._undo is None or not self._undo.is_needed:
            self.closed = True
            self.journal.close(command)
            return
        self._ending = command
        self._stop_all()
        self._undo.wind_up(why(command))
        self._close_undone()

    def _stop_all(self) -> None:
        """Nothing that the code left running may change anything while it is being undone."""
        running = [seq for seq, waiter in self._tasks.items() if isinstance(waiter, Waiter)]
        for seq in running:
            del self._tasks[seq]
        if running:
            self.journal.cancel_tasks(running)
        for fanout in dict.fromkeys(waiter for _, _, waiter in self._segments):
            fanout._cancel_rest()
        for seq in [s for s in self._timers if s not in self._barriers]:
            del self._timers[seq]
            self.journal.cancel_timer(seq)
        for seq in self._children:
            self.journal.cancel_child(seq)
        for book in (self._children, self._stopping, self._signal_waiters, self._update_waiters):
            book.clear()

    def _close_undone(self) -> None:
        assert self._undo is not None and self._ending is not None
        if not self.closed and self._undo.is_done:
            self.closed = True
            self.journal.close(told_of(self._ending, self._undo.failures))

    def _closing_command(self, main: asyncio.Task[Any]) -> cm.Command:
        if self._cancel_reason == DEADLINE:  # the engine would have failed it then, had there been nothing to undo
            return cm.FailRun(TIMED_OUT)
        if main.cancelled():
            if self._cancel_reason is not None:
                return cm.CancelRun(self._cancel_reason)
            return cm.FailRun(
                Failure(
                    "run_failed", "the workflow cancelled itself: CancelledError left its function", "CancelledError"
                )
            )
        error = main.exception()
        if error is None:
            return cm.CompleteRun(self._workflow.signature.encode_result(main.result()))
        if isinstance(error, ContinueAsNewRequest):
            self.refuse_left_undos()
            signals = [(name, value) for name, values in self._signals.items() for value in values]
            kept = {n: v for n, v in self._promise_values.items() if n not in self._awaited}
            promises = [
                (n, v) for n, v in kept.items() if not n.startswith("event:")
            ]  # those came late for an earlier run
            self._handover = cm.ContinueAsNew(error.data, signals, promises, [])
            # What was begun cannot be begun again elsewhere; the others the engine hands on.
            for id in self._updates_begun:
                self.journal.answer_update(id, b"", Failure("run_finished", CONTINUED))
            return self._handover
        return cm.FailRun(failure_of(error, "run_failed"), cause_of(error, self._timer_fired))

    def _whereabouts(self) -> str:
        waits = [f"{len(self._tasks) + len(self._segments)} task step(s)"] if self._tasks or self._segments else []
        waits += [f"timer {s}" for s in self._timers] + [f"child {s}" for s in self._children]
        waits += [f"promise {n!r}" for n, w in self._promises.items() if w]
        return "the code went on without it and now waits for " + (", ".join(waits) or "nothing it asked for")

    def evict(self) -> None:
        """Forget the live coroutine. Its code must not act any more, not even in `finally`."""
        self.closed = True
        self._main = None
        self.loop.throw_away()
        # Cut what refers back to itself: thousands of ended runs a second are not left to the collector.
        del self.loop.owner, self._context
        for book in (self._tasks, self._timers, self._children):
            book.clear()
        for name in _THROWN_AWAY & vars(self).keys():
            delattr(self, name)
        self._segments = []
        self._undo = None

    # -- facts ------------------------------------------------------------------------------------------------------

    def _on_started(self, e: ev.RunStarted) -> None:
        self.started = e
        try:
            self._main = self._context.run(self._create_main, e)
        except PerdureError as error:  # the input does not fit the code, or the code breaks the rules of a workflow
            self.closed = True
            self.journal.close(cm.FailRun(error.to_failure()))

    def _create_main(self, e: ev.RunStarted) -> asyncio.Task[Any]:
        return self.loop.create_task(self._workflow.body(e), name="main", context=self._context)

    def _on_began(self, e: ev.RunBegan) -> None:
        """Heard with the start, whose time it has set."""

    def _on_cancel(self, e: ev.CancelRequested) -> None:
        if self._handover is not None:
            self._handover.cancels.append(e.reason)
            return
        if self._cancel_reason is not None:  # asked again: nobody waits for children that do not stop
            for seq in list(self._stopping):
                self._child_of(seq)
        elif self._main is not None:
            self._cancel_reason = e.reason
            self._main.cancel(e.reason or "the run was cancelled")

    def _on_succeeded(self, e: ev.TasksSucceeded) -> None:
        for seq, value in zip(e.seqs, e.results, strict=True):
            if self._undo is not None:
                self._undo.succeeded(seq, value)
            waiter = self._tasks.pop(seq, None) or self._segment(seq)
            if waiter is not None:
                waiter.succeed(seq, value)

    def _on_failed(self, e: ev.TaskFailed) -> None:
        if self._undo is not None:
            self._undo.failed(e.seq)
        waiter = self._tasks.pop(e.seq, None) or self._segment(e.seq)
        if waiter is not None:
            waiter.fail(e.seq, self._from_here(task_error(e.failure)))

    def _from_here(self, error: RecordedError) -> RecordedError:
        """Remember which event the code learns it from: a retry of the run takes that one back."""
        error.event = self.event_seq
        return error

    def _on_timer(self, e: ev.TimerFired) -> None:
        self._timer_fired = self.event_seq
        fired = self._timers.pop(e.seq, None)
        if fired is not None:
            fired()

    def _on_child_succeeded(self, e: ev.ChildSucceeded) -> None:
        waiter = self._child_of(e.seq)
        if waiter is not None:
            waiter.succeed(e.seq, e.result)

    def _on_child_failed(self, e: ev.ChildFailed) -> None:
        waiter = self._child_of(e.seq)
        if waiter is not None:
            waiter.fail(e.seq, self._from_here(ChildFailed(e.failure)))

    def _on_child_cancelled(self, e: ev.ChildCancelled) -> None:
        waiter = self._child_of(e.seq)
        if waiter is not None:
            failure = Failure("run_cancelled", e.reason or "the child run was cancelled", "RunCancelled")
            waiter.fail(e.seq, self._from_here(ChildFailed(failure)))

    def _on_signal(self, e: ev.SignalReceived) -> None:
        if self._handover is not None:
            self._handover.signals.append((e.name, e.value))
            return
        waiters = self._signal_waiters.get(e.name)
        while waiters:
            waiter = waiters.popleft()
            if not waiter.step.done():
                waiter.succeed(-1, e.value)
                return
        buffer = self._signals.setdefault(e.name, deque())
        buffer.append(e.value)
        if len(buffer) > SIGNALS_BUFFERED_MAX and not self.closed:
            text = f"more than SIGNALS_BUFFERED_MAX={SIGNALS_BUFFERED_MAX} signals {e.name!r} wait to be consumed; read them faster"
            self._end_with(cm.FailRun(Failure("limit_exceeded", text)))

    def _on_update(self, e: ev.UpdateReceived) -> None:
        if self.closed:
            return  # the engine hands it on, or answers it
        handler = self._update_handlers.get(e.name)
        if handler is not None:
            self._begin_update(e, handler)
            return
        waiters = self._update_waiters.get(e.name)
        while waiters:
            waiter = waiters.popleft()
            if not waiter.done:
                self._begin_update(e, waiter.step.set_result)
                return
        if self.journal.is_unhandled(e.id, known=e.name in update_names):
            self.journal.answer_update(e.id, b"", _unhandled(e.name))
            return
        self._updates.setdefault(e.name, deque()).append(e)

    def _begin_update(self, e: ev.UpdateReceived, give: Callable[[ev.UpdateReceived], None]) -> None:
        self._updates_begun[e.id] = None
        give(e)

    def _on_promise(self, e: ev.PromiseResolved) -> None:
        if self._handover is not None:
            if not e.name.startswith("event:"):  # an event for a wait of this run
                self._handover.promises.append((e.name, e.value))
            return
        self._promise_values.setdefault(e.name, e.value)
        if not e.sure:
            self._unsure.add(e.name)
        for waiter in self._promises.pop(e.name, ()):
            waiter.succeed(-1, e.value)

    def _on_operation(self, e: ev.OperationRecorded) -> None:
        waiter = self._operations.pop(e.seq, None)
        if waiter is None:
            return
        if e.failure is not None:
            waiter.fail(e.seq, self._from_here(task_error(e.failure)))
        else:
            waiter.succeed(e.seq, e.value)

    # -- what workflow code asks for --------------------------------------------------------------------------------

    def new_step(self, kind: int, seq: int) -> Step[Any]:
        step: Step[Any] = Step(loop=self.loop)
        self._steps += 1
        step._run_id, step._kind, step._seq, step._number = self.run_id, kind, seq, self._steps
        return step

    def schedule_task(
        self,
        name: str,
        queue: str,
        data: bytes,
        options: TaskOptions,
        decode: Callable[[bytes], Any],
        undo: Any = None,
    ) -> Step[Any]:
        if undo is not None:
            self.undo.check_room(1)
        seq = self.journal.schedule_tasks(name, queue, [data], options)
        if undo is not None:
            self.undo.expect(seq, [data], name, undo)
        step = self.new_step(ids.TASK, seq)
        self._tasks[seq] = Waiter(step, decode)
        step._runtime = self
        return step

    def cancel_task(self, seq: int) -> None:
        if self._tasks.pop(seq, None) is not None and not self.closed:
            self.journal.cancel_tasks([seq])

    def schedule_fanout(
        self, name: str, queue: str, inputs: list[bytes], options: TaskOptions, waiter: Any, undo: Any = None
    ) -> int:
        """Many tasks behind one waiter, which is told each outcome by sequence number."""
        if undo is not None:
            self.undo.check_room(len(inputs))
        first = self.journal.schedule_tasks(name, queue, inputs, options)
        if undo is not None:
            self.undo.expect(first, inputs, name, undo)
        self._segments.append((first, first + len(inputs), waiter))
        return first

    @property
    def undo(self) -> UndoStack:
        if self._undo is None:
            self._undo = UndoStack(self)
        return self._undo

    def await_undo(self, seq: int, waiter: Any) -> None:
        """A task that takes something back; nothing cancels it."""
        self._tasks[seq] = waiter

    def refuse_left_undos(self) -> None:
        if self._undo is not None and not self._undo.is_empty:
            raise InvalidInput(
                "the run cannot continue as new: its undo stack is not empty, and a fresh run does not know of it. Call "
                "`await wf.unwind()` to undo it, or wf.commit_undo() if there is no way back, before wf.continue_as_new()"
            )

    def forget_fanout(self, waiter: Any) -> None:
        self._segments = [s for s in self._segments if s[2] is not waiter]

    def _segment(self, seq: int) -> Any:
        at = bisect_right(self._segments, seq, key=lambda s: s[0]) - 1
        if at >= 0 and seq < self._segments[at][1]:
            return self._segments[at][2]
        return None

    def sleep_until(self, fire_at_us: int) -> Step[Any]:
        step = self.new_step(ids.TIMER, -1)
        step._seq = seq = self.open_timer(fire_at_us, lambda: None if step.done() else step.set_result(None))
        step._on_cancel = lambda: self.close_timer(seq)
        return step

    def open_timer(self, fire_at_us: int, fired: Callable[[], None]) -> int:
        seq = self.journal.start_timer(fire_at_us)
        self._timers[seq] = fired
        return seq

    def open_barrier(self, lifted: Callable[[], None]) -> None:
        """Tell when everything has been heard that was said before what is asked for now."""
        self._barriers.add(self.open_timer(self.now_us, lifted))

    def close_timer(self, seq: int) -> None:
        if self._timers.pop(seq, None) is not None and not self.closed:
            self.journal.cancel_timer(seq)

    def start_child(
        self, workflow: str, version: str, data: bytes, key: str, timeout_us: int, waiter_of: Callable[[Step[Any]], Any]
    ) -> Step[Any]:
        seq = self.journal.start_child(workflow, version, data, key, timeout_us)
        step = self.new_step(ids.CHILD, seq)
        self._children[seq] = waiter_of(step)

        step._defer = partial(self._cancel_child, seq, step)
        return step

    def _cancel_child(self, seq: int, step: Step[Any], reason: Any) -> bool:
        """Leaves first: the child unwinds before the code that waits for it goes on. True: it is asked to, and has not ended yet."""
        if self.closed or seq not in self._children:
            return False
        if seq in self._stopping or self.journal.cancel_child(seq, awaited=True):
            self._stopping.setdefault(seq, (step, reason))
            return True
        del self._children[seq]
        return False

    def _child_of(self, seq: int) -> Any:
        """Whoever waits for a child that has ended. Nobody, if it was cancelled: then the code that cancelled it goes on."""
        waiter = self._children.pop(seq, None)
        stopped = self._stopping.pop(seq, None)
        if stopped is None:
            return waiter
        step, reason = stopped
        step.finish_cancel(reason)
        return None

    def wait_promise(
        self, name: str, decode: Callable[[bytes], Any], timeout_us: int, spec: bytes = b"", late: str = ""
    ) -> Step[Any]:
        """`spec` makes it an approval or the wait for an event. `late` is what is said when nothing came in time."""
        self._awaited.add(name)
        seq = self.journal.create_promise(name, spec)
        if name in self._unsure and is_guarded(spec):
            self._promise_values.pop(name, None)
        step = self.new_step(ids.PROMISE, seq)
        waiter = Waiter(step, decode)
        if name in self._promise_values:
            waiter.succeed(-1, self._promise_values[name])
        else:
            self._promises.setdefault(name, []).append(waiter)
            self._limit(step, timeout_us, late or f"promise {name!r} was not resolved in time")
        return step

    def wait_event(self, event: str, spec: bytes, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        """A wait that was given up is taken up by the next one of the same spec: what came in between is not missed, and a loop that looks
        again and again leaves one wait behind, not many."""
        left = self._waits_left.setdefault(spec, [])
        if left:
            name, seq = left.pop()
        else:
            from perdure.core.named_events import promise_name  # only who waits for events pays for expressions

            kind = f"event:{event}"
            n = self._asked[kind] = self._asked.get(kind, 0) + 1
            name = promise_name(event, n, self.run_id)
            seq = self.journal.create_promise(name, spec)
            self._awaited.add(name)
        step = self.new_step(ids.PROMISE, seq)
        waiter = Waiter(step, decode)
        if name in self._promise_values:
            waiter.succeed(-1, self._promise_values[name])
            return step
        self._promises.setdefault(name, []).append(waiter)
        self._limit(step, timeout_us, f"no event {event!r} that fits came in time")
        step.add_done_callback(lambda _: None if name in self._promise_values else left.append((name, seq)))
        return step

    def input_object(self) -> Any:
        """The arguments of the run by their names."""
        assert self.started is not None
        return msgspec.json.decode(self.encode_input(*self._workflow.signature.decode_call(self.started.input)))

    def ask_again(self, name: str) -> str:
        """The name of the promise of an approval: every time it is asked for, it is another question."""
        n = self._asked[name] = self._asked.get(name, 0) + 1
        return name if n == 1 else f"{name}#{n}"

    def next_signal(self, name: str, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        step = self.new_step(ids.RANDOM, -1)
        waiter = Waiter(step, decode)
        buffer = self._signals.get(name)
        if buffer:
            waiter.succeed(-1, buffer.popleft())
        else:
            self._signal_waiters.setdefault(name, deque()).append(waiter)
            self._listens = True
            self._limit(step, timeout_us, f"no signal {name!r} arrived in time")
        return step

    def handle_updates(self, name: str, handler: Callable[[ev.UpdateReceived], None]) -> None:
        """From now on `handler` is told of each update of that name, first of those that wait. It must not block or raise."""
        self._update_handlers[name] = handler
        for e in self._updates.pop(name, ()):
            self._begin_update(e, handler)

    def next_update(self, name: str, timeout_us: int) -> Step[Any]:
        step = self.new_step(ids.RANDOM, -1)
        asked = self._updates.get(name)
        if asked:
            self._begin_update(asked.popleft(), step.set_result)
        else:
            self._update_waiters.setdefault(name, deque()).append(Waiter(step, bytes))
            self._listens = True
            self._limit(step, timeout_us, f"no update {name!r} was asked for in time")
        return step

    def answer_update(self, id: str, value: bytes, failure: Failure | None) -> None:
        """The first answer stands."""
        if id in self._updates_begun and not self.closed:
            del self._updates_begun[id]
            self.journal.answer_update(id, value, failure)

    def begin_task(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        """Code of the workflow beside its own function."""
        self.loop.create_task(coro, name=name, context=self._context.copy())

    def run_operation(
        self, name: str, call: Callable[[], Any], encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> Step[Any]:
        seq, recorded = self.journal.begin_operation(name)
        step = self.new_step(ids.OPERATION, seq)
        self._operations[seq] = Waiter(step, decode)
        if not recorded:
            self._new_operations.append(Operation(seq, name, call, encode))
        return step

    def set_state(self, name: str, value: bytes | None) -> None:
        self.journal.write_state(name, value)
        if value is None:
            self.state.pop(name, None)
        else:
            self.state[name] = value

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        data: bytes = self._workflow.signature.encode_call(args, kwargs)
        return data

    def randomness(self) -> random.Random:
        if self._random is None:
            self._random = random.Random(self.run_id)
        return self._random

    def uuid(self) -> UUID:
        return UUID(int=self.randomness().getrandbits(128), version=4)

    def _limit(self, step: Step[Any], timeout_us: int, message: str) -> None:
        """Race the step against a durable timer."""
        if not timeout_us:
            return
        seq = self.open_timer(
            self.now_us + timeout_us, lambda: None if step.done() else step.set_exception(TimeoutError(message))
        )
        step.add_done_callback(lambda _: self.close_timer(seq))


_APPLY: dict[type, Callable[[Runtime, Any], None]] = {
    ev.RunStarted: Runtime._on_started,
    ev.RunBegan: Runtime._on_began,
    ev.CancelRequested: Runtime._on_cancel,
    ev.TasksSucceeded: Runtime._on_succeeded,
    ev.TaskFailed: Runtime._on_failed,
    ev.TimerFired: Runtime._on_timer,
    ev.ChildSucceeded: Runtime._on_child_succeeded,
    ev.ChildFailed: Runtime._on_child_failed,
    ev.ChildCancelled: Runtime._on_child_cancelled,
    ev.SignalReceived: Runtime._on_signal,
    ev.PromiseResolved: Runtime._on_promise,
    ev.UpdateReceived: Runtime._on_update,
    ev.OperationRecorded: Runtime._on_operation,
}

_UNWINDS = frozenset({ev.TasksSucceeded, ev.TaskFailed, ev.TimerFired})
"""Facts that matter to a run whose code has ended and which is undoing what it did."""


def failure_of(error: BaseException, code: str) -> Failure:
    """An exception as text: message, type, and the traceback with the user's frames."""
    if isinstance(error, RecordedError):
        inner = error.to_failure()
        return Failure(code, clip(str(error)), type(error).__name__, clip(_trace(error) + "\n" + inner.traceback))
    if isinstance(error, WorkflowRuleBroken):
        return Failure(error.code, clip(str(error)), type(error).__name__, clip(_trace(error)))
    return Failure(code, clip(str(error)), type(error).__name__, clip(_trace(error)))


def cause_of(error: BaseException, timer_fired: int) -> int:
    """The first event that `error` goes back to, by its causes, contexts and, for groups, members; 0 when it goes back to none.
    A TimeoutError goes back to the timer that fired last."""
    found: list[int] = []
    met: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in met:
            continue
        met.add(id(one))
        if isinstance(one, RecordedError):
            found.append(one.event)
        elif isinstance(one, TimeoutError):
            found.append(timer_fired)
        elif isinstance(one, BaseExceptionGroup):
            ahead.extend(one.exceptions)
        ahead.append(one.__cause__)
        ahead.append(None if one.__suppress_context__ else one.__context__)
    return min((n for n in found if n), default=0)


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
