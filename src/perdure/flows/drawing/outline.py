"""The steps of a flow in a row, each with those before it. Bodies within are unfolded into their nodes."""

from __future__ import annotations

from typing import Final

from perdure.core.timeline.rows import NODES_MAX, NodeOutline
from perdure.flows.drawing.chart import Chart, Item

_KINDS: Final = {
    "sleep": "timer",
    "flow": "child",
    "approval": "approval",
    "wait": "signal",
    "event": "promise",
    "choice": "choice",
}
"""Words of a chart as kinds of a timeline; any other is a task."""


def outline_of(chart: Chart) -> list[NodeOutline]:
    """In an order in which every node comes after those before it, as far as there is one; at most NODES_MAX."""
    out: list[NodeOutline] = []
    _unfold(chart, (), out)
    return out[:NODES_MAX]


def _unfold(chart: Chart, before: tuple[str, ...], out: list[NodeOutline]) -> tuple[str, ...]:
    """The ends: nodes that no other of the chart follows."""
    sources: dict[int, list[int]] = {}
    for link in chart.links:
        if link.target != link.source:
            sources.setdefault(link.target, []).append(link.source)
    ends: dict[int, tuple[str, ...]] = {}
    for n in _in_order(len(chart.items), sources):
        item = chart.items[n]
        after = tuple(dict.fromkeys(path for s in sources.get(n, ()) for path in ends.get(s, (chart.items[s].path,))))
        if item.inner is not None and item.inner.items:
            ends[n] = _unfold(item.inner, after or before, out)
        else:
            out.append(NodeOutline(item.path, _kind(item), item.detail, after or before))
            ends[n] = (item.path,)
    followed = {s for found in sources.values() for s in found}
    last = [path for n in ends if n not in followed for path in ends[n]]
    return tuple(last or (path for found in ends.values() for path in found))


def _in_order(count: int, sources: dict[int, list[int]]) -> list[int]:
    """Depth first from the nodes as written. Ways back in a graph do not count."""
    order: list[int] = []
    seen: set[int] = set()

    for first in range(count):
        stack = [first]
        while stack:
            n = stack[-1]
            missing = [s for s in sources.get(n, ()) if s not in seen and s not in stack] if n not in seen else []
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
            if n not in seen:
                seen.add(n)
                order.append(n)
    return order


def _kind(item: Item) -> str:
    return _KINDS.get(item.word, "task")
