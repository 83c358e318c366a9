"""From a scheduled task to its recorded end.

    ScheduleTasks --> backlog --> worker --> report --> settle --> event + task row
                 \\-> task_queue (no local worker, at most once, retry, spill) --> claimed by any engine --> ...
                                                                             \\-> not begun in time: expiry.py

Laws:

1. Every end of an attempt goes through `settle` (core/retry.py): exception, timeout, silence, lost worker, cancellation.
2. A retry is a row with a time, never a sleeping worker.
3. A task without a row in task_queue, that its run's history holds as outstanding and that is not in flight here, is lost:
   the engine that had it in memory is gone.
4. An at-most-once task goes through task_queue always, so that its dispatch is durable before it is sent. So does a task that must
   begin, or end over all attempts, within some time: its row carries the moment, for whichever engine finds that it has passed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import TaskEnded
from perdure.core.placement import Placement
from perdure.core.retry import (
    Cancel,
    End,
    Fail,
    Requeue,
    Succeed,
    TaskOptions,
    Verdict,
    left_us,
    settle,
    waits_until_us,
)
from perdure.core.work import Assignment, Beat, Report
from perdure.engine.commits.rows import Batch, ReportRow, RequeuedRow, TaskRow
from perdure.engine.counters import Counters
from perdure.engine.ports import Again, ClaimedTask, Kind, LostTask, WorkerPort
from perdure.engine.runs.run import ActiveRun
from perdure.engine.tasks.backlog import TURN_TASKS, Backlog, Line
from perdure.engine.tasks.flow_control import Lines
from perdure.wire.codec import decode_options, encode_mail

ALL_SLOTS = 1_000_000
"""More than any worker has: no need to take turns."""
LONG_RUNNING_US = 1_000_000
"""A task that has been running for this long gets its row, so that everybody can see it."""
LATE_TICKS_MAX = 10
"""Ticks in a row that may come late and leave heartbeats unchecked."""


class Flight(msgspec.Struct, gc=False):
    """An attempt that is with the local worker."""

    assignment: Assignment
    run: ActiveRun | None
    """None: the run is owned by another engine."""
    name: str
    queue: str
    lost: int
    scheduled_us: int
    sent_us: int
    beat_us: int
    row: bool
    """It has a row in task_queue."""
    worker: str = ""
    details: bytes = b""
    """What the attempt last said about its progress."""
    blocked: str = ""
    """The stack that holds its worker's event loop, where one does."""
    noted: bool = False
    """What is known of it is in its row; set to False by whoever changes it."""


class ReportUnit:
    """The end of a task whose run lives elsewhere: its row goes, mail to the run comes."""

    def __init__(self, task_id: bytes, attempt: int, mail: TaskEnded) -> None:
        self.task_id = task_id
        self._row = ReportRow(task_id, attempt, encode_mail(mail))

    def fill(self, batch: Batch) -> None:
        batch.reports.append(self._row)


class RequeueUnit:
    """Another attempt of a task whose run lives elsewhere."""

    def __init__(self, task_id: bytes, verdict: Requeue, expires_us: int | None) -> None:
        self.task_id = task_id
        self._row = RequeuedRow(
            task_id, verdict.attempt, verdict.lost, verdict.delay_us, verdict.failure.message, expires_us
        )

    def fill(self, batch: Batch) -> None:
        batch.requeued.append(self._row)


