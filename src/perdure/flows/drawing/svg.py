"""A chart as SVG: one file that needs nothing else, in the colour scheme of the viewer, light or dark.

Laws:

1. Every text from a document is escaped. No script, no link, no reference to anything outside.
2. What colours say is said in words too: each node has a <title> with its status, and the picture has one with its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from perdure.flows.drawing.chart import Chart, Item
from perdure.flows.drawing.layout import DrawnLine, DrawnSegment, Layout, Size, Spacing, Vertex, arrange
from perdure.flows.drawing.terminal import MARKS, cells, clean

TEXT_CHARS_MAX: Final = 44
"""Of a line in a box; longer ones are cut, and whole in the box's <title>."""
LABEL_CHARS_MAX: Final = 28
RANK_WIDTH_MAX: Final = 1_600
"""Pixels of boxes side by side, before a rank is split."""
SPACE: Final = Spacing(box=28, bend=18)
GAP: Final = 44
"""Between two ranks."""
LABEL_GAP: Final = 24
"""Above and below a rank of labels."""
WIDE_GAP: Final = 36
"""More between ranks whose lines go far to the side."""
EDGE: Final = 20
"""Around the picture."""
PAD: Final = 14
"""Within a box."""
PORT: Final = 16
"""Between lines at the edge of a box."""
ROW: Final = 18
PILL: Final = 20

STYLE: Final = (
    """
.perdure-flow{--canvas:#fbfbfa;--card:#fff;--line:#dcdcd7;--text:#1a1b1e;--dim:#51555c;--wire:#9a9ea6;--pill:#f0f0ed;--group:#f4f4f2;
--success:#0b7055;--failed:#b52e0c;--running:#0a60ad;--waiting:#825400;--pending:#5b6068;--cancelled:#76468a;--skipped:#8b9098;
font:13px -apple-system,BlinkMacSystemFont,"Segoe UI",Inter,"Noto Sans",Roboto,"Helvetica Neue",Arial,sans-serif}
@media (prefers-color-scheme:dark){.perdure-flow{--canvas:#0e0f11;--card:#17191c;--line:#33373d;--text:#eceef1;--dim:#a7acb5;--wire:#6d737d;--pill:#24272c;
--group:#121316;--success:#58cfa8;--failed:#ff9070;--running:#66b8ff;--waiting:#f0b849;--pending:#9ba1ab;--cancelled:#d2a8df;--skipped:#7b818b}}
.perdure-flow .canvas{fill:var(--canvas)}
.perdure-flow .card{fill:var(--card);stroke:var(--line);stroke-width:1.25}
.perdure-flow .group{fill:var(--group);stroke:var(--line);stroke-width:1.25;stroke-dasharray:5 4}
.perdure-flow .key{fill:var(--text);font-weight:600}
.perdure-flow .word,.perdure-flow .badge{fill:var(--dim);font-size:11.5px}
.perdure-flow .pill{fill:var(--pill)}
.perdure-flow .wire{fill:none;stroke:var(--wire);stroke-width:1.5}
.perdure-flow .back{stroke-dasharray:4 4}
.perdure-flow .head{fill:var(--wire)}
.perdure-flow .label{fill:var(--dim);font-size:11.5px;text-anchor:middle}
.perdure-flow .tag{fill:var(--canvas);stroke:var(--line)}
.perdure-flow .mark{font-weight:600}
"""
    + "".join(
        f".perdure-flow .{s} .card,.perdure-flow .{s} .group{{stroke:var(--{s});stroke-width:1.75}}.perdure-flow .{s} .mark{{fill:var(--{s})}}\n"
        for s in MARKS
        if s != "pending"
    )
    + ".perdure-flow .pending .mark{fill:var(--pending)}\n.perdure-flow .skipped .key,.perdure-flow .pending .key{fill:var(--dim)}\n.perdure-flow .skipped .card{stroke-dasharray:4 3}\n"
)


def svg(chart: Chart, name: str, statuses: Mapping[str, str] | None = None) -> str:
    """The whole picture. `statuses` colours the nodes it names by their paths."""
    drawn = _draw(chart, statuses or {})
    width, height = drawn.width + 2 * EDGE, drawn.height + 2 * EDGE
    counted = f"{len(chart.items)} {'node' if len(chart.items) == 1 else 'nodes'}"
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="perdure-flow" role="img" aria-label="{_attribute(name)}, {counted}" ',
            f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
            f"<title>{_text(name)}</title><style>{STYLE}</style>",
            f'<rect class="canvas" width="{width}" height="{height}" rx="10"/>',
            f'<g transform="translate({EDGE} {EDGE})">',
            *drawn.parts,
            "</g></svg>\n",
        ]
    )


class _Drawn(msgspec.Struct, frozen=True):
    width: int
    height: int
    parts: list[str]


class _Card(msgspec.Struct, frozen=True):
    """A box: its size, and what is in it, drawn from its own upper left corner."""

    size: Size
    parts: list[str]


