"""Where the boxes of a picture go. Layered from top to bottom; pure, deterministic and bounded.

    break cycles  ->  rank by longest path  ->  bend long lines  ->  order each rank  ->  place each rank

Laws:

1. The same graph gives the same picture.
2. Lines share their way where they cannot be misread, and are one net then: those that leave one box, so that a fan-out has one trunk, or
   those that are the only ones of their boxes and lead to the same one, so that a join has one too. Lines against the ranks (loops)
   are nets of their own, one for each box they lead back to.
3. Every vertex of a rank keeps its distance from its neighbours: nothing overlaps, labels included. They are vertices too.

Lengths are whole numbers in the unit of the drawing: characters or pixels. A vertex begins at `x - width // 2`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal

import msgspec

BENDS_MAX: Final = 20_000
"""Bends of lines in one picture. Longer lines than these allow are drawn straight."""
ORDER_SWEEPS: Final = 8
"""Times the ranks are put in order of their neighbours."""
PLACE_SWEEPS: Final = 10
"""Times the vertices of the ranks are moved towards their neighbours."""
BEND_PULL: Final = 32
"""How much more than boxes bends want to stand below one another."""


class Size(msgspec.Struct, frozen=True):
    width: int
    height: int


class DrawnLine(msgspec.Struct, frozen=True):
    """From box to box. `label` is what a label on it needs, where it has one."""

    source: int
    target: int
    label: Size | None = None


class Spacing(msgspec.Struct, frozen=True):
    """Between vertices of a rank."""

    box: int
    bend: int
    """Beside a bend or a label."""


Kind = Literal["box", "bend", "label"]
Head = Literal["", "upper", "lower"]


class Vertex(msgspec.Struct):
    """Something with a place in a rank. `of` is the number of the box, or that of the line whose label it is."""

    kind: Kind
    of: int
    rank: int
    width: int
    height: int
    x: int = 0


class DrawnSegment(msgspec.Struct, frozen=True):
    """A piece of a line between two neighbouring ranks, or the whole of one that was too long to bend."""

    upper: int
    lower: int
    net: int
    back: bool
    """It is part of lines that run upwards."""
    head: Head
    """Where it has an arrow, if it has one."""


class Layout(msgspec.Struct):
    """`vertices` begins with the boxes, in their order."""

    vertices: list[Vertex]
    ranks: list[list[int]]
    segments: list[DrawnSegment]
    loops: list[int]
    """Lines from a box to itself; they are not drawn as lines."""
    width: int


def arrange(sizes: Sequence[Size], lines: Sequence[DrawnLine], space: Spacing, width_max: int = 0) -> Layout:
    """`width_max` asks that ranks be split rather than grow wider than that; 0 does not. The result may be wider all the same."""
    loops = [n for n, line in enumerate(lines) if line.source == line.target]
    kept = [(n, line) for n, line in enumerate(lines) if line.source != line.target]
    back = _back_lines(len(sizes), [(line.source, line.target) for _, line in kept])
    down = [
        (line.target, line.source) if is_back else (line.source, line.target)
        for (_, line), is_back in zip(kept, back, strict=True)
    ]
    steps = [2 if line.label else 1 for _, line in kept]
    rank = _ranks(len(sizes), down, steps, [s.width + space.box for s in sizes], width_max)
    graph = _Graph([Vertex("box", n, rank[n], s.width, s.height) for n, s in enumerate(sizes)])
    _bend(graph, kept, back)
    ranks = _ordered(graph)
    width = _placed(graph, ranks, space)
    return Layout(graph.vertices, ranks, list(graph.segments), loops, width)


def _back_lines(count: int, lines: Sequence[tuple[int, int]]) -> list[bool]:
    """Which lines to turn around so that no cycle is left: those that lead to a box still being visited, depth first."""
    out: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for n, (source, target) in enumerate(lines):
        out[source].append((target, n))
    back = [False] * len(lines)
    state = [0] * count  # 1 while on the path, 2 when done
    for root in range(count):
        if state[root]:
            continue
        state[root] = 1
        path = [(root, iter(out[root]))]
        while path:
            at, left = path[-1]
            for target, n in left:
                if state[target] == 1:
                    back[n] = True
                elif state[target] == 0:
                    state[target] = 1
                    path.append((target, iter(out[target])))
                    break
            else:
                state[at] = 2
                path.pop()
    return back


def _ranks(
    count: int, down: Sequence[tuple[int, int]], steps: Sequence[int], widths: Sequence[int], width_max: int
) -> list[int]:
    above: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    below: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for (upper, lower), step in zip(down, steps, strict=True):
        above[lower].append((upper, step))
        below[upper].append((lower, step))
    order = _topological(count, above, below)
    rank = [0] * count
    for at in order:
        rank[at] = max((rank[upper] + step for upper, step in above[at]), default=0)
    for at in order:  # what nothing leads to stands right above what it leads to
        if not above[at] and below[at]:
            rank[at] = min(rank[lower] - step for lower, step in below[at])
    if width_max:
        rank = _split(sorted(range(count), key=lambda n: (rank[n], n)), rank, above, widths, width_max)
    return rank


def _topological(
    count: int, above: Sequence[Sequence[tuple[int, int]]], below: Sequence[Sequence[tuple[int, int]]]
) -> list[int]:
    missing = [len(above[n]) for n in range(count)]
    order = [n for n in range(count) if not missing[n]]
    for at in order:  # grows as it goes
        for lower, _ in below[at]:
            missing[lower] -= 1
            if not missing[lower]:
                order.append(lower)
    return order


def _split(
    order: Iterable[int],
    wanted: Sequence[int],
    above: Sequence[Sequence[tuple[int, int]]],
    widths: Sequence[int],
    width_max: int,
) -> list[int]:
    """Boxes that find no room in their rank go one further down, and what is below them with them."""
    rank = list(wanted)
    used: dict[int, int] = {}
    for at in order:
        place = max([wanted[at], *(rank[upper] + step for upper, step in above[at])])
        while used.get(place, 0) and used[place] + widths[at] > width_max:
            place += 1
        rank[at] = place
        used[place] = used.get(place, 0) + widths[at]
    return rank


class _Graph:
    def __init__(self, boxes: list[Vertex]) -> None:
        self.vertices = boxes
        self.segments: dict[DrawnSegment, None] = {}
        self._trunks: dict[tuple[int, int], int] = {}
        self._bends = 0

    def add(self, kind: Kind, of: int, rank: int, size: Size) -> int:
        self.vertices.append(Vertex(kind, of, rank, size.width, size.height))
        return len(self.vertices) - 1

    def join(self, upper: int, lower: int, net: int, back: bool, head: Head) -> None:
        """From one vertex to another further down, bent at every rank between; other lines of the net may have been there before."""
        top, bottom = self.vertices[upper].rank, self.vertices[lower].rank
        if self._bends + bottom - top - 1 > BENDS_MAX:
            self.segments[DrawnSegment(upper, lower, net, back, head)] = None
            return
        at = upper
        for rank in range(top + 1, bottom):
            following = self._trunks.get((net, rank))
            if following is None:
                following = self._trunks[net, rank] = self.add("bend", -1, rank, Size(1, 1))
                self._bends += 1
            self.segments[DrawnSegment(at, following, net, back, head if head == "upper" and at == upper else "")] = (
                None
            )
            at = following
        last: Head = "" if head == "upper" and at != upper else head
        self.segments[DrawnSegment(at, lower, net, back, last)] = None


def _bend(graph: _Graph, lines: Sequence[tuple[int, DrawnLine]], back: Sequence[bool]) -> None:
    nets = _Nets([line for _, line in lines], back)
    for (n, line), is_back in zip(lines, back, strict=True):
        upper, lower = (line.target, line.source) if is_back else (line.source, line.target)
        if line.label is None:
            graph.join(upper, lower, nets.whole(line, is_back), is_back, "upper" if is_back else "lower")
            continue
        # A label stands by the box that the line leaves.
        rank = graph.vertices[lower].rank - 1 if is_back else graph.vertices[upper].rank + 1
        label = graph.add("label", n, rank, line.label)
        first, second = nets.halves(line, is_back, n)
        graph.join(upper, label, first, is_back, "upper" if is_back else "")
        graph.join(label, lower, second, is_back, "" if is_back else "lower")


class _Nets:
    """Which lines share their way."""

    def __init__(self, lines: Sequence[DrawnLine], back: Sequence[bool]) -> None:
        self._numbers: dict[tuple[str, int], int] = {}
        along = [line for line, is_back in zip(lines, back, strict=True) if not is_back]
        self._leaving = Counter(line.source for line in along)
        self._joining = Counter(line.target for line in along if self._is_alone(line))

    def _is_alone(self, line: DrawnLine) -> bool:
        """What is behind a label, or leaves a box by itself."""
        return line.label is not None or self._leaving[line.source] == 1

    def whole(self, line: DrawnLine, is_back: bool) -> int:
        if is_back:
            return self._number("back", line.target)
        if self._is_alone(line) and self._joining[line.target] > 1:
            return self._number("in", line.target)
        return self._number("out", line.source)

    def halves(self, line: DrawnLine, is_back: bool, n: int) -> tuple[int, int]:
        """Above a label and below it."""
        if is_back:
            return self._number("back", line.target), self._number("label", n)
        joins = self._joining[line.target] > 1
        return self._number("out", line.source), self._number("in", line.target) if joins else self._number("label", n)

    def _number(self, kind: str, of: int) -> int:
        return self._numbers.setdefault((kind, of), len(self._numbers))


def _ordered(graph: _Graph) -> list[list[int]]:
    """Each rank from left to right: the order with the fewest crossings of those tried; the first one is that of the boxes."""
    count = max((v.rank for v in graph.vertices), default=-1) + 1
    ups, downs = _neighbours(graph)
    ranks = _first_order(graph, count, downs)
    best, fewest = [list(r) for r in ranks], _crossings(ranks, downs)
    for sweep in range(ORDER_SWEEPS):
        if not fewest:
            break
        downwards = sweep % 2 == 0
        for r in range(1, count) if downwards else range(count - 2, -1, -1):
            _reorder(ranks[r], ranks[r - 1 if downwards else r + 1], ups if downwards else downs)
        crossings = _crossings(ranks, downs)
        if crossings < fewest:
            best, fewest = [list(r) for r in ranks], crossings
    return best


def _neighbours(graph: _Graph) -> tuple[list[list[int]], list[list[int]]]:
    """Above and below every vertex; lines that skip ranks are left out."""
    ups: list[list[int]] = [[] for _ in graph.vertices]
    downs: list[list[int]] = [[] for _ in graph.vertices]
    for s in graph.segments:
        if graph.vertices[s.lower].rank == graph.vertices[s.upper].rank + 1:
            ups[s.lower].append(s.upper)
            downs[s.upper].append(s.lower)
    return ups, downs


def _first_order(graph: _Graph, count: int, downs: Sequence[Sequence[int]]) -> list[list[int]]:
    """As a reader would meet them, depth first from the first box on."""
    ranks: list[list[int]] = [[] for _ in range(count)]
    seen = [False] * len(graph.vertices)
    for root in sorted(range(len(graph.vertices)), key=lambda v: (graph.vertices[v].rank, v)):
        left = [root]
        while left:
            at = left.pop()
            if seen[at]:
                continue
            seen[at] = True
            ranks[graph.vertices[at].rank].append(at)
            left += reversed(downs[at])
    return ranks


def _reorder(rank: list[int], beside: Sequence[int], neighbours: Sequence[Sequence[int]]) -> None:
    """By the median of the neighbours; those without any stay where they are."""
    place = {v: n for n, v in enumerate(beside)}
    medians: list[tuple[float, int, int]] = []
    for n, v in enumerate(rank):
        found = sorted(place[u] for u in neighbours[v])
        if found:
            middle = len(found) // 2
            median = found[middle] if len(found) % 2 else (found[middle - 1] + found[middle]) / 2
            medians.append((median, n, v))
    medians.sort()
    free = iter(medians)
    for n, v in enumerate(rank):
        if neighbours[v]:
            rank[n] = next(free)[2]


def _crossings(ranks: Sequence[Sequence[int]], downs: Sequence[Sequence[int]]) -> int:
    """Pairs of pieces between two ranks that are in another order below than above, counted with a Fenwick tree."""
    total = 0
    for upper, lower in pairwise(ranks):
        place = {v: n for n, v in enumerate(lower)}
        tree = [0] * (len(lower) + 1)
        seen = 0
        for v in upper:
            ends = sorted(place[w] for w in downs[v])
            for end in ends:
                at, not_right = end + 1, 0
                while at:
                    not_right += tree[at]
                    at &= at - 1
                total += seen - not_right
            for end in ends:
                at = end + 1
                while at <= len(lower):
                    tree[at] += 1
                    at += at & -at
            seen += len(ends)
    return total


def _placed(graph: _Graph, ranks: Sequence[Sequence[int]], space: Spacing) -> int:
    """Gives every vertex its x; returns the width of it all."""
    ups, downs = _neighbours(graph)
    xs = [0.0] * len(graph.vertices)
    gaps = [_gaps(graph, rank, space) for rank in ranks]
    for rank, distances in zip(ranks, gaps, strict=True):
        at = 0.0
        for v, distance in zip(rank, distances, strict=True):
            at += distance
            xs[v] = at
    for sweep in range(PLACE_SWEEPS):
        downwards = sweep % 2 == 0
        last = sweep >= PLACE_SWEEPS - 2
        for r in range(len(ranks)) if downwards else range(len(ranks) - 1, -1, -1):
            wanted: list[tuple[float, float]] = []
            for v in ranks[r]:
                near = [*ups[v], *downs[v]] if last else ups[v] if downwards else downs[v]
                wanted.append(_desired(graph, v, near, xs))
            for v, x in zip(ranks[r], _settled(wanted, gaps[r]), strict=True):
                xs[v] = x
    return _rounded(graph, ranks, gaps, xs, ups, max(1, space.bend // 2))


def _desired(graph: _Graph, v: int, near: Sequence[int], xs: Sequence[float]) -> tuple[float, float]:
    """The position of a vertex that suits its neighbours, and the weight of that."""
    if not near:
        return xs[v], 0.1
    is_bend = graph.vertices[v].kind == "bend"
    pulls = [BEND_PULL if is_bend and graph.vertices[u].kind == "bend" else 1 for u in near]
    return sum(xs[u] * pull for u, pull in zip(near, pulls, strict=True)) / sum(pulls), sum(pulls)


def _gaps(graph: _Graph, rank: Sequence[int], space: Spacing) -> list[int]:
    """Between the middles of a rank's vertices; the first is 0."""
    out: list[int] = []
    for n, v in enumerate(rank):
        if not n:
            out.append(0)
            continue
        one, other = graph.vertices[rank[n - 1]], graph.vertices[v]
        between = space.box if one.kind == other.kind == "box" else space.bend
        out.append(one.width - one.width // 2 + between + other.width // 2)
    return out


def _settled(wanted: Sequence[tuple[float, float]], gaps: Sequence[int]) -> list[float]:
    """The places nearest to those wanted, by weighted squares, that keep the distances: pooled neighbours move as one."""
    pools: list[tuple[float, float, int]] = []  # place less the distances so far, weight, how many
    sums: list[float] = []
    total = 0.0
    for (x, weight), gap in zip(wanted, gaps, strict=True):
        total += gap
        sums.append(total)
        place, count = x - total, 1
        while pools and pools[-1][0] > place:
            before, other, more = pools.pop()
            place = (before * other + place * weight) / (other + weight)
            weight, count = other + weight, count + more
        pools.append((place, weight, count))
    places = [place for place, _, count in pools for _ in range(count)]
    return [place + s for place, s in zip(places, sums, strict=True)]


def _rounded(
    graph: _Graph,
    ranks: Sequence[Sequence[int]],
    gaps: Sequence[Sequence[int]],
    xs: list[float],
    ups: Sequence[Sequence[int]],
    snap: int,
) -> int:
    """Whole numbers, distances kept, and what stands almost below its only neighbour right below it."""
    vertices = graph.vertices
    left = min((xs[v] - vertices[v].width // 2 for v in range(len(vertices))), default=0.0)
    for rank, distances in zip(ranks, gaps, strict=True):
        before = -1_000_000_000
        for n, v in enumerate(rank):
            x = round(xs[v] - left)
            if len(ups[v]) == 1 and abs(vertices[ups[v][0]].x - x) <= snap:
                x = vertices[ups[v][0]].x
            vertices[v].x = before = max(x, before + distances[n], vertices[v].width // 2)
    return max((v.x - v.width // 2 + v.width for v in vertices), default=0)
