"""Runs that no code ends: any engine ends them, at their deadline, when they are cancelled or terminated, or when they expire.

A run whose code a worker has ends by its own code, which may undo what the run did. That needs the code. A run is ended here when its code
cannot run: it is stuck, it has not begun, it waits for admission, or no connected worker has its workflow. A run that is to be terminated
is ended here in any case, unless an engine has it in memory and ends it there. Its tasks and timers are cancelled, its children end by
their parent-close policies, its parent gets a message, its slots are freed.

Laws:

1. Only the database's clock decides. A run is taken under a lock that no claim can share: it is claimed or ended, never both.
2. Everything about an end is written in one fenced transaction. An engine that dies in the middle has done nothing.
3. A run that has something to undo and only lacks a worker is given UNDO_WORKER_GRACE_US for one to come back.
4. A cancel request, or its deadline, ends the pause of a run whose code can end it.
5. A history that cannot be read does not keep a run from ending: what can be read of it is used.
6. An idle poll reads four empty indexes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from perdure.core import events as ev
from perdure.core.errors import Failure, PayloadKeyMissing, RunExpired, clip
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.limits import UNDO_FAILURES_SHOWN, UNDO_WORKER_GRACE_US
from perdure.core.messages import CancelMessage, ChildEndedMessage, TaskEndedMessage, TerminateMessage
from perdure.core.run_retry import effective
from perdure.core.runstate import RunState
from perdure.core.undo import TIMED_OUT, stack_of
from perdure.engine.commits.rows import Batch, Seal
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.ports import HistoryRow, InboxRow, Pin
from perdure.engine.runs.children import close_children
from perdure.engine.runs.ends import count_end, run_end
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun, RunUnit
from perdure.engine.runs.transitions import ENDED
from perdure.engine.services.service import Service
from perdure.engine.tasks.lost_workers import LostWorkers
from perdure.engine.tasks.records import recover_attempt
from perdure.wire.codec import decode_message, decode_row, encode_failure

log = logging.getLogger("perdure.engine")

RUNS_MAX: Final = 50
"""Runs ended in one transaction."""
SET_ASIDE_S: Final = 60.0
"""Before a run whose end the database refused is tried again."""
SET_ASIDE_MAX: Final = 1_000
EXPIRED: Final = "the run did not begin within the time that its start allowed (start_within)"


class Unendable(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose end is due and whose code cannot end it."""

    run_id: bytes
    ns: int
    workflow: str
    version: str
    epoch: int
    parent_id: bytes | None
    parent_seq: int | None
    stuck: str | None
    outside: bool
    """It waits for admission by flow control."""
    deadline_us: int | None
    asked_us: int | None
    """When it was first asked to stop; None: its deadline has passed."""
    clock_us: int
    keys: tuple[str, ...] = ()
    is_paused: bool = False
    is_delayed: bool = False
    """It has not begun, because it was to begin later or was paused before."""
    is_expired: bool = False
    """It has not begun in time."""
    is_terminated: bool = False
    is_unserved: bool = False
    """No connected worker has its code."""

    @property
    def has_code(self) -> bool:
        """Only a pause keeps its code from ending it."""
        halts = self.stuck is not None or self.outside or self.is_delayed or self.is_expired or self.is_unserved
        return self.is_paused and not halts and not self.is_terminated


class RecordedRun(msgspec.Struct, frozen=True):
    """One run as the database has it."""

    history: list[HistoryRow]
    messages: list[InboxRow]
    queued: set[int]


class Decision(msgspec.Struct):
    """The decision about some runs: `ends` are written by `batch`, `resumed` go on, the others wait, each until its time."""

    batch: Batch
    ends: list[ActiveRun]
    waits: dict[bytes, int]
    resumed: list[bytes] = []


Decide = Callable[[Sequence[tuple[Unendable, RecordedRun]]], Decision]


