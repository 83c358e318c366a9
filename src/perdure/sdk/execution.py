"""How a worker executes tasks: async ones on the loop, sync ones in threads.

Theory. Creating an asyncio task per Perdure task costs more than everything else about a short one. So a few long-lived runner
tasks take assignments from one queue and await the user's coroutine directly. A runner that gets suspended wakes the next one
first, hence as many run side by side as there are slots, and a thousand no-ops cost one wake-up.

A runner whose user code changed context variables, or that was cancelled, retires and a fresh one takes its place: nothing leaks
from one task into the next.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from perdure.core.errors import Failure, PerdureError, clip
from perdure.core.retry import End, is_final
from perdure.core.work import Assignment, Report
from perdure.sdk.attempts import Attempt, Slot, current_slot
from perdure.sdk.options import qualified

BURST_TASKS = 64
"""Tasks a runner executes without suspension before it lets the rest of the loop have a turn."""


class _Relay:
    """Await a coroutine, and call `suspended` when it first gives up control."""

    __slots__ = ("coro", "suspended")

    def __init__(self, coro: Any, suspended: Callable[[], None]) -> None:
        self.coro, self.suspended = coro, suspended

    def __await__(self) -> Generator[Any, Any, Any]:
        coro = self.coro
        try:
            waited = coro.send(None)
        except StopIteration as e:
            return e.value
        self.suspended()
        while True:
            try:
                sent = yield waited
            except GeneratorExit:
                coro.close()
                raise
            except BaseException as e:
                step, argument = coro.throw, e
            else:
                step, argument = coro.send, sent
            try:
                waited = step(argument)
            except StopIteration as e:
                return e.value


class Execution:
    """Runs assignments and reports their ends in batches."""

    def __init__(
        self,
        find: Callable[[str], Any],
        clock_us: Callable[[], int],
        slots: int,
        threads: int,
        report: Callable[[list[Report]], None],
        beat: Callable[[Assignment], None],
    ) -> None:
        self._find, self._clock_us, self._report, self._beat = find, clock_us, report, beat
        self.slots = slots
        self.in_use = 0
        self._queue: deque[Assignment] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[bytes, int], tuple[int, asyncio.Task[None] | None, Attempt]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._reports: list[Report] = []
        self._threads = ThreadLane(threads, self._run_sync, self._thread_reports)
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._closing = False

    # -- intake -----------------------------------------------------------------------------------------------------

    def assign(self, batch: list[Assignment]) -> None:
        self.in_use += len(batch)
        for a in batch:
            try:
                definition = self._find(a.name)
            except PerdureError as e:
                self._done(
                    Report(
                        a.run_id,
                        a.seq,
                        a.attempt,
                        End.FINAL_ERROR,
                        b"",
                        e.to_failure(),
                        self._clock_us(),
                        self._clock_us(),
                    )
                )
                continue
            if definition.is_async:
                self._queue.append(a)
            else:
                self._threads.submit(a)
        if self._queue:
            self._wake_one()

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        """Stop an attempt whose result nobody wants any more. Its slot is free once its code has unwound."""
        found = self._running.get((run_id, seq))
        if found is None:
            self._drop_waiting(run_id, seq, attempt)
        elif found[0] == attempt:
            _, runner, info = found
            info.cancelled = True
            if runner is not None:
                self._cancelling.add(runner)
                runner.cancel()

    def _drop_waiting(self, run_id: bytes, seq: int, attempt: int) -> None:
        """It has not begun: it never will."""
        for a in self._queue:
            if (a.run_id, a.seq, a.attempt) == (run_id, seq, attempt):
                self._queue.remove(a)
                self.in_use -= 1
                return

    async def close(self) -> None:
        """End everything at once; reports are not sent any more."""
        self._closing = True
        self._queue.clear()
        for runner in list(self._runners):
            runner.cancel()
        if self._runners:
            await asyncio.wait(list(self._runners), timeout=5)
        self._threads.close()

    # -- async lane -------------------------------------------------------------------------------------------------

    def _wake_one(self) -> None:
        while self._idle:
            sleeper = self._idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if len(self._runners) < self.slots:
            self._spawn()

    def _spawn(self) -> None:
        runner = self._loop.create_task(self._runner(), name="perdure-runner", context=self._context.copy())
        self._runners.add(runner)
        runner.add_done_callback(self._runners.discard)

    def _suspended(self) -> None:
        if self._queue:
            self._wake_one()

    async def _runner(self) -> None:
        slot = Slot()
        current_slot.set(slot)
        me = asyncio.current_task()
        assert me is not None
        base = contextvars.copy_context()
        burst = 0
        while not self._closing:
            if not self._queue:
                burst = 0
                sleeper: asyncio.Future[None] = self._loop.create_future()
                self._idle.append(sleeper)
                await sleeper
                continue
            await self._run_one(self._queue.popleft(), slot, me)
            if me in self._cancelling or contextvars.copy_context() != base:
                break
            burst += 1
            if burst >= BURST_TASKS:
                burst = 0
                await asyncio.sleep(0)
        self._cancelling.discard(me)
        if self._queue and not self._closing:
            self._runners.discard(me)
            self._wake_one()

    async def _run_one(self, a: Assignment, slot: Slot, me: asyncio.Task[None]) -> None:
        key = (a.run_id, a.seq)
        slot.attempt = info = Attempt(a, self._beat)
        self._running[key] = (a.attempt, me, info)
        started = self._clock_us()
        try:
            definition = self._find(a.name)
            args, kwargs = definition.signature.decode_call(a.input)
            value = await _Relay(definition.fn(*args, **kwargs), self._suspended)
            report = Report(
                a.run_id,
                a.seq,
                a.attempt,
                End.SUCCESS,
                definition.signature.encode_result(value),
                None,
                started,
                self._clock_us(),
            )
        except asyncio.CancelledError as e:
            if self._closing:
                raise
            if info.cancelled:
                me.uncancel()
                report = Report(a.run_id, a.seq, a.attempt, End.CANCELLED, b"", None, started, self._clock_us())
            else:  # the user's own code raised it: an error like any other
                report = error_report(a, e, started, self._clock_us())
        except Exception as e:
            report = error_report(a, e, started, self._clock_us())
        finally:
            slot.attempt = None
            self._forget(key, info)
        self._done(report)

    # -- thread lane ------------------------------------------------------------------------------------------------

    def _run_sync(self, a: Assignment) -> Report:
        """In a thread: the user's plain function."""
        slot = Slot()
        slot.attempt = info = Attempt(a, self._beat_from_thread)
        self._running[a.run_id, a.seq] = (a.attempt, None, info)
        context = self._context.copy()
        context.run(current_slot.set, slot)
        started = self._clock_us()
        try:
            definition = self._find(a.name)
            args, kwargs = definition.signature.decode_call(a.input)
            value = context.run(definition.fn, *args, **kwargs)
            end = End.CANCELLED if info.cancelled else End.SUCCESS
            return Report(
                a.run_id,
                a.seq,
                a.attempt,
                end,
                definition.signature.encode_result(value),
                None,
                started,
                self._clock_us(),
            )
        except Exception as e:
            return error_report(a, e, started, self._clock_us())
        finally:
            self._forget((a.run_id, a.seq), info)

    def _beat_from_thread(self, a: Assignment) -> None:
        self._loop.call_soon_threadsafe(self._beat, a)

    def _forget(self, key: tuple[bytes, int], info: Attempt) -> None:
        """Only its own entry: an attempt that was given up may still unwind while the next one runs."""
        found = self._running.get(key)
        if found is not None and found[2] is info:
            del self._running[key]

    def _thread_reports(self, reports: list[Report]) -> None:
        for r in reports:
            self._done(r)

    # -- reports ----------------------------------------------------------------------------------------------------

    def _done(self, report: Report) -> None:
        self.in_use -= 1
        self._reports.append(report)
        if len(self._reports) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        if reports and not self._closing:
            self._report(reports)


