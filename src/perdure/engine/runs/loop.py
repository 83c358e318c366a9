"""The life of a run between two commits: it is loaded, its code is activated, and the decisions of the code are executed.

    begin / load --> ready --> activate --> decided --> commands --> write queue --commit--> committed --> ready ...

No I/O here: the committer writes, claims read, this decides. Everything runs on one event loop, in plain callbacks. The phases are in
transitions.py, what a commit brings is in after_commit.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from itertools import islice
from typing import Any, Final, TypeVar

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import wait_reasons
from perdure.core.errors import Failure, HistoryTooLarge, NondeterminismError, PerdureError, Unavailable, clip
from perdure.core.limits import HISTORY_EVENTS_MAX
from perdure.core.messages import PauseMessage, TerminateMessage
from perdure.core.payloads import NeedPayload, Reference
from perdure.core.run_retry import NO_PAUSE, effective, is_fork, pause
from perdure.core.trace import run_traceparent
from perdure.core.work import Activation, Decided
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.payloads import Payloads
from perdure.engine.ports import HistoryRow, InboxRow
from perdure.engine.runs.commands import RunCommands
from perdure.engine.runs.crashes import CrashLoops, crash_loop
from perdure.engine.runs.delivery import InboxDelivery, is_handed_on, message_of
from perdure.engine.runs.exits import RunExits, waits_of
from perdure.engine.runs.flow_definitions import Flows
from perdure.engine.runs.flow_payloads import FlowPayloads
from perdure.engine.runs.history import History, bound, find_decider
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.task_port import TaskPort
from perdure.engine.runs.timers import Timers
from perdure.engine.runs.transitions import ACTIVATED, CODE_LOST, DECIDED, FACTS, IDLE, LOADED, RELOADED, RELOADING
from perdure.engine.runs.turns import SLICE_S, Turns, within
from perdure.engine.runs.version_choice import VersionChoices
from perdure.flows.decide.decider import DecisionTooLarge
from perdure.wire.codec import decode_row

log = logging.getLogger("perdure.engine")

T = TypeVar("T")

ACTIVATIONS_MAX: Final = 256
"""Runs activated before the rest of the event loop has a turn."""
BEGAN_LATE_US: Final = 1_000_000
"""A run that has waited longer than this to begin gets a record of it: its clock starts when it begins."""
PAYLOAD_PAUSE_S: Final = 2.0
"""Pause before a payload store that is away is asked again."""
WAITS_FOR_VALUES: Final = Failure("waits_for_values", "stored values that the flow reads are being loaded")
"""Stands for a decision that was given up until they are."""
LOOK_UP_PAUSE_S: Final = 0.5
"""Pause before a failed look-up is repeated."""


class RunParts:
    """The parts of the run loop, in the order in which they depend on each other."""

    def __init__(
        self, context: EngineContext, tasks: TaskPort, flows: Flows, flow_control: FlowControl, payloads: Payloads
    ) -> None:
        self.context, self.tasks, self.flows, self.flow_control = context, tasks, flows, flow_control
        self.payloads = FlowPayloads(payloads)
        self.runs = OwnedRuns(flows, context.settings.runs_max)
        self.versions = VersionChoices(flows, self.runs)
        self.delivery = InboxDelivery(context.queue, tasks)
        self.exits = RunExits(context, self.runs, tasks, self.delivery)
        self.timers = Timers(context, self.runs, self.exits)
        self.commands = RunCommands(context, self.runs, tasks, self.exits, self.timers, self.versions, flow_control)


class RunLoop:
    def __init__(self, parts: RunParts) -> None:
        context = parts.context
        self._worker, self._counters, self._queue = context.worker, context.counters, context.queue
        self._events, self._now_us, self._background = context.events, context.now_us, context.background
        self._runs, self._tasks, self._flows, self._flow_control = (
            parts.runs,
            parts.tasks,
            parts.flows,
            parts.flow_control,
        )
        self._delivery, self._exits, self._timers, self._commands = (
            parts.delivery,
            parts.exits,
            parts.timers,
            parts.commands,
        )
        self._payloads, self._versions = parts.payloads, parts.versions
        self._ready: dict[ActiveRun, None] = {}
        self._activation_due = False
        self._turns = Turns(context.counters, self._go_on)
        self._crashes = CrashLoops()
        self.to_reload: dict[bytes, ActiveRun] = {}
        """Runs whose history is to be read again, by claims."""

    def begin(self, run: ActiveRun, started: ev.RunStarted, at_us: int) -> None:
        """A run whose start this engine just committed."""
        run.flow_control = self._flow_control
        run.state.apply(started)
        _place_in_trace(run)
        run.seq, run.head_us = 1, at_us
        run.deliver.append(ev.Recorded(1, at_us, started))
        self._runs[run.id] = run
        missing = find_decider(self._flows, run)
        if missing is not None:
            self._exits.stop(run, missing)
            return
        bound(run, at_us)
        self._timers.push_deadline(run)
        if self._begins_otherwise(run):
            self._begin_late(run)
        else:
            self._loaded(run)

    def load(self, run: ActiveRun, read: History, queued: set[int]) -> None:
        """A claimed run whose history was read."""
        run.flow_control = self._flow_control
        self._runs[run.id] = run
        if read.missing is not None:
            self._exits.stop(run, read.missing)
        elif read.error is not None:
            self._exits.broke(run, read.error)
        else:
            try:
                self._load(run, read.history, read.seen, queued)
            except Exception as e:
                self._exits.broke(run, e)

    def _load(self, run: ActiveRun, history: list[ev.Recorded], seen: list[ev.Recorded], queued: set[int]) -> None:
        _place_in_trace(run)
        run.seq = run.state.events = history[-1].seq
        run.retried = pause(history) if seen is not history or is_fork(history) else NO_PAUSE
        run.queued = queued
        run.deliver = seen
        if run.state.tasks:
            self._tasks.take_over(run)
        woken = self._timers.push_all(run)
        if (
            run.end_stands
        ):  # `decide_again` has the history read once more, with the messages that are about to be recorded
            run.phase = CODE_LOST[run.phase]
            return
        # A run that a timer woke is activated once the timer event is durable: its code then gets the whole history at once.
        if len(history) == 1 and (self._now_us() - history[0].at_us > BEGAN_LATE_US or self._begins_otherwise(run)):
            self._begin_late(run)
            return
        self._follow_version(run)
        if not woken:
            self._loaded(run)

    def _begins_otherwise(self, run: ActiveRun) -> bool:
        """Whether it begins with another version than its starter named, or is pinned only now: what a version's runs do is known once a
        worker has registered it."""
        if run.decider is not None:
            return False
        version = self._versions.of_loaded(run)
        return version != run.version or (not run.pin and self._versions.pins(run, version))

    def _begin_late(self, run: ActiveRun) -> None:
        before, is_code = run.version, run.decider is None
        version = self._versions.of_loaded(run) if is_code else before
        pinned = is_code and not run.pin and self._versions.pins(run, version)
        changes = run.record(ev.RunBegan(version if version != before else "", pinned))
        if version != before or pinned:
            run.version, run.pin = version, version if pinned or run.pin else ""
            changes.extras.version = (run.version, run.pin)
        self._queue.mark(run, urgent=True)

    def _follow_version(self, run: ActiveRun) -> None:
        """A loaded run whose code is to be another version from here on. The record is written before anything that the code decides."""
        if run.decider is not None or (version := self._versions.of_loaded(run)) == run.version:
            return
        by = run.pin and "an operator"
        run.record(ev.VersionChanged(version, run.version, by)).extras.version = (version, run.pin and version)
        run.version = version
        self._queue.mark(run, urgent=False)

    def _loaded(self, run: ActiveRun) -> None:
        run.phase = LOADED[run.phase]
        self._activate_soon(run)

    def decide_again(self, run: ActiveRun, first: int) -> None:
        """The code of the run has ended without messages that had come, from event `first` on. It gets them, and then its end stands."""
        if not run.phase.is_active:
            return
        run.end_stands = True
        if run.phase is not RELOADING:
            run.phase = CODE_LOST[run.phase]
            run.operations = 0
        if first:
            run.record(ev.EndWithdrawn(first))
            self._queue.mark(run, urgent=True)
        else:
            self.reload_when_written(run)

    def facts(self, run: ActiveRun, facts: list[ev.Recorded]) -> None:
        """Events that its code has not seen are durable."""
        run.deliver.extend(facts)
        self._make_ready(run)

    def _make_ready(self, run: ActiveRun) -> None:
        phase = run.phase = FACTS[run.phase]
        if phase.is_ready:
            self._activate_soon(run)  # else `decided` and `reloaded` come back to it

    def _activate_soon(self, run: ActiveRun) -> None:
        self._ready[run] = None
        if not self._activation_due:
            self._activation_due = True
            asyncio.get_running_loop().call_soon(self._activate_ready)

    def _activate_ready(self) -> None:
        """A plain callback of the event loop: workflow code must not run inside an asyncio task of ours."""
        self._activation_due = False
        batch: list[Activation] = []
        decided: list[Decided] = []
        is_up = within(SLICE_S)
        for run in list(islice(self._ready, ACTIVATIONS_MAX)):
            del self._ready[run]
            phase = run.phase
            if not phase.is_ready or self._crashes.must_wait(run):
                continue
            if run.unseen:
                del run.unseen[: sum(is_handed_on(r.event) for r in run.deliver)]
            records, run.deliver = run.deliver, []
            run.phase = ACTIVATED[phase]
            if run.decider is None:
                batch.append(Activation(run.id, run.workflow, records, phase.replay, run.ns, run.version))
                continue
            if not decided:
                self._turns.begin()
            decided.append(self._advance(run, records, phase.replay))
            if is_up():
                break
        if self._ready:
            self._activation_due = True
            asyncio.get_running_loop().call_soon(self._activate_ready)
        self._counters.activations += len(batch) + len(decided)
        if decided:
            self.decided(decided)
        if batch:
            self.decided(self._worker.activate(batch))  # remote workers answer later, through `decided`

    def _advance(self, run: ActiveRun, records: list[ev.Recorded] | None = None, replay: bool = False) -> Decided:
        """A slice of a flow's decision, with the records that it is about when it begins."""
        decider = run.decider
        assert decider is not None
        try:
            if records is not None:
                decider.give(self._payloads.readable(run, records), replay=replay)
            if self._turns.advance(run, decider):
                return Decided(run.id, decider.take(), waiting=decider.waiting, full=decider.full)
            return Decided(run.id, decider.take(), self._turns.overspent(run), partial=True)
        except NeedPayload as e:
            self._background.start(self._load_values(run, e.references))
            return Decided(run.id, [], WAITS_FOR_VALUES)
        except (NondeterminismError, DecisionTooLarge) as e:
            return Decided(run.id, [], e.to_failure())
        except Exception as e:
            log.exception("run %s: the decider failed", run.id.hex())
            return Decided(run.id, [], Failure("internal", clip(f"{type(e).__name__}: {e}")))

    def _go_on(self, run: ActiveRun) -> None:
        """The next slice of an unfinished decision, unless the run has left memory."""
        if self._runs.get(run.id) is run and run.phase.is_active:
            self.decided([self._advance(run)])

    def decided(self, batch: list[Decided]) -> None:
        """Execute the commands that workflow code or a flow decided."""
        for d in batch:
            run = self._runs.get(d.run_id)
            if run is None or not run.phase.is_active:
                continue
            if d.stuck is not None:
                self._cannot_go_on(run, d.stuck)
            elif run.decider is not None and self._payloads.is_heavy(run, d):
                self._background.start(self._offload(run, d))  # and then it comes here again
            elif run.state.starts_again and self._commands.lacks_own_start(run, d.commands):
                self._background.start(self._look_up(run, self._commands.find_own_start(run), d))
            elif names := self._commands.unknown_children(run, d.commands):
                look = self._commands.look_up(run.ns, names, d.commands)
                self._background.start(self._look_up(run, look, d))  # and then it comes here again
            else:
                self._decided(run, d)
        self.activate_suspect()
        self._tasks.refill()

    def activate_suspect(self) -> None:
        """Runs that may end their workers take turns."""
        run = self._crashes.next_turn()
        if run is not None and self._runs.get(run.id) is run:
            self._activate_soon(run)

    def _decided(self, run: ActiveRun, d: Decided) -> None:
        if not d.spontaneous and not d.partial:
            run.phase, run.waiting = DECIDED[run.phase], d.waiting
            self._crashes.answered(run)
            if d.full != run.full:
                run.full = run.segment().extras.full = d.full
        try:
            self._carry_out(run, d)
        except Exception as e:
            self._exits.broke(run, e)
        if not run.phase.is_active:
            return
        if d.partial:
            self._turns.add(run)
            return
        if run.suspect and not d.spontaneous:
            run.suspect = False
            run.segment().extras.settles = True
            self._queue.mark(run, urgent=True)
        if run.deliver and run.phase is IDLE:
            self._make_ready(run)

    def _carry_out(self, run: ActiveRun, d: Decided) -> None:
        run.operations += d.operations
        if (
            d.commands
            and (run.end_stands or type(d.commands[-1]) is cm.CompleteRun)
            and self._gives_way(run, d.commands)
        ):
            return
        urgent = self._commands.carry_out(run, d.commands)
        if not run.phase.is_active:
            return
        if run.state.events > HISTORY_EVENTS_MAX:
            self._exits.fail(run, _too_large())
        elif run.pending:
            # The history does not record which signals the code waits for, so the wait reason is written in the same commit.
            wait_reason = wait_reasons.encode(waits_of(run)) if run.waiting else (None, None)
            if wait_reason != run.wait_reason:
                run.wait_reason = run.segment().extras.wait_reason = wait_reason
            self._queue.mark(run, urgent=urgent)
        elif run.is_idle:
            self.idle(run)

    def _gives_way(self, run: ActiveRun, commands: list[cm.Command]) -> bool:
        """Whether the run ends well without messages that are recorded already."""
        last = commands[-1]
        if type(last) is not cm.CompleteRun:
            run.end_stands = False  # the code goes on, and may read what comes
            return False
        if run.inbox_used and not run.end_stands:
            first = last.late[0] if last.late else run.first_message(run.deliver)
            if first:
                self.decide_again(run, first)
                return True
        run.begin_end()
        return False

    def idle(self, run: ActiveRun) -> None:
        """It waits from now on; the longer it does, the sooner it is evicted."""
        run.idle_since = asyncio.get_running_loop().time()

    def _cannot_go_on(self, run: ActiveRun, why: Failure) -> None:
        if why is WAITS_FOR_VALUES:
            return  # `_load_values` goes on
        if why.code == "worker_lost" and self._crashes.worker_lost(run):
            self._exits.stop(run, crash_loop())
        elif why.code in (
            "cache_miss",
            "worker_lost",
        ):  # no worker holds the code: another one, or the same, gets the whole history
            run.phase = CODE_LOST[run.phase]
            run.operations = 0
            self.reload_when_written(run)
        elif why.code == "no_worker":
            self._exits.release(run)
        else:
            self._exits.stop(run, why)

    async def _load_values(self, run: ActiveRun, wanted: list[Reference]) -> None:
        """Load stored values that expressions of a flow read; then the run is decided again from its history."""
        failure: Failure | None = None
        try:
            await self._patiently(lambda: self._payloads.load(run, wanted))
        except PerdureError as e:
            failure = e.to_failure()
        if self._runs.get(run.id) is not run or not run.phase.is_active:
            return
        if failure is not None:
            self._exits.stop(run, failure)
            return
        run.phase = CODE_LOST[run.phase]
        self.reload_when_written(run)

    async def _offload(self, run: ActiveRun, d: Decided) -> None:
        """Store what is large in the decision of a flow."""
        try:
            d = await self._patiently(lambda: self._payloads.offload(run, d))
        except PerdureError as e:
            d = Decided(run.id, [], e.to_failure())
        if self._runs.get(run.id) is run:
            self.decided([d])

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """While the payload store is away the run waits."""
        while True:
            try:
                return await work()
            except Unavailable as e:
                log.warning("a run waits for the payload store: %s", e)
                await asyncio.sleep(PAYLOAD_PAUSE_S)

    async def _look_up(self, run: ActiveRun, look: Coroutine[Any, Any, None], d: Decided) -> None:
        """Read what the commands of a decision need, and come back to it."""
        try:
            await look
        except Unavailable as e:
            log.warning("cannot look up what run %s needs: %s", run.id.hex(), e)
            await asyncio.sleep(LOOK_UP_PAUSE_S)
        if self._runs.get(run.id) is run:  # else it was given up meanwhile, and its next owner decides anew
            self.decided([d])

    def reload_when_written(self, run: ActiveRun) -> None:
        """What the code has commanded must be in the history before it is read, or it would be commanded twice."""
        if not run.writing and not run.pending:
            self.to_reload[run.id] = run
            self._events.work_due.publish(0)

    def reloaded(self, run: ActiveRun, rows: list[HistoryRow]) -> None:
        """The history of a run whose code was lost. Facts that are younger than this engine's knowledge come by `facts`."""
        if run.phase is not RELOADING or self._runs.get(run.id) is not run:
            return
        try:
            history = [r for row in rows for r in decode_row(row.seq, row.at_us, row.body) if r.seq <= run.seq]
            last = history[-1].seq
            history = effective(history)
        except Exception as e:
            self._exits.broke(run, e)
            return
        if run.decider is not None:  # what it had decided in part is void
            find_decider(self._flows, run)
        undelivered = sum(is_handed_on(r.event) for r in run.deliver if r.seq <= last)
        run.unseen = [m for r in history if (m := message_of(r.event)) is not None] + run.unseen[undelivered:]
        run.deliver = history + [r for r in run.deliver if r.seq > last]
        run.phase = RELOADED[run.phase]
        self._follow_version(run)
        self._activate_soon(run)

    def deliver_row(self, run: ActiveRun, row: InboxRow) -> None:
        """A row that cannot be read, or that the run cannot take, stops that run and no other."""
        try:
            message = self._delivery.read(run, row)
            if isinstance(message, TerminateMessage):
                self._exits.terminate(run, message)
            elif isinstance(message, PauseMessage):
                self._delivery.pending.add(row.id)
                self._exits.pause(run, message, row.id)
            elif message is not None:
                self._delivery.deliver(run, message, row.id)
        except Exception as e:
            self._exits.broke(run, e)

    def forget_all(self) -> None:
        """The session is lost: everything in memory is void."""
        self._runs.forget_all()
        self.to_reload.clear()
        self._crashes.forget_all()
        self._ready.clear()
        self._turns.forget_all()
        self._timers.forget_all()
        self._delivery.forget_all()
        self._tasks.abandon_all()
        self._queue.drop_runs()
        self._worker.forget_all()


def _place_in_trace(run: ActiveRun) -> None:
    """Untraced runs need no stored traceparent: it is derived from the run id."""
    if run.state.trace:
        run.trace = run_traceparent(run.id, run.state.trace)


def _too_large() -> Failure:
    error = HistoryTooLarge(
        f"the run's history has reached HISTORY_EVENTS_MAX={HISTORY_EVENTS_MAX} events; end it earlier with wf.continue_as_new(), or move loops into child workflows"
    )
    return error.to_failure()
