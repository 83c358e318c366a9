"""Forking a run: a new run that begins with a copy of another's first events, perhaps with other results, and goes on by itself.

    RunStarted(lineage) ... copied events ... | RunForked ... what happens to the fork
                                                  '- the moment of the fork

Theory. The code of the fork replays the copied events like any history, so it stands where the other run stood. Copies keep their times,
because the code's clock is the time of its events; they are numbered anew, because numbers have no gaps. The fork has an id of its own,
so ids of its tasks and children differ from those of the other run. Its code draws the same randomness, by the id of the first run of its
lineage, and where it passes on its own id, that stands for the other run's in what was copied (core/journal.py).

An edited result replaces a recorded one. What the code asked for after it followed from the old result and is left out: the code asks
again, or for something else. Facts about earlier requests stay, as in a retry (core/run_retry.py), but failures too. An answer to
something that was asked after the edited result is left out with its question: what the fork will ask has no answer yet.

What was outstanding at the event goes on in the fork and nowhere else:

- tasks are queued again, as if they had just been scheduled;
- timers, open approvals and the deadline have as much time left as they had at the event. A deadline that had passed starts over;
- children are not shared. The record of an outstanding child is left out, so that the code starts another one;
- promises are open again. Votes that were given before are not copied;
- signals, updates and values of promises are in the fork if they are in the copied history. Unread messages stay with the other run.

Laws, for every history and event:

1. The copy followed by `RunForked` folds in RunState without error, is not terminal, and has no outstanding child.
2. It is a function of its arguments alone, and what it copies of the other run is never changed there.
3. A step that was edited has succeeded with its new value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.core import events as ev
from perdure.core.approvals import decode_spec, encode_spec
from perdure.core.errors import Conflict, InvalidInput
from perdure.core.events import Recorded
from perdure.core.lifecycle import TaskStatus
from perdure.core.limits import FORK_LINEAGE_MAX, FORK_STEPS_SHOWN
from perdure.core.questions import asked_by
from perdure.core.run_retry import CLOSING, bound_to_questions, effective
from perdure.core.runstate import RunState

NUMBER_DIGITS_MAX: Final = 9
CHILD_PREFIX: Final = "child:"
"""A step that is a child run: `child:0`."""

_LEFT_OUT: Final = (ev.RunForked, ev.VersionChanged)
"""What no code sees. The start of a fork says which version executes it."""

Edits = dict[str, dict[int, bytes]]
"""Values by sequence number, under `task` and `child`."""


class CopiedTask(msgspec.Struct, frozen=True):
    """The row of a task that ended before the fork."""

    seq: int
    name: str
    queue: str
    status: TaskStatus
    attempts: int | None
    """None: as many as the row of the other run says."""
    scheduled_us: int
    finished_us: int | None
    """None: at the moment of the fork."""
    error: str | None
    node: str | None


class Fork(msgspec.Struct, frozen=True):
    records: list[Recorded]
    """The copies, numbered from 1, with the times of the originals."""
    tail: list[ev.Event]
    """What is recorded at the moment of the fork."""
    state: RunState
    """What is outstanding."""
    tasks: list[CopiedTask]


class ForkSpec(msgspec.Struct, frozen=True, kw_only=True):
    run_id: bytes
    """The run to be forked."""
    at: int
    edits: Mapping[str, bytes] = {}
    """Step -> its result as JSON."""
    now_us: int
    by: str = ""
    version: str = ""
    """Of the code to go on with; empty: the same."""
    key: str = ""
    timeout_us: int = 0
    """How long a run of its flow may take; 0: no limit, or it was started with a limit of its own."""


def fork(history: list[Recorded], r: ForkSpec) -> Fork:
    """Raises InvalidInput for an event or a step that is not there, and Conflict where the run cannot be forked at this event."""
    whole = effective(_prefix(history, r.at))
    seen = [record for record in whole if not isinstance(record.event, _LEFT_OUT)]
    if not r.version:
        r = msgspec.structs.replace(r, version=_folded(whole).version)
    edits = _steps(seen, r.edits)
    kept, late = _edited(seen, edits)
    later_us = r.now_us - history[r.at - 1].at_us
    kept = _without_children(kept, late)
    outstanding = _folded([*kept, *(Recorded(0, 0, e) for e in late)])
    events = [_for_fork(record, outstanding, r, later_us) for record in kept]
    numbers = {record.seq: n for n, record in enumerate(kept, 1)}
    records = [
        Recorded(n, record.at_us, _renumbered(event, numbers))
        for n, (record, event) in enumerate(zip(kept, events, strict=True), 1)
    ]
    shown = [f"{kind} {seq}" for kind, values in edits.items() for seq in sorted(values)]
    tail: list[ev.Event] = [*late, ev.RunForked(r.run_id, r.at, shown, r.by)]
    forked = [*records, *(Recorded(len(records) + n, r.now_us, e) for n, e in enumerate(tail, 1))]
    return Fork(records, tail, _folded(forked), _task_rows(records, late))


def _prefix(history: list[Recorded], at: int) -> list[Recorded]:
    first = history[0].event if history else None
    if isinstance(first, ev.RunStarted) and len(first.lineage) >= FORK_LINEAGE_MAX:
        raise Conflict(
            f"the run is the last of FORK_LINEAGE_MAX={FORK_LINEAGE_MAX} forks of forks; fork one of the runs before it"
        )
    if not history or at < 1 or at > history[-1].seq:
        last = history[-1].seq if history else 0
        raise InvalidInput(f"the run has events 1 to {last}; there is no event {at} to fork it at")
    taken = history[:at]
    following = next((r.event for r in history[at:] if not isinstance(r.event, CLOSING)), None)
    while isinstance(taken[-1].event, ev.NodeOverridden):  # without the retry that carries it out
        taken = taken[:-1]
    if isinstance(taken[-1].event, ev.TERMINAL):
        taken = taken[:-1]
    elif not isinstance(following, ev.TERMINAL):
        return taken
    while isinstance(taken[-1].event, CLOSING):  # how the engine closed the run
        taken = taken[:-1]
    return taken


def _steps(seen: Sequence[Recorded], wanted: Mapping[str, bytes]) -> Edits:
    edits: Edits = {"task": {}, "child": {}}
    for step, value in wanted.items():
        if step.startswith(CHILD_PREFIX):
            edits["child"][_child(seen, step.removeprefix(CHILD_PREFIX))] = value
        else:
            edits["task"][task_of(seen, step)] = value
    return edits


def _child(seen: Sequence[Recorded], number: str) -> int:
    known = [r.event.seq for r in seen if isinstance(r.event, ev.ChildStarted)]
    if number not in map(str, known):
        raise InvalidInput(f"no child {number} was started by then; children: {_listed(map(str, known))}")
    return int(number)


def task_of(seen: Sequence[Recorded], step: str) -> int:
    """The number of a task that was scheduled, by its number, its node in a flow, or its name. InvalidInput when there is no such one,
    or several of that name."""
    by_node: dict[str, int] = {}
    by_name: dict[str, list[int]] = {}
    for r in seen:
        event = r.event
        if isinstance(event, ev.TasksSkipped) and step in event.nodes:
            raise InvalidInput(f"the node {step!r} was skipped; it has no result to replace")
        if isinstance(event, ev.TasksScheduled):
            seqs = range(event.first, event.first + len(event.inputs))
            if step.isascii() and step.isdigit() and len(step) <= NUMBER_DIGITS_MAX and int(step) in seqs:
                return int(step)
            by_name.setdefault(event.name, []).extend(seqs)
            by_node |= {ev.label(event, seq): seq for seq in seqs} if event.nodes else {}
    if step in by_node:
        return by_node[step]
    found = by_name.get(step, [])
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} tasks are called {step!r}; give a number: {_listed(map(str, found))}")
    if not found:
        raise InvalidInput(
            f"no step {step!r} was scheduled by then; steps: {_listed([*by_node] or [f'{n} ({s[0]})' for n, s in by_name.items()])}"
        )
    return found[0]


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    more = f", and {len(found) - FORK_STEPS_SHOWN} more" if len(found) > FORK_STEPS_SHOWN else ""
    return (", ".join(found[:FORK_STEPS_SHOWN]) + more) or "none"


def _edited(seen: list[Recorded], edits: Edits) -> tuple[list[Recorded], list[ev.Event]]:
    """The copies with their edited results, and the results of edited steps that had not ended."""
    tasks, children = edits["task"], edits["child"]
    if not tasks and not children:
        return seen, []
    cut = next((i for i, r in enumerate(seen) if _ends(r.event, tasks, children)), len(seen))
    answers = {r.seq for r in seen if isinstance(r.event, ev.PromiseResolved) and r.event.question}
    seen = bound_to_questions(seen)
    head, tail = seen[:cut], seen[cut:]
    state = _folded(head)
    stopped = {r.event.seq for r in tail if isinstance(r.event, ev.ChildCancelRequested)}
    # A retry may have taken a question back, so that an answer in the tail has none there.
    asked = {(r.event.name, asked_by(r.event)) for r in head if isinstance(r.event, ev.PromiseCreated)}
    unasked: set[str] = set()
    kept: list[Recorded] = []
    for r in tail:
        if isinstance(r.event, ev.PromiseCreated):
            unasked.add(r.event.name)
        if isinstance(r.event, ev.PromiseResolved) and (
            (r.event.name, r.event.question) not in asked if r.seq in answers else r.event.name in unasked
        ):
            continue
        event = _fact(r.event, state, edits, stopped)
        if event is not None:
            state.apply(event)
            kept.append(Recorded(r.seq, r.at_us, event))
    late: list[ev.Event] = []
    for seq, value in tasks.items():
        if seq in state.tasks:
            late.append(ev.TasksSucceeded([seq], [value]))
        elif not any(_ends(r.event, {seq}, ()) for r in kept):
            raise _cannot_set(f"task {seq}")
    for seq, value in children.items():
        if seq in state.children:
            late.append(ev.ChildSucceeded(seq, value))
        elif not any(_ends(r.event, (), {seq}) for r in kept):
            raise _cannot_set(f"child {seq}")
    return head + kept, late


def _cannot_set(what: str) -> InvalidInput:
    return InvalidInput(
        f"{what} cannot be set: it was cancelled, or was asked for after another result that is replaced, and may not be asked for again"
    )


def _ends(event: ev.Event, tasks: Collection[int], children: Collection[int]) -> bool:
    match event:
        case ev.TasksSucceeded():
            return any(seq in tasks for seq in event.seqs)
        case ev.TaskFailed():
            return event.seq in tasks
        case ev.ChildSucceeded() | ev.ChildFailed() | ev.ChildCancelled():
            return event.seq in children
        case _:
            return False


def _fact(event: ev.Event, state: RunState, edits: Edits, stopped: Collection[int]) -> ev.Event | None:
    """What is left of an event behind the first edited result."""
    tasks, children = edits["task"], edits["child"]
    match event:
        case ev.SignalReceived() | ev.PromiseResolved() | ev.UpdateReceived():
            return event
        case ev.TasksSucceeded():
            found = [(s, tasks.get(s, v)) for s, v in zip(event.seqs, event.results, strict=True) if s in state.tasks]
            return ev.TasksSucceeded([s for s, _ in found], [v for _, v in found]) if found else None
        case ev.TaskFailed() if event.seq in state.tasks:
            return ev.TasksSucceeded([event.seq], [tasks[event.seq]]) if event.seq in tasks else event
        case ev.TimerFired() if event.seq in state.timers:
            return event
        case ev.ChildSucceeded() | ev.ChildFailed() | ev.ChildCancelled() if event.seq in state.children:
            if event.seq in children:
                return ev.ChildSucceeded(event.seq, children[event.seq])
            return None if event.seq in stopped else event
        case _:
            return None


def _without_children(records: list[Recorded], late: list[ev.Event]) -> list[Recorded]:
    """Without the outstanding ones."""
    state = _folded([*records, *(Recorded(0, 0, e) for e in late)])
    if not state.children:
        return records
    for r in records:
        if isinstance(r.event, ev.RunRetried) and (
            again := [s for s in r.event.retried_children if s in state.children]
        ):
            raise Conflict(
                f"at this event the run waits for child {again[0]}, which was retried with it at event {r.seq}; fork it at an event before "
                "that one, or after the child has ended"
            )
    return [
        r
        for r in records
        if not (isinstance(r.event, ev.ChildStarted | ev.ChildCancelRequested) and r.event.seq in state.children)
    ]


def _for_fork(record: Recorded, state: RunState, r: ForkSpec, later_us: int) -> ev.Event:
    """An event of the other run as one of the fork."""
    event = record.event
    match event:
        case ev.RunStarted():
            return msgspec.structs.replace(
                event,
                version=r.version,
                key=r.key,
                parent_id=b"",
                parent_seq=-1,
                deadline_us=_deadline(event, record.at_us, r, later_us),
                continued_from=b"",
                trace="",
                known_as=b"",
                rerun_of=b"",
                start_at_us=0,
                expires_us=0,
                lineage=[*event.lineage, r.run_id],
                forked_at=r.at,
                pinned=state.pinned,
                first=b"",
            )
        case ev.RunBegan():
            return ev.RunBegan()
        case ev.TimerStarted() if event.seq in state.timers:
            return ev.TimerStarted(event.seq, event.fire_at_us + later_us)
        case ev.PromiseCreated() if event.kind is ev.PromiseKind.APPROVAL and not state.is_resolved(event.name):
            spec = decode_spec(event.spec)
            moved = msgspec.structs.replace(
                spec,
                deadline_us=spec.deadline_us + later_us if spec.deadline_us else spec.deadline_us,
                escalate_us=spec.escalate_us + later_us if spec.escalate_us else spec.escalate_us,
            )
            return msgspec.structs.replace(event, spec=encode_spec(moved))
        case _:
            return event


def _deadline(started: ev.RunStarted, started_us: int, r: ForkSpec, later_us: int) -> int:
    deadline_us = started.deadline_us or (started_us + r.timeout_us if r.timeout_us else 0)
    if not deadline_us:
        return 0
    moved_us = deadline_us + later_us
    return moved_us if moved_us > r.now_us else r.now_us + deadline_us - started_us


def _renumbered(event: ev.Event, numbers: Mapping[int, int]) -> ev.Event:
    if isinstance(event, ev.RunFailed) and event.cause:
        return msgspec.structs.replace(event, cause=numbers.get(event.cause, 0))
    return event


def _folded(records: Sequence[Recorded]) -> RunState:
    state = RunState()
    for r in records:
        state.apply(r.event)
    return state


def _task_rows(records: Sequence[Recorded], late: Sequence[ev.Event]) -> list[CopiedTask]:
    """The tasks that have ended, with what the history tells about them."""
    scheduled: dict[int, tuple[ev.TasksScheduled, int]] = {}
    rows: list[CopiedTask] = []

    def ended(seq: int, at_us: int | None, status: TaskStatus, attempts: int | None, error: str | None) -> None:
        event, since_us = scheduled[seq]
        node = ev.label(event, seq) if event.nodes else None
        rows.append(CopiedTask(seq, event.name, event.queue, status, attempts, since_us, at_us, error, node))

    for at_us, event in [*((r.at_us, r.event) for r in records), *((None, e) for e in late)]:
        match event:
            case ev.TasksScheduled():
                scheduled |= {event.first + i: (event, at_us or 0) for i in range(len(event.inputs))}
            case ev.TasksSucceeded():
                for seq in event.seqs:
                    ended(seq, at_us, TaskStatus.SUCCESS, None, None)
            case ev.TaskFailed():
                ended(event.seq, at_us, TaskStatus.FAILED, event.attempts, event.failure.message)
            case ev.TasksCancelled():
                for seq in event.seqs:
                    ended(seq, at_us, TaskStatus.CANCELLED, None, None)
            case ev.TasksSkipped():
                for seq, node in enumerate(event.nodes, event.first):
                    rows.append(
                        CopiedTask(seq, node, "", TaskStatus.SKIPPED, 0, at_us or 0, at_us, event.reason or None, node)
                    )
            case _:
                pass
    return rows
