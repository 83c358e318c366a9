"""Runs in memory: what becomes of a worker's commands, of committed events, of mail and of timers.

No I/O here: the committer writes, the claimer reads, this decides. Everything runs on one event loop, in plain callbacks.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from itertools import islice
from typing import Any

from perdure.core import chain, wait_reasons
from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.errors import Failure, HistoryTooLarge, NondeterminismError, clip
from perdure.core.lifecycle import RunStatus
from perdure.core.limits import HISTORY_EVENTS_MAX, PENDING_TASKS_MAX, UNWIND_GRACE_US, UPDATES_OPEN_MAX
from perdure.core.messages import CancelAsked, ChildEnded, Mail, PromiseKept, SignalSent, TaskEnded, UpdateAsked
from perdure.core.placement import Placement
from perdure.core.run_retry import effective, pause
from perdure.core.trace import run_traceparent
from perdure.core.undo import DEADLINE, TIMED_OUT
from perdure.core.work import Activation, Decided, Outcome
from perdure.engine.commits.committer import Committer
from perdure.engine.counters import Counters
from perdure.engine.ports import HistoryRow, MailRow, Named, WorkerPort
from perdure.engine.runs.flow_definitions import Flows, not_registered
from perdure.engine.runs.run import ActiveRun, ChildStart, RunUnit
from perdure.engine.runs.turns import SLICE_S, Turns, within
from perdure.engine.tasks.dispatch import Dispatcher
from perdure.engine.tasks.flow_control import Lines
from perdure.flows.decide.decider import DecisionTooLarge
from perdure.flows.model import is_flow
from perdure.wire.codec import decode_mail, decode_row, encode_failure

log = logging.getLogger("perdure.engine")

ACTIVATIONS_MAX = 256
"""Runs activated before the rest of the loop has a turn."""


BEGAN_LATE_US = 1_000_000
"""A run that has waited longer than this to begin is told so: its clock starts when it begins."""
NOTE_S = 1.0
"""A run that has waited this long in memory says what for."""
TIMERS_MIN = 1_024
"""Size of the timer heap below which it is never cleaned."""


class History:
    """What was read of a claimed run."""

    __slots__ = ("error", "history", "missing", "seen")

    def __init__(self) -> None:
        self.history: list[ev.Recorded] = []
        self.seen: list[ev.Recorded] = []
        """As code and state see it: without what a retry took back."""
        self.missing: Failure | None = None
        """Why its flow's definition is not to be had."""
        self.error: Exception | None = None


