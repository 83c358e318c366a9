"""From a scheduled task to a worker.

    ScheduleTasks --> backlog --> worker --> report --> attempts.py: settle --> event + task row
                 \\-> task_queue (no local worker, at most once, retry, spill) --> claimed by any engine --> ...
                                                                             \\-> not begun in time: start_deadlines.py

Laws:

1. A task without a row in task_queue, that its run's history holds as outstanding and that is not in flight here, is lost:
   the engine that had it in memory is gone.
2. An at-most-once task goes through task_queue always, so that its dispatch is durable before it is sent; so does one that an
   executor runs, because the name of its job must be recorded before the job is started. So does a task that must begin, or end
   over all attempts, within some time: its row carries the moment, for the engine that finds that it has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from perdure.core import events as ev
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment, AttemptToken, Report
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.ports import ClaimedTask, Kind
from perdure.engine.runs.run import ActiveRun
from perdure.engine.tasks.attempts import PENDING, Attempts
from perdure.engine.tasks.backlog import TURN_TASKS, Backlog, KindBacklog, WaitingTask
from perdure.engine.tasks.flight import Flight
from perdure.engine.tasks.worker_windows import WorkerLoad

ALL_SLOTS: Final = 1_000_000
"""More slots than any worker has: one pass takes everything."""
LATE_TICKS_MAX: Final = 10
"""Ticks in a row that may come late and leave heartbeats unchecked."""


class Dispatcher:
    def __init__(self, context: EngineContext, flow_control: FlowControl, attempts: Attempts) -> None:
        self._worker, self._counters, self._queue = context.worker, context.counters, context.queue
        self._now_us, self._events, self._placement = context.now_us, context.events, context.settings.placement
        self._flow_control, self._attempts, self._flights = flow_control, attempts, attempts.flights
        self._tick_us = int(context.settings.tick_s * 1e6)
        self.held_back = 0
        """Slots that are kept for tasks that flow control admits, while the local backlog would take them all."""
        self.backlog = Backlog()
        self.served: frozenset[Kind] = frozenset()
        self._ended_before, self._rate_at_us, self._rate = 0, 0, 0.0
        self._ticked_us = self._late_ticks = 0

    def schedule(self, run: ActiveRun, event: ev.TasksScheduled) -> None:
        """Tasks the run just asked for. Their event is recorded but need not be durable yet."""
        now = self._now_us()
        served = (run.ns, event.queue, event.name) in self.served
        if served and not _needs_row(event.options) and not self._flow_control.limits(run.ns, event, run.workflow):
            self.backlog.push(run, event, now)
        else:
            expires_us = self._attempts.expires(event.options, now, now)
            for seq in range(event.first, event.first + len(event.inputs)):
                run.queue_row(seq, event, PENDING, 1, 0, 0, now, None, expires_us)
            self._attempts.work_due(0)

    def refill(self) -> None:
        """Give workers as much as they have slots for: kinds that share slots take turns."""
        kinds = self.backlog.kinds()
        while kinds:
            turn = TURN_TASKS if len(kinds) > 1 else ALL_SLOTS
            kinds = [(kind, tasks) for kind, tasks in kinds if self._refill(kind, tasks, turn)]

    def _refill(self, kind: Kind, tasks: KindBacklog, turn: int) -> bool:
        """Whether there may be more to do for this kind."""
        free = min(self._worker.free_for(kind), turn, self._worker.slots_free - self.held_back)
        if free <= 0 or tasks.size <= 0:
            return False
        now = self._now_us()
        batch = [self._launch(run, seq, event, scheduled_us, now) for run, seq, event, scheduled_us in tasks.take(free)]
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
        self._flights[run.id, seq] = Flight(a, run, event.name, event.queue, 0, scheduled_us, now, now, False)
        return a

    def launch_claimed(self, tasks: list[ClaimedTask], owned: Callable[[bytes], ActiveRun | None]) -> None:
        """Tasks taken from the shared queue; the claim is durable."""
        now = self._now_us()
        batch: list[Assignment] = []
        for t in tasks:
            run = owned(t.run_id)
            if run is not None and t.seq not in run.state.tasks:
                continue  # cancelled in the meantime; its row is being deleted
            stale = self._flights.get((t.run_id, t.seq))
            if stale is not None:  # it lost its row: the run was closed, and retried since
                self._worker.cancel(t.run_id, t.seq, stale.assignment.attempt)
            batch.append(self._attempts.claimed(t, run, now))
        self._counters.tasks_claimed += len(batch)
        self._counters.tasks_dispatched += len(batch)
        self._worker.assign(batch)

    def adopt_running(self, tasks: list[ClaimedTask], owned: Callable[[bytes], ActiveRun | None]) -> list[Assignment]:
        """Tasks that a worker which has just come is running already. It began them in an epoch that is not known here."""
        now = self._now_us()
        adopted = [
            self._attempts.claimed(t, run, now)
            for t in tasks
            if (run := owned(t.run_id)) is None or t.seq in run.state.tasks
        ]
        for a in adopted:
            a.epoch = 0
        return adopted

    def deferred(self, attempts: list[AttemptToken]) -> None:
        """Workers wait for jobs outside, and their slots are free."""
        self._counters.tasks_deferred += len(attempts)
        self.refill()
        self._events.slot_freed.publish()

    def reported(self, reports: list[Report]) -> None:
        """Workers report how attempts ended."""
        self._attempts.reported(reports)
        self.refill()
        self._events.slot_freed.publish()

    def cancel(self, run: ActiveRun, seqs: list[int]) -> None:
        self._attempts.cancel(run, seqs)

    def arrived(self, run: ActiveRun, message: TaskEndedMessage) -> None:
        self._attempts.arrived(run, message)

    def take_over(self, run: ActiveRun) -> None:
        self._attempts.take_over(run)

    def hand_over(self, run: ActiveRun) -> None:
        self._to_queue(self.backlog.take_of(run))
        self._attempts.write_rows_of(run)

    def abandon(self, run: ActiveRun) -> None:
        self.backlog.drop(run)
        self._attempts.abandon(run)

    def abandon_all(self) -> None:
        self.backlog.clear()
        self._attempts.abandon_all()

    def tick(self, others_free: int) -> None:
        """Timeouts, visibility of long tasks, and sharing; called a few times a second."""
        if not self._flights and not self.backlog.size:
            return
        now = self._now_us()
        self._attempts.check(self._is_late(now))
        self._share(now, others_free)

    def _is_late(self, now: int) -> bool:
        """Something held the event loop since the last tick. Heartbeats that arrived meanwhile wait in its queue, so no attempt counts as
        silent until they were read."""
        late = now - self._ticked_us > 2 * self._tick_us and self._late_ticks < LATE_TICKS_MAX
        self._ticked_us = now
        self._late_ticks = self._late_ticks + 1 if late else 0
        return late

    def queue_limited(self) -> None:
        """Rules have changed: tasks that they limit move to task_queue."""
        self._to_queue(self.backlog.take_where(self._flow_control.limits))

    def unserved(self) -> None:
        """Workers left: what only they could run goes to the shared queue."""
        self._to_queue(self.backlog.take_unserved(self.served))

    def hand_back(self) -> None:
        """Put what has not been started into the shared queue, for other engines; nothing new is started here."""
        self._to_queue(self.backlog.take(self.backlog.size))
        self.served = frozenset()

    def _share(self, now: int, others_free: int) -> None:
        """Offer what the local worker will not get to soon to engines with free slots."""
        elapsed_us = now - self._rate_at_us
        if elapsed_us >= 200_000:
            rate = (self._counters.tasks_ended - self._ended_before) * 1e6 / elapsed_us
            self._rate = rate if rate > self._rate else 0.5 * self._rate + 0.5 * rate
            self._ended_before, self._rate_at_us = self._counters.tasks_ended, now
        spill = self._placement.spill(self.backlog.size, self._rate, others_free)
        self._counters.tasks_spilled += self._to_queue(self.backlog.take(spill), urgent=False)

    def _to_queue(self, tasks: Iterable[WaitingTask], *, urgent: bool = True) -> int:
        """Move tasks of the backlog to the shared queue; returns how many."""
        count = 0
        for run, seq, event, scheduled_us in tasks:
            run.queue_row(seq, event, PENDING, 1, 0, 0, scheduled_us, None)
            self._queue.mark(run, urgent=urgent)
            count += 1
        return count

    def worker_load(self, worker: str) -> WorkerLoad:
        return self._attempts.tally.windows.load(worker, self._now_us())

    def flying_runs(self) -> set[ActiveRun]:
        return self._attempts.flying_runs()

    def busy_runs(self) -> set[ActiveRun]:
        """Runs with tasks in this engine's memory."""
        busy = self._attempts.flying_runs()
        busy.update(self.backlog.runs())
        return busy


def _needs_row(o: TaskOptions) -> bool:
    """Whether it goes through task_queue even where a worker is free."""
    return o.at_most_once or bool(o.to_start_us or o.to_close_us or o.executor)
