"""The decider of declarative flows: facts in, commands out. Pure, incremental, rebuilt from history.

Theory. A run is a tree of frames (frames.py). Facts arrive one at a time, in the order of the history; each ends some executions, which
ends nodes, which makes others ready, until nothing is left to do at that moment. What it asks for goes through the same journal as
workflow code, so a command that the history already holds is recognised by its number and skipped, and one that differs is refused.

Laws:

1. What is asked for depends on the definition and the order of the facts alone, never on how they were batched: every record is
   worked off completely before the next.
2. An execution that was stopped is forgotten; later events about it have no effect.
3. The end of the run is asked for once all records given have been applied, so that a retry, which follows a failure in the
   history, finds the frames as they were.

    apply(record): fact -> _ended(visit, index) -> frame.node_succeeded | node_failed -> later(...) -> enter(visit) -> journal
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.declared import Declared
from perdure.core.durations import datetime_of
from perdure.core.errors import Failure
from perdure.core.ids import text
from perdure.core.journal import Journal
from perdure.core.json_schema import completed
from perdure.core.late_messages import note_late
from perdure.core.limits import (
    FLOW_DECISION_STEPS_MAX,
    NAME_CHARS_MAX,
    WAITING_NAMES_MAX,
)
from perdure.core.undo import TIMED_OUT
from perdure.flows.decide.agenda import Agenda
from perdure.flows.decide.bodies import frame_of
from perdure.flows.decide.compensation import Compensation, compensate
from perdure.flows.decide.executions import (
    ChildRun,
    Executions,
    InnerBody,
    MessageWait,
    SleepTimer,
    all_python,
    nothing_declared,
)
from perdure.flows.decide.frames import BodyFrame, Trouble, Visit
from perdure.flows.decide.overrides import override_items
from perdure.flows.decide.run_input import input_of
from perdure.flows.decide.starting import NodeStarter, checked
from perdure.flows.decide.values import JsonValue
from perdure.flows.model import DEFAULT, Flow


class Decider:
    def __init__(
        self,
        flow: Flow,
        run_id: bytes,
        declared: Callable[[str], Declared | None] = nothing_declared,
        is_http: Callable[[str], bool] = all_python,
        journal: Journal | None = None,
    ) -> None:
        self.flow, self.run_id = flow, run_id
        self._agenda = Agenda()
        self._executions = Executions(run_id, self._agenda, declared, is_http, journal or Journal())
        self._starter = NodeStarter(self._executions, self)
        self.later, self.soon = self._agenda.later, self._agenda.soon
        self.evaluate, self.read = self._agenda.evaluate, self._agenda.read
        self.enter = self._starter.enter
        self.ended = False
        self._unheard: list[ev.SignalReceived | ev.PromiseResolved] = []
        """Messages that came after it had failed, for a retry."""
        self._scheduled: dict[str, str] = {}
        """Which schedule started the run, and the time it was meant for."""
        self.root: BodyFrame | None = None
        self._end: cm.Command | None = None
        self._cancelling: ev.CancelRequested | None = None
        """While the run waits for `_leaves`, child runs that were asked to stop."""
        self._leaves: set[int] = set()
        self._compensation: Compensation | None = None
        """Set once the run has failed or stopped and undoes what it did."""
        self._skips: list[tuple[str, str]] = []
        self._written: dict[str, None] = {}
        self._retried_children: frozenset[int] = frozenset()
        """Child runs that were retried with this run."""
        self._early: dict[int, ev.ChildSucceeded | ev.ChildFailed | ev.ChildCancelled] = {}
        """How some of them ended before it was their turn to be waited for again."""
        self._overrides: dict[str, ev.NodeOverridden] = {}
        """Decisions of operators about failed nodes, by label; the retry that follows takes them up."""
        self._records: list[ev.Recorded] = []
        self._begun = 0
        """How many of the given records have been begun."""
        self._record: ev.Recorded | None = None
        """The one that is being worked off."""
        self._replaying = False

    def activate(self, records: list[ev.Recorded], *, replay: bool) -> list[cm.Command]:
        """Apply records in their order; answers what has to happen. With `replay` they are the whole history."""
        self.give(records, replay=replay)
        while not self.advance(lambda: False):
            pass
        return self.take()

    @property
    def spent(self) -> int:
        """Steps of the decision that is being made."""
        return self._agenda.spent

    @property
    def at(self) -> int:
        """Number of the record whose consequences are being decided."""
        return self._executions.at

    def give(self, records: list[ev.Recorded], *, replay: bool) -> None:
        """Records to be applied by `advance`. The former ones have been."""
        assert self._record is None and self._begun == len(self._records)
        if replay:
            records = ev.from_beginning(records)
            self._executions.journal.load(records)
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
            if self._agenda.spent > FLOW_DECISION_STEPS_MAX:
                raise DecisionTooLarge(self._too_large())
            if (self._record is not None or self._begun < len(given)) and is_up():
                self._check()
                return False
        if self._end is not None and (self._compensation is None or self._compensation.done):
            self.ended = True
            self._executions.journal.close(self._end if self._compensation is None else self._compensation.end())
        elif self._replaying:
            self._executions.journal.check_all_matched(lambda: "nothing")
        self._check()
        return True

    def take(self) -> list[cm.Command]:
        """What has to happen. Before all of a history is applied nothing does: what is new may turn out not to fit it."""
        return self._executions.journal.take_commands() if self._begun == len(self._records) else []

    def _check(self) -> None:
        if self._executions.journal.mismatch is not None:
            raise self._executions.journal.mismatch

    def _too_large(self) -> str:
        return (
            f"one decision of flow {self.flow.name!r} (after event {self._executions.at} of the run) has taken {self._agenda.spent} steps, more than "
            f"FLOW_DECISION_STEPS_MAX={FLOW_DECISION_STEPS_MAX}; it was stopped before it held up others any longer. "
            "Move the computation into a task, or make less of it follow from one event"
        )

    def _begin_record(self, record: ev.Recorded) -> None:
        act = _FACTS.get(type(record.event))
        if act is None:
            return
        self._executions.now_us, self._executions.at, self._agenda.spent = record.at_us, record.seq, 0
        self._record = record
        if self._compensation is not None:
            self._compensation.apply(record.event)
        elif self._cancelling is not None and self._end is None:
            self._unwind(record.event)
        elif self._end is None or type(record.event) in _AFTER_END:
            act(self, record.event)
        else:
            self._executions.keep_late_result(record.event)
            if isinstance(self._end, cm.CompleteRun):
                note_late(self._end, record)
            elif isinstance(record.event, ev.SignalReceived | ev.PromiseResolved):
                self._unheard.append(record.event)
        self._agenda.end_step()

    def _work_off(self, is_up: Callable[[], bool]) -> bool:
        """Do what follows from a record. False: the time is up before all of it is done."""
        agenda, executions = self._agenda, self._executions
        while True:
            if not agenda.run(is_up, FLOW_DECISION_STEPS_MAX):
                return agenda.is_empty and not executions.unfilled and self._worked_off()
            if not executions.unfilled:
                return self._worked_off()
            unfilled, executions.unfilled = executions.unfilled, {}
            for visit in unfilled:
                agenda.later(self._starter.fill, visit)

    def _worked_off(self) -> bool:
        if self._executions.calls:
            self._executions.flush()
        if self._skips:
            self._record_skips()
        if self._written:
            self._record_state()
        if self._end is not None and self._compensation is None:
            self._compensate()
            return self._agenda.is_empty
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
            self._executions.journal.skip_tasks([label for label, _ in skips[at:end]], reason)
            at = end

    def _record_state(self) -> None:
        written, self._written = self._written, {}
        for key in written:
            assert self.root is not None
            self._executions.journal.write_state(key, JsonValue.of(self.root.shared[key]).raw)

    def _run_started(self, e: ev.RunStarted) -> None:
        self._executions.started_us = self._executions.now_us
        if e.lineage:
            self._executions.journal.forked(self.run_id, e.lineage)
            self._executions.promises.name_after(e.lineage[0])
        if e.schedule:
            self._scheduled = {"schedule": e.schedule, "nominal": datetime_of(e.nominal_us).isoformat()}
        data, offered = input_of(e.input)
        data, problem = completed(self.flow.input_schema, data, offered=offered)
        if problem:
            self._end = cm.FailRun(Failure("invalid_input", f"the input of {self.flow.name} does not fit: {problem}"))
            return
        self.root = frame_of(self, self.flow.body, data, data if isinstance(data, dict) else {})
        self.root.begin()

    def _cancel_requested(self, e: ev.CancelRequested) -> None:
        """Leaves first: everything stops, and the run ends when its child runs have."""
        self._leaves = {
            seq for seq in self._executions.children if self._executions.journal.cancel_child(seq, awaited=True)
        }
        if not self._leaves:
            self._end = _cancelled(e)
            return
        self._cancelling = e
        self._executions.journal.cancel_tasks(sorted(self._executions.tasks))
        for seq in self._executions.timers:
            self._executions.journal.cancel_timer(seq)

    def _unwind(self, event: ev.Event) -> None:
        """While the run waits for its children to stop. To be cancelled once more ends the wait."""
        assert self._cancelling is not None
        if isinstance(event, ev.ChildSucceeded | ev.ChildFailed | ev.ChildCancelled):
            self._leaves.discard(event.seq)
        if isinstance(event, ev.CancelRequested) or not self._leaves:
            self._end = _cancelled(self._cancelling)
        self._executions.keep_late_result(event)

    def _tasks_succeeded(self, e: ev.TasksSucceeded) -> None:
        for seq, raw in zip(e.seqs, e.results, strict=True):
            place = self._executions.tasks.pop(seq, None)
            if place is None:
                self._executions.keep_result(seq, raw)
                continue
            visit = place[0]
            if visit.node.plain:  # by far the most common: no detours
                visit.results[0], visit.over = raw, True
                visit.handles.clear()
                if visit.node.compensate is not None:
                    self._executions.done(visit, 0, raw)
                if visit.node.writes or visit.at < 0:
                    self.soon(visit.frame.node_succeeded, visit, JsonValue(raw), DEFAULT)
                else:
                    visit.frame.node_succeeded(visit, JsonValue(raw), DEFAULT)
            else:
                self._executions.succeeded(*place, raw)

    def _task_failed(self, e: ev.TaskFailed) -> None:
        place = self._executions.tasks.pop(e.seq, None)
        if place is not None:
            self._executions.failed(*place, e.failure)
        else:
            self._executions.stopped.pop(e.seq, None)

    def _timer_fired(self, e: ev.TimerFired) -> None:
        place = self._executions.timers.pop(e.seq, None)
        if place is None:
            return
        visit, index = place
        handle = visit.handles[index]
        if isinstance(handle, SleepTimer):
            self._executions.succeeded(visit, index, b"null")
            return
        handle.timer = -1
        self._executions.stop(visit, index)
        what = "the body did not end" if isinstance(handle, InnerBody) else "no answer came"
        self._executions.failed(visit, index, Failure("timeout", f"{what} within the time given", "TimeoutError"))

    def _child_succeeded(self, e: ev.ChildSucceeded) -> None:
        place = self._executions.children.pop(e.seq, None)
        if place is not None:
            self._executions.succeeded(*place, e.result or b"null")
        elif e.seq in self._retried_children:
            self._early[e.seq] = e
        else:
            self._executions.keep_result(-1 - e.seq, e.result or b"null")

    def _child_lost(self, e: ev.ChildFailed | ev.ChildCancelled) -> None:
        place = self._executions.children.pop(e.seq, None)
        if place is not None:
            visit, index = place
            visit.keep_child(index, e.seq)
            cancelled = Failure("run_cancelled", "the child run was cancelled")
            self._executions.failed(visit, index, e.failure if isinstance(e, ev.ChildFailed) else cancelled)
        elif e.seq in self._retried_children:
            self._early[e.seq] = e
        else:
            self._executions.stopped.pop(-1 - e.seq, None)

    def _signal_received(self, e: ev.SignalReceived) -> None:
        signals = self._executions.signals
        waiter = signals.next_waiter(e.name)
        if waiter is not None:
            self._executions.answered(*waiter, e.name, e.value)
            return
        signals.buffer(e.name, e.value)

    def _promise_resolved(self, e: ev.PromiseResolved) -> None:
        for place in self._executions.promises.resolve(e):
            self._executions.answered(*place, e.name, e.value)

    def _node_overridden(self, e: ev.NodeOverridden) -> None:
        self._overrides[e.node] = e

    def overridden(self, label: str) -> ev.NodeOverridden | None:
        return self._overrides.pop(label, None) if self._overrides else None

    def _run_retried(self, e: ev.RunRetried) -> None:
        self._end, self.ended, self._executions.cause = None, False, 0
        if self.root is None:
            return
        # Closing the run stopped everything that was outstanding, except what only waits for messages.
        executions = self._executions
        for table in (executions.tasks, executions.timers, executions.children, executions.stopped):
            table.clear()
        self._retried_children = frozenset(e.retried_children)
        self.retry_failed(self.root)
        unheard, self._unheard = self._unheard, []
        for event in unheard:
            self.later(_FACTS[type(event)], self, event)

    def _compensate(self) -> None:
        """The run fails or is cancelled: first undo what can be undone."""
        if isinstance(self._end, cm.FailRun | cm.CancelRun):
            self._compensation = compensate(self._executions, self._end)

    def retry_failed(self, frame: BodyFrame) -> None:
        for visit in frame.retry_failed():
            self.take_up(visit)

    def take_up(self, visit: Visit) -> None:
        visit.over = False
        visit.failures.clear()
        if self._overrides:
            override_items(visit, self.overridden)
        if not visit.results:  # it failed before there was anything to execute
            self.later(self.enter, visit)
            return
        for index, handle in list(visit.handles.items()):
            if isinstance(handle, InnerBody):
                handle.timer = self._executions.limit(visit, index)
                self.retry_failed(handle.frame)
            elif isinstance(handle, MessageWait):
                handle.timer = self._executions.limit(visit, index)
            else:
                del visit.handles[index]
        for index, seq in visit.children.items():
            if seq in self._retried_children:
                visit.handles[index] = ChildRun(seq)
                self._executions.children[seq] = (visit, index)
                if seq in self._early:
                    end = self._early.pop(seq)
                    self.later(_FACTS[type(end)], self, end)
        visit.children.clear()
        visit.todo = deque(i for i, r in enumerate(visit.results) if r is None and i not in visit.handles)
        self._executions.unfilled[visit] = None

    def skipped(self, label: str, reason: str) -> None:
        self._skips.append((label, reason))

    def wrote(self, frame: BodyFrame, key: str) -> None:
        if frame is self.root:
            if len(key) > NAME_CHARS_MAX:
                raise Trouble(
                    Failure("limit_exceeded", f"a state key has more than NAME_CHARS_MAX={NAME_CHARS_MAX} characters")
                )
            checked(JsonValue.of(frame.shared[key]).raw, f"state {key!r}")
            self._written[key] = None

    def scope_roots(self, name: str) -> Any:
        if name == "run":
            return {"id": text(self.run_id), "workflow": self.flow.name, **self._scheduled}
        if name == "now":
            return self._executions.now_us / 1e6
        raise KeyError(name)

    def frame_ended(self, frame: BodyFrame, value: JsonValue | None, failure: Failure | None) -> None:
        if frame.owner is not None:
            visit, index = frame.owner
            handle = visit.handles.get(index)
            if not isinstance(handle, InnerBody) or handle.frame is not frame:
                return
            if handle.timer >= 0:
                self._executions.drop_timer(handle.timer)
                handle.timer = -1
            if failure is not None:
                visit.keep_frame(index, frame)
                self._executions.failed(visit, index, failure)
            else:
                assert value is not None
                self._executions.succeeded(visit, index, value.raw)
        elif failure is not None:
            self._end = cm.FailRun(failure, self._executions.cause)
        else:
            assert value is not None
            try:
                output = checked(value.raw, "the output of the flow; say with `output:` what is to be kept")
                self._end = cm.CompleteRun(output, self._executions.signals.unclaimed())
            except Trouble as e:
                self._end = cm.FailRun(e.failure, self._executions.cause)

    @property
    def waiting(self) -> list[str]:
        """Signals that nodes wait for, as `signal:NAME`."""
        return [f"signal:{name}" for name in islice(self._executions.signals.waiting_names(), WAITING_NAMES_MAX)]

    @property
    def full(self) -> list[str]:
        """Signals of which too many have come that no node has waited for."""
        return sorted(self._executions.signals.full)[:WAITING_NAMES_MAX]

    def blocked(self, limit: int) -> list[tuple[str, list[str]]]:
        """Nodes of the flow itself that wait for others, each with those."""
        return self.root.blocked(limit) if self.root is not None else []


_FACTS: dict[type, Callable[[Decider, Any], None]] = {
    ev.RunStarted: Decider._run_started,
    ev.CancelRequested: Decider._cancel_requested,
    ev.RunRetried: Decider._run_retried,
    ev.NodeOverridden: Decider._node_overridden,
    ev.TasksSucceeded: Decider._tasks_succeeded,
    ev.TaskFailed: Decider._task_failed,
    ev.TimerFired: Decider._timer_fired,
    ev.ChildSucceeded: Decider._child_succeeded,
    ev.ChildFailed: Decider._child_lost,
    ev.ChildCancelled: Decider._child_lost,
    ev.SignalReceived: Decider._signal_received,
    ev.PromiseResolved: Decider._promise_resolved,
}


_AFTER_END = (ev.NodeOverridden, ev.RunRetried)


class DecisionTooLarge(Exception):
    """A decision that takes more than FLOW_DECISION_STEPS_MAX. The run is stuck."""

    def to_failure(self) -> Failure:
        return Failure("decision_budget", str(self))


def _cancelled(request: ev.CancelRequested) -> cm.Command:
    return cm.FailRun(TIMED_OUT) if request.deadline else cm.CancelRun(request.reason)
