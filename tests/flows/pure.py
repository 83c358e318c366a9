"""The corpus without a database: deciders, and a world that answers their commands in the simplest way.

Tasks end one at a time, oldest first; time stands still but for `advance`; every fact is an activation of its own. Children are runs of
the same world. A world that `forgets` loses the decider at every step: a fresh one is given the whole history, encoded and decoded.
In one where things happen `together`, all tasks of a run that can end do so in one commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.durations import to_us
from perdure.core.errors import Failure
from perdure.core.runstate import RunState
from perdure.flows.decide.decider import Decider
from perdure.flows.decide.overrides import failed_children
from perdure.flows.model import Flow
from perdure.wire.codec import decode_recorded, encode_recorded
from tests.flows.case import Case, Outcome, compiled, label, of_attempt, scripted, value_of

START_US = 1_700_000_000_000_000
STEPS_MAX = 5_000

Forgets = Literal["never", "after", "before"]
"""When the decider is lost: never, after its commands have been recorded, or before (then the next one has to give them again)."""


class Run:
    def __init__(self, world: World, flow: Flow, started: ev.RunStarted, number: int) -> None:
        self.world, self.flow, self.started, self.number = world, flow, started, number
        self.id = ids.run_id(START_US // 1000, 0, number)
        self.history: list[ev.Recorded] = []
        self.state = RunState()
        self.inbox: list[ev.Recorded] = []
        self.children: dict[int, Run] = {}
        self.executions: dict[str, int] = {}
        """Of tasks by label, over all epochs of the run."""
        self.closing: cm.Command | None = None
        self.decider = Decider(flow, self.id)
        self._replay = True
        self.add(started)

    # -- history ----------------------------------------------------------------------------------------------------

    def add(self, event: ev.Event) -> None:
        self.state.apply(event)
        self.append(event)

    def append(self, event: ev.Event) -> None:
        record = ev.Recorded(len(self.history) + 1, self.world.now_us, event)
        self.history.append(record)
        if isinstance(event, ev.FACTS):
            self.inbox.append(record)

    def deliver(self) -> None:
        """One fact to the decider, or all there are, and its commands to the history."""
        facts = self.inbox if self.world.together else self.inbox[:1]
        self.inbox = self.inbox[len(facts) :]
        if self.world.forgets == "before":
            self._forget()
        records = self._through_codec() if self._replay else facts
        commands = self.decider.activate(records, replay=self._replay)
        self._replay = False
        for command in commands:
            assert self.closing is None, f"{command} after the run was closed"
            self._carry_out(command)
        assert self.decider.ended == (self.closing is not None)
        if self.world.forgets == "after" and self.closing is None and not self.inbox:
            self._forget()
            again = self.decider.activate(self._through_codec(), replay=True)
            assert again == [], (
                f"after event {len(self.history)} a fresh decider wants {again}, which is in the history"
            )
            self._replay = False

    def _forget(self) -> None:
        self.decider = Decider(self.flow, self.id)
        self._replay = True

    def _through_codec(self) -> list[ev.Recorded]:
        """The history without facts that are still to be delivered."""
        ahead = {r.seq for r in self.inbox}
        known = [r for r in self.history if r.seq not in ahead]
        decoded = decode_recorded(encode_recorded(known))
        assert decoded == known
        return decoded

    # -- commands ---------------------------------------------------------------------------------------------------

    def _carry_out(self, c: cm.Command) -> None:
        match c:
            case cm.ScheduleTasks():
                self.add(ev.TasksScheduled(c.first, c.name, c.queue, c.inputs, c.options, c.nodes, c.index))
            case cm.SkipTasks():
                self.add(ev.TasksSkipped(c.first, c.nodes, c.reason))
            case cm.CancelTasks():
                if live := [s for s in c.seqs if s in self.state.tasks]:
                    self.add(ev.TasksCancelled(live))
            case cm.StartTimer():
                self.add(ev.TimerStarted(c.seq, c.fire_at_us))
            case cm.CancelTimer():
                if c.seq in self.state.timers:
                    self.add(ev.TimerCancelled(c.seq))
            case cm.StartChild():
                self._start_child(c)
            case cm.CancelChild():
                self._stop_child(c.seq, "its parent no longer waits for it", c.awaited)
            case cm.CreatePromise():
                self.add(ev.PromiseCreated(c.seq, c.name, c.spec, c.kind))
            case cm.SetState():
                self.add(ev.StateSet(c.name, c.value))
            case cm.ClearState():
                self.add(ev.StateCleared(c.name))
            case cm.CompleteRun():
                self._close(c, ev.RunSucceeded(c.result))
            case cm.FailRun():
                self._close(c, ev.RunFailed(c.failure, c.cause))
            case cm.CancelRun():
                self._close(c, ev.RunCancelled(c.reason))
            case _:
                raise AssertionError(f"a flow does not ask for {c}")

    def _start_child(self, c: cm.StartChild) -> None:
        child = self.world.start(c.workflow, c.input, self.id, c.seq, c.timeout_us)
        self.children[c.seq] = child
        self.add(ev.ChildStarted(c.seq, child.id, c.workflow, c.input, c.key))

    def _stop_child(self, seq: int, why: str, awaited: bool = False) -> None:
        if seq in self.state.children:
            self.add(ev.ChildCancelRequested(seq, awaited))
            self.children[seq].ask_to_stop(why)

    def ask_to_stop(self, why: str) -> None:
        if self.closing is None and not self.state.cancel_requested:
            self.add(ev.CancelRequested(why))

    def _close(self, command: cm.Command, event: ev.Event) -> None:
        """As an engine closes a run: nothing of it outlives it."""
        self.closing = command
        if self.state.tasks:
            self.add(ev.TasksCancelled(sorted(self.state.tasks)))
        for seq in list(self.state.timers):
            self.add(ev.TimerCancelled(seq))
        for seq in list(self.state.children):
            self._stop_child(seq, "its parent has ended")
        self.add(event)
        self.inbox.clear()
        parent = self.world.run_of(self.started.parent_id)
        if parent is not None and parent.state.children.get(self.started.parent_seq) == self.id and not parent.closing:
            parent.add(_child_ended(self.started.parent_seq, event))

    def fail_at_deadline(self) -> None:
        failure = Failure("run_timeout", "the run did not end before its deadline", "TimeoutError")
        self._close(cm.FailRun(failure), ev.RunFailed(failure))

    def retry(self) -> None:
        """As an engine does it: children that failed go on by themselves, then this run is opened again."""
        assert isinstance(self.closing, cm.FailRun)
        retried = [
            seq for seq in failed_children(self.decider.root) if isinstance(self.children[seq].closing, cm.FailRun)
        ]
        for seq in retried:
            self.children[seq].retry()
        self.closing = None
        self.add(ev.RunRetried(0, [], [], retried_children=retried))
        self.inbox.append(self.history[-1])


def _child_ended(seq: int, end: ev.Event) -> ev.Event:
    match end:
        case ev.RunSucceeded():
            return ev.ChildSucceeded(seq, end.result)
        case ev.RunFailed():
            return ev.ChildFailed(seq, end.failure)
        case ev.RunCancelled():
            return ev.ChildCancelled(seq, end.reason)
        case _:
            raise AssertionError(end)


class World:
    """One case. `run` plays it to its end and leaves the main run in `main`."""

    def __init__(self, case: Case, name: str, forgets: Forgets = "never", *, together: bool = False) -> None:
        self.case, self.forgets, self.together = case, forgets, together
        self.now_us = START_US
        self.runs: list[Run] = []
        self.flows = {n: compiled(document, n) for n, document in case.flows.items()}
        self.flows[name] = compiled(case.flow, name)
        self.acts = list(case.acts)
        self.main = self.start(name, msgspec.json.encode(case.input))

    def start(self, workflow: str, data: bytes, parent: bytes = b"", seq: int = -1, timeout_us: int = 0) -> Run:
        flow = self.flows[workflow]
        deadline_us = self.now_us + timeout_us if timeout_us else 0
        started = ev.RunStarted(workflow, "flow-0", data, "", parent, seq, deadline_us)
        run = Run(self, flow, started, len(self.runs))
        self.runs.append(run)
        return run

    def run_of(self, run_id: bytes) -> Run | None:
        return next((r for r in self.runs if r.id == run_id), None)

    # -- driving ----------------------------------------------------------------------------------------------------

    def run(self) -> World:
        self.settle()
        while self.acts:
            act = self.acts.pop(0)
            for verb, value in act.items():
                _ACTS[verb](self, value)
            self.settle()
        return self

    def settle(self) -> None:
        """Until only an act or time can change anything."""
        for _ in range(STEPS_MAX):
            waiting = next((r for r in self.runs if r.inbox), None)
            if waiting is not None:
                waiting.deliver()
            elif not self._end_next():
                return
        raise AssertionError(f"no end after {STEPS_MAX} steps")

    def _end_next(self) -> bool:
        for run in self.runs:
            due: list[tuple[int, Outcome]] = []
            for seq in sorted(run.state.tasks):
                names = self._names(run, seq)
                outcome = scripted(self.case.script, names)
                if "hang" not in of_attempt(outcome, run.executions.get(names[-1], 0) + 1):
                    due.append((seq, outcome))
            if due:
                self._end_together(run, due) if self.together else self.end(run, *due[0])
                return True
        return False

    def _end_together(self, run: Run, due: list[tuple[int, Outcome]]) -> None:
        """As an engine records what ends within one commit: successes share an event."""
        before = len(run.history)
        for seq, outcome in due:
            self.end(run, seq, outcome)
        ends = [r.event for r in run.history[before:]]
        del run.history[before:], run.inbox[-len(ends) :]
        done = [e for e in ends if isinstance(e, ev.TasksSucceeded)]
        failed = [e for e in ends if isinstance(e, ev.TaskFailed)]
        if done:
            run.append(ev.TasksSucceeded([e.seqs[0] for e in done], [e.results[0] for e in done]))
        for e in failed:
            run.append(e)

    def _names(self, run: Run, seq: int) -> list[str]:
        name = label(run.state.tasks[seq], seq)
        if run is self.main:
            return [name]
        return [f"{run.started.workflow}#{run.started.parent_seq}/{name}", f"{run.started.workflow}/{name}", name]

    def end(self, run: Run, seq: int, outcome: Outcome) -> None:
        """All attempts that the task's options allow, until one succeeds."""
        scheduled = run.state.tasks[seq]
        name = label(scheduled, seq)
        for attempt in range(1, scheduled.options.max_attempts + 1):
            run.executions[name] = run.executions.get(name, 0) + 1
            now = of_attempt(outcome, run.executions[name])
            if "ok" in now:
                run.add(ev.TasksSucceeded([seq], [value_of(now, scheduled.inputs[seq - scheduled.first])]))
                return
            if "attempts" not in outcome or attempt == scheduled.options.max_attempts:
                run.add(ev.TaskFailed(seq, failure_of(now), attempt))
                return

    # -- acts -------------------------------------------------------------------------------------------------------

    def _signal(self, value: dict[str, Any]) -> None:
        self.main.add(ev.SignalReceived(value["name"], msgspec.json.encode(value.get("value"))))

    def _resolve(self, value: dict[str, Any]) -> None:
        self.main.add(ev.PromiseResolved(value["name"], msgspec.json.encode(value.get("value"))))

    def _cancel(self, why: str) -> None:
        self.main.ask_to_stop(why)

    def _cancel_child(self, name: str) -> None:
        next(r for r in self.runs if r.started.workflow == name and not r.closing).ask_to_stop("")

    def _retry(self, _: Any) -> None:
        self.main.retry()

    def _end(self, value: dict[str, Outcome]) -> None:
        for name, outcome in value.items():
            run, seq = next((r, s) for r in self.runs for s in r.state.tasks if name in self._names(r, s))
            self.end(run, seq, outcome)
            self.settle()

    def _advance(self, by: str) -> None:
        """Timers on the way fire in order, each followed by everything it sets off."""
        target_us = self.now_us + to_us(by)
        for _ in range(STEPS_MAX):
            due = min(
                (
                    (at_us, r.number, seq)
                    for r in self.runs
                    if not r.closing
                    for seq, at_us in _wakes(r)
                    if at_us <= target_us
                ),
                default=None,
            )
            if due is None:
                break
            self.now_us = max(self.now_us, due[0])
            run = self.runs[due[1]]
            if due[2] < 0:
                run.fail_at_deadline()
            else:
                run.add(ev.TimerFired(due[2]))
            self.settle()
        self.now_us = target_us


def _wakes(run: Run) -> list[tuple[int, int]]:
    deadline = [(-1, run.state.deadline_us)] if run.state.deadline_us else []
    return [*run.state.timers.items(), *deadline]


def failure_of(outcome: Outcome) -> Failure:
    return Failure(outcome.get("code", "task_failed"), outcome["fail"], outcome.get("type", ""))


_ACTS: dict[str, Callable[[World, Any], None]] = {
    "signal": World._signal,
    "resolve": World._resolve,
    "advance": World._advance,
    "cancel": World._cancel,
    "cancel_child": World._cancel_child,
    "retry": World._retry,
    "end": World._end,
}
