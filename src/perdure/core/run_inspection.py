"""A run as of an event, and two runs step by step. Folds of histories, for people.

Steps of two runs are aligned by kind and number, as the journal aligns code with its history: task 3 of the one is task 3 of the other,
under other event numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from perdure.core import events as ev
from perdure.core.api.inspection import DiffSide, OutstandingStep, RunAt, RunDiff, StepDiff, StepResult, StepView
from perdure.core.errors import Failure, InvalidInput
from perdure.core.events import Recorded
from perdure.core.limits import DIFF_STEPS_SHOWN, RESULTS_SHOWN_MAX
from perdure.core.questions import Values
from perdure.core.run_retry import effective
from perdure.core.runstate import RunState
from perdure.core.undo import stack_of


def run_at(run_id: bytes, history: list[Recorded], at: int) -> RunAt:
    """InvalidInput for an event that is not there."""
    last = history[-1].seq if history else 0
    at = at or last
    if not 1 <= at <= last:
        raise InvalidInput(f"the run has events 1 to {last}; there is no event {at}")
    record, seen = history[at - 1], effective(history[:at])
    state = RunState()
    for r in seen:
        state.apply(r.event)
    first = history[0].event
    assert isinstance(first, ev.RunStarted)
    steps = _steps(seen)
    results = [
        StepResult(event=step.ended, step=f"{step.kind} {step.seq} {step.name}", value=step.value, error=step.error)
        for step in sorted(steps.values(), key=lambda s: s.ended, reverse=True)
        if step.outcome in ("success", "failed")
    ]
    return RunAt(
        run_id=run_id,
        workflow=first.workflow,
        version=state.version,
        status=state.status.word,
        at=at,
        at_us=record.at_us,
        event=type(record.event).__name__,
        events=last,
        outstanding=_outstanding(state, steps),
        states=dict(state.state),
        attributes=state.attributes,
        results=results[:RESULTS_SHOWN_MAX],
        undo=stack_of(seen),
    )


def _outstanding(state: RunState, steps: dict[tuple[str, int], _Step]) -> list[OutstandingStep]:
    if state.is_terminal:
        return []
    found: list[OutstandingStep] = []
    for step in steps.values():
        match step.kind:
            case "task" if step.seq in state.tasks:
                found.append(step.shown())
            case "timer" if step.seq in state.timers:
                found.append(step.shown(until_us=state.timers[step.seq]))
            case "child" if step.seq in state.children:
                found.append(step.shown(run_id=state.children[step.seq]))
            case "promise" | "approval" | "event" if not state.is_resolved(step.name):
                found.append(step.shown())
            case _:
                pass
    return found


class _Step(msgspec.Struct):
    kind: str
    seq: int
    name: str
    since: int
    since_us: int
    input: bytes = b""
    outcome: str = ""
    value: bytes = b""
    error: str | None = None
    ended: int = 0
    ended_us: int = 0

    def end(self, r: Recorded, outcome: str, value: bytes = b"", failure: Failure | None = None) -> None:
        self.outcome, self.value, self.ended, self.ended_us = outcome, value, r.seq, r.at_us
        self.error = f"{failure.type or failure.code}: {failure.message}" if failure is not None else None

    def shown(self, until_us: int | None = None, run_id: bytes = b"") -> OutstandingStep:
        return OutstandingStep(
            kind=self.kind, seq=self.seq, name=self.name, since=self.since, until_us=until_us, run_id=run_id
        )

    def view(self) -> StepView:
        took_us = self.ended_us - self.since_us if self.ended else None
        return StepView(
            event=self.since,
            name=self.name,
            input=self.input,
            outcome=self.outcome,
            value=self.value,
            error=self.error,
            took_us=took_us,
        )


def _steps(seen: Sequence[Recorded]) -> dict[tuple[str, int], _Step]:
    """What the code asked for and what came of it, in the order in which it asked."""
    steps: dict[tuple[str, int], _Step] = {}
    promises: dict[str, _Step] = {}
    asked: dict[str, ev.PromiseCreated] = {}
    values = Values()
    """Values of promises that were resolved before the code created them."""
    signals = 0

    def begin(r: Recorded, kind: str, seq: int, name: str, data: bytes = b"") -> _Step:
        step = steps[kind, seq] = _Step(kind, seq, name, r.seq, r.at_us, data)
        return step

    def end(r: Recorded, kind: str, seq: int, outcome: str, value: bytes = b"", failure: Failure | None = None) -> None:
        step = steps.get((kind, seq))
        if step is not None:
            step.end(r, outcome, value, failure)

    for r in seen:
        e = r.event
        match e:
            case ev.TasksScheduled():
                for i, data in enumerate(e.inputs):
                    begin(r, "task", e.first + i, ev.label(e, e.first + i) or e.name, data)
            case ev.TasksSkipped():
                for seq, node in enumerate(e.nodes, e.first):
                    begin(r, "task", seq, node).end(r, "skipped")
            case ev.TasksSucceeded():
                for seq, value in zip(e.seqs, e.results, strict=True):
                    end(r, "task", seq, "success", value)
            case ev.TaskFailed():
                end(r, "task", e.seq, "failed", failure=e.failure)
            case ev.TasksCancelled():
                for seq in e.seqs:
                    end(r, "task", seq, "cancelled")
            case ev.TimerStarted():
                begin(r, "timer", e.seq, "timer")
            case ev.TimerFired():
                end(r, "timer", e.seq, "success")
            case ev.TimerCancelled():
                end(r, "timer", e.seq, "cancelled")
            case ev.ChildStarted():
                begin(r, "child", e.seq, e.workflow, e.input)
            case ev.ChildSucceeded():
                end(r, "child", e.seq, "success", e.result)
            case ev.ChildFailed():
                end(r, "child", e.seq, "failed", failure=e.failure)
            case ev.ChildCancelled():
                end(r, "child", e.seq, "cancelled")
            case ev.PromiseCreated():
                asked[e.name] = e
                promises[e.name] = begin(r, ev.PROMISE_WORDS[e.kind], e.seq, e.name)
                if (value := values.of(e)) is not None:
                    promises[e.name].end(r, "success", value)
            case ev.PromiseResolved():
                values.put(e.name, e.question, e.value, authorized=e.authorized)
                if e.name in asked and (value := values.of(asked[e.name])) is not None:
                    promises[e.name].end(r, "success", value)
            case ev.SignalReceived():
                begin(r, "signal", signals, e.name).end(r, "success", e.value)
                signals += 1
            case ev.OperationRecorded():
                outcome = "failed" if e.failure is not None else "success"
                begin(r, "operation", e.seq, e.name).end(r, outcome, e.value, e.failure)
            case _:
                pass
    return steps


def diff(one: tuple[bytes, list[Recorded]], other: tuple[bytes, list[Recorded]]) -> RunDiff:
    """Where two runs part, and every step from there on."""
    a, b = _side(*one), _side(*other)
    steps, others = _steps(effective(one[1])), _steps(effective(other[1]))
    rows = [_compared(key, steps.get(key), others.get(key)) for key in dict.fromkeys([*steps, *others])]
    parted = next((i for i, row in enumerate(rows) if row.differs), len(rows))
    after = rows[parted:]
    return RunDiff(
        one=a,
        other=b,
        differs=[
            n for n in ("workflow", "version", "input", "status", "result", "error") if getattr(a, n) != getattr(b, n)
        ],
        same=parted,
        parted=after[0] if after else None,
        after=after[:DIFF_STEPS_SHOWN],
        omitted=max(len(after) - DIFF_STEPS_SHOWN, 0),
    )


def _side(run_id: bytes, history: list[Recorded]) -> DiffSide:
    state = RunState()
    for r in effective(history):
        state.apply(r.event)
    first, last = history[0].event, history[-1].event
    assert isinstance(first, ev.RunStarted)
    return DiffSide(
        run_id=run_id,
        workflow=first.workflow,
        version=state.version,
        status=state.status.word,
        input=first.input,
        result=last.result if isinstance(last, ev.RunSucceeded) else b"",
        error=f"{last.failure.type or last.failure.code}: {last.failure.message}"
        if isinstance(last, ev.RunFailed)
        else None,
        events=history[-1].seq,
        took_us=history[-1].at_us
        - next((r.at_us for r in history if isinstance(r.event, ev.RunForked)), history[0].at_us),
    )


def _compared(key: tuple[str, int], one: _Step | None, other: _Step | None) -> StepDiff:
    if one is None or other is None:
        differs = ["missing"]
    else:
        pairs = {
            "name": (one.name, other.name),
            "input": (one.input, other.input),
            "outcome": (one.outcome, other.outcome),
            "result": ((one.value, one.error), (other.value, other.error)),
        }
        differs = [name for name, (x, y) in pairs.items() if x != y]
    return StepDiff(
        step=f"{key[0]} {key[1]}",
        one=one.view() if one is not None else None,
        other=other.view() if other is not None else None,
        differs=differs,
    )