class RunLoop:
    def __init__(
        self,
        worker: WorkerPort | None,
        counters: Counters,
        now_us: Callable[[], int],
        new_run_id: Callable[[], bytes],
        placement: Placement,
        runs_max: int,
    ) -> None:
        self._worker, self._counters, self._now_us, self._new_run_id = worker, counters, now_us, new_run_id
        self._placement, self.runs_max = placement, runs_max
        self.runs: dict[bytes, ActiveRun] = {}
        self.committer: Committer
        self.dispatcher: Dispatcher
        self.ended: Callable[[ActiveRun, Outcome, bytes | None], None]
        self.released: Callable[[int | None], None]
        self.on_closed: Callable[[ActiveRun], None] | None = None
        """Told of every run that ended here, once that is durable. For observers: it must not raise."""
        self.on_answers: Callable[[ActiveRun, list[tuple[str, bytes, bytes | None]]], None] | None = None
        """Told of answers to updates, once they are durable: id, value, failure."""
        self.settled: Callable[[ActiveRun], None] = lambda run: None
        """Told of a run that engines did not survive, once it has been decided here."""
        self.reserved = 0
        self._ready: dict[ActiveRun, None] = {}
        self._timers: list[tuple[int, bytes, int]] = []
        self._timers_max = TIMERS_MIN
        self._timer_handle: asyncio.TimerHandle | None = None
        self._activation_due = False
        self._turns = Turns(counters, self._go_on)
        self.mail_pending: set[int] = set()
        """Inbox rows whose facts are on their way into the history."""
        self.mail_done: set[int] = set()
        """Inbox rows that are gone since the claimer last began to look; what it is reading may still show them."""
        self.workflows: dict[Named, str] = {}
        """(namespace, name) -> version, as workers here serve them."""
        self.reload: Callable[[], None] = lambda: None
        """Called when a run waits in `to_reload`."""
        self.to_reload: dict[bytes, ActiveRun] = {}
        self.flows: Flows
        self.lines: Lines
        self.look_up: Callable[[ActiveRun, list[str], Decided], None]
        """Find out which versions of some workflows are current, then call `decided` again."""

    # -- runs come --------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return len(self.runs) + self.reserved < self.runs_max

    def reserve(self, ns: int, workflow: str, version: str) -> bool:
        """Keep a place for a run of ours that is being created; `begin` or a refusal gives it back."""
        known = self.flows.has(ns, workflow, version) if is_flow(version) else (ns, workflow) in self.workflows
        if not known or not self.has_room:
            return False
        self.reserved += 1
        return True

    def begin(self, run: ActiveRun, started: ev.RunStarted, at_us: int) -> None:
        """A run whose start this engine just committed."""
        run.lines = self.lines
        run.state.apply(started)
        _place_in_trace(run)
        run.seq, run.head_us = 1, at_us
        run.deliver.append(ev.Recorded(1, at_us, started))
        self.runs[run.id] = run
        if not self._give_decider(run):
            return
        _bound(run, at_us)
        if run.state.deadline_us:
            self._push_timer(run, run.state.deadline_us, -1)
        if self._other_version(run):
            self._begin_late(run)
        else:
            self._make_ready(run)

    async def read(self, run: ActiveRun, rows: list[HistoryRow]) -> History:
        """The whole history of a claimed run, decoded and folded in slices. The loop does not know the run yet: `load` takes it in."""
        read = History()
        try:
            run.seq, run.head, run.head_us = rows[-1].last, rows[-1].hash, rows[-1].at_us
            read.missing = self._find_decider(run)
            is_up = within(SLICE_S)
            for row in rows:
                read.history.extend(decode_row(row.seq, row.at_us, row.body))
                if is_up():
                    await asyncio.sleep(0)
                    is_up = within(SLICE_S)
            read.seen = effective(read.history)
            for n, record in enumerate(read.seen):
                run.state.apply(record.event)
                if record.seq == 1:
                    _bound(run, record.at_us)
                if type(record.event) in _MAILED and (mail := _as_mail(record.event)) is not None:
                    run.unseen.append(mail)
                if not n & 63 and is_up():
                    await asyncio.sleep(0)
                    is_up = within(SLICE_S)
        except Exception as e:
            read.error = e
        return read

    def load(self, run: ActiveRun, read: History, queued: set[int]) -> None:
        run.lines = self.lines
        self.runs[run.id] = run
        if read.missing is not None:
            self._stop(run, read.missing)
        elif read.error is not None:
            self._broke(run, read.error)
        else:
            try:
                self._load(run, read.history, read.seen, queued)
            except Exception as e:
                self._broke(run, e)

    def _load(self, run: ActiveRun, history: list[ev.Recorded], seen: list[ev.Recorded], queued: set[int]) -> None:
        """Tasks that are outstanding and nowhere to be found are lost."""
        _place_in_trace(run)
        run.seq = run.state.events = history[-1].seq
        run.reopened = pause(history) if seen is not history else (0, 0)
        run.queued = queued
        run.deliver = seen
        now = self._now_us()
        if run.state.tasks:
            self.dispatcher.adopt(run)
            for seq in [s for s in run.state.tasks if s not in queued and (run.id, s) not in self.dispatcher.flights]:
                self.dispatcher.requeue_lost(run, seq, now)
        woken = False
        for seq, fire_at_us in run.state.timers.items():
            self._push_timer(run, fire_at_us, seq)
            woken |= fire_at_us <= now
        if run.state.deadline_us:
            self._push_timer(run, run.state.deadline_us, -1)
        # One that a timer woke has nothing to say before that has fired: its code gets the whole history with it, once that is durable.
        if len(history) == 1 and (now - history[0].at_us > BEGAN_LATE_US or self._other_version(run)):
            self._begin_late(run)
        elif not woken:
            self._make_ready(run)

    def _other_version(self, run: ActiveRun) -> str:
        """The version of the code that workers here have, where its starter named another one. What a starter's import says is only a hint."""
        version = self.workflows.get((run.ns, run.workflow), "") if run.decider is None else ""
        return version if version != run.version else ""

    def _begin_late(self, run: ActiveRun) -> None:
        version = self._other_version(run)
        changes = run.record(ev.RunBegan(version))
        if version:
            run.version = changes.extras.version = version
        self.committer.mark(run, urgent=True)

    def _give_decider(self, run: ActiveRun) -> bool:
        """Declarative runs are decided here. False: their definition is not to be had, and the run is stuck."""
        missing = self._find_decider(run)
        if missing is not None:
            self._stop(run, missing)
        return missing is None

    def _find_decider(self, run: ActiveRun) -> Failure | None:
        if is_flow(run.version):
            found = self.flows.decider(run.ns, run.workflow, run.version, run.id)
            if isinstance(found, Failure):
                return found
            run.decider = found
        return None

    # -- activation -------------------------------------------------------------------------------------------------

    def _make_ready(self, run: ActiveRun) -> None:
        run.waiting_activation = True
        if run.deciding or run.reloading:
            return  # `decided` and `reloaded` come back to it
        self._ready[run] = None
        if not self._activation_due:
            self._activation_due = True
            asyncio.get_running_loop().call_soon(self._activate_ready)

    def _activate_ready(self) -> None:
        """A plain callback of the loop: workflow code must not run inside an asyncio task of ours."""
        self._activation_due = False
        batch: list[Activation] = []
        decided: list[Decided] = []
        is_up = within(SLICE_S)
        for run in list(islice(self._ready, ACTIVATIONS_MAX)):
            del self._ready[run]
            run.waiting_activation = False
            if not run.closing and not run.evicted and not run.reloading:
                if run.unseen:
                    del run.unseen[: sum(type(r.event) in _MAILED for r in run.deliver)]
                if run.decider is not None:
                    if not decided:
                        self._turns.begin()
                    decided.append(self._decide(run))
                    if is_up():
                        break
                    continue
                batch.append(Activation(run.id, run.workflow, run.deliver, run.replay, run.ns))
                run.deliver, run.replay, run.deciding = [], False, True
        if self._ready:
            self._activation_due = True
            asyncio.get_running_loop().call_soon(self._activate_ready)
        self._counters.activations += len(batch) + len(decided)
        if decided:
            self.decided(decided)
        if batch and self._worker is not None:
            self.decided(self._worker.activate(batch))  # remote ones answer later, by the same door

    def _decide(self, run: ActiveRun) -> Decided:
        assert run.decider is not None
        records, replay = run.deliver, run.replay
        run.deliver, run.replay, run.deciding = [], False, True
        return self._advance(run, records, replay)

    def _advance(self, run: ActiveRun, records: list[ev.Recorded] | None = None, replay: bool = False) -> Decided:
        """A slice of a decision, with the records that it is about when it begins, and what has to happen by then."""
        decider = run.decider
        assert decider is not None
        try:
            if records is not None:
                decider.give(records, replay=replay)
            if self._turns.advance(run, decider):
                return Decided(run.id, decider.take(), waiting=decider.waiting)
            return Decided(run.id, decider.take(), self._turns.overspent(run), partial=True)
        except (NondeterminismError, DecisionTooLarge) as e:
            return Decided(run.id, [], e.to_failure())
        except Exception as e:
            log.exception("run %s: the decider failed", run.id.hex())
            return Decided(run.id, [], Failure("internal", clip(f"{type(e).__name__}: {e}")))

    def _go_on(self, run: ActiveRun) -> None:
        """The next slice of a run whose decision is not finished, unless the run is gone by now."""
        if self.runs.get(run.id) is run and not run.closing and not run.evicted:
            self.decided([self._advance(run)])

    def decided(self, batch: list[Decided]) -> None:
        """What workflow code or a flow wants."""
        for d in batch:
            run = self.runs.get(d.run_id)
            if run is None or run.closing or run.evicted:
                continue
            if d.stuck is not None:
                self._cannot_go_on(run, d.stuck)
                continue
            if names := self._unknown_children(run, d):
                self.look_up(run, names, d)  # and then it comes here again
                continue
            if not d.spontaneous and not d.partial:
                run.deciding, run.waiting = False, d.waiting
            try:
                self._carry_out(run, d)
            except Exception as e:
                self._broke(run, e)
            if run.closing or run.evicted:
                continue
            if d.partial:
                self._turns.add(run)
                continue
            if run.suspect and not d.spontaneous:
                run.suspect = False
                self.settled(run)
            if run.waiting_activation:
                self._make_ready(run)
        self.dispatcher.refill()

    def _unknown_children(self, run: ActiveRun, d: Decided) -> list[str]:
        """Workflows that are to be started in whatever version is current, which has to be looked up first."""
        return [c.workflow for c in d.commands if type(c) is cm.StartChild and not self._knows(run.ns, c)]

    def _knows(self, ns: int, c: cm.StartChild) -> bool:
        """Which version it is, and what that says about flow control."""
        version = c.version
        if not version:
            if not self.flows.knows(ns, c.workflow):
                return False
            version = self.flows.current(ns, c.workflow) or ""
        return not version or self.lines.knows((ns, c.workflow, version))

    def _cannot_go_on(self, run: ActiveRun, why: Failure) -> None:
        if why.code == "cache_miss":  # nobody holds the code: another worker, or the same one, gets the whole history
            run.deciding = False
            run.reloading = run.replay = True
            run.operations = 0
            self._reload_when_written(run)
        elif why.code == "no_worker":
            self.release(run)
        else:
            self._stop(run, why)

    def _reload_when_written(self, run: ActiveRun) -> None:
        """What the code has commanded must be in the history before it is read, or it would be commanded twice."""
        if not run.writing and not run.pending:
            self.to_reload[run.id] = run
            self.reload()

    def reloaded(self, run: ActiveRun, rows: list[HistoryRow]) -> None:
        """The history of a run whose code was lost. Facts that are younger than this engine's knowledge come by `committed`."""
        if not run.reloading or run.closing or run.evicted or self.runs.get(run.id) is not run:
            return
        try:
            history = [r for row in rows for r in decode_row(row.seq, row.at_us, row.body) if r.seq <= run.seq]
            last = history[-1].seq
            history = effective(history)
        except Exception as e:
            self._broke(run, e)
            return
        undelivered = sum(type(r.event) in _MAILED for r in run.deliver if r.seq <= last)
        run.unseen = [mail for r in history if (mail := _as_mail(r.event)) is not None] + run.unseen[undelivered:]
        run.deliver = history + [r for r in run.deliver if r.seq > last]
        run.reloading = False
        self._make_ready(run)

    def _carry_out(self, run: ActiveRun, d: Decided) -> None:
        run.operations += d.operations
        urgent = False
        for command in d.commands:
            urgent |= _COMMANDS[type(command)](self, run, command)
            if run.closing:
                return
        if run.state.events > HISTORY_EVENTS_MAX:
            self._fail(run, _too_large(run))
        elif run.pending:
            # The history alone does not tell that the code listens for a signal: said in the same commit, it is never wrong.
            noted = wait_reasons.encode(self._waits(run)) if run.waiting else (None, None)
            if noted != run.noted:
                run.noted = run.segment().extras.noted = noted
            self.committer.mark(run, urgent=urgent)
        elif run.is_idle:
            run.idle_since = asyncio.get_running_loop().time()

    def drop_pending(self, run: ActiveRun) -> None:
        """What the run wanted to write is void. Mail that was to go with it is still in the inbox and counts as unread again."""
        for s in run.pending:
            if s.has_extras:
                self.mail_pending.difference_update(s.extras.consumed)
        run.pending.clear()

    def _broke(self, run: ActiveRun, error: Exception) -> None:
        """A fault of ours in one run stops that run, visibly, and no other."""
        log.error("run %s: internal error", run.id.hex(), exc_info=error)
        self.drop_pending(run)
        self._stop(run, Failure("internal", clip(f"{type(error).__name__}: {error}")))

    # -- commands ---------------------------------------------------------------------------------------------------
    # Each answers whether somebody waits for its record.

    def _schedule_tasks(self, run: ActiveRun, c: cm.ScheduleTasks) -> bool:
        event = ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options, c.nodes, c.index)
        run.record(event, sum(map(len, c.inputs)))
        if len(run.state.tasks) > PENDING_TASKS_MAX:
            self._fail(
                run,
                Failure(
                    "limit_exceeded", f"the run has more than PENDING_TASKS_MAX={PENDING_TASKS_MAX} unfinished tasks"
                ),
            )
            return True
        self.dispatcher.schedule(run, event)
        return run.pending[-1].has_extras

    def _skip_tasks(self, run: ActiveRun, c: cm.SkipTasks) -> bool:
        changes = run.record(ev.TasksSkipped(c.first, c.nodes, c.reason))
        now = self._now_us()
        changes.tasks.extend(run.skipped_row(c.first + i, n, c.reason, now) for i, n in enumerate(c.nodes))
        changes.rows += len(c.nodes)
        return False

    def _cancel_tasks(self, run: ActiveRun, c: cm.CancelTasks) -> bool:
        self.dispatcher.cancel(run, c.seqs)
        return True

    def _start_timer(self, run: ActiveRun, c: cm.StartTimer) -> bool:
        fire_at_us = c.fire_at_us
        if fire_at_us < run.reopened[0]:  # set by code that goes through what it heard before the run failed
            fire_at_us += run.reopened[1]
        run.record(ev.TimerStarted(c.seq, fire_at_us))
        self._push_timer(run, fire_at_us, c.seq)
        return False

    def _cancel_timer(self, run: ActiveRun, c: cm.CancelTimer) -> bool:
        if c.seq in run.state.timers:
            run.record(ev.TimerCancelled(c.seq))
        return False

    def _start_child(self, run: ActiveRun, c: cm.StartChild) -> bool:
        version = c.version or self.flows.current(run.ns, c.workflow)
        child_id = self._new_run_id()
        if version is None:
            run.record(ev.ChildStarted(c.seq, child_id, c.workflow, c.input, c.key), len(c.input))
            run.record(ev.ChildFailed(c.seq, Failure("not_registered", not_registered(c.workflow), "NotRegistered")))
            return True
        deadline = self._now_us() + c.timeout_us if c.timeout_us else 0
        trace = run.trace or run_traceparent(run.id, "")
        started = ev.RunStarted(c.workflow, version, c.input, c.key, run.id, c.seq, deadline, trace=trace)
        line = self.lines.of_run((run.ns, c.workflow, version), c.input)
        own = line is None and self.reserve(run.ns, c.workflow, version)
        changes = run.record(ev.ChildStarted(c.seq, child_id, c.workflow, c.input, c.key), len(c.input))
        changes.extras.starts.append(
            ChildStart(child_id, c.seq, version, c.key, chain.input_hash(c.workflow, c.input), own, started, line)
        )
        changes.rows += 2
        return True

    def _cancel_child(self, run: ActiveRun, c: cm.CancelChild) -> bool:
        child_id = run.state.children.get(c.seq)
        if child_id is not None:
            run.post(child_id, CancelAsked("its parent no longer waits for it"))
            run.record(ev.ChildCancelRequested(c.seq, c.awaited))
        return True

    def _create_promise(self, run: ActiveRun, c: cm.CreatePromise) -> bool:
        created = ev.PromiseCreated(c.seq, c.name, c.spec, c.kind)
        run.record(created).extras.promises.append(created)
        return True

    def _record_operation(self, run: ActiveRun, c: cm.RecordOperation) -> bool:
        run.operations = max(0, run.operations - 1)  # one that a former owner's worker began is not counted here
        if c.seq not in run.state.operations:
            run.record(ev.OperationRecorded(c.seq, c.name, c.value, c.failure), len(c.value))
        return True

    def _set_state(self, run: ActiveRun, c: cm.SetState) -> bool:
        run.record(ev.StateSet(c.name, c.value), len(c.value)).extras.states[c.name] = c.value
        return False

    def _clear_state(self, run: ActiveRun, c: cm.ClearState) -> bool:
        run.record(ev.StateCleared(c.name)).extras.states[c.name] = None
        return False

    def _answer_update(self, run: ActiveRun, c: cm.AnswerUpdate) -> bool:
        if c.id in run.state.updates:
            changes = run.record(ev.UpdateAnswered(c.id, c.value, c.failure), len(c.value))
            changes.extras.answers.append((c.id, c.value, encode_failure(c.failure) if c.failure else None))
        return True

    def _record_patch(self, run: ActiveRun, c: cm.RecordPatch) -> bool:
        run.record(ev.PatchRecorded(c.name))
        return False

    def _complete(self, run: ActiveRun, c: cm.CompleteRun) -> bool:
        result = c.result or b"null"  # a success without a value is how a handover looks
        self._close(run, ev.RunSucceeded(result), RunStatus.SUCCESS, None, result)
        return True

    def _fail_run(self, run: ActiveRun, c: cm.FailRun) -> bool:
        self._fail(run, c.failure, c.cause)
        return True

    def _cancel_run(self, run: ActiveRun, c: cm.CancelRun) -> bool:
        self._close(
            run,
            ev.RunCancelled(c.reason),
            RunStatus.CANCELLED,
            Failure("run_cancelled", clip(c.reason) or "the run was cancelled"),
            b"",
        )
        return True

    def _continue(self, run: ActiveRun, c: cm.ContinueAsNew) -> bool:
        """The successor carries the parent link, the waiting signals, and the updates that nobody began to handle; the old run ends in
        success."""
        next_id = self._new_run_id()
        started = ev.RunStarted(
            run.workflow,
            run.version,
            c.input,
            "",
            run.state.parent_id,
            run.state.parent_seq,
            run.state.deadline_us,
            run.id,
            trace=run.trace or run_traceparent(run.id, ""),
            known_as=run.known_as if run.state.parent_id else b"",
        )
        own = self.reserve(run.ns, run.workflow, run.version)
        mail: list[Mail] = [
            *(SignalSent(name, value) for name, value in c.signals),
            *(PromiseKept(name, value) for name, value in c.promises),
            *(CancelAsked(reason, deadline) for reason, deadline in c.cancels),
            *run.unseen,  # it came while the code was deciding to go on elsewhere
            *(UpdateAsked(u.id, u.name, u.value) for u in run.state.updates.values()),
        ]

        def hand_over() -> None:
            run.segment().extras.starts.append(ChildStart(next_id, -1, run.version, "", b"", own, started))
            for one in mail:
                run.post(next_id, one)

        event = ev.RunContinued(next_id, c.input)
        self._close(run, event, RunStatus.SUCCESS, None, b"", next_id, hand_over)
        return True

    # -- ends -------------------------------------------------------------------------------------------------------

    def _fail(self, run: ActiveRun, failure: Failure, cause: int = 0) -> None:
        self._close(run, ev.RunFailed(failure, cause), RunStatus.FAILED, failure, b"")

    def _close(
        self,
        run: ActiveRun,
        event: ev.Event,
        status: RunStatus,
        failure: Failure | None,
        value: bytes,
        successor: bytes | None = None,
        hand_over: Callable[[], None] | None = None,
    ) -> None:
        """Nothing of a run outlives it: tasks and timers are cancelled first, children are asked to stop. What goes with the end
        itself is put into its segment right before it, so that both are written or neither is."""
        self.dispatcher.cancel(run, list(run.state.tasks))
        for seq in list(run.state.timers):
            run.record(ev.TimerCancelled(seq))
        for seq, child_id in run.state.children.items():
            run.post(child_id, CancelAsked("its parent has ended"))
            run.record(ev.ChildCancelRequested(seq))
        if hand_over is not None:
            hand_over()
        elif run.state.updates:
            self._leave_unanswered(run, status)
        # The parent of a run that lives here is told after the commit; one that lives elsewhere gets mail in it.
        parent = self.runs.get(run.state.parent_id)
        if successor is None and run.state.parent_id and (parent is None or parent.evicted):
            run.post(run.state.parent_id, ChildEnded(run.state.parent_seq, status, value, failure, run.known_as))
        changes = run.record(event, len(value))
        changes.close = (status, failure, successor)
        changes.rows += 2
        run.closing = True
        run.outcome = (status, value, failure, successor)
        self.dispatcher.abandon(run)
        self.committer.mark(run, urgent=True)

    def _leave_unanswered(self, run: ActiveRun, status: RunStatus) -> None:
        """Nobody waits for ever: the end of the run answers the updates that its code did not. No event says so, because a retry of the run
        takes the end back, and its code may answer after all."""
        why = f"the run ended ({status.word}) before it answered; it may have begun to act on the update"
        for id in run.state.updates:
            _refuse(run, id, "run_finished", why)

    def _stop(self, run: ActiveRun, failure: Failure) -> None:
        """The code cannot go on. The run keeps its history and waits for somebody to act."""
        self._counters.runs_stuck += 1
        log.error("run %s of %s is stuck: %s", run.id.hex(), run.workflow, failure.message)
        self.release(run, f"{failure.code}: {failure.message}")

    def release(self, run: ActiveRun, stuck: str | None = None) -> None:
        """Let go of a run: it sleeps in the database until its next timer, mail or retry."""
        wake = run.state.next_wake_us() if self._can_sleep(run) else 0
        word, waits = wait_reasons.encode(self._waits(run)) if not stuck and wake != 0 else (None, None)
        run.segment().release = (None if stuck else wake, stuck, word, waits)
        run.evicted = True
        self.dispatcher.abandon(run)
        if self._worker is not None:
            self._worker.forget(run.id)
        self.committer.mark(run, urgent=stuck is not None)
        self.released(wake)

    def _waits(self, run: ActiveRun) -> list[wait_reasons.Wait]:
        return wait_reasons.of_run(
            run.state, run.waiting, run.decider.blocked(wait_reasons.WAITS_MAX) if run.decider is not None else ()
        )

    def _note_waits(self, run: ActiveRun, backlog: bool) -> None:
        """A run that stays in memory and waits: for a child that lives here, for a slot, for tasks at work."""
        waits = self._waits(run)
        if backlog:
            waits.append(wait_reasons.backlog(wait_reasons.task_names(run.state)))
        self._note(run, wait_reasons.encode(waits))

    def _note(self, run: ActiveRun, noted: tuple[str | None, str | None]) -> None:
        if noted != run.noted:
            run.noted = run.segment().extras.noted = noted
            self.committer.mark(run, urgent=False)

    def _can_sleep(self, run: ActiveRun) -> bool:
        """Whether only time or mail can move it: nothing to see, and every unfinished task has a row that brings mail."""
        return run.is_idle and all(seq in run.queued for seq in run.state.tasks)

    # -- after a commit ---------------------------------------------------------------------------------------------

    def committed(self, unit: RunUnit, at_us: int, started: frozenset[bytes]) -> None:
        run = unit.run
        run.writing = False
        first = unit.first
        if unit.events:
            run.seq += len(unit.events)
            run.head, run.head_us = unit.head, at_us
        facts = [ev.Recorded(first + i, at_us, e) for i, e in enumerate(unit.events) if type(e) in _FACTS]
        for x in unit.extras:
            self.mail_pending.difference_update(x.consumed)
            self.mail_done.update(x.consumed)
            if x.answers and self.on_answers is not None:
                self.on_answers(run, x.answers)
        for x in unit.extras:
            for child in x.starts:
                self._child_committed(run, child, at_us, started)
        if run.outcome is not None and not run.pending:
            self._closed(run)
        elif run.evicted:
            if not run.pending:
                self.runs.pop(run.id, None)
            self._counters.runs_evicted += 1
        elif run.reloading:
            run.deliver.extend(facts)
            self._reload_when_written(run)
        elif facts:
            run.deliver.extend(facts)
            self._make_ready(run)
        elif run.is_idle:
            run.idle_since = asyncio.get_running_loop().time()

    def _child_committed(self, run: ActiveRun, child: ChildStart, at_us: int, started: frozenset[bytes]) -> None:
        self.reserved -= child.own
        if child.run_id not in started:
            self.child_refused(run, child.seq, child.key)
        elif child.own:
            self._counters.runs_started += 1
            own = ActiveRun(child.run_id, run.ns, child.started.workflow, child.version, 1)
            own.head = child.head
            self.begin(own, child.started, at_us)

    def child_refused(self, run: ActiveRun, seq: int, key: str) -> None:
        if seq in run.state.children and not run.closing:
            run.record(
                ev.ChildFailed(seq, Failure("run_already_exists", f"the run id {key!r} is taken", "RunAlreadyExists"))
            )
            self.committer.mark(run, urgent=True)

    def _closed(self, run: ActiveRun) -> None:
        assert run.outcome is not None
        status, value, failure, successor = run.outcome
        # It may have been retried and taken up again here, before the answer to the commit that ended it came.
        retried = self.runs.get(run.id) is not run
        if not retried:
            self.runs.pop(run.id, None)
        if run.keys:
            self.lines.freed.update((run.ns, key) for key in run.keys)
            self.reload()
        self._counters.runs_ended += 1
        self._counters.runs_failed += status is RunStatus.FAILED
        self._counters.runs_cancelled += status is RunStatus.CANCELLED
        if self.on_closed is not None:
            self.on_closed(run)
        if self._worker is not None and not retried:
            self._worker.forget(run.id)
        parent = self.runs.get(run.state.parent_id) if run.state.parent_id and successor is None else None
        if parent is not None:
            self.deliver(parent, ChildEnded(run.state.parent_seq, status, value, failure, run.known_as))
        self.ended(run, Outcome(status, value, failure), successor)

    # -- mail -------------------------------------------------------------------------------------------------------

    def deliver_row(self, run: ActiveRun, row: MailRow) -> None:
        """A row that cannot be read, or that the run cannot take, stops that run and no other."""
        if run.closing or run.evicted or row.id in self.mail_pending or row.id in self.mail_done:
            return
        try:
            self.deliver(run, decode_mail(row.body), row.id)
        except Exception as e:
            self._broke(run, e)

    def deliver(self, run: ActiveRun, mail: Mail, inbox_id: int | None = None) -> None:
        """A fact from outside becomes an event. With an inbox id its row goes in the same commit."""
        if run.closing or run.evicted:
            return
        if inbox_id is not None:
            if inbox_id in self.mail_pending or inbox_id in self.mail_done:
                return
            self.mail_pending.add(inbox_id)
            run.mail_seen = True
            # The event goes into this same segment: both are written in one transaction or none is.
            run.segment().extras.consumed.append(inbox_id)
        self._record_mail(run, mail)
        self.committer.mark(run, urgent=True)

    def _record_mail(self, run: ActiveRun, mail: Mail) -> None:
        match mail:
            case SignalSent():
                run.unseen.append(mail)
                run.record(ev.SignalReceived(mail.name, mail.value), len(mail.value))
            case CancelAsked():
                # A second one says that children which do not stop are not to be waited for any longer.
                if not run.state.cancel_requested or run.state.stopping:
                    run.unseen.append(mail)
                    run.record(ev.CancelRequested(mail.reason, mail.deadline)).extras.stops = True
            case PromiseKept():
                allowed = mail.authorized or not run.state.takes_votes_only(mail.name)
                if allowed and mail.name not in run.state.resolved:
                    run.unseen.append(mail)
                    run.record(ev.PromiseResolved(mail.name, mail.value, mail.authorized), len(mail.value))
            case UpdateAsked():
                self._update_asked(run, mail)
            case TaskEnded():
                self.dispatcher.arrived(run, mail)
            case ChildEnded():
                self._child_ended(run, mail)

    def _update_asked(self, run: ActiveRun, mail: UpdateAsked) -> None:
        """Asked for twice under one id, an update is handled once."""
        if mail.id in run.state.updates:
            return
        if mail.id in run.state.answered:  # where the answer is still kept it stands, and this one is nothing
            _refuse(run, mail.id, "conflict", "the run answered this update before, and the answer is no longer kept")
        elif run.decider is not None:
            why = "a declarative flow takes no updates; send it a signal, or resolve a promise"
            _refuse(run, mail.id, "update_rejected", why)
        elif len(run.state.updates) >= UPDATES_OPEN_MAX:
            why = f"the run has UPDATES_OPEN_MAX={UPDATES_OPEN_MAX} updates to answer already; ask again later, under another id"
            _refuse(run, mail.id, "update_rejected", why)
        else:
            run.record(ev.UpdateReceived(mail.id, mail.name, mail.value), len(mail.value))

    def _child_ended(self, run: ActiveRun, mail: ChildEnded) -> None:
        child = run.state.children.get(mail.seq)
        if child is None or (mail.child and mail.child != child):
            return
        match mail.status:
            case RunStatus.SUCCESS:
                run.record(ev.ChildSucceeded(mail.seq, mail.value), len(mail.value))
            case RunStatus.CANCELLED:
                run.record(ev.ChildCancelled(mail.seq, mail.failure.message if mail.failure else ""))
            case _:
                run.record(ev.ChildFailed(mail.seq, mail.failure or Failure("run_failed", "the child run failed")))

    # -- timers -----------------------------------------------------------------------------------------------------

    def _push_timer(self, run: ActiveRun, fire_at_us: int, seq: int) -> None:
        if len(self._timers) >= self._timers_max:
            self._compact_timers()
        first = not self._timers or fire_at_us < self._timers[0][0]
        heapq.heappush(self._timers, (fire_at_us, run.id, seq))
        if first:
            self._arm()

    def _compact_timers(self) -> None:
        """Cancelled timers stay in the heap until their time; when it has doubled they are thrown out together."""
        live = [
            t for t in self._timers if (r := self.runs.get(t[1])) and (t[2] < 0 or r.state.timers.get(t[2]) == t[0])
        ]
        heapq.heapify(live)
        self._timers = live
        self._timers_max = max(TIMERS_MIN, 2 * len(live))

    def _arm(self) -> None:
        if self._timer_handle is not None:
            self._timer_handle.cancel()
            self._timer_handle = None
        if self._timers:
            delay_s = min((self._timers[0][0] - self._now_us()) / 1e6, 3600.0)
            self._timer_handle = asyncio.get_running_loop().call_later(max(delay_s, 0.0) + 0.0005, self.fire_timers)

    def fire_timers(self) -> None:
        """Record every timer that is due by the database's clock; our estimate of it never runs ahead."""
        now = self._now_us()
        while self._timers and self._timers[0][0] <= now:
            fire_at_us, run_id, seq = heapq.heappop(self._timers)
            run = self.runs.get(run_id)
            if run is None or run.closing or run.evicted:
                continue
            if seq < 0:
                if fire_at_us == run.state.deadline_us:
                    self._time_out(run)
            elif run.state.timers.get(seq) == fire_at_us:
                run.record(ev.TimerFired(seq))
                self.committer.mark(run, urgent=True)
        self._arm()

    def _time_out(self, run: ActiveRun) -> None:
        """A run that did something it can undo is told to, and has a while for it. It fails by itself, with the same failure."""
        undoable = run.state.undoable or (run.decider is not None and run.decider.flow.compensates)
        if undoable and not run.state.timed_out:
            run.unseen.append(CancelAsked(DEADLINE, deadline=True))
            run.record(ev.CancelRequested(DEADLINE, deadline=True)).extras.stops = True
            self._push_timer(run, run.state.deadline_us, -1)
            self.committer.mark(run, urgent=True)
        else:
            self._fail(run, TIMED_OUT)

    # -- memory -----------------------------------------------------------------------------------------------------

    def evict_idle(self) -> None:
        """Runs that only wait for the outside leave memory; they come back when their time or mail comes."""
        crowded = len(self.runs) > self.runs_max // 2
        now_s, now_us = asyncio.get_running_loop().time(), self._now_us()
        busy, flying = self.dispatcher.busy_runs(), self.dispatcher.flying_runs()
        for run in list(self.runs.values()):
            if run.closing or run.evicted:
                continue
            if not run.is_idle:
                if run.noted[0] is not None and not run.dirty:
                    self._note(run, (None, None))  # it goes on
                continue
            # A child that ends here tells its parent in memory; the parent must not have left.
            if run in busy or any(child in self.runs for child in run.state.children.values()):
                if now_s - run.idle_since >= NOTE_S:
                    self._note_waits(run, backlog=run in busy and run not in flying)
                continue
            wake = run.state.next_wake_us()
            wake_in_s = (wake - now_us) / 1e6 if wake is not None else None
            if self._placement.may_evict(now_s - run.idle_since, wake_in_s, crowded):
                self.release(run)

    def release_unserved(self) -> None:
        """Runs whose code no worker here has any more: another engine may have one."""
        for run in list(self.runs.values()):
            served = run.decider is not None or (run.ns, run.workflow) in self.workflows
            if not served and not run.closing and not run.evicted:
                self.release(run)

    def forget_all(self) -> None:
        """The session is gone: nothing in memory is worth anything."""
        self.runs.clear()
        self.to_reload.clear()
        self.reserved = 0
        self._ready.clear()
        self._turns.forget_all()
        self._timers.clear()
        self.mail_pending.clear()
        self.mail_done.clear()
        self.dispatcher.abandon_all()
        self.committer.drop_runs()
        if self._worker is not None:
            self._worker.forget_all()


