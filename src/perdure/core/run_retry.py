"""Retrying a failed run: what is taken back, and the history that is left.

    ... facts and commands ... | failure ... what followed ... RunFailed | RunRetried ...
                               '- cut

Theory. A history is never changed, so a retry is one more event, `RunRetried`, and every fold or replay looks at
`effective(history)` instead. That is the history in which what failed has not ended yet:

- before the cut everything stays as it is;
- from the cut on, the commands of the code are void (it will issue them again, or others), and so is every failure. Results of
  earlier requests stay: successes, fired timers, signals, updates, values of promises. They are delivered to the code at the moment of the
  retry, which answers the updates again; callers keep the answers that they got before. What answered a question counts only if the code
  asks that very question again (core/questions.py);
- the cancellations with which the failing run was closed are void, so that what they stopped continues;
- the deadline is void, and the time between failure and retry does not count for running timers.

Where the cut is (`plan`): at the failure that brought the code down, if the exception identifies it; else at the first
failure the code ever saw; else, when nothing failed but the code or the time of the run, where the run was closed.

A declarative run is retried without taking anything back (`cut` is 0): its decider knows what failed and continues from there, see
flows/decide/decider.py.

Laws, for every history whose last event is `RunRetried`:

1. `effective` folds in RunState without error and is not terminal; no failure from the cut on is in it.
2. It is a function of the history alone, and effective(effective(h)) is effective(h).
3. Numbers stay what they were, so a record can be found in the real history by its number.
4. A history without a retry is its own effective history: the same list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from perdure.core import events as ev
from perdure.core.errors import Conflict, IllegalTransition
from perdure.core.events import Recorded
from perdure.core.late_messages import put_in_order
from perdure.core.limits import HISTORY_EVENTS_MAX
from perdure.core.questions import asked_by, is_restricted
from perdure.core.runstate import RunState
from perdure.core.undo import refuse_undone

ENDED_BY_ENGINE: Final = frozenset({"run_timeout", "history_too_large", "limit_exceeded"})
"""Codes of ends that no step of the run is to blame for."""
_REWRITES: Final = frozenset({ev.RunRetried, ev.EndWithdrawn})
"""Events that change how the history before them reads."""
CLOSING = (ev.TasksCancelled, ev.TimerCancelled, ev.ChildCancelRequested)
"""What is written about the outstanding steps of a run that ends, just before its terminal event."""


def check_retry(history: list[Recorded]) -> ev.RunFailed:
    """How the run failed. Raises Conflict when it cannot be retried."""
    end = history[-1].event if history else None
    if not isinstance(end, ev.RunFailed):
        raise Conflict("only failed runs can be retried, and this one has not failed")
    if history[-1].seq >= HISTORY_EVENTS_MAX:
        raise Conflict(
            f"the run's history has reached HISTORY_EVENTS_MAX={HISTORY_EVENTS_MAX} events and has no room for another epoch; start a new run"
        )
    refuse_undone(history)
    return end


def plan(history: list[Recorded], by: str = "", living: Collection[int] = ()) -> ev.RunRetried:
    """What a retry of this run takes back. `living` are children that need not be started anew although the history says that
    they failed: they were retried themselves, or have ended well since. Raises Conflict when there is nothing to retry."""
    end = check_retry(history)
    seen = effective(history)
    cut = _cut(seen, end)
    head, tail = _split(seen, cut)
    state, stopped = _fold(head)
    failed = [r.event.seq for r in tail if isinstance(r.event, ev.TaskFailed) and r.event.seq in state.tasks]
    happy = {r.event.seq for r in tail if isinstance(r.event, ev.ChildSucceeded)}
    children = [c for c in state.children if c not in stopped and c not in happy and c not in living]
    first = tail[0].event
    timers = [first.seq] if isinstance(first, ev.TimerFired) else []
    return ev.RunRetried(cut, failed, children, by, timers)


def _cut(seen: list[Recorded], end: ev.RunFailed) -> int:
    closing = len(seen) - 1
    while isinstance(seen[closing - 1].event, CLOSING):
        closing -= 1
    if end.failure.code in ENDED_BY_ENGINE:
        return seen[closing].seq
    _, stopped = _fold(seen[:-1])
    failures = [r.seq for r in seen if _is_failure(r.event, stopped)]
    if end.cause and any(r.seq == end.cause for r in seen):
        return end.cause
    return failures[0] if failures else seen[closing].seq


def _is_failure(event: ev.Event, stopped: Collection[int]) -> bool:
    """Whether a failure was delivered to the code. A child that the code itself cancelled is no failure."""
    match event:
        case ev.TaskFailed():
            return True
        case ev.ChildFailed() | ev.ChildCancelled():
            return event.seq not in stopped
        case ev.OperationRecorded():
            return event.failure is not None
        case _:
            return False


def effective(history: list[Recorded]) -> list[Recorded]:
    """The history as code, state and replay see it. Without a retry that takes something back it is the very list."""
    if not any(type(r.event) in _REWRITES for r in history):
        return history
    seen: list[Recorded] = []
    asked: dict[int, int] = {}
    """By number of its event: when the code asked for a timer, which is when it had heard of something last."""
    heard_us = 0
    for record in history:
        event = record.event
        if isinstance(event, ev.RunRetried) and event.cut:
            seen = _take_back(seen, event, record.at_us, asked)
            heard_us = record.at_us
            continue
        if isinstance(event, ev.EndWithdrawn):
            seen = put_in_order(seen, event)
            continue
        if isinstance(event, ev.TimerStarted):
            asked[record.seq] = heard_us
        elif isinstance(event, ev.FACTS):
            heard_us = record.at_us
        seen.append(record)
    return seen


class Pause(NamedTuple):
    """The last retry of a run, or its fork."""

    at_us: int = 0
    us: int = 0
    """How long it had been at rest by then."""
    fork: int = 0
    """Number of the event, if it was a fork."""


NO_PAUSE: Final = Pause()


def pause(history: list[Recorded]) -> Pause:
    """Zeros without one."""
    for i in range(len(history) - 1, 0, -1):
        kind, at_us = type(history[i].event), history[i].at_us
        if kind is ev.RunRetried or kind is ev.RunForked:
            before_us = next((r.at_us for r in reversed(history[:i]) if r.at_us != at_us), at_us)
            return Pause(at_us, at_us - before_us, history[i].seq if kind is ev.RunForked else 0)
    return NO_PAUSE


def is_fork(history: list[Recorded]) -> bool:
    """Whether a history begins with events of another run (core/run_fork.py)."""
    first = history[0].event if history else None
    return type(first) is ev.RunStarted and bool(first.lineage)


def _take_back(seen: list[Recorded], retried: ev.RunRetried, at_us: int, asked: dict[int, int]) -> list[Recorded]:
    head, tail = _split(bound_to_questions(seen), retried.cut)
    state, stopped = _fold(head)
    heard = [(r.seq, _kept(r.event, state, stopped, retried.voided_timers)) for r in tail]
    facts = [Recorded(seq, at_us, event) for seq, event in heard if event is not None]
    for fact in facts:
        state.apply(fact.event)
    out: list[Recorded] = []
    for r in head:
        moved_us = 0
        if isinstance(r.event, ev.TimerStarted) and r.event.seq in state.timers:
            # One that ran out gets its whole time again; the others what was left of it when the run failed.
            moved_us = at_us - (asked[r.seq] if r.event.seq in retried.voided_timers else seen[-1].at_us)
            asked[r.seq] += moved_us
        kept = _after_retry(r.event, state, retried, moved_us)
        if kept is not None:
            out.append(r if kept is r.event else Recorded(r.seq, r.at_us, kept))
    return out + facts


def _split(seen: list[Recorded], cut: int) -> tuple[list[Recorded], list[Recorded]]:
    at = next((i for i, r in enumerate(seen) if r.seq == cut), 0) or next(
        (i for i, r in enumerate(seen) if r.seq >= cut), 0
    )
    if not at:
        raise IllegalTransition(f"a retry takes back what comes from event {cut} on, and there is none")
    return seen[:at], seen[at:]


def _fold(records: list[Recorded]) -> tuple[RunState, set[int]]:
    """What is outstanding, and the children that were asked to stop."""
    state = RunState()
    for r in records:
        state.apply(r.event)
    return state, {r.event.seq for r in records if isinstance(r.event, ev.ChildCancelRequested)}


def _kept(event: ev.Event, state: RunState, stopped: Collection[int], voided_timers: list[int]) -> ev.Event | None:
    """What is left of an event from the cut on: facts about what was outstanding at the cut, and what came from outside."""
    match event:
        case ev.SignalReceived() | ev.PromiseResolved() | ev.UpdateReceived():
            return event
        case ev.TasksSucceeded():
            return _of(event, state)
        case ev.TimerFired():
            return event if event.seq in state.timers and event.seq not in voided_timers else None
        case ev.ChildSucceeded():
            return event if event.seq in state.children else None
        case ev.ChildFailed() | ev.ChildCancelled():
            return event if event.seq in state.children and event.seq in stopped else None
        case _:
            return None


def _of(event: ev.TasksSucceeded, state: RunState) -> ev.TasksSucceeded | None:
    if all(seq in state.tasks for seq in event.seqs):
        return event
    pairs = [(seq, value) for seq, value in zip(event.seqs, event.results, strict=True) if seq in state.tasks]
    return ev.TasksSucceeded([s for s, _ in pairs], [v for _, v in pairs]) if pairs else None


def _after_retry(event: ev.Event, state: RunState, retried: ev.RunRetried, moved_us: int) -> ev.Event | None:
    """What a retry makes of an event before the cut."""
    match event:
        case ev.RunStarted() if event.deadline_us:
            return msgspec.structs.replace(event, deadline_us=0)
        case ev.ChildStarted() if event.seq in retried.voided_children and event.seq in state.children:
            return None
        case ev.TimerStarted() if moved_us:
            return ev.TimerStarted(event.seq, event.fire_at_us + moved_us)
        case _:
            return event


def bound_to_questions(seen: list[Recorded]) -> list[Recorded]:
    """The history with each value that was given to a name bound to the approval that took it: another approval of that name does not."""
    given = {r.event.name for r in seen if isinstance(r.event, ev.PromiseResolved) and not r.event.question}
    if not given:
        return seen
    asked: dict[str, ev.PromiseCreated] = {}
    for r in seen:
        if (
            isinstance(r.event, ev.PromiseCreated)
            and r.event.name in given
            and r.event.kind is not ev.PromiseKind.PLAIN
        ):
            asked.setdefault(r.event.name, r.event)
    return [_bound(r, asked) for r in seen] if asked else seen


def _bound(r: Recorded, asked: Mapping[str, ev.PromiseCreated]) -> Recorded:
    event = r.event
    if not isinstance(event, ev.PromiseResolved) or event.question or event.name not in asked:
        return r
    created = asked[event.name]
    if not event.authorized and is_restricted(created):
        return r
    return Recorded(r.seq, r.at_us, msgspec.structs.replace(event, question=asked_by(created)))
