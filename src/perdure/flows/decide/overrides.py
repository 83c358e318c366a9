"""Nodes that failed, and what an operator decided about them by hand (`NodeOverridden`).

A retry continues every failed node. One that was overridden is taken for ended instead, or begins anew. The decision is found by the label
of the node, where the node is continued: in its frame, or here for single items of a spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perdure.core.events import NodeOverridden
from perdure.flows.decide.executions import InnerBody
from perdure.flows.decide.frames import BodyFrame, Visit


def override_items(visit: Visit, overridden: Callable[[str], NodeOverridden | None]) -> None:
    """Carry out what was decided about single items of a spread."""
    if not visit.is_spread:
        return
    for index, result in enumerate(visit.results):
        decision = overridden(visit.label(index)) if result is None else None
        if decision is not None:
            visit.frames.pop(index, None)
            visit.children.pop(index, None)
            if decision.how != "rerun":
                visit.results[index] = decision.value or b"null"
                visit.handles.pop(index, None)


def failed_children(root: BodyFrame | None, left_out: str = "") -> list[int]:
    """Child runs whose failure a retry would take up again, except those of the node `left_out`."""
    return sorted(
        seq
        for visit in _failed_visits(root, left_out)
        for index, seq in visit.children.items()
        if visit.label(index) != left_out
    )


def failed_nodes(root: BodyFrame | None) -> list[str]:
    """Labels of nodes that failed, and of the items of spreads that did, from the outside in."""
    found = dict.fromkeys(root.failed_nodes() if root is not None else ())
    for visit in _failed_visits(root):
        found |= dict.fromkeys(visit.label(i) for i in sorted(visit.failures) if visit.is_spread)
        for frame in visit.frames.values():
            found |= dict.fromkeys(frame.failed_nodes())
    return list(found)


def _failed_visits(root: BodyFrame | None, left_out: str = "") -> Iterator[Visit]:
    open_: list[Visit] = root.visits() if root is not None else []
    while open_:
        visit = open_.pop()
        if visit.frame.prefix + visit.node.key == left_out:
            continue
        yield visit
        inner = [h.frame for h in visit.handles.values() if isinstance(h, InnerBody)]
        for frame in (*inner, *(f for i, f in visit.frames.items() if visit.label(i) != left_out)):
            open_.extend(frame.visits())
