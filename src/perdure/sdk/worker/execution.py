"""How a worker executes tasks: async ones on the loop, sync ones in threads or processes.

Theory. Creating an asyncio task per Perdure task costs more than everything else about a short one. So a few long-lived runner
tasks take assignments from one queue and await the user's coroutine directly. A runner that gets suspended wakes the next one
first, hence as many run side by side as there are slots, and a thousand no-ops cost one wake-up.

A runner whose user code changed context variables, or that was cancelled, retires and a fresh one takes its place: nothing leaks
from one task into the next.

Stopping. Cancellation, timeouts and a worker that leaves take one way: an attempt is asked to stop, its code unwinds (`finally` runs) and
its slot is free again. On the loop the request is a CancelledError at its `await`; in a thread by `attempt().cancelled` and, THREAD_GRACE_S
later, by AttemptCancelled wherever it is; in a process by SIGTERM, which raises AttemptCancelled there, and SIGKILL after a grace. One that
is still running after CLEANUP_S is interrupted again, so that a clean-up that hangs ends too.

    assign -> queue -> runner on the loop ----.
         \\-> thread lane --------------------+-> _done -> reports of this turn of the loop, after what the attempts wrote
          \\-> process lane (a thread each) --+
           \\-> jobs.py: an executor ----------'
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Any

from perdure.core.errors import PerdureError
from perdure.core.payloads import MARK
from perdure.core.retry import End
from perdure.core.work import Assignment, Beat, LogLine, Report, Upstream
from perdure.executors.port import Executor
from perdure.sdk.secrets.store import SecretStore
from perdure.sdk.worker import output
from perdure.sdk.worker.attempt_secrets import TaskSecrets, check_result
from perdure.sdk.worker.attempts import (
    CLEANUP_S,
    STOPS_MAX,
    Attempt,
    Slot,
    current_slot,
)
from perdure.sdk.worker.capacity import Capacity
from perdure.sdk.worker.heartbeats import Heartbeats
from perdure.sdk.worker.jobs import CallAct, JobHooks, Jobs
from perdure.sdk.worker.output import Outbox, OutputMode
from perdure.sdk.worker.plain_calls import PlainCalls, TaskBorder
from perdure.sdk.worker.processes import KILL_GRACE_S, TaskProcess, TaskProcesses
from perdure.sdk.worker.relay import Relay
from perdure.sdk.worker.reports import ended_report, error_report
from perdure.sdk.worker.task_payloads import TaskPayloads
from perdure.sdk.worker.threads import ThreadInterrupt, ThreadLane
from perdure.sdk.worker.tracing import TaskTracer
from perdure.sdk.worker.watchdog import Watchdog

BURST_TASKS = 64
"""Tasks a runner executes without suspension before it lets the rest of the loop have a turn."""
UNWIND_S = 1.0
"""How long a drain waits for cancelled attempts to unwind before it reports them on their behalf."""
THREAD_GRACE_S = 0.5
"""How long a plain function may take to find out by itself that it is to stop, before it is interrupted; less than UNWIND_S."""
CLOSE_S = 5.0
"""How long closing waits for what it cancelled."""


class TaskExecutor:
    """Runs assignments and reports their ends in batches."""

    def __init__(
        self,
        find: Callable[[str], Any],
        upstream: Upstream,
        capacity: Capacity,
        output_mode: OutputMode = "tee",
        tracer: TaskTracer | None = None,
        executors: Mapping[str, Executor] | None = None,
        secrets: SecretStore | None = None,
    ) -> None:
        self._find, self._tracer = find, tracer
        self._clock_us, self._report, self._beats = upstream.clock_us, upstream.reported, upstream.beats
        self.slots, self.in_use = capacity.slots, 0
        self.closed = self._draining = False
        self._queue: deque[Assignment] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[bytes, int], Attempt] = {}
        """Attempts on the loop that have begun, and all those of the lanes. Changed on the loop only."""
        self._cancelling: set[asyncio.Task[None]] = set()
        self._abandoned: set[Attempt] = set()
        """Reported on their behalf, while their code still runs."""
        self._reports: list[Report] = []
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._claims = threading.Lock()
        self._payloads = TaskPayloads(upstream.payloads, self._context)
        self._secrets = TaskSecrets(secrets or SecretStore())
        plain = PlainCalls(
            find, self._clock_us, self._claims, self._context, TaskBorder(self._payloads, self._secrets), tracer
        )
        self._threads = ThreadLane("perdure-task", capacity.threads, self._claim, plain.run, self._lane_ended)
        self._children = TaskProcesses(self._clock_us, self, self.relayed, find, self._payloads.file_of)
        self._processes = ThreadLane(
            "perdure-process",
            capacity.processes,
            self._claim,
            self._run_process,
            self._lane_ended,
            self._children.leave,
        )
        hooks = JobHooks(upstream, lambda a: Attempt(a, self), self._settle, find, self._slot_freed, self._secrets)
        self.jobs = Jobs(executors or {}, hooks)
        self._leaves_jobs = upstream.acknowledges  # in a program with an engine of its own both end
        self._heartbeats = Heartbeats(upstream.beats, self._is_beating, self._loop, self._context)
        urgent_beats = upstream.urgent_beats or upstream.beats
        self._watchdog = Watchdog(self._loop, self.attempts, urgent_beats, self._keep_waiting)
        self.sink = Outbox(upstream, tee=output_mode == "tee") if output_mode != "ignore" else None
        if self.sink is not None:
            output.install()

    async def open(self, call: CallAct) -> None:
        """Connect the executors. Jobs that an earlier worker left on this machine count as running from now on."""
        await self.jobs.open(call)
        self.in_use += self.jobs.slots_held()

    def assign(self, batch: list[Assignment]) -> None:
        self.in_use += len(batch)
        if self._draining:
            self._give_back(batch)
            return
        if self.sink is not None:
            output.keep()
        self._watchdog.start()
        name = ""
        definition: Any = None
        for a in batch:
            try:
                if a.name != name:
                    definition, name = self._find(a.name), a.name
                if a.job and (executor := getattr(definition, "executor", "")):  # a stand-in of a test has none
                    self.jobs.assign(a, executor)
                    continue
            except PerdureError as e:
                now = self._clock_us()
                self._done(ended_report(a, End.FINAL_ERROR, now, now, e.to_failure()))
                continue
            if definition.is_async:
                self._queue.append(a)
            else:
                lane = self._processes if getattr(definition, "process", False) else self._threads
                self._running[a.run_id, a.seq] = waiting = Attempt(a, self)
                lane.submit(waiting)
        if self._queue:
            self._wake_one()

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        """Stop an attempt whose result is no longer needed. Its slot is free once its code has unwound."""
        found = self._running.get((run_id, seq))
        if self.jobs.cancel(run_id, seq, attempt):
            return
        if found is None:
            self._drop_waiting(run_id, seq, attempt)
        elif found._assignment.attempt == attempt and self._cancel(found):
            self._forget(found)
            self.in_use -= 1

    def _drop_waiting(self, run_id: bytes, seq: int, attempt: int) -> None:
        """It has not begun: it never will."""
        for a in self._queue:
            if (a.run_id, a.seq, a.attempt) == (run_id, seq, attempt):
                self._queue.remove(a)
                self.in_use -= 1
                return

    def _cancel(self, info: Attempt) -> bool:
        """Whether it had not begun; then it never will."""
        with self._claims:
            info.cancelled = True
            runner = info._runner
        if isinstance(runner, asyncio.Task):
            self._cancelling.add(runner)
            _stop(self._loop, info, runner.cancel)
        elif isinstance(runner, ThreadInterrupt):
            self._loop.call_later(THREAD_GRACE_S, _stop, self._loop, info, runner.interrupt)
        elif isinstance(runner, TaskProcess):
            runner.terminate(info)
            self._loop.call_later(KILL_GRACE_S, runner.kill, info)
        return runner is None

    def _claim(self, info: Attempt, lane: ThreadLane) -> bool:
        """In a lane's thread: whether the attempt is still wanted; from then on it counts as begun."""
        with self._claims:
            if info.cancelled:
                return False
            info._runner = lane
            return True

    def tokens(self) -> list[tuple[bytes, int, int]]:
        """(run_id, seq, attempt) of everything that was assigned and has not been reported."""
        assigned = [*self._queue, *(info._assignment for info in self._running.values())]
        ended = [(r.run_id, r.seq, r.attempt) for r in self._reports]
        return [(a.run_id, a.seq, a.attempt) for a in assigned] + self.jobs.tokens() + ended

    def has(self, run_id: bytes, seq: int, attempt: int) -> bool:
        """Whether this attempt was assigned and has not been reported."""
        token, running = (run_id, seq, attempt), self._running.get((run_id, seq))
        return (
            (running is not None and running._assignment.attempt == attempt)
            or self.jobs.find(*token) is not None
            or any((a.run_id, a.seq, a.attempt) == token for a in self._queue)
            or any((r.run_id, r.seq, r.attempt) == token for r in self._reports)
        )

    def attempts(self) -> list[Attempt]:
        """Attempts that have begun. Callable from any thread."""
        while True:
            try:
                return [info for info in list(self._running.values()) if info._runner is not None]
            except RuntimeError:  # it changed under our hands
                continue

    async def drain(self, grace_s: float) -> None:
        """Begin nothing, let what runs finish, and after the grace cancel and report the rest."""
        is_idle: Callable[[], bool] = lambda: not self._running and self.jobs.is_idle  # noqa: E731
        self._draining = True
        waiting, self._queue = [*self._queue], deque()
        for info in list(self._running.values()):
            if info._runner is None and self._cancel(info):
                self._forget(info)
                waiting.append(info._assignment)
        self._give_back(waiting)
        self.jobs.give_back()
        await _until(is_idle, grace_s)
        self.jobs.give_back(at_once=True)
        for info in list(self._running.values()):
            self._cancel(info)
        if not self._leaves_jobs:
            self.jobs.stop_all()
        await _until(is_idle, UNWIND_S if self._running or not self._leaves_jobs else 0)
        for info in list(self._running.values()):
            self._abandoned.add(info)
            self._forget(info)
            now = self._clock_us()
            self._done(ended_report(info._assignment, End.CANCELLED, now, now))
        if not self._leaves_jobs:
            for info, report, held in self.jobs.abandon():
                self._settle(info, report, held)
        self._flush()

    def _give_back(self, waiting: list[Assignment]) -> None:
        now = self._clock_us()
        for a in waiting:
            self._done(ended_report(a, End.RETURNED, now, now))

    async def close(self) -> None:
        """End everything at once; reports are not sent any more."""
        if self.closed:
            return
        self.closed = True
        self._watchdog.stop()
        if self.sink is not None:
            self.sink.flush()
            output.remove()
        self._queue.clear()
        for info in list(self._running.values()):
            self._cancel(info)
        for runner in list(self._runners):
            runner.cancel()
        if self._runners:
            await asyncio.wait(list(self._runners), timeout=CLOSE_S)
        if not self._leaves_jobs:
            self.jobs.stop_all()
            await _until(lambda: self.jobs.is_idle, CLOSE_S)
        await self.jobs.close()
        self._threads.close()
        self._processes.close()
        await _until(lambda: self._processes.is_gone, UNWIND_S)
        self._children.kill()
        await _until(lambda: self._processes.is_gone, CLOSE_S)

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
        while not self.closed:
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
        if self._queue and not self.closed:
            self._runners.discard(me)
            self._wake_one()

    async def _run_one(self, a: Assignment, slot: Slot, me: asyncio.Task[None]) -> None:
        slot.attempt = info = self._running[a.run_id, a.seq] = Attempt(a, self, me)
        started = self._clock_us()
        loaded, call = started, None
        try:
            definition = self._find(a.name)
            given = a.input
            if given.startswith(MARK):
                given = await Relay(self._payloads.input(given), self._suspended)
                loaded = self._clock_us()
            if a.options.secrets:
                given = await Relay(self._secrets.fill(info, given), self._suspended)
                loaded = self._clock_us()
            args, kwargs = definition.signature.decode_call(given)
            fn = definition.fn if self._tracer is None else self._tracer.around(a, definition.fn)
            call = Relay(fn(*args, **kwargs), self._suspended)
            value = await call
            data = definition.signature.encode_result(value)
            if info._secrets is not None:
                check_result(info, data)
            now = self._clock_us()
            cpu_us = now - loaded if call.cpu_ns is None else call.cpu_ns // 1000
            if self._payloads.is_heavy(data):
                data = await Relay(self._payloads.result(data, a.name), self._suspended)
                now = self._clock_us()
            report = Report(a.run_id, a.seq, a.attempt, End.SUCCESS, data, None, started, now, a.epoch, cpu_us)
        except asyncio.CancelledError as e:
            if self.closed:
                raise
            if info.cancelled:
                me.uncancel()
                report = ended_report(a, End.CANCELLED, started, self._clock_us())
            else:  # the user's own code raised it: an error like any other
                report = error_report(a, e, started, (now := self._clock_us()), _cpu_us(call, now - loaded))
        except (Exception, SystemExit) as e:
            report = error_report(a, e, started, (now := self._clock_us()), _cpu_us(call, now - loaded))
        finally:
            slot.attempt = None
            self._forget(info)
        if info._output is None and not self._abandoned:
            self._done(report)
        else:
            self._settle(info, report)

    def _run_process(self, info: Attempt) -> Report:
        if self._tracer is None:
            return self._in_child(info)
        return self._tracer.around_report(info._assignment, lambda: self._in_child(info))

    def _in_child(
        self, info: Attempt
    ) -> Report:  # which has no connection: input and result are resolved and stored here
        a, started = info._assignment, self._clock_us()
        try:
            report = self._children.run(info, self._secrets.fill_now(info, self._payloads.input_now(a.input)))
            check_result(info, report.value)
            report.value = self._payloads.result_now(report.value, a.name)
            return report
        except Exception as e:
            return error_report(a, e, started, self._clock_us())

    def _lane_ended(self, ended: list[tuple[Attempt, Report | None]]) -> None:
        """On the loop: what lanes finished; None is an attempt that was cancelled before it began."""
        for info, report in ended:
            if report is not None:
                self._forget(info)
                self._settle(info, report)

    def beat(self, attempt: Attempt, details: bytes) -> None:
        """From any thread."""
        self._heartbeats.beat(attempt, details)

    def secret(self, attempt: Attempt, name: str) -> str:
        """From any thread."""
        return self._secrets.read(attempt, name)

    def _is_beating(self, attempt: Attempt) -> bool:
        a = attempt._assignment
        return self._running.get((a.run_id, a.seq)) is attempt and not self.closed

    def _keep_waiting(self) -> None:
        """Assignments that wait for a thread or a runner cannot beat; it is not their silence."""
        unbegun = (info._assignment for info in self._running.values() if info._runner is None)
        waiting = [Beat(a.run_id, a.seq, a.attempt) for a in (*self._queue, *unbegun) if a.options.heartbeat_us]
        if waiting:
            self._beats(waiting)

    def relayed(self, attempt: Attempt, lines: list[LogLine]) -> None:
        """Lines that a child process captured."""
        captured = output.output_of(attempt)
        if captured is not None:
            captured.extend(lines)

    def _forget(self, info: Attempt) -> None:
        """Only its own entry: an attempt that was given up may still unwind while the next one runs."""
        info._over = True
        a = info._assignment
        key = (a.run_id, a.seq)
        if self._running.get(key) is info:
            del self._running[key]

    def _settle(self, info: Attempt, report: Report, held_slot: bool = True) -> None:
        if info._output is not None:
            info._output.close()
        if self._abandoned and info in self._abandoned:
            self._abandoned.discard(info)
            return
        self._done(report, held_slot)

    def _slot_freed(self) -> None:
        self.in_use -= 1

    def _done(self, report: Report, held_slot: bool = True) -> None:
        self.in_use -= held_slot
        self._reports.append(report)
        if len(self._reports) == 1:
            self._loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        """What attempts wrote goes before their reports."""
        reports, self._reports = self._reports, []
        if self.closed or not reports:
            return
        if self.sink is not None and not self.sink.is_empty:
            self.sink.flush()
        self._report(reports)


def _cpu_us(call: Relay | None, wall_us: int) -> int:
    """An attempt that never gave up control had the thread to itself all the time."""
    return wall_us if call is None or call.cpu_ns is None else call.cpu_ns // 1000


def _stop(loop: asyncio.AbstractEventLoop, info: Attempt, stop: Callable[[], object], times: int = 1) -> None:
    """Ask it to stop, and again after CLEANUP_S if its clean-up hangs or it took no notice."""
    if not info._over:
        stop()
        if times < STOPS_MAX:
            loop.call_later(CLEANUP_S, _stop, loop, info, stop, times + 1)


async def _until(true: Callable[[], bool], wait_s: float) -> None:
    until = monotonic() + wait_s
    while not true() and monotonic() < until:  # noqa: ASYNC110 - the end of an attempt has no event of its own
        await asyncio.sleep(0.01)
