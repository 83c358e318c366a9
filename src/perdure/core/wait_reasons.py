"""Why something does not run: one structure and one set of words, for REST, command line, lists and metrics.

    RunState, what the code listens for --of_run-->  [Wait]   recorded when the run is let go
    a waiting task's row, its line's reason --of_task-->  Wait    the reason is what the claim itself recorded

Laws:

1. A reason comes from where it was decided: the claim for limits, rates and pauses (admission.py), the history for what the code asked for.
2. The words are made here and nowhere else. `on` is the one word that lists are filtered by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

import msgspec

from perdure.core import ids
from perdure.core.approvals import decode_spec
from perdure.core.durations import datetime_of
from perdure.core.events import PromiseCreated, PromiseKind
from perdure.core.flow_control.admission import QueueReason
from perdure.core.named_events import read_spec
from perdure.core.runstate import RunState

NAMES_COUNTED: Final = 1_000
"""Unfinished tasks of a run that are listed by name."""
WAITS_MAX: Final = 20
"""Wait reasons of one run that are recorded and shown; the rest are counted."""

CODES: Final[dict[str, str]] = {
    "stuck": "Its code cannot continue until the run is resumed.",
    "approval": "It needs an approval or a rejection.",
    "signal": "Its code waits for a signal.",
    "event": "Its code waits for a named event that matches.",
    "promise": "Its code waits for a promise to be resolved from outside.",
    "update": "Its code waits for an update.",
    "child": "A child run has not ended.",
    "limit": "A concurrency limit is reached: other runs hold its slots.",
    "rate": "A rate limit is used up until its bucket is refilled.",
    "paused": "The run itself, or its queue, task, workflow or namespace, is paused.",
    "retry": "A task waits for its next attempt.",
    "no_worker": "No connected worker serves the task on its queue.",
    "no_worker_for_version": "It is pinned to a version that no connected worker serves.",
    "version": "No connected worker has the code of the workflow.",
    "slot": "All workers that serve the task are busy.",
    "dependency": "A node of a flow waits for nodes before it.",
    "task": "A task is at work, or about to be.",
    "timer": "A timer has not fired.",
}
"""Word -> meaning. In the order in which the most telling one is chosen for lists."""
_RANK: Final = {code: n for n, code in enumerate(CODES)}


class WaitReason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is waited for."""

    on: str
    text: str
    """In words, to be read after "waiting for"."""
    name: str = ""
    """Of the signal, promise, approval, event, task or node."""
    key: str = ""
    """The limit, rate or rule."""
    until_us: int = 0
    runs: tuple[str, ...] = ()
    """Who holds the limit, or the child."""
    by: tuple[str, ...] = ()
    """Who is to approve, or who paused it."""
    count: int = 0
    """How many more of the same there are."""


_waits = msgspec.json.Decoder(list[WaitReason])


def encode(waits: Sequence[WaitReason]) -> tuple[str | None, str | None]:
    """As a run's row takes it: the word for lists, and all of it."""
    if not waits:
        return None, None
    shown = sorted(waits, key=lambda w: _RANK[w.on])[:WAITS_MAX]
    return shown[0].on, msgspec.json.encode(shown).decode()


def decode(text: str | None) -> list[WaitReason]:
    return _waits.decode(text) if text else []


def ordered(waits: Iterable[WaitReason]) -> list[WaitReason]:
    """The most specific first. A task's own wait reason replaces the plain wait for that task."""
    found = sorted(waits, key=lambda w: _RANK[w.on])
    telling = [w for w in found if w.on != "task"]
    return telling if any(w.on in TASK_CODES for w in telling) else found


TASK_CODES: Final = frozenset({"limit", "rate", "paused", "retry", "no_worker", "slot"})
"""Reasons that waiting tasks give."""


def sentence(waits: Sequence[WaitReason]) -> str:
    """All wait reasons in one sentence. What many tasks wait for alike is said once."""
    if not waits:
        return ""
    # Dependencies between nodes of a flow are left out, unless one is the first reason.
    told = list(dict.fromkeys([waits[0].text, *(w.text for w in waits[1:] if w.on != "dependency")]))
    text = ", and ".join(told[:3])
    return f"{text}, and {len(told) - 3} more" if len(told) > 3 else text


def of_run(
    state: RunState, listens: Iterable[str] = (), blocked: Iterable[tuple[str, Sequence[str]]] = ()
) -> list[WaitReason]:
    """What a run waits for. `listens`: what its code listens for, which the history does not show, as `signal:name`. `blocked`: nodes of a
    flow, each with the nodes that it waits for."""
    out = [_promise(created) for created in state.open_promises()]
    out += [_listens(one) for one in listens]
    out += [_child(child) for child in state.children.values()][:WAITS_MAX]
    if state.tasks:
        out.append(_tasks(task_names(state), len(state.tasks)))
    out += [WaitReason(on="dependency", text=_after(node, deps), name=node, by=tuple(deps)) for node, deps in blocked]
    if state.timers:
        first = min(state.timers.values())
        out.append(
            WaitReason(on="timer", text=f"a timer until {moment(first)}", until_us=first, count=len(state.timers) - 1)
        )
    return out


def _promise(created: PromiseCreated) -> WaitReason:
    name = created.name
    match created.kind:
        case PromiseKind.EVENT:
            wait = read_spec(created.spec)
            matching = f" that matches {wait.match}" if wait.match else ""
            return WaitReason(on="event", text=f"an event {wait.event!r}{matching}", name=wait.event)
        case PromiseKind.APPROVAL:
            spec = decode_spec(created.spec)
            by = tuple(spec.assignees)
            text = f"the approval {name!r} by {', '.join(by) or 'anyone'}"
            return WaitReason(on="approval", text=text, name=name, by=by, until_us=spec.deadline_us or 0)
        case _:
            return WaitReason(on="promise", text=f"the promise {name!r}", name=name)


