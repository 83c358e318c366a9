"""How far a run of a flow is, node by node, read from a decider that has replayed the run's history.

Executions of a spread, and the bodies inside one, are one node of a drawing: it has the most important status among theirs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from perdure.core.events import Recorded
from perdure.flows.decide.dag_frames import DagFrame
from perdure.flows.decide.decider import Decider
from perdure.flows.decide.executions import ChildRun, InnerBody, MessageWait, SleepTimer
from perdure.flows.decide.frames import FAILED, PENDING, RUNNING, BodyFrame
from perdure.flows.decide.graph_frames import GraphFrame
from perdure.flows.model import ApprovalVerb, Embedded, Flow, FlowBody, MessageVerb, Services, Sleep, TaskCall

_PLACE: Final = re.compile(r"\[\d+\]")
_WORTH: Final = ("failed", "running", "waiting", "pending", "cancelled", "success", "skipped")
"""The most important first."""


def statuses_of(
    flow: Flow, run_id: bytes, history: list[Recorded], is_up: Callable[[], bool] = lambda: False
) -> dict[str, str]:
    """Status words by path (`chart.Item.path`). Nodes of inner bodies that are over may be missing. Empty when the time is up before
    the history is applied."""
    decider = Decider(flow, run_id)
    decider.give(history, replay=True)
    if not decider.advance(is_up):
        return {}
    return _words(flow, decider)


def _words(flow: Flow, decider: Decider) -> dict[str, str]:
    waits = _waits(flow.body, "")
    out: dict[str, str] = {}
    for label, status in node_statuses(decider).items():
        path = _PLACE.sub("", label)
        word = "waiting" if status == "running" and path in waits else status
        out[path] = word if path not in out else min(out[path], word, key=_rank)
    return out


class SignalWait(NamedTuple):
    """A node that waits, or waited, for a signal."""

    label: str
    signal: str
    since_us: int


class FlowPlaces(NamedTuple):
    """Which nodes asked for what: labels by ("timer", seq), ("child", seq) and ("promise", name)."""

    labels: dict[tuple[str, int | str], str]
    signals: list[SignalWait]
    statuses: dict[str, str]


def places_of(flow: Flow, run_id: bytes, history: list[Recorded], is_up: Callable[[], bool]) -> FlowPlaces | None:
    """What nodes of a run asked for that the history has under a number or a name only. Looked up after every event, while it is in
    flight. None when the time is up first."""
    decider = Decider(flow, run_id)
    decider.give(history, replay=True)
    labels: dict[tuple[str, int | str], str] = {}
    signals: dict[tuple[str, str], SignalWait] = {}
    times = {r.seq: r.at_us for r in history}

    def look() -> bool:
        _look(decider, times.get(decider.at, 0), labels, signals)
        return is_up()

    if not decider.advance(look):
        return None
    look()
    return FlowPlaces(labels, list(signals.values()), _words(flow, decider))


def _look(
    decider: Decider,
    now_us: int,
    labels: dict[tuple[str, int | str], str],
    signals: dict[tuple[str, str], SignalWait],
) -> None:
    frames: list[BodyFrame] = [decider.root] if decider.root is not None else []
    while frames:
        for visit in frames.pop().visits():
            if isinstance(visit.node.verb, (TaskCall, Services)):
                continue  # tasks have their node in the history
            for index, handle in visit.handles.items():
                match handle:
                    case SleepTimer(seq=seq):
                        labels["timer", seq] = visit.label(index)
                    case ChildRun(seq=seq):
                        labels["child", seq] = visit.label(index)
                    case MessageWait(promise=True, name=name):
                        labels["promise", name] = visit.label(index)
                    case MessageWait(signal=signal) if signal:
                        label = visit.label(index)
                        signals.setdefault((label, signal), SignalWait(label, signal, now_us))
                    case InnerBody(frame=frame):
                        frames.append(frame)
                    case _:
                        pass
            frames.extend(visit.frames.values())


def _rank(word: str) -> int:
    return _WORTH.index(word) if word in _WORTH else len(_WORTH)


def _waits(body: FlowBody, prefix: str) -> frozenset[str]:
    """Nodes that wait for something outside the run."""
    found: set[str] = set()
    for node in body.nodes:
        if isinstance(node.verb, (ApprovalVerb, Sleep, MessageVerb)):
            found.add(f"{prefix}{node.key}")
        elif isinstance(node.verb, Embedded):
            found |= _waits(node.verb.body, f"{prefix}{node.key}.")
    return frozenset(found)


def node_statuses(decider: Decider) -> dict[str, str]:
    """Status words of the nodes by label. Of bodies within, those that are open or failed."""
    out: dict[str, str] = {}
    frames: list[BodyFrame] = [decider.root] if decider.root is not None else []
    while frames:
        frame = frames.pop()
        _statuses(frame, out)
        for visit in frame.visits():
            inner = [h.frame for h in visit.handles.values() if isinstance(h, InnerBody)]
            frames.extend((*inner, *visit.frames.values()))
    return out


def _statuses(frame: BodyFrame, out: dict[str, str]) -> None:
    if isinstance(frame, DagFrame):
        out.update({frame.prefix + n.key: s for n, s in zip(frame.body.nodes, frame.status, strict=True)})
        return
    assert isinstance(frame, GraphFrame)
    for node in frame.body.nodes:
        out[frame.prefix + node.key] = frame.passed.get(node.key, PENDING)
    if frame.current is not None:
        out[frame.prefix + frame.current.node.key] = FAILED if frame.failure is not None else RUNNING
