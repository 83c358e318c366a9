"""Runs that no code can end: any engine ends them, at their deadline or when they are cancelled.

A run whose code a worker has ends by its own code, which may undo what the run did. That needs the code. A run is ended here when its code
cannot run: it is stuck, it waits for admission, or no connected worker has its workflow. Its tasks and timers are cancelled, its children
are cancelled, its parent gets a message, its slots are freed.

Laws:

1. Only the database's clock decides. A run is taken under a lock that no claim can share: it is claimed or ended, never both.
2. Everything about an end is written in one fenced transaction. An engine that dies in the middle has done nothing.
3. A run that has something to undo and only lacks a worker is given UNDO_WORKER_GRACE_US for one to come back.
4. A history that cannot be read does not keep a run from ending: what can be read of it is used.
5. An idle poll reads three empty indexes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from perdure.core import events as ev
from perdure.core.errors import Failure, clip
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.limits import UNDO_FAILURES_SHOWN, UNDO_WORKER_GRACE_US
from perdure.core.messages import CancelMessage, ChildEndedMessage, TaskEndedMessage
from perdure.core.run_retry import effective
from perdure.core.runstate import RunState
from perdure.core.undo import TIMED_OUT, stack_of
from perdure.engine.commits.rows import Batch
from perdure.engine.context import EngineContext
from perdure.engine.flow_control import FlowControl
from perdure.engine.ports import HistoryRow, InboxRow, Named
from perdure.engine.runs.ends import count_end, run_end
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun, RunUnit
from perdure.engine.runs.transitions import ENDED
from perdure.engine.services.service import Service
from perdure.engine.tasks.lost_workers import LostWorkers
from perdure.wire.codec import decode_message, decode_row, encode_failure

log = logging.getLogger("perdure.engine")

RUNS_MAX: Final = 50
"""Runs ended in one transaction."""
SET_ASIDE_S: Final = 60.0
"""Before a run whose end the database refused is tried again."""
SET_ASIDE_MAX: Final = 1_000


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


class RecordedRun(msgspec.Struct, frozen=True):
    """One run as the database has it."""

    history: list[HistoryRow]
    messages: list[InboxRow]
    queued: set[int]


class Decision(msgspec.Struct):
    """The decision about some runs: `ends` are written by `batch`, the others wait, each until its time."""

    batch: Batch
    ends: list[ActiveRun]
    waits: dict[bytes, int]


Decide = Callable[[Sequence[tuple[Unendable, RecordedRun]]], Decision]


class EndingStore(Protocol):
    async def next_deadline(self) -> tuple[int, int | None]:
        """The database's clock, and the next deadline of a run that no engine holds."""
        ...

    async def end(
        self, session: int, number: int, served: Sequence[Named], limit: int, leave_out: Sequence[bytes], decide: Decide
    ) -> tuple[list[bytes], list[ActiveRun]]:
        """The runs that were found, and those that were ended. Raises Refused with the runs that were found, or Unavailable."""
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
            found, ended = await self._store.end(
                self._session.id, self._number, list(self._runs.workflows), limit, aside, decide
            )
        except Refused as e:
            self._set_aside(e, now_s)
            return True
        self._limit = RUNS_MAX
        if ended:
            self._ended(ended)
        return len(found) == limit

    def _ended(self, runs: list[ActiveRun]) -> None:
        """The ends are durable."""
        for run in runs:
            end = run_end(run)
            count_end(self._counters, end)
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


def decide(found: Sequence[tuple[Unendable, RecordedRun]]) -> Decision:
    batch = Batch()
    ends: list[ActiveRun] = []
    waits: dict[bytes, int] = {}
    for one, recorded in found:
        known = _read(recorded.history, one.run_id)
        until_us = waits_until(one, known.state)
        if until_us is not None:
            waits[one.run_id] = until_us
            continue
        run = _ended(one, known, recorded)
        unit = RunUnit(run, list(run.pending))
        unit.fill(batch)
        run.seq += len(unit.events)
        ends.append(run)
    return Decision(batch, ends, waits)