def _draw(chart: Chart, statuses: Mapping[str, str]) -> _Drawn:
    loops: dict[int, list[str]] = {}
    for link in chart.links:
        if link.source == link.target:
            loops.setdefault(link.source, []).append(link.label or "again")
    cards = [_card(item, n == chart.start, loops.get(n, []), statuses) for n, item in enumerate(chart.items)]
    labels = [cut(link.label, LABEL_CHARS_MAX) for link in chart.links]
    lines = [
        DrawnLine(link.source, link.target, Size(int(measured(label, 11.5)) + 16, PILL) if label else None)
        for link, label in zip(chart.links, labels, strict=True)
    ]
    layout = arrange([c.size for c in cards], lines, SPACE, RANK_WIDTH_MAX)
    tops, height = _rows(layout)
    plan = _SvgPlan(layout, tops)
    parts = plan.wires()
    for vertex in layout.vertices:
        left, top = vertex.x - vertex.width // 2, plan.top(vertex)
        if vertex.kind == "box":
            parts += [f'<g transform="translate({left} {top})">', *cards[vertex.of].parts, "</g>"]
        elif vertex.kind == "label":
            parts.append(
                f'<rect class="tag" x="{left}" y="{top}" width="{vertex.width}" height="{PILL}" rx="{PILL // 2}"/>'
                f'<text class="label" x="{vertex.x}" y="{top + 14}">{_text(labels[vertex.of])}</text>'
            )
    return _Drawn(layout.width, height, parts)


