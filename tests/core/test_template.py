"""Values with expressions inside."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.expressions import ExprError, parse
from perdure.core.expressions.template import TEMPLATE_DEPTH_MAX, Template, literal, make, of
from perdure.core.limits import TEMPLATE_BYTES_MAX

ROOTS: dict[str, Any] = {
    "input": {
        "day": 3,
        "name": "Ada",
        "none": None,
        "rate": 1.5,
        "flag": True,
        "list": [1, {"a": None}],
        "text": "a b",
    },
    "big": "x" * 200_000,
    "objects": [{"key": "value"} for _ in range(20_000)],
}
SCOPE = ROOTS.__getitem__


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("${ input.day }", 3),
        ("${input.none}", None),
        ("${ input.list }", [1, {"a": None}]),
        ("${ {'a': {'b': '}'}} }", {"a": {"b": "}"}}),
        ('${ "${" + "}" }', "${}"),
        (" ${ input.day }", " 3"),
        ("day ${ input.day } of ${ input.name }", "day 3 of Ada"),
        ("${ input.day }${ input.day }", "33"),
        ("[${ input.none }]", "[]"),
        ("<${ input.rate } ${ input.flag } ${ input.list }>", '<1.5 true [1,{"a":null}]>'),
        ("$${ input.day }", "${ input.day }"),
        ("$$${ input.day }", "$${ input.day }"),
        ("a $${b} ${ input.day }", "a ${b} 3"),
        ("$${a}$${b}", "${a}${b}"),
        ("costs $5 } {", "costs $5 } {"),
        ("", ""),
        ({"a": ["${ input.day }", {"b": "x${ input.name }"}], "c": 1}, {"a": [3, {"b": "xAda"}], "c": 1}),
        ({"first": "${ input.day }", "second": 2, "third": "${ input.day }"}, {"first": 3, "second": 2, "third": 3}),
        ([1, None, True, 2.5], [1, None, True, 2.5]),
    ],
)
def test_expressions_give_way_to_their_values(written: Any, wanted: Any) -> None:
    got = make(written).evaluate(SCOPE)
    assert got == wanted
    assert type(got) is type(wanted)
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)


@pytest.mark.parametrize(
    ("written", "offset", "path", "says"),
    [
        ("${ input.day", 0, (), "never closed"),
        ("a ${ b } c ${ d", 11, (), "never closed"),
        ("${", 0, (), "never closed"),
        ("ab ${ } c", 6, (), "is empty"),
        ("ab ${ x + } c", 10, (), "ends too soon"),
        ("ab ${ 'x } c", 6, (), "string that begins with this ' is never closed"),
        ("ab ${ f(x) }", 6, (), "no function f()"),
        ({"a": [1, {"b": "x ${ a b }"}]}, 7, ("a", 1, "b"), "operator is missing"),
        ({"a": {"${ x }": 1}}, 0, ("a", "${ x }"), "keys take no expressions"),
        ("${ " + "a" * 5000 + " }", 4000, (), "4000 is the most"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    written: Any, offset: int, path: tuple[Any, ...], says: str
) -> None:
    with pytest.raises(ExprError) as caught:
        make(written)
    assert says in caught.value.message
    assert caught.value.offset == offset
    assert caught.value.path == path


def test_a_value_without_expressions_is_a_constant() -> None:
    template = make({"a": [1, "$${x}"]})
    assert template.is_constant
    assert template.constant == {"a": [1, "${x}"]}
    assert template.roots == frozenset()
    assert template.exprs == ()
    assert template.evaluate(SCOPE) is template.constant


def test_constant_parts_are_shared_and_the_rest_is_new_each_time() -> None:
    template = make({"fixed": {"a": 1}, "moving": {"day": "${ input.day }"}})
    assert not template.is_constant
    one, two = template.evaluate(SCOPE), template.evaluate(SCOPE)
    assert one == two
    assert one is not two
    assert one["fixed"] is two["fixed"]
    assert one["moving"] is not two["moving"]


def test_a_template_keeps_nothing_of_the_value_it_was_made_from() -> None:
    written = {"a": [1], "b": "${ input.day }"}
    template = make(written)
    written["a"].append(2)  # type: ignore[attr-defined]
    assert template.evaluate(SCOPE) == {"a": [1], "b": 3}


def test_a_template_says_what_it_reads_and_where() -> None:
    template = make({"a": ["${ x.y }", "${ z } and ${ x }"]})
    assert template.roots == {"x", "z"}
    assert template.exprs == (parse("x.y"), parse("z"), parse("x"))
    assert template.places == (("a", 0), ("a", 1), ("a", 1))


def test_an_expression_alone_and_a_literal() -> None:
    assert of(parse("input.day + 1")).evaluate(SCOPE) == 4
    assert Template.of(parse("input.day")) == Template.make("${ input.day }")
    raw = literal("${ input.day }")
    assert raw.is_constant
    assert raw.evaluate(SCOPE) == "${ input.day }"
    assert Template.literal(5) == make(5)
    assert make("${ a }") != make("${ b }")
    assert make("x${ a }") == make("x${  a}")
    assert hash(make("x${ a }")) == hash(make("x${  a}"))


def test_only_a_constant_has_a_constant() -> None:
    with pytest.raises(AssertionError, match="without expressions"):
        _ = make("${ a }").constant


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("${ nowhere }", "there is no `nowhere` here"),
        ({"a": "x ${ 1 / 0 }"}, "division by zero"),
        ("a ${ [objects, objects, objects] }", "steps"),
        ("${ big }" * 6, "more than 1048576 bytes"),
        (["${ big }"] * 9, "more than 1048576 bytes"),
        ("${ [" + ",".join(["objects"] * 9) + "] }", "more than 1048576 bytes"),
    ],
)
def test_an_evaluation_that_fails_or_swells_is_an_expression_error(written: Any, says: str) -> None:
    template = make(written)
    with pytest.raises(ExprError, match=says):
        template.evaluate(SCOPE)


def test_a_value_of_some_size_is_fine() -> None:
    got = make(["${ big }"] * 5).evaluate(SCOPE)
    assert sum(map(len, got)) == 1_000_000 < TEMPLATE_BYTES_MAX
    assert len(make({f"k{n}": "${ input.day }" for n in range(1_000)}).evaluate(SCOPE)) == 1_000


def test_depth_is_bounded() -> None:
    value: Any = "${ input.day }"
    for _ in range(TEMPLATE_DEPTH_MAX):
        value = [value]
    assert make(value).evaluate(SCOPE)
    for _ in range(5_000):
        value = [value]
    with pytest.raises(ExprError, match="nested more than 100 deep"):
        make(value)


STRINGS = st.text("ab $${}'\"\\.", max_size=12) | st.sampled_from(["${ a }", "x${ a.b }", "${ {'a': a} }", "$${"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.dictionaries(st.sampled_from("ab"), VALUES))
def test_any_value_is_a_template_or_an_expression_error(written: Any, roots: dict[str, Any]) -> None:
    try:
        template = make(written)
        template.evaluate(roots.__getitem__)
    except ExprError:
        return
    assert template.is_constant or template.roots <= {"a", "b"}


@given(VALUES)
def test_escaped_text_is_what_was_written(written: Any) -> None:
    assert make(escaped(written)).constant == written


def escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return {key: escaped(item) for key, item in value.items()} if isinstance(value, dict) else value