_FACTS = frozenset(ev.FACTS)
_MAILED = frozenset({ev.SignalReceived, ev.CancelRequested, ev.PromiseResolved})


def _bound(run: ActiveRun, started_us: int) -> None:
    """A flow may say how long its runs may take; whoever starts one may say otherwise."""
    if run.decider is not None and run.decider.flow.timeout_us and not run.state.deadline_us:
        grace_us = UNWIND_GRACE_US if run.state.timed_out else 0
        run.state.deadline_us = started_us + run.decider.flow.timeout_us + grace_us


def _place_in_trace(run: ActiveRun) -> None:
    """A run that nobody traced needs no words about it: its place follows from its id alone."""
    if run.state.trace:
        run.trace = run_traceparent(run.id, run.state.trace)


def _as_mail(event: ev.Event) -> Mail | None:
    """The mail that an event was made of."""
    match event:
        case ev.SignalReceived():
            return SignalSent(event.name, event.value)
        case ev.CancelRequested():
            return CancelAsked(event.reason, event.deadline)
        case ev.PromiseResolved():
            return PromiseKept(event.name, event.value, event.authorized)
        case _:
            return None


_COMMANDS: dict[type, Callable[[RunLoop, ActiveRun, Any], bool]] = {
    cm.ScheduleTasks: RunLoop._schedule_tasks,
    cm.SkipTasks: RunLoop._skip_tasks,
    cm.CancelTasks: RunLoop._cancel_tasks,
    cm.StartTimer: RunLoop._start_timer,
    cm.CancelTimer: RunLoop._cancel_timer,
    cm.StartChild: RunLoop._start_child,
    cm.CancelChild: RunLoop._cancel_child,
    cm.CreatePromise: RunLoop._create_promise,
    cm.RecordOperation: RunLoop._record_operation,
    cm.SetState: RunLoop._set_state,
    cm.ClearState: RunLoop._clear_state,
    cm.RecordPatch: RunLoop._record_patch,
    cm.AnswerUpdate: RunLoop._answer_update,
    cm.CompleteRun: RunLoop._complete,
    cm.FailRun: RunLoop._fail_run,
    cm.CancelRun: RunLoop._cancel_run,
    cm.ContinueAsNew: RunLoop._continue,
}


def _refuse(run: ActiveRun, update: str, code: str, message: str) -> None:
    """An answer that the engine gives in the code's place."""
    run.segment().extras.answers.append((update, b"", encode_failure(Failure(code, message))))


def _too_large(run: ActiveRun) -> Failure:
    error = HistoryTooLarge(
        f"the run's history has reached HISTORY_EVENTS_MAX={HISTORY_EVENTS_MAX} events; end it earlier with wf.continue_as_new(), or move loops into child workflows"
    )
    return error.to_failure()
