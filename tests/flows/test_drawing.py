"""Charts as text and as SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.flows.compile import compile_value
from perdure.flows.drawing.chart import Chart, ChartLink, Item, chart_of
from perdure.flows.drawing.mermaid import MERMAID_LINKS_MAX, is_too_large, mermaid
from perdure.flows.drawing.svg import svg
from perdure.flows.drawing.terminal import MARKS, cells, draw, plain


def item(key: str, word: str = "task", detail: str = "", *badges: str, inner: Chart | None = None) -> Item:
    return Item(key=key, path=key, word=word, detail=detail, badges=badges, inner=inner)


def chart(keys: str, *links: str, start: int | None = None, **items: Item) -> Chart:
    """`chart("a b", "a b", "b a again")`: keys, then from, to and label."""
    names = keys.split()
    made = tuple(items.get(name) or item(name) for name in names)
    found = []
    for text in links:
        source, target, *label = text.split(" ", 2)
        found.append(ChartLink(names.index(source), names.index(target), label[0] if label else ""))
    return Chart(made, tuple(found), start)


def shown(what: Chart, width: int = 100, statuses: dict[str, str] | None = None, **options: bool) -> str:
    return plain(draw(what, width, statuses, **options))


def test_a_chain_is_drawn_from_top_to_bottom() -> None:
    assert shown(chart("first second third", "first second", "second third")).splitlines() == [
        " ╭───────╮",
        " │ first │",
        " ╰───┬───╯",
        "     │",
        "╭────▼────╮",
        "│ second  │",
        "╰────┬────╯",
        "     │",
        " ╭───▼───╮",
        " │ third │",
        " ╰───────╯",
    ]


def test_a_diamond_has_one_trunk_out_and_one_in() -> None:
    text = shown(chart("a b c d", "a b", "a c", "b d", "c d"))
    assert text.count("▼") == 3, "one arrow into d: its lines have joined"
    assert "┴" in text and "┬" in text


def test_a_label_stands_on_its_line() -> None:
    text = shown(chart("ask ship refuse", "ask ship approved", "ask refuse rejected"))
    rows = text.splitlines()
    (row,) = [n for n, line in enumerate(rows) if "approved" in line]
    assert "rejected" in rows[row]
    column = rows[row].index("approved") + len("approved") // 2
    assert rows[row + 1][column] in "│┘└┌┐"


def test_a_way_back_is_dashed_and_points_up() -> None:
    text = shown(chart("a b", "a b", "b a"))
    assert "▲" in text and "┆" in text and text.count("▼") == 1


def test_a_box_that_leads_to_itself_says_so() -> None:
    assert "↻ again" in shown(chart("a b", "a b", "a a again"))


def test_a_crossing_is_no_junction() -> None:
    # K2,2 twice over cannot be drawn without crossings; every crossing interrupts the line that it crosses.
    text = shown(chart("a b c d e f", "a d", "a e", "a f", "b d", "b e", "b f", "c d", "c e", "c f"))
    assert "─│" in text or "│─" in text


def test_words_details_and_badges_are_in_the_box() -> None:
    what = chart("fetch", fetch=item("fetch", "http", "GET https://example.com", "for each input.files", "timeout 5m"))
    text = shown(what)
    assert "http GET https://example.com" in text and "timeout 5m" in text


def test_what_a_node_reads_from_its_params_is_shown_as_written_there() -> None:
    nodes = {
        "ask": {"kind": "approval", "params": {"approval_key": "legal"}},
        "pause": {"kind": "timer", "params": {"delay_ms": 1500}},
        "told": {"kind": "wait_event", "params": {"signal_key": "${ input.topic }"}},
        "both": {"kind": "parallel", "params": {"services": ["mail", "sms"]}},
        "open": {"kind": "timer"},
    }
    keys = list(nodes)
    edges = [{"from": a, "action": "default", "to": b} for a, b in zip(keys, keys[1:], strict=False)]
    flow = compile_value({"flow": "f", "graph": {"start": "ask", "nodes": nodes, "edges": edges}}).flow
    assert flow is not None
    found = {i.key: f"{i.word} {i.detail}" for i in chart_of(flow.body).items}
    assert found == {
        "ask": "approval legal",
        "pause": "sleep 1500 ms",
        "told": "wait ${input.topic}",
        "both": "services mail sms",
        "open": "sleep params.delay_ms ms",
    }


def test_a_body_within_is_drawn_within() -> None:
    inner = chart("one two", "one two")
    text = shown(chart("each", each=item("each", "tasks", inner=inner)))
    assert re.search(r"│ +╭─+╮ +│", text) and "one" in text and "two" in text


def test_the_start_of_a_graph_is_marked() -> None:
    assert "▸ b" in shown(chart("a b", "b a", start=1))


@pytest.mark.parametrize("status", MARKS)
def test_a_status_is_a_mark_and_a_role(status: str) -> None:
    picture = draw(chart("a"), 80, {"a": status})
    assert any(role == status and f"{MARKS[status]} a" in text for line in picture for text, role in line)


def test_ascii_is_ascii() -> None:
    inner = chart("one two", "one two", "two one back", "one one")
    what = chart(
        "a b c", "a b yes", "a c no", "c a", each=item("b"), b=item("b", "tasks", "", "× 5", inner=inner), start=0
    )
    for width in (200, 40):
        text = shown(what, width, {"a": "success", "c": "failed"}, ascii_only=True)
        assert text.isascii()


def test_boxes_are_wrapped_and_then_listed_when_there_is_no_room() -> None:
    keys = [f"task_{n:02}" for n in range(12)]
    what = chart(f"root {' '.join(keys)} join", *(f"root {k}" for k in keys), *(f"{k} join" for k in keys))
    wide, middle, narrow = shown(what, 250), shown(what, 100), shown(what, 12)
    assert len(wide.splitlines()) < len(middle.splitlines())
    assert "╭" in middle and max(map(len, middle.splitlines())) <= 100
    assert "╭" not in narrow and "├─ task_00" in narrow
    for text in (wide, middle, narrow):
        assert all(key in text for key in keys)


def test_a_list_names_every_node_once_and_points_at_the_others() -> None:
    what = chart("a b c d", "a b", "a c", "b d", "c d", "d a again")
    text = shown(what, 10)
    assert text.count("d") >= 2 and "↑ d" in text and "again → ↑ a" in text
    lines = [line.split()[-1] for line in text.splitlines() if "↑" not in line]
    assert sorted(lines) == ["a", "b", "c", "d"]


def test_nodes_that_nothing_leads_to_are_listed_too() -> None:
    assert "island" in shown(chart("a b island", "a b", "b a", start=0), 10)


def test_text_cannot_move_the_cursor() -> None:
    what = chart("a", a=item("a", "http", "\x1b[2J\x07 \u202e evil\nline", "\x9b31m"))
    for width in (100, 5):
        text = "".join(t for line in draw(what, width) for t, _ in line)
        assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", text)


def test_wide_characters_keep_the_box_straight() -> None:
    text = shown(chart("a", a=item("a", "flow", "夜間バッチ")))
    assert len({cells(line) for line in text.splitlines()}) == 1


def test_a_large_chart_is_listed_within_bounds() -> None:
    keys = [f"n{i}" for i in range(1_000)]
    what = chart(" ".join(keys), *(f"{a} {b}" for a, b in zip(keys, keys[1:], strict=False)))
    picture = draw(what, 80)
    assert 1_000 <= len(picture) <= 2_001


KEY = st.text("abcdefghij", min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(st.lists(KEY, min_size=1, max_size=10, unique=True), st.data())
def test_any_chart_can_be_drawn_and_shows_every_key(keys: list[str], data: st.DataObject) -> None:
    place = st.integers(0, len(keys) - 1)
    links = data.draw(
        st.lists(st.builds(ChartLink, place, place, st.sampled_from(["", "yes", "no", "default"])), max_size=20)
    )
    what = Chart(tuple(item(k) for k in keys), tuple(links), data.draw(st.none() | place))
    for width in (30, 80, 160):
        text = shown(what, width)
        assert all(re.search(rf"\b{key}\b", text) for key in keys)
        assert "?" not in text, "every line character is one that was meant"
        if "╭" in text:
            assert max(map(cells, text.splitlines())) <= width
    ElementTree.fromstring(svg(what, "any"))


# -- SVG -----------------------------------------------------------------------------------------------------------

NS = {"s": "http://www.w3.org/2000/svg"}


def test_svg_is_one_accessible_picture() -> None:
    inner = chart("one two", "one two")
    what = chart("a b c", "a b yes", "a c", b=item("b", "tasks", inner=inner))
    root = ElementTree.fromstring(svg(what, "orders", {"a": "failed"}))
    assert root.get("role") == "img" and root.get("aria-label") == "orders, 3 nodes"
    assert root.findtext("s:title", namespaces=NS) == "orders"
    titles = [t.text for t in root.iterfind(".//s:g/s:title", NS)]
    assert "a, task, failed" in titles and {t.split(",")[0] for t in titles if t} == {"a", "b", "c", "one", "two"}
    assert "yes" in [t.text for t in root.iterfind(".//s:text", NS)]
    assert "prefers-color-scheme:dark" in (root.findtext("s:style", namespaces=NS) or "")


def test_svg_escapes_what_comes_from_a_document() -> None:
    evil = '</text><script>alert("x")</script>&\x00\x0b'
    what = chart("a b", "a b", a=item("a", "http", evil, evil))
    links = (ChartLink(0, 1, evil),)
    text = svg(Chart(what.items, links), evil)
    root = ElementTree.fromstring(text)
    assert {e.tag.partition("}")[2] for e in root.iter()} <= {"svg", "title", "style", "rect", "g", "path", "text"}
    assert not re.search(r"\s(on\w+|href)=", text)


def test_svg_boxes_are_inside_the_picture() -> None:
    keys = [f"task_{n}" for n in range(40)]
    root = ElementTree.fromstring(svg(chart(f"root {' '.join(keys)}", *(f"root {k}" for k in keys)), "wide"))
    assert float(root.get("width", "0")) < 2_500


# -- Mermaid ---------------------------------------------------------------------------------------------------------

LABEL = r"(?:[^\W_]|[ _-]|#\d+;|<br/>)+"
MERMAID_LINE = re.compile(
    r"\s*(?:"
    + "|".join(
        [
            rf'n\d+(?:\["{LABEL}"\]|\{{"{LABEL}"\}}|\[\["{LABEL}"\]\]|\(\["{LABEL}"\]\))',
            rf'subgraph n\d+\["{LABEL}"\]',
            "end",
            rf'n\d+ -->(?:\|"{LABEL}"\|)? n\d+',
            r"classDef [a-z]+ stroke:#[0-9a-f]{6},stroke-width:2px",
            r"class n\d+(?:,n\d+)* [a-z]+",
        ]
    )
    + ")"
)


def statements(text: str) -> list[str]:
    """The lines of a flowchart behind its title, each held against the part of Mermaid's grammar that is used."""
    head, title, foot, kind, *lines = text.splitlines()
    assert (head, foot, kind) == ("---", "---", "flowchart TD") and title.startswith('title: "')
    assert text.endswith("\n")
    for line in lines:
        assert MERMAID_LINE.fullmatch(line), line
    return [line.strip() for line in lines]


