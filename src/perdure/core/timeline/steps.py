"""Steps of a run: tasks with their attempts, and what its history says about timers, children, promises and signals."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.api.runs import RunItem, TaskItem
from perdure.core.api.timeline import NodeKind, Segment, SegmentKind
from perdure.core.errors import Failure
from perdure.core.events import Recorded
from perdure.core.lifecycle import TASK_TERMINAL, TaskStatus
from perdure.core.questions import Values
from perdure.core.timeline.rows import AttemptMark

SLEEP: Final = "sleep"
"""The lane of timers whose node is not known."""
_PLACE: Final = re.compile(r"\[\d+\]")
_ENDED: Final[dict[int, SegmentKind]] = {
    TaskStatus.SUCCESS: "success",
    TaskStatus.FAILED: "failed",
    TaskStatus.CANCELLED: "cancelled",
}
WORK: Final = frozenset({"running", "success", "failed", "cancelled"})
"""Segments in which an attempt was at work."""

Place = tuple[str, int | str]
"""What a node of a flow asked for: ("timer", seq), ("child", seq), ("promise", name)."""


class RunStep(msgspec.Struct, kw_only=True):
    node: str
    kind: NodeKind
    seq: int
    status: TaskStatus
    since_us: int
    """When it was asked for."""
    started_us: int | None = None
    finished_us: int | None = None
    attempts: int = 0
    error: str | None = None
    segments: list[Segment] = []
    child: bytes = b""
    after: frozenset[str] = frozenset()

    def work(self) -> list[tuple[int, int, bool]]:
        """Its attempts: begin, end, and whether it failed."""
        return [(s.from_us, s.to_us, s.kind == "failed") for s in self.segments if s.kind in WORK]


def node_name(label: str) -> str:
    """A node without its place in a foreach."""
    return _PLACE.sub("", label) if "[" in label else label


def task_steps(tasks: Iterable[TaskItem], attempts: Iterable[AttemptMark], now_us: int) -> list[RunStep]:
    earlier: defaultdict[int, list[AttemptMark]] = defaultdict(list)
    for mark in attempts:
        earlier[mark.seq].append(mark)
    return [_task_step(t, earlier.get(t.seq, []), now_us) for t in tasks]


def _task_step(t: TaskItem, earlier: list[AttemptMark], now_us: int) -> RunStep:
    segments = task_segments(t, earlier, now_us)
    begun = [s for s in segments if s.kind in WORK]
    since = t.scheduled_us if t.scheduled_us is not None else segments[0].from_us if segments else now_us
    return RunStep(
        node=node_name(t.node) if t.node else t.name,
        kind="task",
        seq=t.seq,
        status=TaskStatus(t.status),
        since_us=min([since, *(s.from_us for s in begun)]),
        started_us=begun[0].from_us if begun else None,
        finished_us=t.finished_us,
        attempts=t.attempts,
        error=t.error if t.status == TaskStatus.FAILED else None,
        segments=segments,
    )


def task_segments(t: TaskItem, earlier: Sequence[AttemptMark], now_us: int) -> list[Segment]:
    """What a task was doing, in order. Between two epochs of its run it did nothing."""
    found: list[Segment] = []
    before: tuple[int, int] | None = None
    """Epoch and end of the attempt before."""
    for a in sorted(earlier, key=lambda a: (a.epoch, a.attempt)):
        if a.started_us is None:
            continue
        _gap(found, t.scheduled_us, before, a.epoch, a.started_us)
        kind: SegmentKind = "success" if a.outcome == "success" else "failed"
        end = max(a.finished_us, a.started_us)
        found.append(Segment("cancelled" if a.outcome == "cancelled" else kind, a.started_us, end, a.attempt, a.worker))
        before = a.epoch, end
    if t.started_us is not None and t.status != TaskStatus.SKIPPED:
        _gap(found, t.scheduled_us, before, None, t.started_us)
        end = max(t.finished_us if t.finished_us is not None else now_us, t.started_us)
        kind = _ENDED.get(t.status, "running")
        found.append(Segment(kind, t.started_us, end, max(t.attempts, 1), t.worker))
    elif t.status not in TASK_TERMINAL:
        _wait(found, t, before, now_us)
    return found


def _gap(
    found: list[Segment], scheduled_us: int | None, before: tuple[int, int] | None, epoch: int | None, start_us: int
) -> None:
    """The time before an attempt. `epoch` is None for the last one, which follows its schedule when that came after."""
    if before is None or (scheduled_us is not None and scheduled_us > before[1]):
        if scheduled_us is not None and scheduled_us < start_us:
            found.append(Segment("queued", scheduled_us, start_us))
    elif (epoch is None or epoch == before[0]) and before[1] < start_us:
        found.append(Segment("backoff", before[1], start_us))


def _wait(found: list[Segment], t: TaskItem, before: tuple[int, int] | None, now_us: int) -> None:
    """Of a task that waits now: for its time, then for a worker."""
    since = t.scheduled_us if t.scheduled_us is not None else now_us
    if before is not None and before[1] >= since:
        since = min(max(t.run_at_us or before[1], before[1]), now_us)
        if since > before[1]:
            found.append(Segment("backoff", before[1], since))
    if since < now_us:
        found.append(Segment("queued", since, now_us))


def history_steps(history: Sequence[Recorded], now_us: int, places: Mapping[Place, str] | None) -> list[RunStep]:
    """Timers, children, promises and signals. `places`: the nodes of a flow that asked for them; None for code. A timer of a flow that no
    node asked for is a time limit, and so is one of code that was cancelled: neither is a step."""
    steps: dict[tuple[str, int], RunStep] = {}
    promises: dict[str, RunStep] = {}
    asked: dict[str, ev.PromiseCreated] = {}
    values = Values()
    signals: list[RunStep] = []
    for r in history:
        e = r.event
        match e:
            case ev.TimerStarted():
                label = SLEEP if places is None else places.get(("timer", e.seq), "")
                if label:
                    steps["timer", e.seq] = _begun(r, label, "timer", e.seq)
            case ev.TimerFired():
                _end(steps.get(("timer", e.seq)), r, TaskStatus.SUCCESS)
            case ev.TimerCancelled():
                steps.pop(("timer", e.seq), None)
            case ev.ChildStarted():
                label = (places or {}).get(("child", e.seq), e.workflow)
                steps["child", e.seq] = _begun(r, label, "child", e.seq, e.run_id)
                if e.detached:
                    _end(steps["child", e.seq], r, TaskStatus.SUCCESS)
            case ev.ChildSucceeded():
                _end(steps.get(("child", e.seq)), r, TaskStatus.SUCCESS)
            case ev.ChildFailed():
                _end(steps.get(("child", e.seq)), r, TaskStatus.FAILED, e.failure)
            case ev.ChildCancelled():
                _end(steps.get(("child", e.seq)), r, TaskStatus.CANCELLED)
            case ev.PromiseCreated():
                kind: NodeKind = "approval" if e.kind == ev.PromiseKind.APPROVAL else "promise"
                asked[e.name] = e
                promises[e.name] = _begun(r, (places or {}).get(("promise", e.name), e.name), kind, e.seq)
                steps[kind, e.seq] = promises[e.name]
                if values.of(e) is not None:
                    _end(promises[e.name], r, TaskStatus.SUCCESS)
            case ev.PromiseResolved():
                values.put(e.name, e.question, e.value, authorized=e.authorized)
                if e.name in asked and values.of(asked[e.name]) is not None:
                    _end(promises[e.name], r, TaskStatus.SUCCESS)
            case ev.SignalReceived() if places is None:
                signals.append(_begun(r, e.name, "signal", len(signals)))
                _end(signals[-1], r, TaskStatus.SUCCESS)
            case _:
                pass
    ended = isinstance(history[-1].event, ev.TERMINAL) if history else False
    return [_shown(s, history[-1].at_us if ended else now_us, ended) for s in [*steps.values(), *signals]]


def _begun(r: Recorded, label: str, kind: NodeKind, seq: int, child: bytes = b"") -> RunStep:
    return RunStep(
        node=node_name(label),
        kind=kind,
        seq=seq,
        status=TaskStatus.RUNNING,
        since_us=r.at_us,
        started_us=r.at_us,
        child=child,
    )


def _end(step: RunStep | None, r: Recorded, status: TaskStatus, failure: Failure | None = None) -> None:
    if step is None or step.finished_us is not None:
        return
    step.status, step.finished_us = status, r.at_us
    step.error = failure.message if failure is not None else None


def _shown(step: RunStep, until_us: int, ended: bool) -> RunStep:
    if step.finished_us is None and ended:  # nothing waits for it any more
        step.status, step.finished_us = TaskStatus.CANCELLED, until_us
    end = step.finished_us if step.finished_us is not None else until_us
    kind: SegmentKind = "timer" if step.kind == "timer" else "waiting"
    if step.kind == "child":
        kind = _ENDED.get(step.status, "running")
    step.segments = [Segment(kind, step.since_us, max(end, step.since_us))]
    return step


def scheduled_counts(history: Sequence[Recorded]) -> dict[str, tuple[int, int]]:
    """Node -> tasks that its history has scheduled or skipped, and when the first was."""
    found: dict[str, tuple[int, int]] = {}
    for r in history:
        e = r.event
        if isinstance(e, ev.TasksScheduled):
            if e.index >= 0 or not e.nodes:
                _add(found, node_name(e.nodes[0]) if e.nodes else e.name, len(e.inputs), r.at_us)
                continue
            for label in e.nodes:
                _add(found, node_name(label), 1, r.at_us)
        elif isinstance(e, ev.TasksSkipped):
            for label in e.nodes:
                _add(found, node_name(label), 1, r.at_us)
    return found


def _add(found: dict[str, tuple[int, int]], node: str, tasks: int, at_us: int) -> None:
    count, first = found.get(node, (0, at_us))
    found[node] = count + tasks, first


def causes(history: Sequence[Recorded]) -> dict[int, frozenset[int]]:
    """Task of code -> the tasks whose ends led to the decision that scheduled it. The code is resumed by the facts since its last command."""
    found: dict[int, frozenset[int]] = {}
    ended: list[int] = []
    asked = False
    for r in history:
        match r.event:
            case ev.TasksSucceeded(seqs=seqs):
                ended, asked = ([] if asked else ended) + list(seqs), False
            case ev.TaskFailed(seq=seq):
                ended, asked = [*([] if asked else ended), seq], False
            case ev.TasksScheduled(first=first, inputs=inputs):
                asked = True
                found.update(dict.fromkeys(range(first, first + len(inputs)), frozenset(ended)))
            case _:
                pass
    return found


def with_causes(steps: list[RunStep], led: Mapping[int, frozenset[int]]) -> list[RunStep]:
    """Each with the lanes of the tasks whose ends led to it."""
    names = {s.seq: s.node for s in steps}
    for step in steps:
        step.after = frozenset(names[seq] for seq in led.get(step.seq, ()) if seq in names)
    return steps


def unwritten_tasks(item: RunItem, history: Sequence[Recorded], known: Collection[int]) -> list[TaskItem]:
    """Tasks of an active run that have no row: they are in the memory of the engine that owns it, or will be scheduled by the next."""
    status = TaskStatus.DISPATCHED if item.owned else TaskStatus.PENDING
    found: dict[int, TaskItem] = {}
    for r in history:
        match r.event:
            case ev.TasksScheduled() as e:
                for seq in range(e.first, e.first + len(e.inputs)):
                    if seq not in known:
                        found[seq] = _unwritten(item.run_id, e, seq, status, r.at_us)
            case ev.TasksSucceeded(seqs=seqs) | ev.TasksCancelled(seqs=seqs):
                for seq in seqs:
                    found.pop(seq, None)
            case ev.TaskFailed(seq=seq):
                found.pop(seq, None)
            case _:
                pass
    return list(found.values())


def _unwritten(run_id: bytes, e: ev.TasksScheduled, seq: int, status: TaskStatus, at_us: int) -> TaskItem:
    return TaskItem(
        id=ids.derive(run_id, ids.TASK, seq),
        seq=seq,
        name=e.name,
        queue=e.queue,
        status=status,
        attempts=0,
        lost=0,
        scheduled_us=at_us,
        node=ev.label(e, seq) or None,
    )
