"""Strict YAML 1.2 and JSON to a document with places."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.limits import ALIASES_MAX, DOCUMENT_BYTES_MAX, DOCUMENT_DEPTH_MAX, DOCUMENT_NODES_MAX
from perdure.flows.model import SourcePlace
from perdure.flows.problems import PROBLEMS_MAX, DocumentProblem, FlowError
from perdure.flows.source import read
from tests.fakes.slowness import slowness


def refused(text: str | bytes, name: str = "flow.yaml") -> tuple[DocumentProblem, ...]:
    with pytest.raises(FlowError) as e:
        read(text, name=name)
    assert e.value.code == "invalid_flow"
    return e.value.problems


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("NULL", None),
        ("''", ""),
        ("true", True),
        ("True", True),
        ("TRUE", True),
        ("false", False),
        ("FALSE", False),
        ("12", 12),
        ("-7", -7),
        ("+7", 7),
        ("0123", 123),
        ("0o17", 15),
        ("0xfF", 255),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e3", 1000.0),
        ("-1.5E-2", -0.015),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
    ],
)
def test_the_core_schema_says_what_is_no_text(text: str, value: Any) -> None:
    found = read(f"a: {text}").value["a"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "on",
        "off",
        "yes",
        "No",
        "y",
        "12:30",
        "12:30:45",
        "2024-01-31",
        "2024-01-31T10:00:00Z",
        "1_000",
        "0b11",
        "nUll",
        "tRue",
        "1.2.3",
        "0x",
        "0o8",
        "+",
        ".",
        "e3",
        "10s",
        "=",
        "0XFF",
        "infinity",
        "NaN",
    ],
)
def test_everything_else_stays_text(text: str) -> None:
    assert read(f"a: {text}").value == {"a": text}


@pytest.mark.parametrize("text", ["'12'", '"true"', "|-\n  null"])
def test_quoted_text_is_text(text: str) -> None:
    assert isinstance(read(f"a: {text}").value["a"], str)


@pytest.mark.parametrize("text", [".inf", "-.Inf", ".nan", ".NaN"])
def test_numbers_that_json_does_not_have_are_refused(text: str) -> None:
    (p,) = refused(f"a: {text}")
    assert "not a number in JSON" in p.message
    assert (p.line, p.column) == (1, 4)


@pytest.mark.parametrize("text", ["a: " + "1" * 30, '{"a": %s}' % ("1" * 5000), "a: -" + "9" * 19, "a: 0x" + "f" * 17])
def test_integers_beyond_64_bits_are_refused(text: str) -> None:
    (p,) = refused(text)
    assert "64 bits" in p.message


def test_a_float_that_overflows_is_refused() -> None:
    assert "too large" in refused("a: 1e999")[0].message
    assert "too large" in refused('{"a": 1e999}')[0].message


def test_keys_keep_their_order() -> None:
    assert list(read("z: 1\na: 2\nm: 3").value) == ["z", "a", "m"]


def test_an_alias_stands_for_what_was_anchored() -> None:
    assert read("a: &x {b: [1, 2]}\nc: *x\nd: [*x]").value == {
        "a": {"b": [1, 2]},
        "c": {"b": [1, 2]},
        "d": [{"b": [1, 2]}],
    }


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    document = read(b"\xef\xbb\xbfflow: x\n")
    assert document.value == {"flow": "x"}
    assert document.place(("flow",), key=True) == SourcePlace(1, 1)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "---\n...\n"])
def test_an_empty_document_is_null(text: str) -> None:
    assert read(text).value is None


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb: 2\na: 3", 3, 1, "duplicate key 'a'; it is on line 1 already"),
        ('{"a": 1, "a": 2}', 1, 10, "duplicate key 'a'"),
        ("1: x", 1, 1, "the key 1 is not text"),
        ("a:\n  true: x", 2, 3, "the key true is not text"),
        ("~: x", 1, 1, "the key null is not text"),
        ("[a]: x", 1, 1, "a key is a list or a mapping"),
        ("{a: 1}: x", 1, 1, "a key is a list or a mapping"),
        ("a: &k x\n*k : y", 2, 1, "the key is an alias"),
        ("a: &x {b: 1}\nc:\n  <<: *x", 3, 3, "merge keys"),
        ("a: !!str 12", 1, 4, "the tag !!str is refused"),
        ("a: !custom {b: 1}", 1, 4, "the tag !custom is refused"),
        ("a: ! 12", 1, 4, "the tag ! is refused"),
        ("a: !!python/object/apply:os.system ['x']", 1, 4, "the tag !!python/object/apply:os.system is refused"),
        ("a: 1\n---\nb: 2", 2, 1, "a second document begins here"),
        ("a: *nothing", 1, 4, "nothing above is anchored as &nothing"),
        ("a: &a [*a]", 1, 8, "*a stands within the very value it stands for"),
        ("%YAML 1.1\n---\na: 1", 1, 1, "read as YAML 1.2"),
        ("a:\n\tb: 1", 2, 1, "a tab indents this line"),
        ("a: b: c", 1, 5, "mapping values are not allowed"),
        ("a: [1, 2", 1, 9, "',' or ']'"),
        ("a: 'x", 1, 6, "unexpected end of stream"),
        ("a: @x", 1, 4, "cannot start any token"),
        ("a: \x07", 1, 4, "the character U+0007"),
        ("a:\n  - x\u2028y", 2, 6, "the character U+2028"),
        ("a: \ud800", 1, 4, "the character U+D800"),
        ('a: "\\0"', 1, 4, "U+0000"),
        ('{"a": "\\ud800"}', 1, 7, "half a surrogate pair"),
    ],
)
def test_what_is_refused_says_where_and_why(text: str, line: int, column: int, message: str) -> None:
    problems = refused(text)
    assert message in problems[0].message
    assert (problems[0].line, problems[0].column) == (line, column)
    assert problems[0].severity == "error"


def test_bytes_that_are_not_utf8_are_refused_where_they_are() -> None:
    (p,) = refused(b"flow: x\nb: \xff\n")
    assert (p.line, p.column) == (2, 4)
    assert "0xff is not UTF-8" in p.message


def test_all_problems_are_reported_up_to_the_limit() -> None:
    assert len(refused("a: 1\na: 2\n3: x\nb: !!int 4")) == 3
    assert len(refused("".join(f"{i}: x\n" for i in range(PROBLEMS_MAX * 2)))) == PROBLEMS_MAX


def test_an_error_prints_like_a_compiler() -> None:
    with pytest.raises(FlowError) as e:
        read("flow: x\n  # comment\ntasks:\n  a: 1\n  a: 2\n", name="flow.yaml")
    assert str(e.value) == "flow.yaml:5:3: duplicate key 'a'; it is on line 4 already\n  a: 2\n  ^"


def test_a_long_line_is_shown_around_the_column() -> None:
    (p,) = refused("{" + ", ".join(f"k{i}: {i}" for i in range(2000)) + ", k1999: 1}")
    assert len(p.text) <= 160
    assert p.text[p.caret :].startswith("k1999")


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "constant"),
    [
        ("x" * (DOCUMENT_BYTES_MAX + 1), "DOCUMENT_BYTES_MAX"),
        ("é" * (DOCUMENT_BYTES_MAX // 2 + 1), "DOCUMENT_BYTES_MAX"),
        ("[" * 1_000_000, "DOCUMENT_DEPTH_MAX"),
        ("{a: " * 200_000, "DOCUMENT_DEPTH_MAX"),
        ('{"a":' * 150_000, "DOCUMENT_DEPTH_MAX"),
        ("- " * 500_000, "DOCUMENT_DEPTH_MAX"),
        ("[a, " * 200_000, "DOCUMENT_DEPTH_MAX"),
        ("[\n" * 400_000, "DOCUMENT_DEPTH_MAX"),
        ("[" + "a, " * 300_000 + "]", "DOCUMENT_NODES_MAX"),
        ("[" + "1," * 500_000 + "1]", "DOCUMENT_NODES_MAX"),
        ("a: &a 1\nb: [" + "*a, " * (ALIASES_MAX + 1) + "]", "ALIASES_MAX"),
    ],
)
def test_a_bound_is_named_and_kept_quickly(text: str, constant: str) -> None:
    started = time.process_time()
    problems = refused(text)
    took = time.process_time() - started
    assert took < 5 or took < 5 * slowness()
    assert constant in problems[-1].message


def test_an_alias_bomb_is_counted_as_what_it_would_become() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    assert "DOCUMENT_NODES_MAX" in refused("\n".join(lines))[0].message


def test_aliases_cannot_go_deeper_than_brackets() -> None:
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 90))
    assert "DOCUMENT_DEPTH_MAX" in refused(chain)[0].message
    fits = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, DOCUMENT_DEPTH_MAX - 1))
    read(fits)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_the_deepest_document_that_fits(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    deep = opening * (DOCUMENT_DEPTH_MAX - 1) + "[]" + closing * (DOCUMENT_DEPTH_MAX - 1)
    read(deep)
    refused(opening + deep + closing)


def test_the_largest_document_that_fits() -> None:
    n = DOCUMENT_NODES_MAX - 1
    assert len(read("[" + "1," * (n - 1) + "1]").value) == n


# -- places ------------------------------------------------------------------------------------------------------------

PLACED = """\
flow: demo
tasks:
  first: &a
    run: [a, 'it''s', "q\\u0041z"]
  # é comment
  "sec ond": {x: *a, y: &n  word}
  third: |
    one
      two