def test_a_flowchart_has_nodes_links_and_bodies_within() -> None:
    inner = chart("one two", "one two")
    what = chart(
        "ask b rest", "ask b approved", "ask rest", b=item("b", "tasks", inner=inner), ask=item("ask", "choice")
    )
    assert mermaid(what, "orders").splitlines() == [
        "---",
        'title: "orders"',
        "---",
        "flowchart TD",
        '  n0{"ask<br/>choice"}',
        '  subgraph n1["b<br/>tasks"]',
        '    n2["one"]',
        '    n3["two"]',
        "    n2 --> n3",
        "  end",
        '  n4["rest"]',
        '  n0 -->|"approved"| n1',
        "  n0 --> n4",
    ]


def test_states_of_a_run_are_classes_and_marks() -> None:
    what = chart("a b c d", "a b", "b c", d=item("d", "tasks", inner=chart("e")))
    lines = statements(
        mermaid(what, "x", {"a": "success", "b": "success", "c": "failed", "d": "running", "nope": "made up"})
    )
    assert "class n0,n1 success" in lines and "class n2 failed" in lines and "class n3 running" in lines
    assert [line.split()[1] for line in lines if line.startswith("classDef")] == ["running", "success", "failed"]
    assert f'n2["#{ord(MARKS["failed"])}; c"]' in lines
    assert "class" not in mermaid(what, "x", {"a": "made up"})