class EndingStore(Protocol):
    async def next_deadline(self) -> tuple[int, int | None]:
        """The database's clock, and the next deadline of a run that no engine holds."""
        ...

    async def end(
        self, session: int, number: int, served: Sequence[Pin], limit: int, leave_out: Sequence[bytes], decide: Decide
    ) -> tuple[list[bytes], Decision]:
        """The runs that were found, and what became of them. Raises Refused with the runs that were found, or Unavailable."""
        ...


class Refused(Exception):
    """The database refuses the end of some run among `runs`. Nothing was written."""

    def __init__(self, runs: list[bytes], why: str) -> None:
        super().__init__(why)
        self.runs = runs


class Endings(Service):
    name = "ending runs whose code cannot run"
    poll_s = 0.5

    def __init__(
        self, context: EngineContext, store: EndingStore, runs: OwnedRuns, flow_control: FlowControl, lost: LostWorkers
    ) -> None:
        super().__init__()
        self._store, self._session, self._counters, self._events = (
            store,
            context.session,
            context.counters,
            context.events,
        )
        self._runs, self._flow_control, self._lost = runs, flow_control, lost
        self._seal = context.store.seal_history
        self._names, self._now_us = context.names, context.now_us
        self.next_us: int | None = None
        """The next deadline of a run that no engine holds."""
        self._number = 0
        self._limit = RUNS_MAX
        self._aside: dict[bytes, float] = {}
        """Runs whose end was refused -> until when they are left alone, by the loop's clock."""

    async def poll_once(self) -> float | None:
        """End due runs, in batches."""
        while await self._end_some():
            pass
        clock_us, self.next_us = await self._store.next_deadline()
        return None if self.next_us is None else max((self.next_us - clock_us) / 1e6, 0.0) + 0.002

    async def _end_some(self) -> bool:
        """Whether there may be more."""
        self._number -= 1  # a committer counts up from 1 in the same log of commits
        limit, now_s = self._limit, asyncio.get_running_loop().time()
        aside = [run_id for run_id, until_s in self._aside.items() if until_s > now_s]
        try:
            found, decision = await self._store.end(
                self._session.id, self._number, self._runs.claimable, limit, aside, partial(decide, self._seal)
            )
        except Refused as e:
            self._set_aside(e, now_s)
            return True
        self._limit = RUNS_MAX
        if decision.ends:
            self._ended(decision.ends)
        if decision.resumed:
            self._events.work_due.publish(0)
            self._events.other_engines_concerned.publish("run")
        return len(found) == limit

    def _ended(self, runs: list[ActiveRun]) -> None:
        """The ends are durable."""
        for run in runs:
            end = run_end(run)
            count_end(self._counters, self._names, end, self._now_us())
            self._counters.runs_ended_without_code += 1
            self._flow_control.freed.update((run.ns, key) for key in run.keys)
            log.info("run %s of %s was ended without its code: %s", run.id.hex(), run.workflow, end.outcome.failure)
            self._events.run_ended.publish(end)
        self._lost.runs_ended({run.id for run in runs})
        self._events.work_due.publish(0)  # their parents and children have messages
        self._events.other_engines_concerned.publish("message")

    def _set_aside(self, refused: Refused, now_s: float) -> None:
        """Several were refused: they are tried one by one. One alone is left for a while, so that the others have their turn."""
        if len(refused.runs) > 1:
            self._limit = 1
            return
        if len(self._aside) >= SET_ASIDE_MAX:
            self._aside.clear()
        for run_id in refused.runs:
            log.error(
                "the end of run %s was refused by the database and is tried again later: %s", run_id.hex(), refused
            )
            self._aside[run_id] = now_s + SET_ASIDE_S


def decide(seal: Seal, found: Sequence[tuple[Unendable, RecordedRun]]) -> Decision:
    batch = Batch(seal)
    ends: list[ActiveRun] = []
    waits: dict[bytes, int] = {}
    resumed: list[bytes] = []
    for one, recorded in found:
        if one.has_code:
            resumed.append(one.run_id)
            continue
        try:
            known = _read(recorded.history, one.run_id)
        except PayloadKeyMissing as e:
            if not one.is_terminated:
                raise Refused([one.run_id], str(e)) from e
            known = _read_what_is_left(recorded.history)
        until_us = waits_until(one, known.state)
        if until_us is not None:
            waits[one.run_id] = until_us
            continue
        run = _ended(one, known, recorded)
        unit = RunUnit(run, list(run.pending))
        unit.fill(batch)
        run.seq += len(unit.events)
        ends.append(run)
    return Decision(batch, ends, waits, resumed)