def waits_until(one: Unendable, state: RunState) -> int | None:
    """Until when the run waits for a worker to undo its tasks; None: the run ends now."""
    if one.stuck is not None or one.outside or not state.undoable:
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
    if asked is None and one.asked_us is not None and not run.state.timed_out:
        asked = ""  # the request itself cannot be read
    _close(run, one, asked, _why(one, known))
    return run


def _task_ended(run: ActiveRun, message: TaskEndedMessage, now_us: int) -> None:
    """Record a task that ended before its run, and whose message was not read yet."""
    scheduled = run.state.tasks[message.seq]
    times = (message.scheduled_us or now_us, message.started_us or None, message.finished_us or now_us)
    run.unqueue(message.seq)
    if message.status == TaskStatus.SUCCESS:
        row = run.task_row(message.seq, scheduled, TaskStatus.SUCCESS, message.attempts, message.lost, times, None)
        run.record_success(message.seq, message.value, row)
    else:
        failure = message.failure or Failure("task_failed", "the task failed")
        row = run.task_row(
            message.seq, scheduled, TaskStatus.FAILED, message.attempts, message.lost, times, failure.message
        )
        run.record(ev.TaskFailed(message.seq, failure, message.attempts)).tasks.append(row)


def _why(one: Unendable, known: Known) -> str:
    """Why the engine ended it; empty for a run that had not begun."""
    if one.stuck is not None:
        told = f"the engine ended it, because it was stuck ({one.stuck.partition(chr(10))[0]})"
    elif one.outside:
        return ""
    else:
        told = f"the engine ended it, because no worker has the workflow {one.workflow!r}"
    if known.undoable:
        names = ", ".join(known.undoable[:UNDO_FAILURES_SHOWN]) + (
            ", ..." if len(known.undoable) > UNDO_FAILURES_SHOWN else ""
        )
        told += f"; not undone: {names}"
    return told


def _close(run: ActiveRun, one: Unendable, asked: str | None, why: str) -> None:
    """As RunExits.close, of a run that is in no memory. The parent gets a message in any case."""
    state, now_us = run.state, one.clock_us
    if state.tasks:
        seqs = list(state.tasks)
        rows = [run.task_row(s, state.tasks[s], TaskStatus.CANCELLED, 0, 0, (now_us, None, now_us), None) for s in seqs]
        for seq in seqs:
            run.unqueue(seq)
        changes = run.record(ev.TasksCancelled(seqs))
        changes.tasks.extend(rows)
        changes.rows += len(rows)
    for seq in list(run.queued):  # of a history that cannot be read
        run.unqueue(seq)
    for seq in list(state.timers):
        run.record(ev.TimerCancelled(seq))
    for seq, child_id in state.children.items():
        run.send(child_id, CancelMessage("its parent has ended"))
        run.record(ev.ChildCancelRequested(seq))
    status = RunStatus.FAILED if asked is None else RunStatus.CANCELLED
    unanswered = encode_failure(Failure("run_finished", f"the run ended ({status.word}) before it answered"))
    run.segment().extras.answers.extend((id, b"", unanswered) for id in state.updates)
    event: ev.Event
    if asked is None:
        failure = Failure(TIMED_OUT.code, clip(_joined(TIMED_OUT.message, why)), TIMED_OUT.type)
        event = ev.RunFailed(failure)
    else:
        reason = _joined(asked or ("the run was cancelled" if why else ""), why)
        failure = Failure("run_cancelled", clip(reason) or "the run was cancelled")
        event = ev.RunCancelled(reason)
    if state.parent_id or one.parent_id:
        parent, seq = (
            state.parent_id or one.parent_id or b"",
            state.parent_seq if state.parent_id else one.parent_seq or 0,
        )
        known_as = run.known_as if state.events else b""
        run.send(parent, ChildEndedMessage(seq, status, b"", failure, known_as))
    changes = run.record(event)
    changes.close = (status, failure, None)
    changes.rows += 2
    run.phase = ENDED[run.phase](status, b"", failure, None)


def _joined(first: str, second: str) -> str:
    return f"{first}; {second}" if second else first