def test_a_step_that_leads_to_itself_has_a_link_and_a_body_says_so() -> None:
    what = chart("a b", "a a more", "b b more", b=item("b", "graph", inner=chart("c")))
    lines = statements(mermaid(what, "x"))
    assert 'n0 -->|"more"| n0' in lines and 'subgraph n1["b<br/>graph<br/>again#58; more"]' in lines
    assert not any(line.startswith("n1 -->") for line in lines)


HOSTILE = [
    '"] --> x; click n0 "javascript:alert(1)"',
    "end",
    "a\nend\nsubgraph z",
    "</span><script>alert('x')</script>",
    "`**bold** [link](http://example.org)`",
    "1. first",
    "- item",
    "__init__",
    "#quot; #lt; &lt; &#60;",
    "fa:fa-bomb",
    "%% comment",
    "%%{init: {'securityLevel': 'loose'}}%%",
    "classDef success fill:#f00",
    "|\\|{}()[]<>",
    "\x00\x1b[31m\u202e\u2028",
    "---",
    "x" * 5_000,
]


@pytest.mark.parametrize("evil", HOSTILE)
def test_hostile_names_stay_within_their_labels(evil: str) -> None:
    inner = Chart((item(evil),), ())
    items = (item("a"), item(evil, "http", evil, evil), item(evil, "choice"), item(evil, "tasks", inner=inner))
    links = (ChartLink(0, 1, evil), ChartLink(1, 2), ChartLink(3, 3, evil))
    lines = statements(mermaid(Chart(items, links, 1), evil, {evil: "failed"}))
    assert sum(line == "end" for line in lines) == 1 and sum(" -->" in line for line in lines) == 2


@given(st.text(min_size=1), st.text())
def test_any_text_stays_within_its_label(key: str, label: str) -> None:
    what = Chart((item(key, "choice", key, key), item("b")), (ChartLink(0, 1, label),))
    lines = statements(mermaid(what, key))
    assert len(lines) == 3


def test_a_flowchart_that_mermaid_refuses_is_known() -> None:
    few = chart("a b", "a b")
    many = Chart(few.items, tuple(ChartLink(0, 1) for _ in range(MERMAID_LINKS_MAX + 1)))
    assert not is_too_large(few, mermaid(few, "x"))
    assert is_too_large(many, mermaid(many, "x"))
    assert is_too_large(few, "x" * 50_001)
