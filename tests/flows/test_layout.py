"""Where the boxes of a picture go."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.flows.drawing import layout as module
from perdure.flows.drawing.layout import DrawnLine, Layout, Size, Spacing, arrange
from tests.fakes.slowness import slowness

SPACE = Spacing(box=3, bend=2)
BOX = Size(9, 3)
LABEL = Size(7, 1)


def arranged(count: int, *pairs: tuple[int, int], width_max: int = 0) -> Layout:
    return arrange([BOX] * count, [DrawnLine(a, b) for a, b in pairs], SPACE, width_max)


def ranks(layout: Layout) -> list[int]:
    return [v.rank for v in layout.vertices if v.kind == "box"]


def is_apart(layout: Layout) -> bool:
    """Nothing in a rank touches its neighbour, and nothing is outside the picture."""
    for rank in layout.ranks:
        spans = [(v.x - v.width // 2, v.x - v.width // 2 + v.width) for v in (layout.vertices[n] for n in rank)]
        if any(right >= left for (_, right), (left, _) in zip(spans, spans[1:], strict=False)):
            return False
        if any(left < 0 or right > layout.width for left, right in spans):
            return False
    return True


def test_a_box_stands_below_everything_it_follows() -> None:
    assert ranks(arranged(4, (0, 1), (1, 2), (0, 2), (2, 3))) == [0, 1, 2, 3]


def test_what_follows_nothing_stands_right_above_what_follows_it() -> None:
    assert ranks(arranged(4, (0, 1), (1, 2), (3, 2))) == [0, 1, 2, 1]


def test_a_label_takes_a_rank_between() -> None:
    found = arrange([BOX, BOX], [DrawnLine(0, 1, LABEL)], SPACE)
    assert ranks(found) == [0, 2]
    assert [(v.kind, v.rank) for v in found.vertices[2:]] == [("label", 1)]


def test_a_cycle_is_cut_where_it_closes() -> None:
    found = arranged(3, (0, 1), (1, 2), (2, 0))
    assert ranks(found) == [0, 1, 2]
    back = [s for s in found.segments if s.back]
    assert back and [s.upper for s in back if s.head == "upper"] == [0]
    assert not [s for s in back if s.head == "lower"]


def test_a_line_to_its_own_box_is_no_line() -> None:
    found = arranged(1, (0, 0))
    assert found.loops == [0] and not found.segments


def test_a_fan_out_and_its_join_have_one_trunk_each() -> None:
    found = arranged(7, *((0, n) for n in range(1, 6)), *((n, 6) for n in range(1, 6)))
    assert len({s.net for s in found.segments}) == 2


def test_lines_of_a_box_that_leads_elsewhere_too_do_not_join_those_of_others() -> None:
    found = arranged(4, (0, 2), (0, 3), (1, 2), (1, 3))
    nets = {(s.upper, s.lower): s.net for s in found.segments}
    assert nets[0, 2] == nets[0, 3] != nets[1, 2] == nets[1, 3]


def test_crossings_that_need_not_be_are_not() -> None:
    # Written so that the first order crosses: 0 -> 3, 1 -> 2.
    found = arranged(4, (0, 3), (1, 2))
    (upper, lower) = found.ranks
    order = {v: n for rank in (upper, lower) for n, v in enumerate(rank)}
    assert (order[0] < order[1]) == (order[3] < order[2])


def test_a_rank_that_would_be_too_wide_is_split() -> None:
    pairs = [(0, n) for n in range(1, 21)]
    assert arranged(21, *pairs).width > 200
    narrow = arranged(21, *pairs, width_max=60)
    assert max(ranks(narrow)) > 1 and narrow.width < 100
    assert is_apart(narrow)


def test_the_same_graph_gives_the_same_picture() -> None:
    pairs = [(a, b) for a in range(12) for b in range(12) if (a * 7 + b * 5) % 11 == 3]
    one, other = arranged(12, *pairs), arranged(12, *pairs)
    assert one == other


def test_a_long_line_is_straight_when_there_are_too_many_bends(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "BENDS_MAX", 5)
    chain = [(n, n + 1) for n in range(20)]
    found = arranged(21, *chain, (0, 20))
    assert not [v for v in found.vertices if v.kind == "bend"]
    assert [(s.upper, s.lower) for s in found.segments if s.lower - s.upper > 1] == [(0, 20)]


def test_a_large_graph_takes_a_moment() -> None:
    count = 1_000
    pairs = [(n, n + 1) for n in range(count - 1)] + [(n, min(n * 2 + 1, count - 1)) for n in range(count - 2)]
    began = time.process_time()
    found = arranged(count, *pairs)
    assert time.process_time() - began < 10.0 * slowness()
    assert sum(v.kind == "bend" for v in found.vertices) <= module.BENDS_MAX
    assert is_apart(found)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nothing_overlaps_and_lines_go_down_whatever_the_graph(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 14))
    box = st.integers(0, count - 1)
    lines = [
        DrawnLine(a, b, LABEL if labelled else None)
        for a, b, labelled in data.draw(st.lists(st.tuples(box, box, st.booleans()), max_size=30))
    ]
    sizes = [
        Size(w | 1, h)
        for w, h in data.draw(
            st.lists(st.tuples(st.integers(3, 30), st.integers(3, 6)), min_size=count, max_size=count)
        )
    ]
    found = arrange(sizes, lines, SPACE, data.draw(st.sampled_from([0, 40, 80])))
    assert is_apart(found)
    assert sorted(v for rank in found.ranks for v in rank) == list(range(len(found.vertices)))
    for s in found.segments:
        assert found.vertices[s.lower].rank == found.vertices[s.upper].rank + 1
    assert sum(v.kind == "label" for v in found.vertices) == sum(
        line.label is not None and line.source != line.target for line in lines
    )
    assert _reach(found) == _wanted(lines, found)


def _wanted(lines: list[DrawnLine], layout: Layout) -> set[tuple[int, int]]:
    """Who is joined with whom, upwards or downwards."""
    return {(line.source, line.target) for line in lines if line.source != line.target}


def _reach(layout: Layout) -> set[tuple[int, int]]:
    """Boxes that a reader who follows lines of one net, down or up, gets to from another box."""
    out: set[tuple[int, int]] = set()
    below: dict[int, list[module.DrawnSegment]] = {}
    for s in layout.segments:
        below.setdefault(s.upper, []).append(s)
    for start, vertex in enumerate(layout.vertices):
        if vertex.kind != "box":
            continue
        left = [(s, s.net) for s in below.get(start, [])]
        while left:
            s, net = left.pop()
            end = layout.vertices[s.lower]
            if end.kind == "box":
                out.add((s.lower, start) if s.back else (start, s.lower))
            else:
                # Behind a label another net may go on; at a bend only its own does.
                left += [(n, n.net) for n in below.get(s.lower, []) if end.kind == "label" or n.net == net]
    return out
