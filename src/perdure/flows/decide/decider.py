"""The decider of declarative flows: facts in, commands out. Pure, incremental, rebuilt from history.

Theory. A run is a tree of frames (frames.py). Facts arrive one at a time, in the order of the history; each ends some executions, which
ends nodes, which makes others ready, until nothing is left to do at that moment. What it asks for goes through the same journal as
workflow code, so a command that the history already holds is recognised by its number and skipped, and one that differs is refused.

Laws:

1. What is asked for depends on the definition and the order of the facts alone, never on how they were batched: every record is
   worked off completely before the next.
2. An execution that was stopped is forgotten; whatever is said about it later means nothing.
3. The end of the run is asked for once all records given have been applied, so that a retry, which follows a failure in the
   history, finds the frames as they were.

    apply(record): fact -> _ended(visit, index) -> frame.node_succeeded | node_failed -> later(...) -> enter(visit) -> journal
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.calls import OFFER
from perdure.core.durations import datetime_of
from perdure.core.errors import Failure
from perdure.core.ids import text
from perdure.core.json_schema import completed
from perdure.core.limits import (
    EXPR_STEPS_MAX,
    FLOW_DECISION_STEPS_MAX,
    NAME_CHARS_MAX,
    SIGNALS_BUFFERED_MAX,
    WAITING_NAMES_MAX,
)
from perdure.core.undo import DEADLINE, PREFIX, TIMED_OUT, CannotUndo, Unwinding, error_value, offer, told_of, why
from perdure.flows.decide.executions import ITEM_STEPS, ChildRun, Done, Executions, Inner, Timer, Waiting, checked
from perdure.flows.decide.frames import FAILED, PENDING, RUNNING, DagFrame, Frame, GraphFrame, Trouble, Visit, make
from perdure.flows.decide.values import Value
from perdure.flows.model import DEFAULT, Flow

_NOWHERE: Any = object()


class Decider(Executions):
    def __init__(self, flow: Flow, run_id: bytes) -> None:
        super().__init__()
        self.flow, self.run_id = flow, run_id
        self.ended = False
        self._scheduled: dict[str, str] = {}
        """Which schedule started the run, and the time it was meant for."""
        self.root: Frame | None = None
        self._end: cm.Command | None = None
        self._cancelling: str | None = None
        """Why the run was cancelled, while it waits for `_leaves`: child runs that were asked to stop."""
        self._leaves: set[int] = set()
        self._undoing: Unwinding[Done] | None = None
        """Set once the run has failed or stopped and takes back what it did."""
        self._barrier = -1
        """The timer after which every success of a task that was stopped has been heard of."""
        self._doubtful: set[int] = set()
        """Child runs that were stopped and may succeed all the same."""
        self._skips: list[tuple[str, str]] = []
        self._written: dict[str, None] = {}
        self._revived: frozenset[int] = frozenset()
        """Child runs that were retried with this run."""
        self._early: dict[int, ev.ChildSucceeded | ev.ChildFailed | ev.ChildCancelled] = {}
        """How some of them ended before it was their turn to be waited for again."""
        self._records: list[ev.Recorded] = []
        self._begun = 0
        """How many of the given records have been begun."""
        self._record: ev.Recorded | None = None
        """The one that is being worked off."""
        self._replaying = False

    # -- the journal's side -----------------------------------------------------------------------------------------

    def activate(self, records: list[ev.Recorded], *, replay: bool) -> list[cm.Command]:
        """Apply records in their order; answers what has to happen. With `replay` they are the whole history."""
        self.give(records, replay=replay)
        while not self.advance(_never):
            pass
        return self.take()

    @property
    def at(self) -> int:
        """Number of the record whose consequences are being decided."""
        return self._at

    def give(self, records: list[ev.Recorded], *, replay: bool) -> None:
        """Records to be applied by `advance`. The former ones have been."""
        assert self._record is None and self._begun == len(self._records)
        if replay:
            records = ev.from_beginning(records)
            self._journal.load(records)
        self._records, self._begun, self._replaying = list(records), 0, replay

    def advance(self, is_up: Callable[[], bool]) -> bool:
        """Apply what was given, until `is_up` answers that the time for it is; it is asked after every few steps. True: all is applied.
        What has to happen so far can be taken in between. Raises NondeterminismError, and DecisionTooLarge."""
        given = self._records
        while True:
            if self._record is None:
                if self._begun == len(given):
                    break
                self._begun += 1
                self._begin_record(given[self._begun - 1])
            if self._record is not None and self._work_off(is_up):
                self._record = None
            if self.spent > FLOW_DECISION_STEPS_MAX:
                raise DecisionTooLarge(self._too_large())
            if (self._record is not None or self._begun < len(given)) and is_up():
                self._check()
                return False
        if self._end is not None and (self._undoing is None or self._undoing.done):
            self.ended = True
            self._journal.close(self._told_end())
        elif self._replaying:
            self._journal.check_all_matched(lambda: "nothing")
        self._check()
        return True

    def take(self) -> list[cm.Command]:
        """What has to happen. Before all of a history is applied nothing does: what is new may turn out not to fit it."""
        return self._journal.take_commands() if self._begun == len(self._records) else []

    def _check(self) -> None:
        if self._journal.mismatch is not None:
            raise self._journal.mismatch

    def _too_large(self) -> str:
        return (
            f"one decision of flow {self.flow.name!r} (after event {self._at} of the run) has taken {self.spent} steps, more than "
            f"FLOW_DECISION_STEPS_MAX={FLOW_DECISION_STEPS_MAX}; it was stopped before it held up others any longer. "
            "Move the computation into a task, or make less of it follow from one event"
        )

    def _begin_record(self, record: ev.Recorded) -> None:
        act = _FACTS.get(type(record.event))
        if act is None:
            return
        self._now_us, self._at, self.spent = record.at_us, record.seq, 0
        self._record = record
        if self._undoing is not None:
            self._undo_went(self._undoing, record.event)
        elif self._cancelling is not None and self._end is None:
            self._unwind(record.event)
        elif self._end is None or type(record.event) is ev.RunRetried:
            act(self, record.event)
        else:
            self._note(record.event)
        self._renew()
        self._cost = 0

    def _work_off(self, is_up: Callable[[], bool]) -> bool:
        """What follows from a record. False: the time is up before all of it is done."""
        agenda, meter = self._agenda, self._meter
        steps = 0
        while agenda or self._thirsty:
            while agenda:
                act, args = agenda.popleft()
                act(*args)
                steps += 1
                if meter.steps < EXPR_STEPS_MAX or self._cost:
                    self._renew()
                    self._cost = 0
                elif steps & 7:
                    continue
                else:
                    self.spent += 8 * ITEM_STEPS
                if self.spent > FLOW_DECISION_STEPS_MAX or is_up():
                    return not agenda and not self._thirsty and self._worked_off()
            thirsty, self._thirsty = self._thirsty, {}
            for visit in thirsty:
                self.later(self._fill, visit)
        return self._worked_off()

    def _worked_off(self) -> bool:
        if self._calls:
            self._flush()
        if self._skips:
            self._record_skips()
        if self._written:
            self._record_state()
        if self._end is not None and self._undoing is None:
            self._wind_up()
            return not self._agenda
        return True

    def _record_skips(self) -> None:
        """Neighbours with one reason share an event."""
        skips, self._skips = self._skips, []
        at = 0
        while at < len(skips):
            reason = skips[at][1]
            end = at
            while end < len(skips) and skips[end][1] == reason:
                end += 1
            self._journal.skip_tasks([label for label, _ in skips[at:end]], reason)
            at = end

    def _record_state(self) -> None:
        written, self._written = self._written, {}
        for key in written:
            assert self.root is not None
            self._journal.write_state(key, Value.of(self.root.shared[key]).raw)

    # -- facts ------------------------------------------------------------------------------------------------------

    def _run_started(self, e: ev.RunStarted) -> None:
        if e.schedule:
            self._scheduled = {"schedule": e.schedule, "nominal": datetime_of(e.nominal_us).isoformat()}
        data, offered = input_of(e.input)
        data, problem = completed(self.flow.input_schema, data, offered=offered)
        if problem:
            self._end = cm.FailRun(Failure("invalid_input", f"the input of {self.flow.name} does not fit: {problem}"))
            return
        self.root = make(self, self.flow.body, data, data if isinstance(data, dict) else {})
        self.root.begin()

    def _cancel_requested(self, e: ev.CancelRequested) -> None:
        """Leaves first: everything stops, and the run ends when its child runs have."""
        self._leaves = {seq for seq in self._children if self._journal.cancel_child(seq, awaited=True)}
        if not self._leaves:
            self._end = _cancelled(e.reason)
            return
        self._cancelling = e.reason
        self._journal.cancel_tasks(sorted(self._tasks))
        for seq in self._timers:
            self._journal.cancel_timer(seq)

    def _unwind(self, event: ev.Event) -> None:
        """While the run waits for its children to stop. To be cancelled once more ends the wait."""
        assert self._cancelling is not None
        if isinstance(event, ev.ChildSucceeded | ev.ChildFailed | ev.ChildCancelled):
            self._leaves.discard(event.seq)
        if isinstance(event, ev.CancelRequested) or not self._leaves:
            self._end = _cancelled(self._cancelling)
        self._note(event)

    def _tasks_succeeded(self, e: ev.TasksSucceeded) -> None:
        for seq, raw in zip(e.seqs, e.results, strict=True):
            place = self._tasks.pop(seq, None)
            if place is None:
                self._keep(seq, raw)
                continue
            visit = place[0]
            if visit.node.plain:  # by far the most common: no detours
                visit.results[0], visit.over = raw, True
                visit.handles.clear()
                if visit.node.compensate is not None:
                    self._done(visit, 0, raw)
                if visit.node.writes or visit.at < 0:
                    self.soon(visit.frame.node_succeeded, visit, Value(raw), DEFAULT)
                else:
                    visit.frame.node_succeeded(visit, Value(raw), DEFAULT)
            else:
                self._succeeded(*place, raw)

    def _task_failed(self, e: ev.TaskFailed) -> None:
        place = self._tasks.pop(e.seq, None)
        if place is not None:
            self._failed(*place, e.failure)
        else:
            self._stopped.pop(e.seq, None)

    def _timer_fired(self, e: ev.TimerFired) -> None:
        place = self._timers.pop(e.seq, None)
        if place is None:
            return
        visit, index = place
        handle = visit.handles[index]
        if isinstance(handle, Timer):
            self._succeeded(visit, index, b"null")
            return
        handle.timer = -1
        self._stop(visit, index)
        what = "the body did not end" if isinstance(handle, Inner) else "nobody answered"
        self._failed(visit, index, Failure("timeout", f"{what} within the time given", "TimeoutError"))

    def _child_succeeded(self, e: ev.ChildSucceeded) -> None:
        place = self._children.pop(e.seq, None)
        if place is not None:
            self._succeeded(*place, e.result or b"null")
        elif e.seq in self._revived:
            self._early[e.seq] = e
        else:
            self._keep(-1 - e.seq, e.result or b"null")

    def _child_lost(self, e: ev.ChildFailed | ev.ChildCancelled) -> None:
        place = self._children.pop(e.seq, None)
        if place is not None:
            visit, index = place
            visit.keep_child(index, e.seq)
            cancelled = Failure("run_cancelled", "the child run was cancelled")
            self._failed(visit, index, e.failure if isinstance(e, ev.ChildFailed) else cancelled)
        elif e.seq in self._revived:
            self._early[e.seq] = e
        else:
            self._stopped.pop(-1 - e.seq, None)

    def _signal_received(self, e: ev.SignalReceived) -> None:
        waiting = self._waiting.get(e.name)
        if waiting:
            visit, index = waiting.popleft()
            self._answered(visit, index, e.name, e.value)
            return
        if self._buffered >= SIGNALS_BUFFERED_MAX:
            message = (
                f"the run has more than SIGNALS_BUFFERED_MAX={SIGNALS_BUFFERED_MAX} signals that nothing waits for"
            )
            self._end = cm.FailRun(Failure("limit_exceeded", message), self._at)
            return
        self._signals.setdefault(e.name, deque()).append(e.value)
        self._buffered += 1

    def _promise_resolved(self, e: ev.PromiseResolved) -> None:
        place = self._promises.get(e.name)
        if place is not None:
            self._answered(*place, e.name, e.value)
        else:
            self._kept[e.name] = e.value
            if not e.authorized:
                self._unsure.add(e.name)

    def _run_retried(self, e: ev.RunRetried) -> None:
        self._end, self.ended, self._cause = None, False, 0
        if self.root is None:
            return
        # Closing the run stopped everything that was outstanding, except what only waits for messages.
        for table in (self._tasks, self._timers, self._children, self._stopped):
            table.clear()
        self._revived = frozenset(e.revived_children)
        self.reopen(self.root)

    # -- results that come too late ---------------------------------------------------------------------------------

    def _note(self, event: ev.Event) -> None:
        """After the end is decided. Nothing follows from it, but a retry must not execute again what is recorded."""
        if isinstance(event, ev.TasksSucceeded):
            for seq, raw in zip(event.seqs, event.results, strict=True):
                self._stopped.setdefault(seq, self._tasks.pop(seq, _NOWHERE))
                self._keep(seq, raw)
        elif isinstance(event, ev.ChildSucceeded):
            self._stopped.setdefault(-1 - event.seq, self._children.pop(event.seq, _NOWHERE))
            self._keep(-1 - event.seq, event.result or b"null")
        elif isinstance(event, ev.TaskFailed):
            self._tasks.pop(event.seq, None)
            self._stopped.pop(event.seq, None)
        elif isinstance(event, ev.ChildFailed | ev.ChildCancelled):
            self._children.pop(event.seq, None)
            self._stopped.pop(-1 - event.seq, None)

    def _keep(self, key: int, raw: bytes) -> None:
        """An execution that was stopped had succeeded all the same: if its node is retried, it is not executed again."""
        place = self._stopped.pop(key, None)
        if place is not None and place is not _NOWHERE:
            visit, index = place
            self._done(visit, index, raw)
            if visit.results[index] is None:
                visit.results[index] = raw
                visit.handles.pop(index, None)

    # -- taking back what was done (core/undo.py) -------------------------------------------------------------------

    def _wind_up(self) -> None:
        """The run ends, and not well. What can be taken back is, before the end is asked for. First everything stops; of tasks and
        child runs that may have succeeded all the same, their end is waited for."""
        if not isinstance(self._end, cm.FailRun | cm.CancelRun):
            return
        open_ = {**self._tasks, **{-1 - seq: place for seq, place in self._children.items()}, **self._stopped}
        doubtful = [k for k, place in open_.items() if place is not _NOWHERE and place[0].node.compensate is not None]
        if not self._undo and not doubtful:
            return
        self._stopped = open_
        self._journal.cancel_tasks(sorted(self._tasks))
        for seq in self._timers:
            self._journal.cancel_timer(seq)
        for seq in self._children:
            self._journal.cancel_child(seq)
        for table in (self._tasks, self._timers, self._children, self._waiting, self._promises):
            table.clear()
        self._undoing = Unwinding(self._undo, self._take_back, lambda done: done.visit.label(done.index))
        self._doubtful = {-1 - k for k in doubtful if k < 0}
        if any(k >= 0 for k in doubtful):
            self._barrier = self._journal.start_timer(self._now_us)
        self._lift(self._undoing)

    def _lift(self, undoing: Unwinding[Done]) -> None:
        undoing.barrier = self._barrier >= 0 or bool(self._doubtful)
        self.later(self._undo_next, undoing)

    def _undo_next(self, undoing: Unwinding[Done]) -> None:
        """One entry is a step of the decision: those that cannot be called cost as much as the others."""
        if undoing.step():
            self.later(self._undo_next, undoing)

    def _take_back(self, done: Done) -> int:
        visit, call = done.visit, done.visit.node.compensate
        assert call is not None and isinstance(self._end, cm.FailRun | cm.CancelRun)
        error = why(self._end)
        scope = visit.frame.scope(visit, self._place(visit, done.index), Value(done.result))
        try:
            if call.args is None:
                data = offer(done.given, done.result, error)
            else:
                told = error_value(error)
                made = self.evaluate(call.args, lambda name: told if name == "error" else scope(name))
                data = checked(msgspec.json.encode(made), "the input of what compensates")
        except Trouble as e:
            raise CannotUndo(e.failure.message) from None
        label = PREFIX + visit.label(done.index)
        queue, options = self._options(call.task, call)
        return self._journal.schedule_tasks(call.task, queue, [data], options, [label])

    def _undo_went(self, undoing: Unwinding[Done], event: ev.Event) -> None:
        match event:
            case ev.TasksSucceeded():
                for seq, raw in zip(event.seqs, event.results, strict=True):
                    if seq == undoing.seq:
                        undoing.over(None)
                        self.later(self._undo_next, undoing)
                    else:
                        self._keep(seq, raw)
            case ev.TaskFailed() if event.seq == undoing.seq:
                undoing.over(event.failure)
                self.later(self._undo_next, undoing)
            case ev.TimerFired() if event.seq == self._barrier:
                self._barrier = -1
                self._lift(undoing)
            case ev.ChildSucceeded() | ev.ChildFailed() | ev.ChildCancelled() if event.seq in self._doubtful:
                self._doubtful.discard(event.seq)
                if isinstance(event, ev.ChildSucceeded):
                    self._keep(-1 - event.seq, event.result or b"null")
                self._lift(undoing)
            case _:
                pass

    def _told_end(self) -> cm.Command:
        assert self._end is not None
        if self._undoing is None or not isinstance(self._end, cm.FailRun | cm.CancelRun):
            return self._end
        return told_of(self._end, self._undoing.failures)

    # -- retry ------------------------------------------------------------------------------------------------------

    def reopen(self, frame: Frame) -> None:
        for visit in frame.reopen():
            self.take_up(visit)

    def take_up(self, visit: Visit) -> None:
        visit.over = False
        visit.failures.clear()
        if not visit.results:  # it failed before there was anything to execute
            self.later(self.enter, visit)
            return
        for index, handle in list(visit.handles.items()):
            if isinstance(handle, Inner):
                handle.timer = self._limit(visit, index)
                self.reopen(handle.frame)
            elif isinstance(handle, Waiting):
                handle.timer = self._limit(visit, index)
            else:
                del visit.handles[index]
        for index, seq in visit.children.items():
            if seq in self._revived:
                visit.handles[index] = ChildRun(seq)
                self._children[seq] = (visit, index)
                if seq in self._early:
                    end = self._early.pop(seq)
                    self.later(_FACTS[type(end)], self, end)
        visit.children.clear()
        visit.todo = deque(i for i, r in enumerate(visit.results) if r is None and i not in visit.handles)
        self._thirsty[visit] = None

    def failed_children(self) -> list[int]:
        """Child runs whose failure a retry would take up again."""
        failed: list[int] = []
        open_: list[Visit] = self.root.visits() if self.root is not None else []
        while open_:
            visit = open_.pop()
            failed.extend(visit.children.values())
            inner = [h.frame for h in visit.handles.values() if isinstance(h, Inner)]
            for frame in (*inner, *visit.frames.values()):
                open_.extend(frame.visits())
        return sorted(failed)

    # -- what frames ask --------------------------------------------------------------------------------------------

    def skipped(self, label: str, reason: str) -> None:
        self._skips.append((label, reason))

    def wrote(self, frame: Frame, key: str) -> None:
        if frame is self.root:
            if len(key) > NAME_CHARS_MAX:
                raise Trouble(
                    Failure("limit_exceeded", f"a state key has more than NAME_CHARS_MAX={NAME_CHARS_MAX} characters")
                )
            checked(Value.of(frame.shared[key]).raw, f"state {key!r}")
            self._written[key] = None

    def scope_roots(self, name: str) -> Any:
        if name == "run":
            return {"id": text(self.run_id), "workflow": self.flow.name, **self._scheduled}
        if name == "now":
            return self._now_us / 1e6
        raise KeyError(name)

    def frame_ended(self, frame: Frame, value: Value | None, failure: Failure | None) -> None:
        if frame.owner is not None:
            visit, index = frame.owner
            handle = visit.handles.get(index)
            if not isinstance(handle, Inner) or handle.frame is not frame:
                return
            if handle.timer >= 0:
                self._drop_timer(handle.timer)
                handle.timer = -1
            if failure is not None:
                visit.keep_frame(index, frame)
                self._failed(visit, index, failure)
            else:
                assert value is not None
                self._succeeded(visit, index, value.raw)
        elif failure is not None:
            self._end = cm.FailRun(failure, self._cause)
        else:
            assert value is not None
            try:
                self._end = cm.CompleteRun(
                    checked(value.raw, "the output of the flow; say with `output:` what is to be kept")
                )
            except Trouble as e:
                self._end = cm.FailRun(e.failure, self._cause)

    # -- for people -------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> list[str]:
        """Signals that nodes wait for, as `signal:NAME`."""
        if not self._waiting:
            return []
        names = (f"signal:{name}" for name, places in self._waiting.items() if places)
        return list(islice(names, WAITING_NAMES_MAX))

    def blocked(self, limit: int) -> list[tuple[str, list[str]]]:
        """Nodes of the flow itself that wait for others, each with those."""
        return self.root.blocked(limit) if self.root is not None else []

    def statuses(self) -> dict[str, str]:
        """Status words of the nodes by label. Of bodies within, those that are open or failed."""
        out: dict[str, str] = {}
        frames: list[Frame] = [self.root] if self.root is not None else []
        while frames:
            frame = frames.pop()
            _statuses(frame, out)
            for visit in frame.visits():
                inner = [h.frame for h in visit.handles.values() if isinstance(h, Inner)]
                frames.extend((*inner, *visit.frames.values()))
        return out


def _statuses(frame: Frame, out: dict[str, str]) -> None:
    if isinstance(frame, DagFrame):
        out.update({frame.prefix + n.key: s for n, s in zip(frame.body.nodes, frame.status, strict=True)})
        return
    assert isinstance(frame, GraphFrame)
    for node in frame.body.nodes:
        out[frame.prefix + node.key] = frame.passed.get(node.key, PENDING)
    if frame.current is not None:
        out[frame.prefix + frame.current.node.key] = FAILED if frame.failure is not None else RUNNING


_FACTS: dict[type, Callable[[Decider, Any], None]] = {
    ev.RunStarted: Decider._run_started,
    ev.CancelRequested: Decider._cancel_requested,
    ev.RunRetried: Decider._run_retried,
    ev.TasksSucceeded: Decider._tasks_succeeded,
    ev.TaskFailed: Decider._task_failed,
    ev.TimerFired: Decider._timer_fired,
    ev.ChildSucceeded: Decider._child_succeeded,
    ev.ChildFailed: Decider._child_lost,
    ev.ChildCancelled: Decider._child_lost,
    ev.SignalReceived: Decider._signal_received,
    ev.PromiseResolved: Decider._promise_resolved,
}


class DecisionTooLarge(Exception):
    """A decision that takes more than FLOW_DECISION_STEPS_MAX. The run is stuck."""

    def to_failure(self) -> Failure:
        return Failure("decision_budget", str(self))


def _never() -> bool:
    return False


def input_problem(flow: Flow, raw: bytes) -> str:
    """What is wrong with the input of a run, and what the flow takes; "" when it fits. Asked before a run is written."""
    data, offered = input_of(raw)
    _, wrong = completed(flow.input_schema, data, offered=offered)
    if not wrong:
        return ""
    schema = flow.input_schema or {}
    required = set(schema.get("required", ()))
    names = [f"{n}" if n in required else f"{n} (optional)" for n in schema.get("properties", {})]
    return f"{wrong}; {flow.name} takes {', '.join(names) or 'no input'}"


def _cancelled(reason: str) -> cm.Command:
    return cm.FailRun(TIMED_OUT) if reason == DEADLINE else cm.CancelRun(reason)


def input_of(raw: bytes) -> tuple[Any, bool]:
    """The input of a run: what it was called with, and whether that is an offer. A call with one argument by position is that argument."""
    data: Any = msgspec.json.decode(raw) if raw else {}
    if isinstance(data, dict) and len(data) == 1:
        if raw.startswith(OFFER):
            return data["**"], True
        args = data.get("*")
        if isinstance(args, list):
            return (args[0] if len(args) == 1 else args), False
    return data, False