"""


@pytest.mark.parametrize(
    ("path", "key", "place"),
    [
        ((), False, SourcePlace(1, 1)),
        (("flow",), True, SourcePlace(1, 1)),
        (("flow",), False, SourcePlace(1, 7)),
        (("tasks", "first"), True, SourcePlace(3, 3)),
        (("tasks", "first", "run", 1), False, SourcePlace(4, 14)),
        (("tasks", "sec ond"), True, SourcePlace(6, 3)),
        (("tasks", "sec ond", "x"), True, SourcePlace(6, 15)),
        (("tasks", "sec ond", "x", "run", 0), False, SourcePlace(4, 11)),
        (("tasks", "sec ond", "y"), False, SourcePlace(6, 29)),
        (("tasks", "missing", "deep"), False, SourcePlace(3, 3)),
        (("tasks", "first", "run", 9), False, SourcePlace(4, 10)),
    ],
)
def test_everything_has_a_place(path: tuple[str | int, ...], key: bool, place: SourcePlace) -> None:
    assert read(PLACED).place(path, key=key) == place


@pytest.mark.parametrize(
    ("path", "offset", "place"),
    [
        (("flow",), 2, SourcePlace(1, 9)),
        (("tasks", "first", "run", 1), 3, SourcePlace(4, 19)),
        (("tasks", "first", "run", 2), 2, SourcePlace(4, 31)),
        (("tasks", "third"), 1, SourcePlace(8, 6)),
        (("tasks", "third"), 6, SourcePlace(9, 7)),
    ],
)
def test_a_character_of_a_text_has_a_place(path: tuple[str | int, ...], offset: int, place: SourcePlace) -> None:
    document = read(PLACED)
    assert document.place_within(path, offset) == place
    value: Any = document.value
    for step in path:
        value = value[step]
    line = document.line(place.line)
    assert line[place.column - 1] == value[offset]


def test_a_folded_text_is_placed_at_its_beginning() -> None:
    assert read("a: >\n  one\n  two\n").place_within(("a",), 5) == SourcePlace(1, 4)
    assert read('a: "one\n  two"\n').place_within(("a",), 5) == SourcePlace(1, 4)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_lines_end_in_any_of_three_ways(newline: str) -> None:
    for text in ("a: 1\nb:\n  c: x\n", '{"a": 1,\n "b":\n  {"c": "x"}}'):
        document = read(text.replace("\n", newline))
        assert document.place(("b", "c"), key=True).line == 3
        assert document.value == {"a": 1, "b": {"c": "x"}}


# -- JSON --------------------------------------------------------------------------------------------------------------


def test_json_is_json_where_yaml_has_other_ideas() -> None:
    value = {
        "emoji": "😀",
        "sep": "a\u2028b\x85c\x7f",
        "t\tab": "x\ty",
        "long " + "k" * 2000: 1,
        "on": "yes",
        "s": "a\\/b",
    }
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(value, indent="\t")):
        assert read(text).value == value


def test_json_has_places() -> None:
    document = read('{"a": [1,\n  {"b": "x\\ud83d\\ude00y"}]}')
    assert document.place(("a", 1, "b"), key=True) == SourcePlace(2, 4)
    assert document.place_within(("a", 1, "b"), 2) == SourcePlace(2, 23)


@pytest.mark.parametrize(
    "text", ['{"a": 1,}', "{a: 1}", "[1, 2,]", '{"a": yes}', "{'a': 1}", '{"a": 1} # x', '{"a": 01}']
)
def test_what_looks_like_json_and_is_not_is_read_as_yaml(text: str) -> None:
    assert read(text).value is not None


@pytest.mark.parametrize("text", ['{"a" 1}', '{"a": 1]', "[1 2", '{"a"}x', "{,}", "[,]", '{"a": 1}}', '{"a":}{'])
def test_what_is_neither_json_nor_yaml_never_passes_as_json(text: str) -> None:
    with pytest.raises(ValueError):
        json.loads(text)
    try:
        read(text)
    except FlowError as e:
        assert e.problems


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abc", max_size=3), JSON, max_size=4), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_any_json_reads_as_what_it_is(value: dict[str, Any], indent: Any, ascii: bool) -> None:
    assert read(json.dumps(value, indent=indent, ensure_ascii=ascii)).value == value


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
TEXTS = st.recursive(
    TEXT, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


@given(st.dictionaries(st.text("abc", max_size=3), TEXTS, max_size=4), st.booleans(), st.integers(10, 200))
def test_what_a_yaml_writer_quotes_reads_as_what_it_was(value: dict[str, Any], flow: bool, width: int) -> None:
    text = yaml.dump(value, Dumper=yaml.SafeDumper, default_style='"', default_flow_style=flow, width=width)
    assert read(text).value == value


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_nothing_but_a_flow_error_comes_out(text: str | bytes) -> None:
    try:
        read(text)
    except FlowError as e:
        assert 1 <= len(e.problems) <= PROBLEMS_MAX
        assert str(e)