def waits_until(one: Unendable, state: RunState) -> int | None:
    """Until when the run waits for a worker to undo its tasks; None: the run ends now."""
    if one.stuck is not None or one.outside or one.is_terminated or not state.undoable:
        return None
    since_us = one.asked_us or one.deadline_us or one.clock_us
    until_us = since_us + UNDO_WORKER_GRACE_US
    return until_us if until_us > one.clock_us else None


class Known(msgspec.Struct):
    """A run rebuilt from the readable part of its history."""

    state: RunState
    reason: str | None = None
    """Of the cancel request that was recorded; None: there is none, or the engine made it at the deadline."""
    undoable: list[str] = []
    """Tasks that succeeded and can be undone."""


def _read(rows: Sequence[HistoryRow], run_id: bytes) -> Known:
    try:
        history = effective([r for row in rows for r in decode_row(row.seq, row.at_us, row.body)])
        known = Known(RunState())
        for record in history:
            known.state.apply(record.event)
    except PayloadKeyMissing:
        raise  # it can be read again when the key is back
    except Exception as e:
        log.warning("run %s is ended although its history cannot be read: %s", run_id.hex(), e)
        return _read_what_is_left(rows)
    for record in history:
        if isinstance(record.event, ev.CancelRequested) and not record.event.deadline:
            known.reason = record.event.reason
    if known.state.undoable:
        known.undoable = [u.name for u in stack_of(history) if u.status in ("ready", "undoing")]
    return known


def _read_what_is_left(rows: Sequence[HistoryRow]) -> Known:
    """Apply the readable events; inconsistent ones are skipped."""
    known = Known(RunState())
    for row in rows:
        try:
            records = decode_row(row.seq, row.at_us, row.body)
        except Exception:
            continue
        for record in records:
            try:
                known.state.apply(record.event)
            except Exception:
                continue
    known.state.status = RunStatus.RUNNING
    known.state.undoable = 0  # what it did is not known, so that no worker could undo it either
    return known


def _ended(one: Unendable, known: Known, recorded: RecordedRun) -> ActiveRun:
    run = ActiveRun(one.run_id, one.ns, one.workflow, one.version, one.epoch + 1)
    run.keys, run.state = one.keys, known.state
    if recorded.history:
        last = recorded.history[-1]
        run.seq, run.head, run.head_us = last.last, last.hash, last.at_us
    run.queued = set(recorded.queued)
    run.inbox_used = True  # all that is in its inbox goes with the run
    asked = known.reason
    terminate: TerminateMessage | None = None
    for row in recorded.messages:
        try:
            message = decode_message(row.body)
        except Exception:
            continue
        if isinstance(message, TaskEndedMessage) and message.seq in run.state.tasks:
            _task_ended(run, message, one.clock_us)
        elif isinstance(message, CancelMessage) and asked is None:
            run.record(ev.CancelRequested(message.reason, message.deadline))
            asked = message.reason
        elif isinstance(message, TerminateMessage) and terminate is None:
            terminate = message
    if one.is_terminated:
        request = terminate or TerminateMessage()  # the request itself cannot be read
        _close(run, one, ev.RunTerminated(request.reason, request.by))
        return run
    if asked is None and one.asked_us is not None and not run.state.timed_out:
        asked = ""  # the request itself cannot be read
    _close(run, one, _end_of(one, asked, _why(one, known)))
    return run


def _end_of(one: Unendable, asked: str | None, why: str) -> ev.RunFailed | ev.RunCancelled:
    if asked is not None:
        return ev.RunCancelled(_joined(asked or ("the run was cancelled" if why else ""), why))
    if one.is_expired:
        return ev.RunFailed(Failure(RunExpired.code, EXPIRED, RunExpired.__name__))
    return ev.RunFailed(Failure(TIMED_OUT.code, clip(_joined(TIMED_OUT.message, why)), TIMED_OUT.type))


