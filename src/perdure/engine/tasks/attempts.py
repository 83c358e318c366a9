"""Attempts that workers of this engine have, and how their ends are recorded.

Laws:

1. Every end of an attempt goes through `settle` (core/retry.py): exception, timeout, silence, lost worker, cancellation.
2. A retry is a row with a time, never a sleeping worker.
3. The end of a task whose run lives here is an event of the run; the end of another engine's task is a message to its run.
4. Every attempt has a record: the last one in the row of its task, one that is followed by another in task_attempt (records.py), in
   the commit that decides so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import Final

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.jobs import is_host_bound, job_name
from perdure.core.lazy_sets import added, discard
from perdure.core.lifecycle import TaskStatus, next_task_status
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import (
    Cancel,
    End,
    Fail,
    Requeue,
    Succeed,
    TaskOptions,
    Verdict,
    left_us,
    outcome_of,
    settle,
    waits_until_us,
)
from perdure.core.work import Assignment, AttemptToken, Beat, Report
from perdure.engine.commits.rows import Spent, TaskRow
from perdure.engine.commits.write_queue import Unit
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.ports import ClaimedTask
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import Leaving
from perdure.engine.tasks.flight import LONG_RUNNING_US, Flight, ReportUnit, RequeueUnit, is_about
from perdure.engine.tasks.records import record_attempt, recover_attempt
from perdure.engine.tasks.tally import AttemptTally
from perdure.wire.codec import decode_options

LANDED_POLL_S: Final = 0.01
COMMIT_FIRST_US: Final = 5_000
"""Delay before polling for a row that is due at once: it is not committed yet."""

# Transitions of a task, from the table of core/lifecycle.py.
RUNNING: Final = next_task_status(TaskStatus.DISPATCHED, "start")
PENDING: Final = next_task_status(RUNNING, "requeue")
SUCCEEDED: Final = next_task_status(RUNNING, "succeed")
FAILED: Final = next_task_status(RUNNING, "fail")
CANCELLED: Final = next_task_status(RUNNING, "cancel")

Attempt = AttemptToken


class Attempts:
    def __init__(self, context: EngineContext, flow_control: FlowControl) -> None:
        self._worker, self._counters, self._queue = context.worker, context.counters, context.queue
        self._now_us, self._events, self._flow_control = context.now_us, context.events, flow_control
        self.tally = AttemptTally(context.names)
        self.flights: dict[tuple[bytes, int], Flight] = {}
        """By run and seq."""
        self.orphaned: dict[Attempt, int] = {}
        """Attempts that workers brought along from engines that are gone, and that have no row -> namespace. One that succeeds before
        another attempt of its task does is a message to its run."""

    def work_due(self, delay_us: int) -> None:
        """A row is being written that can be claimed then."""
        self._events.work_due.publish(max(delay_us, COMMIT_FIRST_US))

    def get(self, run_id: bytes, seq: int) -> Flight | None:
        return self.flights.get((run_id, seq))

    def unplaced(self, placed: Container[tuple[bytes, int]]) -> set[Attempt]:
        """Attempts in flight that no worker has, by a worker's own list."""
        return {(*key, f.assignment.attempt) for key, f in self.flights.items() if key not in placed}

    def host_bound(self, attempts: list[Attempt]) -> set[Attempt]:
        """Those whose jobs run on their worker's machine, where the next worker finds them again."""
        return {
            token
            for token in attempts
            if (f := self.get(*token[:2])) is not None and is_host_bound(f.assignment.options.executor)
        }

    def claimed(self, t: ClaimedTask, run: ActiveRun | None, now: int) -> Assignment:
        """A task whose row belongs to this session begins or continues here. The end of one whose run is leaving is a message to it."""
        if run is not None and type(run.phase) is Leaving:
            run = None
        options = decode_options(t.options)
        a = Assignment(
            t.run_id,
            t.seq,
            t.attempt,
            run.epoch if run else 0,
            t.name,
            t.input,
            options,
            t.ns,
            run.trace if run else t.trace or "",
            t.queue,
            job_name(t.id, t.scheduled_us, t.attempt) if options.executor else "",
        )
        self.flights[t.run_id, t.seq] = Flight(a, run, t.name, t.queue, t.lost, t.scheduled_us, now, now, True)
        self._flow_control.launched(t.id, t.keys)
        if run is not None:
            run.queued = added(run.queued, t.seq)
        return a

    def expires(self, options: TaskOptions, scheduled_us: int, due_us: int) -> int | None:
        """For the row of a task that waits: the moment by which it must have begun."""
        expires_us = waits_until_us(options, scheduled_us, due_us)
        if expires_us is not None:
            self._events.start_deadline_set.publish(expires_us)
        return expires_us

    def reported(self, reports: list[Report]) -> None:
        waited: list[int] = []
        took: list[int] = []
        now, ns, name, worker = self._now_us(), 0, "", ""
        done: list[int] = []
        """Durations of successes of one task and one worker."""
        for r in reports:
            flight = self.flights.get((r.run_id, r.seq))
            if flight is None or not is_about(flight.assignment, r):
                self._late(r)
                continue
            del self.flights[r.run_id, r.seq]
            us = r.finished_us - r.started_us
            took.append(us)
            if r.end is End.SUCCESS:
                r.worker = r.worker or self._worker.name_of(r.run_id, r.seq)
                if flight.name != name or r.worker != worker or flight.assignment.ns != ns:
                    if done:
                        self.tally.all_ended((ns, name), worker, "success", done, now)
                    ns, name, worker, done = flight.assignment.ns, flight.name, r.worker, []
                done.append(us)
            if r.attempt == 1:  # a later one has waited for its retry
                waited.append(r.started_us - flight.scheduled_us)
            if flight.row and flight.run is not None and isinstance(phase := flight.run.phase, Leaving):
                flight.run_leaves(phase)
            if r.end is End.SUCCESS and flight.run is not None and not flight.row:
                self._short_success(flight.run, flight, r)
            else:
                by = r.worker or self._worker_of(flight)
                spent = (flight.scheduled_us, r.started_us, r.finished_us, by, r.cpu_us)
                self._ended(flight, r.end, r.failure, r.value, spent)
        if done:
            self.tally.all_ended((ns, name), worker, "success", done, now)
        self._counters.measures.task_us.add_all(took)
        self._counters.measures.schedule_to_start_us.add_all(waited)

    def _late(self, r: Report) -> None:
        """No run here waits for it. If the engine that owned the run is gone, a success becomes a message to the run."""
        ns = self.orphaned.pop((r.run_id, r.seq, r.attempt), None)
        if ns is None or r.end is not End.SUCCESS:
            self._counters.late_reports += 1
            return
        at = (r.started_us, r.started_us, r.finished_us, r.worker, r.cpu_us)
        self._events.orphaned_task_ended.publish(
            r.run_id, ns, TaskEndedMessage(r.seq, SUCCEEDED, r.value, None, r.attempt, 0, *at, orphaned=True)
        )

    def _worker_of(self, flight: Flight) -> str | None:
        return flight.worker or self._worker.name_of(flight.assignment.run_id, flight.assignment.seq) or None

    def _spent(self, flight: Flight, now: int) -> Spent:
        """Of an attempt whose end no worker reported."""
        return (flight.scheduled_us, flight.sent_us, now, self._worker_of(flight), None)

    def _short_success(self, run: ActiveRun, flight: Flight, r: Report) -> None:
        """The ordinary end, written once in its final state."""
        scheduled = run.state.tasks.get(r.seq)
        if scheduled is None or not run.phase.is_active:
            self._counters.late_reports += 1
            return
        row = run.task_row(
            r.seq,
            scheduled,
            SUCCEEDED,
            r.attempt,
            flight.lost,
            (
                flight.scheduled_us,
                r.started_us,
                r.finished_us,
                r.worker or None,
                r.cpu_us,
            ),
        )
        run.record_success(r.seq, r.value, row)
        self._counters.tasks_ended += 1
        self._queue.mark(run, urgent=True)

    def _ended(self, flight: Flight, end: End, failure: Failure | None, value: bytes, spent: Spent) -> None:
        a = flight.assignment
        task_id = ids.derive(a.run_id, ids.TASK, a.seq)
        if end is End.CANCELLED:  # not by this engine: the worker is shutting down
            end = End.LOST
        left = left_us(a.options, flight.scheduled_us, self._now_us())
        verdict = settle(a.options, task_id, a.attempt, flight.lost, end, failure, left)
        if isinstance(verdict, Fail) or (isinstance(verdict, Requeue) and verdict.attempt > a.attempt):
            self._count(flight, outcome_of(verdict.failure.code), spent)
        run = flight.run
        if run is None:
            self._end_remote(flight, task_id, verdict, value, spent)
            return
        scheduled = run.state.tasks.get(a.seq)
        if scheduled is None or not run.phase.is_active:
            self._counters.late_reports += 1
            return
        self._apply(run, a.seq, scheduled, verdict, a.attempt, flight.lost, spent, value)

    def _count(self, flight: Flight, outcome: str, spent: Spent) -> None:
        took_us = spent[2] - (spent[1] or spent[2])
        self.tally.ended((flight.assignment.ns, flight.name), spent[3], outcome, took_us, spent[2])

    def _apply(
        self,
        run: ActiveRun,
        seq: int,
        scheduled: ev.TasksScheduled,
        verdict: Verdict,
        attempt: int,
        lost: int,
        spent: Spent,
        value: bytes,
    ) -> None:
        match verdict:
            case Succeed():
                run.unqueue(seq, attempt)
                run.record_success(seq, value, run.task_row(seq, scheduled, SUCCEEDED, attempt, lost, spent))
            case Fail(failure):
                self._counters.tasks_failed += 1
                run.unqueue(seq, attempt)
                changes = run.record(ev.TaskFailed(seq, failure, attempt))
                changes.tasks.append(run.task_row(seq, scheduled, FAILED, attempt, lost, spent, failure))
            case Requeue():
                record_attempt(run, seq, scheduled, attempt, verdict, spent)
                run.queue_row(
                    seq,
                    scheduled,
                    PENDING,
                    verdict.attempt,
                    verdict.lost,
                    verdict.delay_us,
                    spent[0],
                    verdict.failure.message,
                    self.expires(scheduled.options, spent[0], self._now_us() + verdict.delay_us),
                )
                self._counters.tasks_retried += 1
                self.work_due(verdict.delay_us)
            case Cancel():
                pass
        if not isinstance(verdict, Requeue):
            self._counters.tasks_ended += 1
        self._queue.mark(run, urgent=True)

    def _end_remote(self, flight: Flight, task_id: bytes, verdict: Verdict, value: bytes, spent: Spent) -> None:
        a = flight.assignment
        if isinstance(verdict, Requeue):
            self._counters.tasks_retried += 1
            expires_us = self.expires(a.options, flight.scheduled_us, self._now_us() + verdict.delay_us)
            self._add(flight, RequeueUnit(task_id, a.run_id, verdict, a.attempt, expires_us, spent))
            self.work_due(verdict.delay_us)
        else:
            failure = verdict.failure if isinstance(verdict, Fail) else None
            status = SUCCEEDED if failure is None else FAILED
            self._counters.tasks_failed += failure is not None
            scheduled_us, started_us, finished_us, worker, cpu_us = spent
            times = (scheduled_us, started_us or finished_us, finished_us)
            value = value if failure is None else b""
            message = TaskEndedMessage(
                a.seq, status, value, failure, a.attempt, flight.lost, *times, worker or "", cpu_us
            )
            self._add(flight, ReportUnit(task_id, a, message))
        self._counters.tasks_ended += 1

    def _add(self, flight: Flight, end: Unit) -> None:
        if flight.deferred is None or not flight.deferred.take(end):
            self._queue.add(end)

    def arrived(self, run: ActiveRun, message: TaskEndedMessage) -> None:
        """The end of one of our run's tasks that another engine's worker executed. Any other attempt of it is void."""
        scheduled = run.state.tasks.get(message.seq)
        if scheduled is None:
            discard(run.queued, message.seq)
            self._counters.late_reports += 1
            return
        run.unqueue(message.seq, message.attempts)
        flight = self.flights.pop((run.id, message.seq), None)
        if flight is not None:
            self._worker.cancel(run.id, message.seq, flight.assignment.attempt)
        if message.orphaned:
            recover_attempt(run, message.seq, message.attempts)
        spent = message.spent(self._now_us())
        if message.failure is None:
            row = run.task_row(message.seq, scheduled, SUCCEEDED, message.attempts, message.lost, spent)
            run.record_success(message.seq, message.value, row)
        else:
            row = run.task_row(message.seq, scheduled, FAILED, message.attempts, message.lost, spent, message.failure)
            run.record(ev.TaskFailed(message.seq, message.failure, message.attempts)).tasks.append(row)

    def cancel(self, run: ActiveRun, seqs: list[int]) -> None:
        """Cancel tasks of a run: recorded at once, then stopped where they run."""
        live = [s for s in seqs if s in run.state.tasks]
        if not live:
            return
        now = self._now_us()
        rows = [self._cancelled_row(run, seq, now) for seq in live]
        for row in rows:
            run.unqueue(row.seq, row.attempts)
        changes = run.record(ev.TasksCancelled(live))
        changes.tasks.extend(rows)
        changes.rows += len(rows)

    def _cancelled_row(self, run: ActiveRun, seq: int, now: int) -> TaskRow:
        flight = self.flights.pop((run.id, seq), None)
        scheduled = run.state.tasks[seq]
        if flight is None:
            return run.task_row(seq, scheduled, CANCELLED, 0, 0, (now, None, now, None, None))
        a, spent = flight.assignment, self._spent(flight, now)
        self._worker.cancel(a.run_id, a.seq, a.attempt)
        self._count(flight, "cancelled", spent)
        return run.task_row(seq, scheduled, CANCELLED, a.attempt, flight.lost, spent)

    def requeue_lost(self, run: ActiveRun, seq: int, now: int) -> None:
        scheduled = run.state.tasks[seq]
        self._counters.tasks_lost += 1
        verdict = settle(scheduled.options, ids.derive(run.id, ids.TASK, seq), 1, 0, End.LOST, None)
        self._apply(run, seq, scheduled, verdict, 1, 0, (now, None, now, None, None), b"")

    def ended_lost(self, flight: Flight, worker: str = "") -> None:
        """Its worker is lost."""
        flight.worker = flight.worker or worker
        a = flight.assignment
        del self.flights[a.run_id, a.seq]
        self._counters.tasks_lost += 1
        self._ended(flight, End.LOST, None, b"", self._spent(flight, self._now_us()))

    def stop(self, flight: Flight) -> None:
        """Stop an attempt that no run waits for."""
        a = flight.assignment
        del self.flights[a.run_id, a.seq]
        self._worker.cancel(a.run_id, a.seq, a.attempt)

    def check(self, patient: bool) -> None:
        """Timeouts, and rows for long tasks. `patient`: heartbeats may be unread."""
        now = self._now_us()
        for flight in list(self.flights.values()):
            if flight.check_us <= now:  # tens of thousands may wait for jobs outside
                self._check_flight(flight, now, patient)

    def _check_flight(self, flight: Flight, now: int, patient: bool) -> None:
        a, o = flight.assignment, flight.assignment.options
        if o.timeout_us and now - flight.sent_us > o.timeout_us:
            self._abort(
                flight,
                End.TIMEOUT,
                f"attempt {a.attempt} did not end within its timeout of {o.timeout_us / 1e6:g} s",
                now,
            )
        elif o.to_close_us and now - flight.scheduled_us > o.to_close_us:
            self._abort(
                flight,
                End.EXPIRED,
                f"the task did not end within {o.to_close_us / 1e6:g} s of being scheduled (finish_within); attempt {a.attempt} was stopped",
                now,
            )
        elif o.heartbeat_us and now - flight.beat_us > o.heartbeat_us and not patient:
            self._abort(
                flight, End.HEARTBEAT, f"attempt {a.attempt} sent no heartbeat for {o.heartbeat_us / 1e6:g} s", now
            )
        elif not flight.row and now - flight.sent_us > LONG_RUNNING_US:
            self._write_row(flight)
        else:
            flight.check_us = flight.next_check_us()

    def _abort(self, flight: Flight, end: End, text: str, now: int) -> None:
        a = flight.assignment
        spent = self._spent(flight, now)
        del self.flights[a.run_id, a.seq]
        self._worker.cancel(a.run_id, a.seq, a.attempt)
        self._ended(flight, end, Failure("task_timeout", text, "TimeoutError"), b"", spent)

    def beats(self, beats: list[Beat]) -> None:
        """Attempts are alive. A worker in this process calls it from a thread of its own while the event loop is blocked: it only
        looks up and sets, which is safe there."""
        now = self._now_us()
        for b in beats:
            flight = self.flights.get((b.run_id, b.seq))
            if flight is None or flight.assignment.attempt != b.attempt:
                continue
            flight.beat_us = now
            if b.blocked != flight.blocked or (b.details and b.details != flight.details):
                flight.blocked, flight.details = b.blocked, b.details or flight.details
                flight.is_recorded = False

    def write_rows(self) -> None:
        """Every attempt under way gets its row, so that it can be taken to another engine."""
        for flight in list(self.flights.values()):
            self._write_row(flight)

    def write_rows_of(self, run: ActiveRun) -> None:
        for flight in [f for f in self.flights.values() if f.run is run]:
            self._write_row(flight)

    def _write_row(self, flight: Flight) -> None:
        a, run = flight.assignment, flight.run
        if flight.row or run is None or a.seq not in run.state.tasks:
            return
        flight.row = True
        scheduled = run.state.tasks[a.seq]
        run.queue_row(
            a.seq, scheduled, RUNNING, a.attempt, flight.lost, 0, flight.scheduled_us, None, None, flight.sent_us
        )
        self._queue.mark(run, urgent=False)

    def flying_runs(self) -> set[ActiveRun]:
        """Runs with tasks in flight here."""
        return {f.run for f in self.flights.values() if f.run is not None}

    async def landed(self) -> None:
        """Wait until none is in flight."""
        while self.flights:  # noqa: ASYNC110 - attempts end by several ways, and only closing waits for all of them
            await asyncio.sleep(LANDED_POLL_S)

    def take_over(self, run: ActiveRun) -> None:
        """The run was loaded. Tasks of it that are in flight here, claimed for its former owner, are its own again; one that is
        outstanding and neither queued nor in flight vanished with the engine that had it in memory."""
        now = self._now_us()
        for seq in list(run.state.tasks):
            flight = self.flights.get((run.id, seq))
            if flight is not None:
                flight.run = run
            elif seq not in run.queued:
                self.requeue_lost(run, seq, now)

    def abandon(self, run: ActiveRun) -> None:
        """The run leaves this engine. Claimed tasks with a row go on and end as messages, unless the run has ended."""
        if not run.state.tasks:
            return  # nothing of it can be in flight
        phase = run.phase
        for flight in [f for f in self.flights.values() if f.run is run]:
            if flight.row and isinstance(phase, Leaving):
                flight.run_leaves(phase)
            else:
                self.stop(flight)

    def abandon_all(self) -> None:
        """The session is lost, and with it every claim."""
        self.orphaned.clear()
        for flight in list(self.flights.values()):
            self.stop(flight)
