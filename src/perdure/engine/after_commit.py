"""What follows from a commit: runs go on, callers are answered, other engines are notified.

Laws:

1. Only a commit of the current session changes memory. One that was written under a session that is over is durable, but its runs belong
   to other engines: only callers that wait for a start are answered.
2. A record that the database refuses sets its run aside, with the reason, and no other.
"""

from __future__ import annotations

from typing import Final

from perdure.core import events as ev
from perdure.core.errors import Unavailable
from perdure.core.message_life import InboxKind
from perdure.core.messages import ChildEndedMessage
from perdure.engine.commits.rows import DequeuedRow, QueuedRow
from perdure.engine.commits.store import Committed
from perdure.engine.commits.write_queue import AwaitedUnit, EndingUnit, Unit
from perdure.engine.ports import ClaimedRun
from perdure.engine.runs.changes import ChildStart, Extras
from perdure.engine.runs.ends import count_end, run_end
from perdure.engine.runs.loop import RunLoop, RunParts
from perdure.engine.runs.run import ActiveRun, RunUnit
from perdure.engine.runs.starts import StartUnit
from perdure.engine.runs.transitions import RELOADING, Closing, Leaving
from perdure.engine.services.claims import Claims
from perdure.engine.tasks.flight import ReportUnit, RequeueUnit

SOON_US: Final = 1_000
"""Delay before a row that was just written can be claimed."""

_FACTS: Final = frozenset(ev.FACTS)


