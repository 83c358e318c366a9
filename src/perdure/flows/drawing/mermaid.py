"""A chart as a Mermaid flowchart: text that GitHub, GitLab and many documentation tools draw.

Laws:

1. No text of a document stands in the chart as written. Names of nodes are numbers; in labels and conditions every character that is neither
   a letter, a digit nor a blank is written as its code (`#34;`), so it cannot end a label, begin another line, or become HTML, Markdown or an
   icon. Letters are no keywords within quotes.
2. What colours say is said by marks too: the label of a node begins with the mark of its status.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from perdure.flows.drawing.chart import Chart, Item
from perdure.flows.drawing.svg import LABEL_CHARS_MAX, cut
from perdure.flows.drawing.terminal import MARKS, clean

MERMAID_LINKS_MAX: Final = 500
"""Links that Mermaid draws, unless its page says otherwise."""
MERMAID_CHARS_MAX: Final = 50_000
"""Characters that Mermaid draws, unless its page says otherwise."""

_SHAPES: Final = {
    "choice": ('{"', '"}'),
    "flow": ('[["', '"]]'),
    "sleep": ('(["', '"])'),
    "wait": ('(["', '"])'),
    "event": ('(["', '"])'),
    "approval": ('(["', '"])'),
}
"""Brackets around the label, by the word of a step; any other is a box."""
_BOX: Final = ('["', '"]')
_COLOURS: Final = {
    "pending": "#5b6068",
    "waiting": "#825400",
    "running": "#0a60ad",
    "success": "#0b7055",
    "failed": "#b52e0c",
    "skipped": "#8b9098",
    "cancelled": "#76468a",
}
"""Of the outline. Fill and text are the theme's, light or dark."""


def mermaid(chart: Chart, name: str, statuses: Mapping[str, str] | None = None) -> str:
    """The whole flowchart. `statuses` gives the nodes that it names by their paths a class."""
    title = json.dumps(clean(name), ensure_ascii=False)
    drawing = _MermaidText(statuses or {})
    lines = [*drawing.lines(chart, 1)]
    used = [s for s in MARKS if s in drawing.classes]
    styles = [f"  classDef {s} stroke:{_COLOURS[s]},stroke-width:2px" for s in used]
    members = [f"  class {','.join(drawing.classes[s])} {s}" for s in used]
    return "\n".join(["---", f"title: {title}", "---", "flowchart TD", *lines, *styles, *members, ""])


def is_too_large(chart: Chart, text: str) -> bool:
    """Whether Mermaid refuses to draw it with its own limits."""
    return len(text) > MERMAID_CHARS_MAX or _links(chart) > MERMAID_LINKS_MAX


def _links(chart: Chart) -> int:
    return len(chart.links) + sum(_links(i.inner) for i in chart.items if i.inner is not None)


class _MermaidText:
    def __init__(self, statuses: Mapping[str, str]) -> None:
        self._statuses = statuses
        self._count = 0
        self.classes: dict[str, list[str]] = {}
        """Names of nodes by status."""

    def lines(self, chart: Chart, depth: int) -> Iterator[str]:
        indent = "  " * depth
        names: list[str] = []
        for n, item in enumerate(chart.items):
            names.append(self._name(item))
            inner = item.inner if item.inner is not None and item.inner.items else None
            # Mermaid does not draw a link from a subgraph to itself, so its label has it.
            again = [e.label or "again" for e in chart.links if e.source == e.target == n] if inner is not None else []
            label = self._label(item, n == chart.start, again)
            if inner is None:
                left, right = _SHAPES.get(item.word, _BOX)
                yield f"{indent}{names[-1]}{left}{label}{right}"
            else:
                yield f'{indent}subgraph {names[-1]}["{label}"]'
                yield from self.lines(inner, depth + 1)
                yield f"{indent}end"
        for link in chart.links:
            if link.source != link.target or chart.items[link.source].inner is None:
                said = f'|"{_escaped(cut(link.label, LABEL_CHARS_MAX))}"|' if link.label else ""
                yield f"{indent}{names[link.source]} -->{said} {names[link.target]}"

    def _name(self, item: Item) -> str:
        name = f"n{self._count}"
        self._count += 1
        status = self._statuses.get(item.path, "")
        if status in MARKS:
            self.classes.setdefault(status, []).append(name)
        return name

    def _label(self, item: Item, is_start: bool, again: list[str]) -> str:
        mark = MARKS.get(self._statuses.get(item.path, ""), "")
        described = " ".join(p for p in ("" if item.word in ("task", item.key) else item.word, item.detail) if p)
        badges = [*item.badges, *(f"again: {name}" for name in again), *(["start"] if is_start else [])]
        rows = [f"{mark} {item.key}" if mark else item.key, described, *badges]
        return "<br/>".join(_escaped(cut(row)) for row in rows if row)


def _escaped(text: str) -> str:
    """Letters and digits as they are, `_` and `-` within words too, every other character as its code."""
    return "".join(c if _is_plain(text, n) else f"#{ord(c)};" for n, c in enumerate(text))


def _is_plain(text: str, n: int) -> bool:
    if text[n].isalnum() or text[n] == " ":
        return True
    return text[n] in "_-" and 0 < n < len(text) - 1 and text[n - 1].isalnum() and text[n + 1].isalnum()