def _listens(one: str) -> WaitReason:
    kind, _, name = one.partition(":")
    if kind not in ("signal", "update"):
        kind, name = "signal", one
    return WaitReason(on=kind, text=f"{'an' if kind == 'update' else 'a'} {kind} {name!r}", name=name)


def _child(child: bytes) -> WaitReason:
    return WaitReason(on="child", text=f"child run {ids.text(child)}", runs=(ids.text(child),))


def task_names(state: RunState) -> Counter[str]:
    """Of unfinished tasks, the first of them."""
    return Counter(e.name for e in islice(state.tasks.values(), NAMES_COUNTED))


def _tasks(names: Counter[str], total: int) -> WaitReason:
    told = ", ".join(f"{name} ({n:,})" if n > 1 else name for name, n in names.most_common(3))
    more = ", ..." if len(names) > 3 else ""
    return WaitReason(
        on="task", text=f"{'the task' if total == 1 else f'{total:,} tasks:'} {told}{more}", count=total - 1
    )


def _after(node: str, deps: Sequence[str]) -> str:
    told = ", ".join(repr(d) for d in deps[:3]) + (", ..." if len(deps) > 3 else "")
    return f"node {told} to end before {node!r} begins"


def stuck(why: str) -> WaitReason:
    return WaitReason(on="stuck", text=f"a manual resume: {why.partition(chr(10))[0]}")


def run_paused(by: str, reason: str | None) -> WaitReason:
    words = f": {reason}" if reason else ""
    return WaitReason(on="paused", text=f"the run to be resumed, paused by {by}{words}", by=(by,))


def start_time(at_us: int) -> WaitReason:
    return WaitReason(on="timer", text=f"its start at {moment(at_us)}", until_us=at_us)


def no_code(workflow: str, version: str) -> WaitReason:
    return WaitReason(
        on="version",
        text=f"a worker that has version {version} of the workflow {workflow!r}: none is connected",
        name=workflow,
    )


def no_version(workflow: str, version: str) -> WaitReason:
    return WaitReason(
        on="no_worker_for_version",
        text=f"a worker that serves version {version} of the workflow {workflow!r}, to which it is pinned: none is connected. "
        f"Start a worker with that code, or move its runs: perdure versions move {workflow} {version} --to VERSION",
        name=workflow,
        key=version,
    )


def about_to_start(workflow: str) -> WaitReason:
    return WaitReason(on="slot", text=f"a worker that serves the workflow {workflow!r} to take it up", name=workflow)


def of_reason(reason: QueueReason, what: str = "") -> WaitReason:
    """The wait reason that the claim recorded about a group."""
    match reason.code:
        case "limit":
            runs = tuple(dict.fromkeys(ids.text(bytes.fromhex(h)) for h in reason.holders))
            held = f", held by {', '.join(runs)}" if runs else ""
            more = ", ..." if reason.max > len(reason.holders) >= 3 else ""
            return WaitReason(
                on="limit",
                text=f"the limit {reason.key} of {reason.max} at a time{held}{more}",
                name=what,
                key=reason.key,
                runs=runs,
            )
        case "rate":
            return WaitReason(
                on="rate",
                text=f"the rate of {reason.key}, refilled at {moment(reason.until_us)}",
                name=what,
                key=reason.key,
                until_us=reason.until_us,
            )
        case _:
            words = f": {reason.text}" if reason.text else ""
            return WaitReason(
                on="paused",
                text=f"{reason.key} to be resumed, paused by {reason.by}{words}",
                name=what,
                key=reason.key,
                by=(reason.by,),
            )


class TaskWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """A task that waits in task_queue, as it is read."""

    name: str
    queue: str
    node: str = ""
    attempt: int
    lost: int
    max_attempts: int
    run_at_us: int
    now_us: int
    reason: QueueReason | None
    served: bool
    """Some connected worker serves it."""


def of_task(t: TaskWaiting) -> WaitReason:
    what = t.node or t.name
    if t.run_at_us > t.now_us:
        if t.attempt > 1:
            text = f"attempt {t.attempt - t.lost} of {t.max_attempts} of the task {what!r} at {moment(t.run_at_us)}"
            return WaitReason(on="retry", text=text, name=what, until_us=t.run_at_us)
        return WaitReason(
            on="timer", text=f"the task {what!r} to begin at {moment(t.run_at_us)}", name=what, until_us=t.run_at_us
        )
    if t.reason is not None:
        return of_reason(t.reason, what)
    if not t.served:
        text = f"a worker that serves the task {t.name!r} on queue {t.queue!r}: none is connected"
        return WaitReason(on="no_worker", text=text, name=what)
    return WaitReason(
        on="slot",
        text=f"a free slot for the task {t.name!r}: all workers that serve it on queue {t.queue!r} are busy",
        name=what,
    )


def backlog(names: Counter[str]) -> WaitReason:
    told = ", ".join(f"{name} ({n:,})" if n > 1 else name for name, n in names.most_common(3))
    return WaitReason(on="slot", text=f"a free slot for {told}: all workers that serve it are busy")


def moment(us: int) -> str:
    return datetime_of(us).strftime("%Y-%m-%d %H:%M:%S UTC")