class AfterCommit:
    """The sink of the committer."""

    def __init__(self, parts: RunParts, loop: RunLoop, claims: Claims) -> None:
        context = parts.context
        self._session, self._clock, self._counters = context.session, context.clock, context.counters
        self._names, self._now_us = context.names, context.now_us
        self._events, self._store, self._worker = context.events, context.store, context.worker
        self._background, self._queue, self._now_us = context.background, context.queue, context.now_us
        self._runs, self._tasks, self._flow_control = parts.runs, parts.tasks, parts.flow_control
        self._delivery, self._exits, self._loop, self._claims = parts.delivery, parts.exits, loop, claims

    def committed(self, units: list[Unit], result: Committed, session: int) -> None:
        if session != self._session.id:
            _answer_starts(units, result)
            return
        if not result.unconfirmed:  # otherwise the clock reading may be as old as the lost answer
            self._clock.sync(result.at_us)
        for unit in units:
            if isinstance(unit, RunUnit):
                self.run_committed(unit, result.at_us, result.started)
            elif isinstance(unit, StartUnit):
                self._started(unit, unit.run_id in result.started, result.at_us)
            else:
                if isinstance(unit, ReportUnit | RequeueUnit):
                    self._flow_control.released(unit.task_id)
                self._events.other_engines_concerned.publish("message")
        if self._flow_control.freed or self._claims.messages_left:
            self._claims.wake()
        self._tasks.refill()

    def refused(self, unit: Unit, why: str) -> None:
        message = f"the database refuses a record of this run: {why}"
        if isinstance(unit, StartUnit):
            self._runs.unreserve(unit.own)
            self._background.start(self._refused_start(unit, message))
        elif isinstance(unit, RunUnit):
            unit.run.pending.extendleft(reversed(unit.segments))
            self._exits.refused(unit.run, message)
        elif isinstance(unit, ReportUnit) and (lost := unit.as_lost(self._now_us())) is not None:
            self._queue.add(lost)

    def end_withdrawn(self, unit: EndingUnit, session: int) -> None:
        """The run is taken in anew, from its history, as if this engine had just claimed it."""
        if session != self._session.id or not isinstance(unit, RunUnit):
            return
        run = unit.run
        self._runs.pop(run.id, None)
        self._worker.forget(run.id)
        full = tuple(run.full)
        self._claims.take_again(
            ClaimedRun(run.id, run.ns, run.workflow, run.version, run.epoch, run.keys, run.pin, full, is_late=True)
        )

    def given_up(self, unit: AwaitedUnit) -> None:
        if isinstance(unit, StartUnit):
            self._runs.unreserve(unit.own)

    def _started(self, unit: StartUnit, created: bool, at_us: int) -> None:
        self._runs.unreserve(unit.own)
        if created:
            self._counters.runs_started += 1
            self._names.workflows.of((unit.ns, unit.request.workflow)).started += 1
            if unit.own:
                run = ActiveRun(unit.run_id, unit.ns, unit.request.workflow, unit.request.version, 1)
                run.head = unit.head
                run.pin = unit.request.version if unit.started.pinned else ""
                self._loop.begin(run, unit.started, at_us)
            else:
                self._claims.wake()
                self._events.other_engines_concerned.publish("run")
        unit.settle(created)

    async def _refused_start(self, unit: StartUnit, why: str) -> None:
        """A start that was written again after its session was lost is refused when the first one had counted."""
        try:
            exists = bool(await self._store.existing(unit.ns, [unit.run_id]))
        except Unavailable:
            exists = False
        unit.settle(exists, None if exists else Unavailable(why))

    def run_committed(self, unit: RunUnit, at_us: int, started: frozenset[bytes]) -> None:
        run = unit.run
        first = unit.first
        run.written(unit, at_us)
        facts = [ev.Recorded(first + i, at_us, e) for i, e in enumerate(unit.events) if type(e) in _FACTS]
        if unit.extras:
            self._extras_committed(run, unit.extras, at_us, started)
        if unit.is_withdrawn:
            pass  # `end_withdrawn` goes on
        elif not run.phase.is_active:
            self._left(run)
        elif run.phase is RELOADING:
            run.deliver.extend(facts)
            self._loop.reload_when_written(run)
        elif facts:
            self._loop.facts(run, facts)
        elif run.is_idle:
            self._loop.idle(run)
        self._concern_others(unit)

    def _extras_committed(self, run: ActiveRun, extras: list[Extras], at_us: int, started: frozenset[bytes]) -> None:
        for x in extras:
            self._delivery.committed(x)
            if x.settles:
                self._claims.suspect_settled()
            if any(p.kind is ev.PromiseKind.EVENT for p in x.promises):
                self._events.event_wait_made.publish()
            if x.answers:
                self._events.answers_recorded.publish(run.ns, run.id, x.answers)
        cancelled = {m.run_id for x in extras for m in x.messages if m.kind == InboxKind.CANCEL}
        for x in extras:
            for child in x.starts:
                self._child_committed(run, child, at_us, started, is_cancelled=child.run_id in cancelled)

    def _child_committed(
        self, run: ActiveRun, child: ChildStart, at_us: int, started: frozenset[bytes], *, is_cancelled: bool
    ) -> None:
        self._runs.unreserve(child.own)
        if child.run_id not in started:
            self._delivery.child_refused(run, child.seq, child.key)
        elif child.own:
            self._counters.runs_started += 1
            self._names.workflows.of((run.ns, child.started.workflow)).started += 1
            pin = child.version if child.started.pinned else ""
            if is_cancelled:  # read from the database with the request, so that its code gets that before anything else
                taken = ClaimedRun(child.run_id, run.ns, child.started.workflow, child.version, 1, pin=pin)
                self._claims.take_again(taken)
                return
            own = ActiveRun(child.run_id, run.ns, child.started.workflow, child.version, 1)
            own.head, own.pin = child.head, pin
            self._loop.begin(own, child.started, at_us)

    def _left(self, run: ActiveRun) -> None:
        if isinstance(run.phase, Closing):
            if not run.pending:
                self._closed(run, run.phase)
            return
        if not run.pending:
            self._runs.pop(run.id, None)
            if isinstance(run.phase, Leaving):
                for end in run.phase.ends.release():
                    self._queue.add(end)
        self._counters.runs_evicted += 1

    def _closed(self, run: ActiveRun, phase: Closing) -> None:
        # The run may have been retried and loaded here again before the answer to the commit that ended it arrived.
        retried = self._runs.get(run.id) is not run
        if not retried:
            self._runs.pop(run.id, None)
        if run.keys:
            self._flow_control.freed.update((run.ns, key) for key in run.keys)
            self._claims.wake()
        if phase.successor is not None:  # messages may have moved on to it
            self._claims.wake()
        end = run_end(run)
        count_end(self._counters, self._names, end, self._now_us())
        if not retried:
            self._worker.forget(run.id)
        parent = (
            self._runs.get(run.state.parent_id) if run.state.has_waiting_parent and phase.successor is None else None
        )
        if parent is not None:
            self._delivery.deliver(
                parent, ChildEndedMessage(run.state.parent_seq, phase.status, phase.value, phase.failure, run.known_as)
            )
        self._events.run_ended.publish(end)

    def _concern_others(self, unit: RunUnit) -> None:
        for s in unit.segments:
            if s.release is not None:
                is_halted = s.release[1] is not None or (s.has_extras and s.extras.paused is not None)
                if is_halted and unit.run.keys:  # its slots are free
                    self._flow_control.freed.update((unit.run.ns, key) for key in unit.run.keys)
                self._claims.wake_in(SOON_US)
                self._events.other_engines_concerned.publish("run")
        for x in unit.extras:
            self._concern_others_by(x)

    def _concern_others_by(self, x: Extras) -> None:
        publish = self._events.other_engines_concerned.publish
        if x.messages:
            self._claims.wake()
            publish("message")
        if x.answers:
            publish("answer")
        waiting = [
            row.delay_us for row in x.queue_ops.values() if isinstance(row, QueuedRow) and row.status == "pending"
        ]
        if waiting:
            self._claims.wake_in(min(waiting))  # it can be claimed from now on, here as elsewhere
            publish("task")
        if self._flow_control.holding:
            for task_id, row in x.queue_ops.items():
                if isinstance(row, DequeuedRow) or row.status == "pending":
                    self._flow_control.released(task_id)
        if any(not c.own for c in x.starts):
            self._claims.wake_in(SOON_US)
            publish("run")


def _answer_starts(units: list[Unit], result: Committed) -> None:
    for unit in units:
        if isinstance(unit, StartUnit):
            unit.settle(unit.run_id in result.started)