class Dispatcher:
    def __init__(
        self,
        worker: WorkerPort | None,
        counters: Counters,
        now_us: Callable[[], int],
        placement: Placement,
        mark: Callable[[ActiveRun, bool], None],
        add: Callable[[ReportUnit | RequeueUnit], None],
        wake_claims: Callable[[int], None],
        stray_ended: Callable[[bytes, int, TaskEnded], None],
        lines: Lines,
    ) -> None:
        self._worker, self._counters, self._now_us, self._placement = worker, counters, now_us, placement
        self._mark, self._add, self._wake_claims, self.stray_ended = mark, add, wake_claims, stray_ended
        self.lines = lines
        self.held_back = 0
        """Slots that are kept for tasks in lines, while the local backlog would take them all."""
        self.backlog = Backlog()
        self.flights: dict[tuple[bytes, int], Flight] = {}
        self.served: frozenset[Kind] = frozenset()
        self.strays: dict[tuple[bytes, int, int], int] = {}
        """Attempts that workers brought along from engines that are gone, and that have no row: (run, seq, attempt) -> namespace.
        If one ends well before somebody else's attempt does, its run is told by mail."""
        self._ended_before, self._rate_at_us, self._rate = 0, 0, 0.0
        self.tick_us = 100_000
        """How often `tick` is meant to be called."""
        self._ticked_us = self._late_ticks = 0
        self.expires: Callable[[int], None] = lambda at_us: None
        """Told of every moment by which a task that waits in task_queue must have begun."""

    # -- out --------------------------------------------------------------------------------------------------------

    def schedule(self, run: ActiveRun, event: ev.TasksScheduled) -> None:
        """Tasks the run just asked for. Their event is recorded but need not be durable yet."""
        now = self._now_us()
        served = (run.ns, event.queue, event.name) in self.served
        if served and not _needs_row(event.options) and not self.lines.limits(run.ns, event, run.workflow):
            self.backlog.push(run, event, now)
        else:
            expires_us = self._expires(event.options, now, now)
            for seq in range(event.first, event.first + len(event.inputs)):
                run.queue_row(seq, event, TaskStatus.PENDING, 1, 0, 0, now, None, expires_us)
            self._wake_claims(0)

    def _expires(self, options: TaskOptions, scheduled_us: int, due_us: int) -> int | None:
        """For the row of a task that waits: the moment by which it must have begun."""
        expires_us = waits_until_us(options, scheduled_us, due_us)
        if expires_us is not None:
            self.expires(expires_us)
        return expires_us

    def refill(self) -> None:
        """Give workers as much as they have slots for: kinds that share slots take turns."""
        if self._worker is None:
            return
        lines = self.backlog.lines()
        while lines:
            turn = TURN_TASKS if len(lines) > 1 else ALL_SLOTS
            lines = [(kind, line) for kind, line in lines if self._refill(kind, line, turn)]

    def _refill(self, kind: Kind, line: Line, turn: int) -> bool:
        """Whether there may be more to do for this kind."""
        assert self._worker is not None
        free = min(self._worker.free_for(kind), turn, self._worker.slots_free - self.held_back)
        if free <= 0 or line.size <= 0:
            return False
        now = self._now_us()
        batch = [self._launch(run, seq, event, scheduled_us, now) for run, seq, event, scheduled_us in line.take(free)]
        if batch:
            self._counters.tasks_dispatched += len(batch)
            self._worker.assign(batch)
        return bool(batch)

    def _launch(self, run: ActiveRun, seq: int, event: ev.TasksScheduled, scheduled_us: int, now: int) -> Assignment:
        a = Assignment(
            run.id,
            seq,
            1,
            run.epoch,
            event.name,
            event.inputs[seq - event.first],
            event.options,
            run.ns,
            run.trace,
            event.queue,
        )
        self.flights[run.id, seq] = Flight(a, run, event.name, event.queue, 0, scheduled_us, now, now, False)
        return a

    def launch_claimed(self, tasks: list[ClaimedTask], owned: Callable[[bytes], ActiveRun | None]) -> None:
        """Tasks taken from the shared queue; the claim is durable."""
        if self._worker is None:
            return
        now = self._now_us()
        batch: list[Assignment] = []
        for t in tasks:
            run = owned(t.run_id)
            if run is not None and t.seq not in run.state.tasks:
                continue  # cancelled in the meantime; its row is being deleted
            stale = self.flights.get((t.run_id, t.seq))
            if stale is not None:  # it lost its row: the run was closed, and retried since
                self._worker.cancel(t.run_id, t.seq, stale.assignment.attempt)
            batch.append(self._launch_claimed(t, run, now))
        self._counters.tasks_claimed += len(batch)
        self._counters.tasks_dispatched += len(batch)
        self._worker.assign(batch)

    def _launch_claimed(self, t: ClaimedTask, run: ActiveRun | None, now: int) -> Assignment:
        a = Assignment(
            t.run_id, t.seq, t.attempt, run.epoch if run else 0, t.name, t.input, decode_options(t.options), t.ns,
            run.trace if run else t.trace or "", t.queue,
        )  # fmt: skip
        self.flights[t.run_id, t.seq] = Flight(a, run, t.name, t.queue, t.lost, t.scheduled_us, now, now, True)
        self.lines.launched(t.id, t.keys)
        if run is not None:
            run.queued.add(t.seq)
        return a

    def adopt_running(self, tasks: list[ClaimedTask], owned: Callable[[bytes], ActiveRun | None]) -> list[Assignment]:
        """Tasks that a worker which has just come is running already. It began them in an epoch that is not known here."""
        now = self._now_us()
        adopted = [
            self._launch_claimed(t, run, now)
            for t in tasks
            if (run := owned(t.run_id)) is None or t.seq in run.state.tasks
        ]
        for a in adopted:
            a.epoch = 0
        return adopted

    def requeue_lost(self, run: ActiveRun, seq: int, now: int) -> None:
        """A task that vanished with the engine that had it in memory."""
        scheduled = run.state.tasks[seq]
        self._counters.tasks_lost += 1
        verdict = settle(scheduled.options, ids.derive(run.id, ids.TASK, seq), 1, 0, End.LOST, None)
        self._apply(run, seq, scheduled, verdict, 1, 0, (now, None, now), b"")

    # -- back -------------------------------------------------------------------------------------------------------

    def reported(self, reports: list[Report]) -> None:
        waits, takes = self._counters.measures.schedule_to_start_us, self._counters.measures.task_us
        waited_us = took_us = 0
        for r in reports:
            flight = self.flights.get((r.run_id, r.seq))
            if flight is None or not _about(flight.assignment, r):
                self._late(r)
                continue
            del self.flights[r.run_id, r.seq]
            us = r.finished_us - r.started_us
            takes.counts[us.bit_length()] += 1
            took_us += us
            if r.attempt == 1:  # a later one has waited for its retry
                us = r.started_us - flight.scheduled_us
                waits.counts[us.bit_length()] += 1
                waited_us += us
            if flight.run is not None and flight.run.evicted and flight.row:
                flight.run = None  # the run has left since; its next owner gets the result by mail
            if r.end is End.SUCCESS and flight.run is not None and not flight.row:
                self._short_success(flight.run, flight, r)
            else:
                self._ended(flight, r.end, r.failure, r.value, (flight.scheduled_us, r.started_us, r.finished_us))
        takes.total += max(took_us, 0)  # two clocks may disagree by a little
        waits.total += max(waited_us, 0)
        self.refill()

    def _late(self, r: Report) -> None:
        """Nobody waits for it here. The engine that did may be gone: then the run gets to know of a success by mail."""
        ns = self.strays.pop((r.run_id, r.seq, r.attempt), None)
        if ns is None or r.end is not End.SUCCESS:
            self._counters.late_reports += 1
            return
        at = (r.started_us, r.started_us, r.finished_us)
        self.stray_ended(r.run_id, ns, TaskEnded(r.seq, TaskStatus.SUCCESS, r.value, None, r.attempt, 0, *at))

    def _short_success(self, run: ActiveRun, flight: Flight, r: Report) -> None:
        """The ordinary end, written once in its final state."""
        scheduled = run.state.tasks.get(r.seq)
        if scheduled is None or run.closing or run.evicted:
            self._counters.late_reports += 1
            return
        row = run.task_row(
            r.seq,
            scheduled,
            TaskStatus.SUCCESS,
            r.attempt,
            flight.lost,
            (flight.scheduled_us, r.started_us, r.finished_us),
            None,
        )
        run.record_success(r.seq, r.value, row)
        self._counters.tasks_ended += 1
        self._mark(run, True)

    def _ended(
        self, flight: Flight, end: End, failure: Failure | None, value: bytes, times: tuple[int, int | None, int]
    ) -> None:
        a = flight.assignment
        task_id = ids.derive(a.run_id, ids.TASK, a.seq)
        if end is End.CANCELLED:  # cancelled by nobody we know of: the worker is shutting down
            end = End.LOST
        left = left_us(a.options, flight.scheduled_us, self._now_us())
        verdict = settle(a.options, task_id, a.attempt, flight.lost, end, failure, left)
        run = flight.run
        if run is None:
            self._end_foreign(flight, task_id, verdict, value, times)
            return
        scheduled = run.state.tasks.get(a.seq)
        if scheduled is None or run.closing or run.evicted:
            self._counters.late_reports += 1
            return
        self._apply(run, a.seq, scheduled, verdict, a.attempt, flight.lost, times, value)

    def _apply(
        self,
        run: ActiveRun,
        seq: int,
        scheduled: ev.TasksScheduled,
        verdict: Verdict,
        attempt: int,
        lost: int,
        times: tuple[int, int | None, int],
        value: bytes,
    ) -> None:
        match verdict:
            case Succeed():
                run.unqueue(seq)
                run.record_success(
                    seq, value, run.task_row(seq, scheduled, TaskStatus.SUCCESS, attempt, lost, times, None)
                )
            case Fail(failure):
                self._counters.tasks_failed += 1
                run.unqueue(seq)
                changes = run.record(ev.TaskFailed(seq, failure, attempt))
                changes.tasks.append(
                    run.task_row(seq, scheduled, TaskStatus.FAILED, attempt, lost, times, failure.message)
                )
            case Requeue():
                run.queue_row(
                    seq,
                    scheduled,
                    TaskStatus.PENDING,
                    verdict.attempt,
                    verdict.lost,
                    verdict.delay_us,
                    times[0],
                    verdict.failure.message,
                    self._expires(scheduled.options, times[0], self._now_us() + verdict.delay_us),
                )
                self._counters.tasks_retried += 1
                self._wake_claims(verdict.delay_us)
            case Cancel():
                pass
        if not isinstance(verdict, Requeue):
            self._counters.tasks_ended += 1
        self._mark(run, True)

    def _end_foreign(
        self, flight: Flight, task_id: bytes, verdict: Verdict, value: bytes, times: tuple[int, int | None, int]
    ) -> None:
        a = flight.assignment
        started_us = times[1] or times[2]
        match verdict:
            case Requeue():
                self._counters.tasks_retried += 1
                expires_us = self._expires(a.options, flight.scheduled_us, self._now_us() + verdict.delay_us)
                self._add(RequeueUnit(task_id, verdict, expires_us))
                self._wake_claims(verdict.delay_us)
            case Fail(failure):
                self._counters.tasks_failed += 1
                mail = TaskEnded(
                    a.seq, TaskStatus.FAILED, b"", failure, a.attempt, flight.lost, times[0], started_us, times[2]
                )
                self._add(ReportUnit(task_id, a.attempt, mail))
            case _:
                mail = TaskEnded(
                    a.seq, TaskStatus.SUCCESS, value, None, a.attempt, flight.lost, times[0], started_us, times[2]
                )
                self._add(ReportUnit(task_id, a.attempt, mail))
        self._counters.tasks_ended += 1

    def arrived(self, run: ActiveRun, mail: TaskEnded) -> None:
        """The end of one of our run's tasks that another engine's worker executed. Whatever else was under way for it is void."""
        scheduled = run.state.tasks.get(mail.seq)
        if scheduled is None:
            run.queued.discard(mail.seq)
            self._counters.late_reports += 1
            return
        run.unqueue(mail.seq)
        flight = self.flights.pop((run.id, mail.seq), None)
        if flight is not None and self._worker is not None:
            self._worker.cancel(run.id, mail.seq, flight.assignment.attempt)
        now = self._now_us()  # whoever takes a task from a dead engine does not know its times
        times = (mail.scheduled_us or now, mail.started_us or None, mail.finished_us or now)
        if mail.status == TaskStatus.SUCCESS:
            run.record_success(
                mail.seq,
                mail.value,
                run.task_row(mail.seq, scheduled, TaskStatus.SUCCESS, mail.attempts, mail.lost, times, None),
            )
        else:
            assert mail.failure is not None
            changes = run.record(ev.TaskFailed(mail.seq, mail.failure, mail.attempts))
            changes.tasks.append(
                run.task_row(
                    mail.seq, scheduled, TaskStatus.FAILED, mail.attempts, mail.lost, times, mail.failure.message
                )
            )

    def cancel(self, run: ActiveRun, seqs: list[int]) -> None:
        """The run no longer wants these tasks: recorded at once, unwound where they run."""
        live = [s for s in seqs if s in run.state.tasks]
        if not live:
            return
        now = self._now_us()
        rows = [self._cancelled_row(run, seq, now) for seq in live]
        for seq in live:
            run.unqueue(seq)
        changes = run.record(ev.TasksCancelled(live))
        changes.tasks.extend(rows)
        changes.rows += len(rows)

    def _cancelled_row(self, run: ActiveRun, seq: int, now: int) -> TaskRow:
        flight = self.flights.pop((run.id, seq), None)
        scheduled = run.state.tasks[seq]
        if flight is None:
            return run.task_row(seq, scheduled, TaskStatus.CANCELLED, 0, 0, (now, None, now), None)
        a = flight.assignment
        if self._worker is not None:
            self._worker.cancel(a.run_id, a.seq, a.attempt)
        return run.task_row(
            seq,
            scheduled,
            TaskStatus.CANCELLED,
            a.attempt,
            flight.lost,
            (flight.scheduled_us, flight.sent_us, now),
            None,
        )

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def tick(self, others_free: int) -> None:
        """Timeouts, visibility of long tasks, and sharing; called a few times a second."""
        now = self._now_us()
        patient = self._is_late(now)
        for flight in list(self.flights.values()):
            self._check_flight(flight, now, patient)
        self._share(now, others_free)

    def _is_late(self, now: int) -> bool:
        """Something held the event loop since the last tick. Heartbeats that arrived meanwhile wait in its queue, so nobody is
        taken for silent until they were read."""
        late = now - self._ticked_us > 2 * self.tick_us and self._late_ticks < LATE_TICKS_MAX
        self._ticked_us = now
        self._late_ticks = self._late_ticks + 1 if late else 0
        return late

    def line_up(self) -> None:
        """Rules have changed: what they are about waits in lines from now on."""
        for run, seq, event, scheduled_us in self.backlog.take_where(self.lines.limits):
            run.queue_row(seq, event, TaskStatus.PENDING, 1, 0, 0, scheduled_us, None)
            self._mark(run, True)

    def unserved(self) -> None:
        """Workers left: what only they could run goes to the shared queue."""
        for run, seq, event, scheduled_us in self.backlog.take_unserved(self.served):
            run.queue_row(seq, event, TaskStatus.PENDING, 1, 0, 0, scheduled_us, None)
            self._mark(run, True)

    def lost(self, tokens: list[tuple[bytes, int, int]], elsewhere: set[tuple[bytes, int]]) -> None:
        """The worker that had these attempts is gone for good. Those in `elsewhere` it took along to another engine."""
        now = self._now_us()
        for run_id, seq, attempt in tokens:
            flight = self.flights.get((run_id, seq))
            if flight is None or flight.assignment.attempt != attempt:
                continue
            del self.flights[run_id, seq]
            if (run_id, seq) not in elsewhere:
                self._counters.tasks_lost += 1
                self._ended(flight, End.LOST, None, b"", (flight.scheduled_us, flight.sent_us, now))
        self.refill()

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

    def _abort(self, flight: Flight, end: End, text: str, now: int) -> None:
        a = flight.assignment
        del self.flights[a.run_id, a.seq]
        if self._worker is not None:
            self._worker.cancel(a.run_id, a.seq, a.attempt)
        self._ended(
            flight, end, Failure("task_timeout", text, "TimeoutError"), b"", (flight.scheduled_us, flight.sent_us, now)
        )

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
                flight.noted = False

    def _share(self, now: int, others_free: int) -> None:
        """Offer what the local worker will not get to soon to engines with free slots."""
        elapsed_us = now - self._rate_at_us
        if elapsed_us >= 200_000:
            rate = (self._counters.tasks_ended - self._ended_before) * 1e6 / elapsed_us
            self._rate = rate if rate > self._rate else 0.5 * self._rate + 0.5 * rate
            self._ended_before, self._rate_at_us = self._counters.tasks_ended, now
        spill = self._placement.spill(self.backlog.size, self._rate, others_free)
        for run, seq, event, scheduled_us in self.backlog.take(spill):
            run.queue_row(seq, event, TaskStatus.PENDING, 1, 0, 0, scheduled_us, None)
            self._counters.tasks_spilled += 1
            self._mark(run, False)

    def write_rows(self) -> None:
        """Every attempt under way gets its row, so that it can be taken to another engine."""
        for flight in list(self.flights.values()):
            self._write_row(flight)

    def _write_row(self, flight: Flight) -> None:
        a, run = flight.assignment, flight.run
        if flight.row or run is None or a.seq not in run.state.tasks:
            return
        flight.row = True
        scheduled = run.state.tasks[a.seq]
        run.queue_row(a.seq, scheduled, TaskStatus.RUNNING, a.attempt, flight.lost, 0, flight.scheduled_us, None)
        self._mark(run, False)

    def hand_back(self) -> None:
        """Put what has not been started into the shared queue, for other engines; nothing new is started here."""
        for run, seq, event, scheduled_us in self.backlog.take(self.backlog.size):
            run.queue_row(seq, event, TaskStatus.PENDING, 1, 0, 0, scheduled_us, None)
            self._mark(run, True)
        self.served = frozenset()

    def flying_runs(self) -> set[ActiveRun]:
        """Runs with tasks at work here."""
        return {f.run for f in self.flights.values() if f.run is not None}

    def busy_runs(self) -> set[ActiveRun]:
        """Runs with tasks in this engine's memory."""
        busy = self.flying_runs()
        busy.update(self.backlog.runs())
        return busy

    def adopt(self, run: ActiveRun) -> None:
        """A run was loaded while some of its tasks are in flight here (claimed for its former owner)."""
        for seq in run.state.tasks:
            flight = self.flights.get((run.id, seq))
            if flight is not None:
                flight.run = run

    def abandon(self, run: ActiveRun) -> None:
        """The run leaves this engine. Claimed tasks with a row go on and report by mail; the rest is not ours any more."""
        self.backlog.drop(run)
        if not run.state.tasks:
            return  # nothing of it can be in flight
        for key in [k for k, f in self.flights.items() if f.run is run]:
            flight = self.flights[key]
            if flight.row and not run.closing:
                flight.run = None
            else:
                a = self.flights.pop(key).assignment
                if self._worker is not None:
                    self._worker.cancel(a.run_id, a.seq, a.attempt)

    def abandon_all(self) -> None:
        """The session is gone, and with it every claim."""
        self.strays.clear()
        self.backlog.clear()
        flights, self.flights = self.flights, {}
        if self._worker is not None:
            for f in flights.values():
                self._worker.cancel(f.assignment.run_id, f.assignment.seq, f.assignment.attempt)

    def drop_stolen(self, stolen: list[Flight]) -> None:
        """Attempts whose row is no longer ours are stopped; one that took off since the question was asked is another flight."""
        for f in stolen:
            a = f.assignment
            if self.flights.get((a.run_id, a.seq)) is f and f.run is None:
                del self.flights[a.run_id, a.seq]
                if self._worker is not None:
                    self._worker.cancel(a.run_id, a.seq, a.attempt)