class ThreadLane:
    """A small pool that hands results back in batches: one wake-up of the loop however many threads finished."""

    def __init__(
        self, threads: int, run: Callable[[Assignment], Report], deliver: Callable[[list[Report]], None]
    ) -> None:
        self._max, self._run, self._deliver = threads, run, deliver
        self._todo: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._done: deque[Report] = deque()
        self._signalled = False
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(self, a: Assignment) -> None:
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._max:
            thread = threading.Thread(target=self._work, name=f"perdure-task-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._todo.put(a)

    def _work(self) -> None:
        while (a := self._todo.get()) is not None:
            self._done.append(self._run(a))
            with self._lock:
                if self._signalled:
                    continue
                self._signalled = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except (
                RuntimeError
            ):  # the loop is closed: the process is going down and the engine treats the attempt as lost
                return

    def _collect(self) -> None:
        with self._lock:
            self._signalled = False
        reports: list[Report] = []
        while self._done:
            reports.append(self._done.popleft())
        self._busy -= len(reports)
        self._deliver(reports)

    def close(self) -> None:
        for _ in self._threads:
            self._todo.put(None)


def error_report(a: Assignment, error: BaseException, started_us: int, finished_us: int) -> Report:
    names = tuple(qualified(t) for t in type(error).__mro__)
    final = is_final(a.options, names) or isinstance(error, PerdureError)
    failure = Failure(
        "task_failed", clip(str(error)), type(error).__name__, clip("".join(traceback.format_exception(error)))
    )
    return Report(
        a.run_id, a.seq, a.attempt, End.FINAL_ERROR if final else End.ERROR, b"", failure, started_us, finished_us
    )
