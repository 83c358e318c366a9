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
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import (
    ChildFailed,
    Failure,
    NondeterminismError,
    PerdureError,
    RecordedError,
    WorkflowRuleBroken,
    clip,
    task_error,
)
from perdure.core.journal import Journal
from perdure.core.limits import SIGNALS_BUFFERED_MAX
from perdure.core.retry import TaskOptions
from perdure.sdk.loop import WorkflowLoop
from perdure.sdk.step import Step

if TYPE_CHECKING:
    from perdure.sdk.capture import Output, Sink

current: contextvars.ContextVar[Runtime] = contextvars.ContextVar("perdure_run")
"""The run whose workflow code is executing; unset everywhere else."""


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

    __slots__ = ("commands", "operations", "run_id", "stuck")

    def __init__(
        self, run_id: bytes, commands: list[cm.Command], operations: list[Operation], stuck: Failure | None = None
    ) -> None:
        self.run_id, self.commands, self.operations, self.stuck = run_id, commands, operations, stuck


class Waiter:
    """Something that a fact will resolve: `resolve(value bytes)` or `reject(exception)`."""

    __slots__ = ("decode", "step")

    def __init__(self, step: Step[Any], decode: Callable[[bytes], Any]) -> None:
        self.step, self.decode = step, decode

    def succeed(self, seq: int, value: bytes) -> None:
        if not self.step.done():
            try:
                self.step.set_result(self.decode(value))
            except PerdureError as e:
                self.step.set_exception(e)

    def fail(self, seq: int, error: BaseException) -> None:
        if not self.step.done():
            self.step.set_exception(error)