def _about(a: Assignment, r: Report) -> bool:
    """Whether a report is the end of this attempt. An epoch that one side does not know tells nothing."""
    return a.attempt == r.attempt and (not r.epoch or not a.epoch or r.epoch == a.epoch)


def _needs_row(o: TaskOptions) -> bool:
    """Whether it goes through task_queue even where a worker is at hand."""
    return o.at_most_once or bool(o.to_start_us or o.to_close_us)


def settle_lost(tasks: list[LostTask]) -> tuple[list[Again], list[tuple[bytes, bytes]]]:
    """For the reaper: what becomes of tasks whose engine is gone. One whose time is over by now fails in its turn, by expiry."""
    again: list[Again] = []
    failed: list[tuple[bytes, bytes]] = []
    for t in tasks:
        options: TaskOptions = decode_options(t.options)
        match settle(options, t.id, t.attempt, t.lost, End.LOST, None):
            case Requeue(attempt, lost):
                again.append((t.id, attempt, lost, options.to_start_us or None, options.to_close_us or None))
            case Fail(failure):
                mail = TaskEnded(t.seq, TaskStatus.FAILED, b"", failure, t.attempt, t.lost + 1, 0, 0, 0)
                failed.append((t.id, encode_mail(mail)))
            case _:
                raise AssertionError("a lost attempt is queued again or fails")
    return again, failed