def _task_ended(run: ActiveRun, message: TaskEndedMessage, now_us: int) -> None:
    """Record a task that ended before its run, and whose message was not read yet."""
    scheduled = run.state.tasks[message.seq]
    spent = message.spent(now_us)
    run.unqueue(message.seq, message.attempts)
    if message.orphaned:
        recover_attempt(run, message.seq, message.attempts)
    if message.status == TaskStatus.SUCCESS:
        row = run.task_row(message.seq, scheduled, TaskStatus.SUCCESS, message.attempts, message.lost, spent)
        run.record_success(message.seq, message.value, row)
    else:
        failure = message.failure or Failure("task_failed", "the task failed")
        row = run.task_row(message.seq, scheduled, TaskStatus.FAILED, message.attempts, message.lost, spent, failure)
        run.record(ev.TaskFailed(message.seq, failure, message.attempts)).tasks.append(row)


def _why(one: Unendable, known: Known) -> str:
    """Why the engine ended it; empty for a run that had not begun."""
    if one.stuck is not None:
        told = f"the engine ended it, because it was stuck ({one.stuck.partition(chr(10))[0]})"
    elif one.outside or one.is_delayed or one.is_expired:
        return ""
    else:
        which = f"version {one.version} of the workflow" if known.state.pinned else "the workflow"
        told = f"the engine ended it, because no worker has {which} {one.workflow!r}"
    if known.undoable:
        names = ", ".join(known.undoable[:UNDO_FAILURES_SHOWN]) + (
            ", ..." if len(known.undoable) > UNDO_FAILURES_SHOWN else ""
        )
        told += f"; not undone: {names}"
    return told


def _close(run: ActiveRun, one: Unendable, event: ev.RunFailed | ev.RunCancelled | ev.RunTerminated) -> None:
    """As RunExits.close, of a run that is in no memory. The parent gets a message in any case."""
    state, now_us = run.state, one.clock_us
    if state.tasks:
        seqs = list(state.tasks)
        spent = (now_us, None, now_us, None, None)
        rows = [run.task_row(s, state.tasks[s], TaskStatus.CANCELLED, 0, 0, spent) for s in seqs]
        for seq in seqs:
            run.unqueue(seq)
        changes = run.record(ev.TasksCancelled(seqs))
        changes.tasks.extend(rows)
        changes.rows += len(rows)
    for seq in list(run.queued):  # of a history that cannot be read
        run.unqueue(seq)
    for seq in list(state.timers):
        run.record(ev.TimerCancelled(seq))
    close_children(run)
    status, failure = _outcome(event)
    unanswered = encode_failure(Failure("run_finished", f"the run ended ({status.word}) before it answered"))
    run.segment().extras.answers.extend((id, b"", unanswered) for id in state.updates)
    parent, parent_seq = (state.parent_id, state.parent_seq) if state.parent_id else (one.parent_id, one.parent_seq)
    if parent and parent_seq is not None and parent_seq >= 0:
        known_as = run.known_as if state.events else b""
        run.send(parent, ChildEndedMessage(parent_seq, status, b"", failure, known_as))
    changes = run.record(event)
    changes.close = (status, failure, None)
    changes.rows += 2
    run.phase = ENDED[run.phase](status, b"", failure, None)


def _outcome(event: ev.RunFailed | ev.RunCancelled | ev.RunTerminated) -> tuple[RunStatus, Failure]:
    match event:
        case ev.RunFailed():
            return RunStatus.FAILED, event.failure
        case ev.RunCancelled():
            return RunStatus.CANCELLED, Failure("run_cancelled", clip(event.reason) or "the run was cancelled")
        case _:
            return RunStatus.CANCELLED, ev.terminated(event)


def _joined(first: str, second: str) -> str:
    return f"{first}; {second}" if second else first