def _rows(layout: Layout) -> tuple[list[tuple[int, int]], int]:
    """Top and height of every rank, and the height of it all."""
    rows: list[tuple[int, int]] = []
    at = 0
    for n, members in enumerate(layout.ranks):
        found = [layout.vertices[v] for v in members]
        thin = all(v.kind != "box" for v in found)
        if n:
            before = all(layout.vertices[v].kind != "box" for v in layout.ranks[n - 1])
            at += (LABEL_GAP if thin or before else GAP) + min(WIDE_GAP, _reach(layout, n) // 16)
        height = max(v.height for v in found)
        rows.append((at, height))
        at += height
    return rows, at


def _reach(layout: Layout, rank: int) -> int:
    """How far lines go sideways on their way down to a rank."""
    found = [s for s in layout.segments if layout.vertices[s.lower].rank == rank]
    return max((abs(layout.vertices[s.upper].x - layout.vertices[s.lower].x) for s in found), default=0)


class _SvgPlan:
    def __init__(self, layout: Layout, rows: Sequence[tuple[int, int]]) -> None:
        self._layout, self._rows = layout, rows
        self._bottoms = self._ports("upper")
        self._tops = self._ports("lower")

    def top(self, vertex: Vertex) -> int:
        """Boxes and labels stand in the middle of their rank, bends take all of it."""
        at, height = self._rows[vertex.rank]
        return at if vertex.kind == "bend" else at + (height - vertex.height) // 2

    def _bottom(self, vertex: Vertex) -> int:
        at, height = self._rows[vertex.rank]
        return at + height if vertex.kind == "bend" else self.top(vertex) + vertex.height

    def _ports(self, end: str) -> dict[tuple[int, int], int]:
        """(vertex, net) -> x, side by side around the middle in the order in which the lines come or go."""
        far: dict[tuple[int, int], list[int]] = {}
        for s in self._layout.segments:
            here, there = (s.upper, s.lower) if end == "upper" else (s.lower, s.upper)
            far.setdefault((here, s.net), []).append(self._layout.vertices[there].x)
        nets: dict[int, list[int]] = {}
        for v, net in sorted(far, key=lambda k: (k[0], sum(far[k]) / len(far[k]), k[1])):
            nets.setdefault(v, []).append(net)
        out: dict[tuple[int, int], int] = {}
        for v, found in nets.items():
            vertex = self._layout.vertices[v]
            step = min(PORT, (vertex.width - 2 * PAD) // max(1, len(found) - 1)) if vertex.kind == "box" else 0
            for n, net in enumerate(found):
                out[v, net] = vertex.x + (2 * n - len(found) + 1) * step // 2
        return out

    def wires(self) -> list[str]:
        parts: list[str] = []
        heads: list[str] = []
        for s in self._layout.segments:
            parts.append(f'<path class="wire{" back" if s.back else ""}" d="{self._curve(s)}"/>')
            if s.head == "lower":
                heads.append(_arrow(self._tops[s.lower, s.net], self.top(self._layout.vertices[s.lower]), 1))
            elif s.head == "upper":
                heads.append(_arrow(self._bottoms[s.upper, s.net], self._bottom(self._layout.vertices[s.upper]), -1))
        for v in self._layout.vertices:
            if v.kind == "bend":
                at, height = self._rows[v.rank]
                back = any(s.back for s in self._layout.segments if self._layout.vertices[s.lower] is v)
                parts.append(f'<path class="wire{" back" if back else ""}" d="M{v.x} {at}V{at + height}"/>')
        return [*parts, *dict.fromkeys(heads)]

    def _curve(self, s: DrawnSegment) -> str:
        x1, y1 = self._bottoms[s.upper, s.net], self._bottom(self._layout.vertices[s.upper])
        x2, y2 = self._tops[s.lower, s.net], self.top(self._layout.vertices[s.lower])
        y1, y2 = y1 + (6 if s.head == "upper" else 0), y2 - (6 if s.head == "lower" else 0)
        if x1 == x2:
            return f"M{x1} {y1}V{y2}"
        # Where the rank above is taller than this box, the line first goes straight down beside its neighbours.
        at, height = self._rows[self._layout.vertices[s.upper].rank]
        top = self._rows[self._layout.vertices[s.lower].rank][0]
        begin, end = max(y1, at + height), min(y2, top)
        middle = (begin + end) // 2
        return f"M{x1} {y1}V{begin}C{x1} {middle} {x2} {middle} {x2} {end}V{y2}"


def _arrow(x: int, y: int, way: int) -> str:
    return f'<path class="head" d="M{x} {y}l-4.5 {-8 * way}h9z"/>'


def _card(item: Item, is_start: bool, loops: list[str], statuses: Mapping[str, str]) -> _Card:
    status = statuses.get(item.path, "")
    status = status if status in MARKS else ""
    badges = [*item.badges, *(f"↻ {name}" for name in loops), *(["start"] if is_start else [])]
    described = " ".join(p for p in ("" if item.word in ("task", item.key) else item.word, item.detail) if p)
    inner = _draw(item.inner, statuses) if item.inner is not None and item.inner.items else None
    size, parts = _texts(item.key, described, badges, MARKS.get(status, ""))
    width, height = max(size.width, 96), size.height
    if inner is not None:
        width, body = max(width, inner.width + 2 * PAD), height - 2
        height = body + inner.height + PAD
        parts += [f'<g transform="translate({(width - inner.width) // 2} {body})">', *inner.parts, "</g>"]
    told = ", ".join(p for p in (item.key, described or item.word, *badges, status) if p)
    round_ = height // 2 if item.word == "choice" and not badges else 8
    shape = "group" if inner is not None else "card"
    return _Card(
        Size(width, height),
        [
            f'<g class="node {status}"><title>{_text(told)}</title>',
            f'<rect class="{shape}" width="{width}" height="{height}" rx="{round_}"/>',
            *parts,
            "</g>",
        ],
    )


def _texts(key: str, described: str, badges: Sequence[str], mark: str) -> tuple[Size, list[str]]:
    left = PAD + (18 if mark else 0)
    y = PAD + 10
    parts = [f'<text class="mark" x="{PAD}" y="{y}">{mark}</text>'] if mark else []
    parts.append(f'<text class="key" x="{left}" y="{y}">{_text(cut(key))}</text>')
    widths = [left + measured(cut(key), 13, bold=True)]
    if described:
        y += ROW
        parts.append(f'<text class="word" x="{PAD}" y="{y}">{_text(cut(described))}</text>')
        widths.append(PAD + measured(cut(described), 11.5))
    for row in _packed(badges):
        y += PILL + 4
        x = PAD
        for badge, size in row:
            parts.append(
                f'<rect class="pill" x="{x}" y="{y - 14}" width="{size}" height="{PILL}" rx="6"/>'
                f'<text class="badge" x="{x + 7}" y="{y}">{_text(badge)}</text>'
            )
            x += size + 6
        widths.append(x - 6)
    return Size(int(max(widths)) + PAD, y + PAD - (2 if not badges else -2)), parts


def _packed(badges: Sequence[str]) -> list[list[tuple[str, int]]]:
    rows: list[list[tuple[str, int]]] = []
    for badge in badges:
        one = cut(badge), int(measured(cut(badge), 11.5)) + 14
        if rows and sum(size + 6 for _, size in rows[-1]) + one[1] <= 220:
            rows[-1].append(one)
        else:
            rows.append([one])
    return rows


_NARROW: Final = frozenset("iljtfrI.,:;|!'()[] -")
_BROAD: Final = frozenset("mwMW@%")


def measured(text: str, size: float, *, bold: bool = False) -> float:
    """Pixels that a text takes, on the safe side: the font is not known."""
    units = 0.0
    for c in text:
        units += 0.38 if c in _NARROW else 0.92 if c in _BROAD else 0.7 if c.isupper() else 0.58 * max(1, cells(c))
    return units * size * (1.05 if bold else 1.0)


def cut(text: str, most: int = TEXT_CHARS_MAX) -> str:
    text = clean(text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _text(text: str) -> str:
    return escape(clean(text))


def _attribute(text: str) -> str:
    return escape(clean(text), {'"': "&quot;"})