class Runtime:
    # Set by a worker that captures output; see capture.py.
    sink: Sink | None = None
    output: Output | None = None
    ns = 0
    event_seq = 0
    """Number of the event that is being applied."""

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
        self._promises: dict[str, list[Waiter]] = {}
        self._promise_values: dict[str, bytes] = {}
        self._awaited: set[str] = set()
        self._operations: dict[int, Waiter] = {}
        self._new_operations: list[Operation] = []
        self._signals: dict[str, deque[bytes]] = {}
        self._signal_waiters: dict[str, deque[Waiter]] = {}
        self._handover: cm.ContinueAsNew | None = None
        """Set once the code has asked to continue in a new run: what arrives from then on is for that one."""
        self.state: dict[str, bytes] = {}
        self._cancel_reason: str | None = None
        self._random: random.Random | None = None
        self._timer_fired = 0
        """Number of the event by which a timer last fired."""
        self.closed = False

    # -- activation -------------------------------------------------------------------------------------------------

    def activate(self, events: list[ev.Recorded], *, replay: bool) -> Completion:
        """Apply events. `replay` says that they are a whole history, whose commands the code must issue again."""
        try:
            if replay:
                self.journal.load(events)
            for record in events:
                self._apply(record)
                if self.journal.mismatch is not None:
                    break
            if replay and self.journal.mismatch is None:
                self.journal.check_all_matched(self._whereabouts)
        except NondeterminismError as e:
            self.journal.mismatch = self.journal.mismatch or e
        except Exception as e:
            return self._stuck(Failure("internal", clip("".join(traceback.format_exception(e))), type(e).__name__))
        if self.journal.mismatch is not None:
            return self._stuck(self.journal.mismatch.to_failure())
        operations, self._new_operations = self._new_operations, []
        return Completion(self.run_id, self.journal.take_commands(), operations)

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
        apply(self, event)
        self.loop.run_until_idle()
        if self._main is not None and self._main.done() and not self.closed:
            self._finish(self._main)

    def _finish(self, main: asyncio.Task[Any]) -> None:
        self.closed = True
        try:
            self.journal.close(self._closing_command(main))
        except PerdureError as e:  # the result does not fit its declared type, or is too large
            self.journal.close(cm.FailRun(e.to_failure()))

    def _closing_command(self, main: asyncio.Task[Any]) -> cm.Command:
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
            signals = [(name, value) for name, values in self._signals.items() for value in values]
            promises = [(n, value) for n, value in self._promise_values.items() if n not in self._awaited]
            self._handover = cm.ContinueAsNew(error.data, signals, promises, [])
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
        for book in (self._tasks, self._timers, self._children, self._promises, self._operations, self._signal_waiters):
            book.clear()
        self._segments = []

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

    def _on_cancel(self, e: ev.CancelRequested) -> None:
        if self._handover is not None:
            self._handover.cancels.append(e.reason)
            return
        if self._cancel_reason is None and self._main is not None:
            self._cancel_reason = e.reason
            self._main.cancel(e.reason or "the run was cancelled")

    def _on_succeeded(self, e: ev.TasksSucceeded) -> None:
        for seq, value in zip(e.seqs, e.results, strict=True):
            waiter = self._tasks.pop(seq, None) or self._segment(seq)
            if waiter is not None:
                waiter.succeed(seq, value)

    def _on_failed(self, e: ev.TaskFailed) -> None:
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
        waiter = self._children.pop(e.seq, None)
        if waiter is not None:
            waiter.succeed(e.seq, e.result)

    def _on_child_failed(self, e: ev.ChildFailed) -> None:
        waiter = self._children.pop(e.seq, None)
        if waiter is not None:
            waiter.fail(e.seq, self._from_here(ChildFailed(e.failure)))

    def _on_child_cancelled(self, e: ev.ChildCancelled) -> None:
        waiter = self._children.pop(e.seq, None)
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
            self.closed = True
            text = f"more than SIGNALS_BUFFERED_MAX={SIGNALS_BUFFERED_MAX} signals {e.name!r} wait to be consumed; read them faster"
            self.journal.close(cm.FailRun(Failure("limit_exceeded", text)))

    def _on_promise(self, e: ev.PromiseResolved) -> None:
        if self._handover is not None:
            self._handover.promises.append((e.name, e.value))
            return
        self._promise_values.setdefault(e.name, e.value)
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
        self, name: str, queue: str, data: bytes, options: TaskOptions, decode: Callable[[bytes], Any]
    ) -> Step[Any]:
        seq = self.journal.schedule_tasks(name, queue, [data], options)
        step = self.new_step(ids.TASK, seq)
        self._tasks[seq] = Waiter(step, decode)
        step._runtime = self
        return step

    def cancel_task(self, seq: int) -> None:
        if self._tasks.pop(seq, None) is not None and not self.closed:
            self.journal.cancel_tasks([seq])

    def schedule_fanout(self, name: str, queue: str, inputs: list[bytes], options: TaskOptions, waiter: Any) -> int:
        """Many tasks behind one waiter, which is told each outcome by sequence number."""
        first = self.journal.schedule_tasks(name, queue, inputs, options)
        self._segments.append((first, first + len(inputs), waiter))
        return first

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

    def close_timer(self, seq: int) -> None:
        if self._timers.pop(seq, None) is not None and not self.closed:
            self.journal.cancel_timer(seq)

    def start_child(
        self, workflow: str, version: str, data: bytes, key: str, timeout_us: int, waiter_of: Callable[[Step[Any]], Any]
    ) -> Step[Any]:
        seq = self.journal.start_child(workflow, version, data, key, timeout_us)
        step = self.new_step(ids.CHILD, seq)
        self._children[seq] = waiter_of(step)

        def cancel() -> None:
            if self._children.pop(seq, None) is not None and not self.closed:
                self.journal.cancel_child(seq)

        step._on_cancel = cancel
        return step

    def wait_promise(self, name: str, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        self._awaited.add(name)
        seq = self.journal.create_promise(name)
        step = self.new_step(ids.PROMISE, seq)
        waiter = Waiter(step, decode)
        if name in self._promise_values:
            waiter.succeed(-1, self._promise_values[name])
        else:
            self._promises.setdefault(name, []).append(waiter)
            self._limit(step, timeout_us, f"promise {name!r} was not resolved in time")
        return step

    def next_signal(self, name: str, decode: Callable[[bytes], Any], timeout_us: int) -> Step[Any]:
        step = self.new_step(ids.RANDOM, -1)
        waiter = Waiter(step, decode)
        buffer = self._signals.get(name)
        if buffer:
            waiter.succeed(-1, buffer.popleft())
        else:
            self._signal_waiters.setdefault(name, deque()).append(waiter)
            self._limit(step, timeout_us, f"no signal {name!r} arrived in time")
        return step

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
    ev.CancelRequested: Runtime._on_cancel,
    ev.TasksSucceeded: Runtime._on_succeeded,
    ev.TaskFailed: Runtime._on_failed,
    ev.TimerFired: Runtime._on_timer,
    ev.ChildSucceeded: Runtime._on_child_succeeded,
    ev.ChildFailed: Runtime._on_child_failed,
    ev.ChildCancelled: Runtime._on_child_cancelled,
    ev.SignalReceived: Runtime._on_signal,
    ev.PromiseResolved: Runtime._on_promise,
    ev.OperationRecorded: Runtime._on_operation,
}


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
