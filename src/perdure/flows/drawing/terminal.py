"""A chart as text: boxes and lines for a terminal, or an indented list where boxes would not fit.

A picture is a list of lines, a line a list of spans, a span a text and its role; what colours roles have is the terminal's business.

Lines between two ranks are routed in tracks, one for each net (layout.py). So that a crossing is not taken for a junction, a line that crosses
a track interrupts it, and only lines of one net are ever joined.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from perdure.flows.drawing.chart import Chart, Item
from perdure.flows.drawing.layout import DrawnLine, DrawnSegment, Layout, Size, Spacing, Vertex, arrange

TEXT_CELLS_MAX: Final = 34
"""Of a line in a box; longer ones are cut."""
LABEL_CELLS_MAX: Final = 20
BOX_CELLS_MIN: Final = 5
"""Within a box, so that two lines find room at its edge."""
LISTED_MAX: Final = 2_000
"""Lines of an indented list."""
SPACE: Final = Spacing(box=3, bend=2)
SHRINK: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
"""Shares of the width that are tried for ranks of boxes: the rest is for lines that pass them."""
BOXES_MAX: Final = 300
"""Of a picture for a terminal; more are listed."""

Span = tuple[str, str]
"""A text and its role: line, back, label, box, key, word, badge, or the word of a status."""
Picture = list[list[Span]]
Cell = tuple[str, str]
Block = list[list[Cell]]

MARKS: Final = {
    "pending": "○",
    "waiting": "◔",
    "running": "●",
    "success": "✓",
    "failed": "✗",
    "skipped": "–",
    "cancelled": "⊘",
}
N, E, S, W = 1, 2, 4, 8
_LINES: Final = {5: "│", 10: "─", 6: "┌", 12: "┐", 3: "└", 9: "┘", 7: "├", 13: "┤", 14: "┬", 11: "┴", 15: "┼"}
_DASHED: Final = {5: "┆", 10: "┄"}
_ASCII: Final = str.maketrans(
    {
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
        **dict.fromkeys("─┄", "-"),
        **dict.fromkeys("│┆", "|"),
        "▼": "v",
        "▲": "^",
        "▸": ">",
        "↻": "@",
        "→": ">",
        "…": "~",
        "·": ",",
        "×": "x",
        "–": "-",
        "↑": "^",
        "○": "o",
        "◔": "?",
        "●": "*",
        "✓": "+",
        "✗": "x",
        "⊘": "/",
    }
)


def draw(chart: Chart, width: int, statuses: Mapping[str, str] | None = None, *, ascii_only: bool = False) -> Picture:
    """Boxes and lines within so many columns, or a list."""
    picture = boxes(chart, width, statuses or {}) or listed(chart, width, statuses or {})
    if not ascii_only:
        return picture
    return [[(text.translate(_ASCII), role) for text, role in line] for line in picture]


def plain(picture: Picture) -> str:
    return "\n".join("".join(text for text, _ in line).rstrip() for line in picture)


def boxes(chart: Chart, width: int, statuses: Mapping[str, str]) -> Picture | None:
    """None when they need more room than there is."""
    if _count(chart) > BOXES_MAX or not chart.items:
        return None
    block = _block(chart, width, statuses)
    return None if block is None else _spans(block)


def _count(chart: Chart) -> int:
    return sum(1 + (_count(i.inner) if i.inner else 0) for i in chart.items)


def _block(chart: Chart, width: int, statuses: Mapping[str, str]) -> Block | None:
    loops: dict[int, list[str]] = {}
    for link in chart.links:
        if link.source == link.target:
            loops.setdefault(link.source, []).append(link.label or "again")
    made: list[Block] = []
    for n, item in enumerate(chart.items):
        block = _box(item, n == chart.start, loops.get(n, []), width, statuses)
        if block is None:
            return None
        made.append(block)
    sizes = [Size(len(b[0]), len(b)) for b in made]
    labels = [_cut(link.label, LABEL_CELLS_MAX) for link in chart.links]
    lines = [
        DrawnLine(link.source, link.target, Size(_odd(cells(label) + 2), 1) if label else None)
        for link, label in zip(chart.links, labels, strict=True)
    ]
    for share in SHRINK:
        layout = arrange(sizes, lines, SPACE, int(width * share))
        if layout.width <= width and not _skips(layout):
            return _Drawing(layout, made, labels).block
    return None


def _skips(layout: Layout) -> bool:
    return any(layout.vertices[s.lower].rank != layout.vertices[s.upper].rank + 1 for s in layout.segments)


def _box(item: Item, is_start: bool, loops: list[str], width: int, statuses: Mapping[str, str]) -> Block | None:
    status = statuses.get(item.path, "")
    rows = _texts(item, is_start, loops, status)
    inner: Block = []
    if item.inner is not None and item.inner.items:
        found = _block(item.inner, width - 4, statuses)
        if found is None:
            return None
        inner = found
    need = max([*(sum(cells(t) for t, _ in row) for row in rows), len(inner[0]) if inner else 0, BOX_CELLS_MIN])
    size = _odd(need + 4)
    edge = status or "box"
    out: Block = [[("╭", edge), *[("─", edge)] * (size - 2), ("╮", edge)]]
    for row in [*(_cells_of(r) for r in rows), *inner]:
        room = size - 4 - len(row)
        left = room // 2 if row in inner else 0
        out.append(
            [("│", edge), (" ", ""), *[(" ", "")] * left, *row, *[(" ", "")] * (room - left), (" ", ""), ("│", edge)]
        )
    out.append([("╰", edge), *[("─", edge)] * (size - 2), ("╯", edge)])
    return out if size <= width else None


def _texts(item: Item, is_start: bool, loops: list[str], status: str) -> list[list[Span]]:
    mark = f"{MARKS[status]} " if status in MARKS else ""
    rows: list[list[Span]] = [
        [("▸ ", "word")] * is_start + [(mark, status)] * bool(mark) + [(_cut(item.key), status or "key")]
    ]
    described = " ".join(p for p in ("" if item.word in ("task", item.key) else item.word, item.detail) if p)
    if described:
        rows.append([(_cut(described), "word")])
    badges = [*item.badges, *(f"↻ {name}" for name in loops)]
    rows += [[(_cut(text), "badge")] for text in _packed(badges)]
    return rows


def _packed(badges: Iterable[str]) -> list[str]:
    rows: list[str] = []
    for badge in badges:
        if rows and cells(rows[-1]) + cells(badge) + 3 <= TEXT_CELLS_MAX - 10:
            rows[-1] += f" · {badge}"
        else:
            rows.append(badge)
    return rows


class _Net(msgspec.Struct):
    """The pieces of one net between two ranks, by their columns."""

    number: int
    back: bool
    begins: set[int]
    ends: set[int]
    track: int = -1

    @property
    def left(self) -> int:
        return min(*self.begins, *self.ends)

    @property
    def right(self) -> int:
        return max(*self.begins, *self.ends)


class _Drawing:
    """A layout onto a grid of cells, rank by rank."""

    def __init__(self, layout: Layout, made: list[Block], labels: Sequence[str]) -> None:
        self._layout, self._made, self._labels = layout, made, labels
        self._grid: list[list[Cell]] = []
        self._masks: dict[tuple[int, int], dict[int, int]] = {}
        """What goes through a cell, by net."""
        self._back = {s.net for s in layout.segments if s.back}
        self._leaving = _by_vertex(layout.segments, "upper")
        self._arriving = _by_vertex(layout.segments, "lower")
        self._bottom = self._bottom_columns()
        self._top: dict[tuple[int, int], int] = {}
        """(vertex, net) -> column."""
        for rank, members in enumerate(layout.ranks):
            if rank:
                self._channel(self._nets(members))
            self._members(members)
        self._ink()

    @property
    def block(self) -> Block:
        return self._grid

    def _bottom_columns(self) -> dict[tuple[int, int], int]:
        """Where each net leaves its vertex: one in the middle, two a little apart, the way back to the right."""
        out: dict[tuple[int, int], int] = {}
        for v, pieces in self._leaving.items():
            nets = sorted({(p.back, p.net) for p in pieces})
            for n, (_, net) in enumerate(nets):
                out[v, net] = self._layout.vertices[v].x + (4 * n - 2 * (len(nets) - 1))
        return out

    def _top_columns(self, v: int) -> dict[int, int]:
        """Where each net arrives: right below where it comes from if it can, else side by side around the middle."""
        vertex = self._layout.vertices[v]
        came: dict[int, list[int]] = {}
        for p in self._arriving.get(v, []):
            came.setdefault(p.net, []).append(self._bottom[p.upper, p.net])
        nets = sorted(came, key=lambda net: (sum(came[net]) / len(came[net]), net))
        if vertex.kind != "box":
            return dict.fromkeys(nets, vertex.x)
        left = vertex.x - vertex.width // 2
        if len(nets) == 1:
            x = came[nets[0]][0]
            return {nets[0]: x if len(came[nets[0]]) == 1 and left + 1 < x < left + vertex.width - 2 else vertex.x}
        step = max(2, min(4, (vertex.width - 5) // max(1, len(nets) - 1)))
        start = vertex.x - step * (len(nets) - 1) // 2
        return {net: min(max(start + step * n, left + 1), left + vertex.width - 2) for n, net in enumerate(nets)}

    def _nets(self, members: Sequence[int]) -> list[_Net]:
        nets: dict[int, _Net] = {}
        for v in members:
            columns = self._top_columns(v)
            for piece in self._arriving.get(v, []):
                column = self._top[v, piece.net] = columns[piece.net]
                net = nets.setdefault(piece.net, _Net(piece.net, piece.back, set(), set()))
                net.begins.add(self._bottom[piece.upper, piece.net])
                net.ends.add(column)
        return _tracked(list(nets.values()))

    def _channel(self, nets: list[_Net]) -> None:
        rows = max([1, *(net.track + 1 for net in nets)])
        top = len(self._grid)
        self._grow(rows)
        for net in nets:
            if net.track < 0:
                self._down(net.number, net.left, top, top + rows - 1)
                continue
            turn = top + net.track
            for x in range(net.left, net.right + 1):
                self._mark(net.number, x, turn, (E if x < net.right else 0) | (W if x > net.left else 0))
            for x in net.begins:
                self._down(net.number, x, top, turn - 1)
                self._mark(net.number, x, turn, N)
            for x in net.ends:
                self._mark(net.number, x, turn, S)
                self._down(net.number, x, turn + 1, top + rows - 1)

    def _down(self, net: int, x: int, first: int, last: int) -> None:
        for y in range(first, last + 1):
            self._mark(net, x, y, N | S)

    def _mark(self, net: int, x: int, y: int, mask: int) -> None:
        here = self._masks.setdefault((y, x), {})
        here[net] = here.get(net, 0) | mask

    def _ink(self) -> None:
        """Lines of one net are joined; of two, the one that goes down stays whole."""
        for (y, x), found in self._masks.items():
            net = next((n for n, mask in found.items() if mask == N | S), next(iter(found)))
            char = _DASHED.get(found[net], "") if net in self._back else ""
            self._grid[y][x] = (char or _LINES.get(found[net], "?"), "back" if net in self._back else "line")

    def _members(self, members: Sequence[int]) -> None:
        vertices = self._layout.vertices
        top, height = len(self._grid), max(vertices[v].height for v in members)
        self._grow(height)
        for v in members:
            vertex = vertices[v]
            if vertex.kind == "box":
                self._paste(v, vertex, top)
            for piece in self._leaving.get(v, []):
                used = vertex.height if vertex.kind == "box" else 0
                self._down(piece.net, self._bottom[v, piece.net], top + used, top + height - 1)
            if vertex.kind == "label":
                self._label(vertex, top + height // 2)

    def _paste(self, v: int, vertex: Vertex, top: int) -> None:
        left = vertex.x - vertex.width // 2
        for y, row in enumerate(self._made[vertex.of]):
            self._grid[top + y][left : left + len(row)] = row
        for piece in self._arriving.get(v, []):
            x = self._top[v, piece.net]
            self._grid[top][x] = ("▼", "line") if piece.head == "lower" else ("┴", self._grid[top][left][1])
        bottom = top + vertex.height - 1
        for piece in self._leaving.get(v, []):
            x = self._bottom[v, piece.net]
            self._grid[bottom][x] = ("▲", "back") if piece.back else ("┬", self._grid[bottom][left][1])

    def _label(self, vertex: Vertex, y: int) -> None:
        text = self._labels[vertex.of]
        left = vertex.x - cells(text) // 2
        for n, cell in enumerate(_cells_of([(text, "label")])):
            self._grid[y][left + n] = cell
            self._masks.pop((y, left + n), None)

    def _grow(self, rows: int) -> None:
        self._grid += [[(" ", "")] * self._layout.width for _ in range(rows)]


def _by_vertex(segments: Iterable[DrawnSegment], end: str) -> dict[int, list[DrawnSegment]]:
    out: dict[int, list[DrawnSegment]] = {}
    for s in segments:
        out.setdefault(s.upper if end == "upper" else s.lower, []).append(s)
    return out


def _tracked(nets: list[_Net]) -> list[_Net]:
    """Gives every net that has to turn a track. Where one begins in the column in which another ends, it turns first."""
    turning = sorted((n for n in nets if n.left != n.right), key=lambda n: (n.left, n.right, n.number))
    taken: list[list[_Net]] = []
    left, passed = list(turning), 0
    while left:
        net = left.pop(0)
        if passed <= len(left) and any(other.begins & net.ends for other in left):
            left.append(net)
            passed += 1
            continue
        passed = 0
        track = max((o.track + 1 for o in turning if o is not net and o.begins & net.ends), default=0)
        while track < len(taken) and any(net.left <= o.right + 1 and o.left <= net.right + 1 for o in taken[track]):
            track += 1
        while track >= len(taken):
            taken.append([])
        taken[track].append(net)
        net.track = track
    return nets


def listed(chart: Chart, width: int, statuses: Mapping[str, str]) -> Picture:
    """Each node below the one it follows; further ones it follows, and ways back, are named."""
    out: Picture = []
    _list(chart, width, statuses, "", out)
    if len(out) > LISTED_MAX:
        return [*out[:LISTED_MAX], [(f"… {len(out) - LISTED_MAX:,} lines more", "word")]]
    return out


def _list(chart: Chart, width: int, statuses: Mapping[str, str], indent: str, out: Picture) -> None:
    below: dict[int, list[tuple[int, str]]] = {}
    above: dict[int, list[int]] = {}
    for link in chart.links:
        below.setdefault(link.source, []).append((link.target, link.label))
        above.setdefault(link.target, []).append(link.source)
    begin = [chart.start] if chart.start is not None else [n for n in range(len(chart.items)) if n not in above]
    left = [(n, indent, "", "") for n in reversed([*begin, *(n for n in range(len(chart.items)) if n not in begin)])]
    seen: set[int] = set()
    while left and len(out) <= LISTED_MAX:
        n, gap, branch, label = left.pop()
        item = chart.items[n]
        if n in seen:
            if branch:
                out.append([(f"{gap}{branch}", "line"), *_labelled(label), (f"↑ {_cut(item.key)}", "word")])
            continue
        if (
            not branch
            and any(u not in seen for u in above.get(n, []))
            and n not in begin
            and _is_reached(n, begin, below)
        ):
            continue
        seen.add(n)
        out.append([(f"{gap}{branch}", "line"), *_labelled(label), *_described(item, n == chart.start, statuses)])
        deeper = gap + ("" if not branch else "│  " if branch.startswith("├") else "   ")
        if item.inner is not None:
            _list(item.inner, width, statuses, f"{deeper}{'│' if below.get(n) else ' '}    ", out)
        following = below.get(n, [])
        if len(deeper) > width // 2:  # a long chain is no tree: go on at the margin
            deeper = indent
        for m, (target, name) in reversed(list(enumerate(following))):
            last = m == len(following) - 1
            left.append((target, deeper, "└─ " if last else "├─ ", name))


def _is_reached(n: int, begin: Sequence[int], below: Mapping[int, Sequence[tuple[int, str]]]) -> bool:
    seen, left = set(begin), list(begin)
    while left:
        for target, _ in below.get(left.pop(), []):
            if target not in seen:
                seen.add(target)
                left.append(target)
    return n in seen


def _labelled(label: str) -> list[Span]:
    return [(f"{_cut(label, LABEL_CELLS_MAX)} → ", "label")] if label else []


def _described(item: Item, is_start: bool, statuses: Mapping[str, str]) -> list[Span]:
    status = statuses.get(item.path, "")
    (head, *more) = _texts(item, is_start, [], status)
    return [*head, *((f"  {text}", role) for row in more for text, role in row)]


def cells(text: str) -> int:
    """Columns of a terminal that a text takes."""
    return len(text) if text.isascii() else sum(_cells(c) for c in text)


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def clean(text: str) -> str:
    """In one line, without what could move a cursor."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _cut(text: str, most: int = TEXT_CELLS_MAX) -> str:
    text = clean(text[: most + 1])
    if cells(text) <= most:
        return text
    while cells(text) > most - 1:
        text = text[:-1]
    return f"{text}…"


def _cells_of(spans: Iterable[Span]) -> list[Cell]:
    out: list[Cell] = []
    for text, role in spans:
        for char in text:
            wide = _cells(char)
            if not wide and out:
                out[-1] = (out[-1][0] + char, out[-1][1])
            else:
                out += [(char, role), *[("", role)] * (wide - 1)]
    return out


def _odd(n: int) -> int:
    return n | 1


def _spans(block: Block) -> Picture:
    out: Picture = []
    for row in block:
        line: list[Span] = []
        for char, role in row:
            if line and (line[-1][1] == role or char == " "):
                line[-1] = (line[-1][0] + char, line[-1][1])
            else:
                line.append((char, role))
        while line and not line[-1][0].strip():
            line.pop()
        if line:
            line[-1] = (line[-1][0].rstrip(), line[-1][1])
        out.append(line)
    return out
