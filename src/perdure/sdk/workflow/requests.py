"""What workflow code has asked for and waits for: tasks, fan-outs, timers, child runs and recorded side effects.

Each request takes a sequence number from the journal and leaves a waiter under it. The event with that number resolves the waiter, once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.commands import StartChild
from perdure.core.errors import ChildFailed, Failure, RecordedError, task_error
from perdure.core.retry import TaskOptions
from perdure.sdk.workflow.host import RunHost
from perdure.sdk.workflow.step import Step, Waiter, new_step


class Operation:
    """A side effect that the worker is to execute outside the loop and record."""

    __slots__ = ("call", "encode", "name", "seq")

    def __init__(self, seq: int, name: str, call: Callable[[], Any], encode: Callable[[Any], bytes]) -> None:
        self.seq, self.name, self.call, self.encode = seq, name, call, encode


class FanoutWaiter(Protocol):
    """Many tasks behind one waiter, which is notified of each by its sequence number."""

    def succeed(self, seq: int, value: bytes) -> None: ...
    def fail(self, seq: int, error: Exception) -> None: ...
    def cancel_rest(self) -> None: ...


class Requests:
    __slots__ = (
        "_abandoned",
        "_barriers",
        "_children",
        "_operations",
        "_segments",
        "_stopping",
        "_tasks",
        "_timers",
        "new_operations",
        "run",
    )

    def __init__(self, run: RunHost) -> None:
        self.run = run
        self._tasks: dict[int, Any] = {}
        self._segments: list[tuple[int, int, FanoutWaiter]] = []
        """(first, end, waiter) of fan-outs, ascending."""
        self._timers: dict[int, Callable[[], None]] = {}
        self._barriers: set[int] | None = None
        """Timers by which unwinding waits for earlier events."""
        self._children: dict[int, Any] = {}
        self._stopping: dict[int, tuple[Step[Any], Any]] = {}
        """Children that were cancelled and have not ended: the step that waits for the end, and the reason."""
        self._abandoned: set[int] | None = None
        """Children that go on when the code no longer waits for them; None: none."""
        self._operations: dict[int, Waiter] = {}
        self.new_operations: list[Operation] = []
        """Side effects asked for since the instance last took them."""

    @property
    def now_us(self) -> int:
        return self.run.now_us

    def _from_here(self, error: RecordedError) -> RecordedError:
        """Remember by which event the code learns of an error: a retry of the run takes that event back."""
        error.event = self.run.event_seq
        return error

    def schedule_task(
        self,
        name: str,
        queue: str,
        data: bytes,
        options: TaskOptions,
        decode: Callable[[bytes], Any],
        undo: Any = None,
    ) -> Step[Any]:
        run = self.run
        if undo is not None:
            run.undo.check_room(1)
        seq = run.journal.schedule_tasks(name, queue, [data], options)
        if undo is not None:
            run.undo.expect(seq, [data], name, undo)
        step = new_step(run, ids.TASK, seq, self)
        self._tasks[seq] = Waiter(step, decode)
        return step

    def cancel_task(self, seq: int) -> None:
        if self._tasks.pop(seq, None) is not None and not self.run.closed:
            self.run.journal.cancel_tasks([seq])

    def await_undo(self, seq: int, waiter: Any) -> None:
        """A task that undoes something; nothing cancels it."""
        self._tasks[seq] = waiter

    def schedule_fanout(
        self, name: str, queue: str, inputs: list[bytes], options: TaskOptions, waiter: FanoutWaiter, undo: Any = None
    ) -> int:
        """Many tasks behind one waiter. Returns the first sequence number."""
        run = self.run
        if undo is not None:
            run.undo.check_room(len(inputs))
        first = run.journal.schedule_tasks(name, queue, inputs, options)
        if undo is not None:
            run.undo.expect(first, inputs, name, undo)
        self._segments.append((first, first + len(inputs), waiter))
        return first

    def forget_fanout(self, waiter: FanoutWaiter) -> None:
        self._segments = [s for s in self._segments if s[2] is not waiter]

    def _fanout_of(self, seq: int) -> FanoutWaiter | None:
        at = bisect_right(self._segments, seq, key=lambda s: s[0]) - 1
        if at >= 0 and seq < self._segments[at][1]:
            return self._segments[at][2]
        return None

    def tasks_succeeded(self, e: ev.TasksSucceeded) -> None:
        undo, tasks = self.run.undo_if_any, self._tasks
        for seq, value in zip(e.seqs, e.results, strict=True):
            if undo is not None:
                undo.succeeded(seq, value)
            waiter = tasks.pop(seq, None) or self._fanout_of(seq)
            if waiter is not None:
                waiter.succeed(seq, value)

    def task_failed(self, e: ev.TaskFailed) -> None:
        undo = self.run.undo_if_any
        if undo is not None:
            undo.failed(e.seq)
        waiter = self._tasks.pop(e.seq, None) or self._fanout_of(e.seq)
        if waiter is not None:
            waiter.fail(e.seq, self._from_here(task_error(e.failure)))

    def sleep_until(self, fire_at_us: int) -> Step[Any]:
        seq = self.open_timer(fire_at_us, lambda: None if step.done() else step.set_result(None))
        step = new_step(self.run, ids.TIMER, seq, on_cancel=lambda: self.close_timer(seq))
        return step

    def limit(self, step: Step[Any], timeout_us: int, message: str) -> None:
        """Race the step against a durable timer; 0 is no limit."""
        if not timeout_us:
            return
        seq = self.open_timer(
            self.run.now_us + timeout_us, lambda: None if step.done() else step.set_exception(TimeoutError(message))
        )
        step.add_done_callback(lambda _: self.close_timer(seq))

    def open_timer(self, fire_at_us: int, fired: Callable[[], None]) -> int:
        seq = self.run.journal.start_timer(fire_at_us)
        self._timers[seq] = fired
        return seq

    def open_barrier(self, lifted: Callable[[], None]) -> None:
        """Call `lifted` when every event has arrived that was recorded before what is asked for now."""
        self._barriers = self._barriers or set()
        self._barriers.add(self.open_timer(self.run.now_us, lifted))

    def close_timer(self, seq: int) -> None:
        if self._timers.pop(seq, None) is not None and not self.run.closed:
            self.run.journal.cancel_timer(seq)

    def timer_fired(self, e: ev.TimerFired) -> None:
        fired = self._timers.pop(e.seq, None)
        if fired is not None:
            fired()

    def start_child(self, wanted: StartChild, waiter_of: Callable[[Step[Any]], Any]) -> Step[Any]:
        """The step of a detached child ends at once, and cancelling the wait for an abandoned one leaves it alone."""
        seq = self.run.journal.start_child(wanted)
        if wanted.detached:
            step = new_step(self.run, ids.CHILD, seq)
            step.set_result(None)
            return step
        if wanted.parent_close == "abandon":
            step = new_step(self.run, ids.CHILD, seq, on_cancel=lambda: self._children.pop(seq, None))
            self._abandoned = self._abandoned or set()
            self._abandoned.add(seq)
        else:
            step = new_step(self.run, ids.CHILD, seq, defer_cancel=partial(self._cancel_child, seq))
        self._children[seq] = waiter_of(step)
        return step

    def _cancel_child(self, seq: int, step: Step[Any], reason: Any) -> bool:
        """Leaves first: the child unwinds before the code that waits for it continues. True: it was asked to, and has not ended yet."""
        if self.run.closed or seq not in self._children:
            return False
        if seq in self._stopping or self.run.journal.cancel_child(seq, awaited=True):
            self._stopping.setdefault(seq, (step, reason))
            return True
        del self._children[seq]
        return False

    def stop_waiting_for_cancelled_children(self) -> None:
        for seq in list(self._stopping):
            self._child_ended(seq)

    def _child_ended(self, seq: int) -> Any:
        """The waiter of a child that has ended; None if the child was cancelled: then the step that cancelled it ends."""
        waiter = self._children.pop(seq, None)
        stopped = self._stopping.pop(seq, None)
        if stopped is None:
            return waiter
        step, reason = stopped
        step.finish_cancel(reason)
        return None

    def child_succeeded(self, e: ev.ChildSucceeded) -> None:
        waiter = self._child_ended(e.seq)
        if waiter is not None:
            waiter.succeed(e.seq, e.result)

    def child_failed(self, e: ev.ChildFailed) -> None:
        waiter = self._child_ended(e.seq)
        if waiter is not None:
            waiter.fail(e.seq, self._from_here(ChildFailed(e.failure)))

    def child_cancelled(self, e: ev.ChildCancelled) -> None:
        waiter = self._child_ended(e.seq)
        if waiter is not None:
            failure = Failure("run_cancelled", e.reason or "the child run was cancelled", "RunCancelled")
            waiter.fail(e.seq, self._from_here(ChildFailed(failure)))

    def run_operation(
        self, name: str, call: Callable[[], Any], encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
    ) -> Step[Any]:
        seq, recorded = self.run.journal.begin_operation(name)
        step = new_step(self.run, ids.OPERATION, seq)
        self._operations[seq] = Waiter(step, decode)
        if not recorded:
            self.new_operations.append(Operation(seq, name, call, encode))
        return step

    def operation_recorded(self, e: ev.OperationRecorded) -> None:
        waiter = self._operations.pop(e.seq, None)
        if waiter is None:
            return
        if e.failure is not None:
            waiter.fail(e.seq, self._from_here(task_error(e.failure)))
        else:
            waiter.succeed(e.seq, e.value)

    def stop_all(self) -> None:
        """Cancel everything that is outstanding, except the tasks that undo and the barriers of unwinding."""
        journal = self.run.journal
        running = [seq for seq, waiter in self._tasks.items() if isinstance(waiter, Waiter)]
        for seq in running:
            del self._tasks[seq]
        if running:
            journal.cancel_tasks(running)
        for fanout in dict.fromkeys(waiter for _, _, waiter in self._segments):
            fanout.cancel_rest()
        for seq in [s for s in self._timers if s not in (self._barriers or ())]:
            del self._timers[seq]
            journal.cancel_timer(seq)
        for seq in self._children:
            if seq not in (self._abandoned or ()):
                journal.cancel_child(seq)
        self._children.clear()
        self._stopping.clear()

    def forget_all(self) -> None:
        """The run leaves memory: drop what refers to its coroutines."""
        if self._tasks or self._segments or self._timers or self._children or self._operations:
            for book in (self._tasks, self._segments, self._timers, self._children, self._stopping, self._operations):
                book.clear()

    def outstanding(self) -> list[str]:
        """In words, for a run that does not match its history."""
        tasks = len(self._tasks) + len(self._segments)
        words = [f"{tasks} task step(s)"] if tasks else []
        return words + [f"timer {s}" for s in self._timers] + [f"child {s}" for s in self._children]
