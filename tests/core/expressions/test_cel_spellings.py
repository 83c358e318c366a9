"""Macros, methods, patterns, timestamps and durations: the spellings that expressions share with CEL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import ExprError
from perdure.core.expressions import check, parse, to_text, type_of
from perdure.core.expressions.nodes import Meter
from perdure.core.expressions.patterns import pattern_weight
from perdure.core.expressions.template import Template
from perdure.core.limits import EXPR_MATCH_CHARS_MAX, EXPR_PATTERN_CHARS_MAX, EXPR_STEPS_MAX
from perdure.core.payloads import NeedPayload, Placed, Reference

ROOTS: dict[str, Any] = {
    "input": {
        "items": [{"id": 1, "price": 5}, {"id": 2, "price": 50}, {"id": 3, "price": 7.5}],
        "sizes": [10, 250, 3],
        "prices": {"a": 1, "b": 20},
        "day": "2026-11-15",
        "none": None,
    },
    "x": "outer",
    "many": list(range(50_000)),
    "now": 1_794_700_800.5,
}
SCHEMA = {
    "input": {
        "type": "object",
        "properties": {
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "integer"}, "price": {"type": "number"}},
                },
            },
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "prices": {"type": "object", "additionalProperties": {"type": "number"}},
            "day": {"type": "string"},
        },
    }
}


def value(text: str, **roots: Any) -> Any:
    return parse(text).evaluate((ROOTS | roots).__getitem__)


# -- macros ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("input.sizes.map(s, s * 2)", [20, 500, 6]),
        ("input.sizes.map(s, s > 5, s * 2)", [20, 500]),
        ("input.items.filter(i, i.price > 6).map(i, i.id)", [2, 3]),
        ("input.items.exists(i, i.price == 50)", True),
        ("input.items.exists(i, i.price == 51)", False),
        ("input.items.exists_one(i, i.id > 2)", True),
        ("input.items.existsOne(i, i.id > 1)", False),
        ("input.items.all(i, i.id > 0)", True),
        ("input.items.all(i, i.id > 1)", False),
        ("input.prices.map(k, input.prices[k])", [1, 20]),
        ("input.prices.filter(k, input.prices[k] > 5)", ["b"]),
        ("[].map(x, x)", []),
        ("[].all(x, false)", True),
        ("[].exists(x, true)", False),
        ("{}.exists_one(k, true)", False),
        ("range(3).map(i, range(i).map(j, i * 10 + j))", [[], [10], [20, 21]]),
        ("[1, 2].map(x, [3, 4].map(x, x))", [[3, 4], [3, 4]]),
        ("[1].map(x, x) + [x]", [1, "outer"]),
        ("[[1, 2], [3]].map(l, l.size())", [2, 1]),
        ("input.items[0].map(k, k)", ["id", "price"]),
        ("[1, 2, 3].filter(x, x > 1)[0]", 2),
        ("[{a: 1}].map(x, x)[0].a", 1),
        ("size(input.items.filter(i, i.price > 6)) > 1 ? 'many' : 'few'", "many"),
    ],
)
def test_macros(text: str, wanted: Any) -> None:
    assert value(text) == wanted
    assert parse(to_text(parse(text))) == parse(text)


def test_the_name_of_an_element_is_no_root() -> None:
    expr = parse("input.items.filter(i, i.price > limit.low).map(input, input.id)")
    assert expr.roots == {"input", "limit"}
    assert set(expr.paths) == {("input", "items"), ("limit", "low")}


def test_a_macro_stops_where_it_is_decided() -> None:
    assert value("[1, 0, 2].exists(x, 1 / x == 1)") is True
    assert value("[0, 1].all(x, x > 0 and 1 / x > 0)") is False
    with pytest.raises(ExprError, match="division by zero"):
        value("[1, 0].map(x, 1 / x)")


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        ("a.map(x)", 7, "`,` is missing"),
        ("a.map(1, x)", 6, "a name for the element"),
        ("a.map(true, x)", 6, "a name for the element"),
        ("a.map($x, x)", 6, "a name for the element"),
        ("a.map(x-y, x)", 6, "a name for the element"),
        ("a.map(now, 1)", 6, "a name for the element"),
        ("a.map(not, 1)", 6, "a name for the element"),
        ("a.map(x, 1, 2, 3)", 1, "takes a name and one expression or two"),
        ("a.filter(x, 1, 2)", 1, "takes a name and one expression"),
        ("a.mapp(x, 1)", 1, "did you mean .map()?"),
        ("a.lower()", 1, "write lower(…)"),
        ("a.startsWith()", 1, ".startsWith() takes 1 argument, not 0"),
        ("a.size(1)", 1, ".size() takes no arguments, not 1"),
        ("a.getHours(1, 2)", 1, ".getHours() takes 0 to 1 argument, not 2"),
        ("a.contains()", 1, ".contains() takes 1 argument, not 0"),
        ("has(a)", 0, "has() takes a field"),
        ("has(1 + 1)", 0, "has() takes a field"),
        ("a.matches('(')", 10, "the pattern cannot be read"),
        ("a.matches(r'(?<=x)y')", 10, "the pattern cannot be read"),
        ("1 + matches(a, '[')", 15, "the pattern cannot be read"),
        (r"'\U00110000'", 1, "beyond Unicode"),
        (r"'''a\q'''", 4, "is no escape"),
        ("0x8000000000000000", 0, "beyond 2^63"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, offset: int, says: str) -> None:
    with pytest.raises(ExprError) as caught:
        parse(text)
    assert says in caught.value.message
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        ("1 + size(input.none.map(x, x))", 19, ".map() takes a list or an object, not null; the path may be missing"),
        ("input.day.exists(x, true)", 9, ".exists() takes a list or an object, not a string"),
        ("[1].map(x, x + 'a')", 13, "cannot be added"),
        ("[1].map(x, y)", 11, "there is no `y` here"),
        ("[1].map(x, x-1)", 11, "put spaces around the -"),
        ("many.map(x, x + 1 + 2)", 4, "steps"),
        ("many.map(x, many.map(y, x))", 16, "steps"),
        ("'a'.matches(input.day + '(')", 3, "the pattern cannot be read"),
        ("timestamp('soon')", 0, "is no timestamp; write it as"),
        ("timestamp('2026-13-01T00:00:00Z')", 0, "month must be in 1..12"),
        ("timestamp('2026-01-01T00:00:00+25:00')", 0, "no offset"),
        ("timestamp('2026-01-01')", 0, "is no timestamp"),
        ("duration('soon')", 0, "is no duration"),
        ("duration('P1M')", 0, "months, which differ in length"),
        ("duration('300000d')", 0, "out of range"),
        ("timestamp(1) + timestamp(1)", 13, "a timestamp and a timestamp cannot be added"),
        ("duration('1s') - timestamp(1)", 15, "- takes two numbers"),
        ("duration('1s') < timestamp(1)", 15, "have no order"),
        ("duration('1s') + 1", 15, "cannot be added"),
        ("timestamp(1).getHours('Mars/Olympus')", 12, "is no time zone"),
        ("timestamp(1).getHours('localtime')", 12, "is no time zone"),
        ("duration('1s').getHours('UTC')", 14, "a duration has no time zone"),
        ("duration('1s').getMonth()", 14, "takes a timestamp, not a duration"),
        ("timestamp('9999-12-31T23:00:00Z').getFullYear('+02:00')", 33, "out of range"),
        ("uint(-1)", 0, "negative"),
    ],
)
def test_what_has_no_value_says_why_and_where(text: str, offset: int, says: str) -> None:
    with pytest.raises(ExprError) as caught:
        value(text)
    assert says in caught.value.message
    assert caught.value.offset == offset


def test_a_macro_pays_for_its_body_at_every_turn() -> None:
    def steps(text: str) -> int:
        meter = Meter()
        parse(text).evaluate(ROOTS.__getitem__, meter)
        return EXPR_STEPS_MAX - meter.steps

    short, long = steps("range(100).map(x, x)"), steps("range(100).map(x, x + x + x + x)")
    assert long - short == 100 * 4, "four nodes more"
    assert steps("range(100).exists(x, x == 0)") < short, "only the turns that are made"


@pytest.mark.parametrize(
    "body",
    [
        "many.exists(y, true)",
        "wide == other",
        "long in longs",
        "starts_with(long, long)",
        "long.endsWith(long)",
        "max(longs)",
        "size(sort(longs))",
        "t.matches('(a|b)*c')",
    ],
)
def test_what_is_free_once_is_paid_for_in_a_macro(body: str) -> None:
    long = "x" * 500_000
    roots = {
        "wide": {str(n): n for n in range(10_000)},
        "other": {str(n): n for n in range(1, 10_001)},
        "long": long,
        "longs": [long[:-1] + c for c in "abcdefgh"],
        "t": "a" * 1_000,
    }
    with pytest.raises(ExprError, match="steps"):
        value(f"many.map(x, {body})", **roots)


def test_a_result_that_swells_is_refused() -> None:
    big = Template.make("${ range(2000).map(i, input.text) }")
    with pytest.raises(ExprError, match="more than 1048576 bytes"):
        big.evaluate({"input": {"text": "x" * 1_000}}.__getitem__)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("input.day.map(x, x)", ".map() takes a list or an object, but `input.day` is a string"),
        ("input.items.map(i, i.prise)", "has no field `prise`; did you mean `price`?"),
        ("input.items.filter(i, i > 1)", "they have no order"),
        ("input.sizes.map(s, s + 'a')", "cannot be added"),
        ("input.sizes.map(s, s).filter(s, s < 'a')", "they have no order"),
        ("input.prices.map(k, k - 1)", "- takes a number, not a string"),
        ("input.day.matches(5)", "matches() takes a string, but `5` is a number"),
        ("timestamp(input.day) + 1", "cannot be added"),
        ("timestamp(input.day) * 2", "* takes a number, not a timestamp"),
        ("timestamp(input.day) < duration('1s')", "they have no order"),
        ("timestamp(input.items)", "timestamp() takes"),
        ("duration('1s').getMonth()", "takes a timestamp, but"),
        ("has(input.dya)", "did you mean `day`?"),
    ],
)
def test_types_are_checked_before_a_run(text: str, says: str) -> None:
    problems = check(parse(text), SCHEMA)
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize(
    "text",
    [
        "input.items.filter(i, i.price > 1).map(i, i.id + 1)",
        "input.prices.map(k, k + '!')",
        "dyn(input.day) > 3",
        "timestamp(input.day) + duration('1h') > timestamp(5)",
        "timestamp(input.day) - timestamp(input.day) < duration('1h')",
        "(timestamp(input.day) - duration('1h')).getHours() + 1",
        "input.items.map(day, day.price).exists(p, p > 1)",
        "max(timestamp(1), timestamp(2)) > timestamp(3)",
    ],
)
def test_what_can_work_is_no_problem(text: str) -> None:
    assert check(parse(text), SCHEMA) == []


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("input.sizes.map(s, s > 1)", {"type": "array", "items": {"type": "boolean"}}),
        ("input.items.exists(i, true)", {"type": "boolean"}),
        ("timestamp(1)", {"type": "string"}),
        ("[timestamp(1), timestamp(2)]", {"type": "array", "items": {"type": "string"}}),
        ("timestamp(2) - timestamp(1)", {"type": "string"}),
        ("timestamp(1).getHours()", {"type": "number"}),
        ("input.prices.filter(k, true)", {"type": "array", "items": {"type": "string"}}),
    ],
)
def test_the_type_of_what_leaves_an_expression(text: str, schema: dict[str, Any]) -> None:
    assert type_of(parse(text), SCHEMA) == schema


def test_a_macro_asks_for_all_stored_elements_at_once() -> None:
    first, second = (Reference(sha256(body).digest(), len(body)) for body in (b'{"id":1}', b'{"id":2}'))
    rows = [Placed(first), Placed(second)]
    with pytest.raises(NeedPayload) as caught:
        value("rows.map(r, r.id)", rows=rows)
    assert caught.value.references == [first, second]
    loaded = [Placed(first, b'{"id":1}'), Placed(second, b'{"id":2}')]
    assert value("rows.map(r, r.id)", rows=loaded) == [1, 2]
    assert value("rows.filter(r, r.id > 1)", rows=loaded) == [Placed(second)], "the reference, and not a copy"


# -- methods, has, literals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("input.day.startsWith('2026')", True),
        ("input.day.endsWith('15')", True),
        ("input.day.contains('-11-')", True),
        ("input.sizes.contains(3)", True),
        ("input.none.contains(3)", False),
        ("input.day.size()", 10),
        ("'abc'.size() + [1].size() + {a: 1}.size()", 5),
        ("has(input.none)", True),
        ("has(input.nope)", False),
        ("has(input.nope.deeper)", False),
        ("has(input.sizes[2])", True),
        ("has(input.sizes[3])", False),
        ("has(input['day'])", True),
        ("has({a: null}.a)", True),
        ("has(input.day.x)", False),
        (r"r'\d'", r"\d"),
        (r'R"\n"', "\\n"),
        ("'''it's'''", "it's"),
        ('"""a "quoted" b"""', 'a "quoted" b'),
        (r"r'''\'''", "\\"),
        (r"'\x41\101\U0001F600\a\v\?\`'", "AA😀\a\v?`"),
        ("0xFF + 0x1u + 2U", 258),
        ("''", ""),
        ("['', \"\"]", ["", ""]),
        ("{r'a\\b': 1}", {"a\\b": 1}),
    ],
)
def test_methods_and_literals(text: str, wanted: Any) -> None:
    assert value(text) == wanted
    assert parse(to_text(parse(text))) == parse(text)


def test_has_reads_its_path_once() -> None:
    assert parse("has(tasks.load.rows)").paths == (("tasks", "load", "rows"),)


# -- patterns ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"'2026-11-15'.matches(r'^\d{4}-\d{2}-\d{2}$')", True),
        ("'abc'.matches('b')", True),
        ("'abc'.matches('^b')", False),
        ("matches('ÄÖ', '(?i)äö')", True),
        (r"'é'.matches(r'^\pL$')", True),
        ("''.matches('')", True),
        ("input.items.filter(i, string(i.id).matches('[12]')).size()", 2),
    ],
)
def test_matches_looks_for_a_pattern_anywhere(text: str, wanted: bool) -> None:
    assert value(text) is wanted


def test_patterns_and_texts_have_bounds() -> None:
    with pytest.raises(ExprError, match=f"{EXPR_PATTERN_CHARS_MAX} is the most"):
        parse(f"'a'.matches('{'a' * (EXPR_PATTERN_CHARS_MAX + 1)}')")
    with pytest.raises(ExprError, match=f"{EXPR_PATTERN_CHARS_MAX} is the most"):
        value("'a'.matches(p)", p="a" * (EXPR_PATTERN_CHARS_MAX + 1))
    with pytest.raises(ExprError, match=f"{EXPR_MATCH_CHARS_MAX} is the most"):
        value("t.matches('a')", t="a" * (EXPR_MATCH_CHARS_MAX + 1))
    assert value("t.matches('b')", t="a" * EXPR_MATCH_CHARS_MAX) is False


@pytest.mark.parametrize("pattern", ["(x+x+)+y", "(a|a)*b", "(a*)*b", "(?:a?){30}a{30}"])
def test_a_pattern_that_is_slow_elsewhere_is_linear_or_refused(pattern: str) -> None:
    meter = Meter()
    try:
        assert parse("t.matches(p)").evaluate({"t": "a" * 5_000 + "x" * 5_000, "p": pattern}.__getitem__, meter) in (
            True,
            False,
        )
    except ExprError as error:
        assert "steps" in error.message


def test_a_pattern_of_many_states_costs_what_they_take() -> None:
    with pytest.raises(ExprError, match="steps"):
        value("t.matches('(?:a?){200}a{200}b')", t="a" * 10_000)


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        ("", 1),
        ("abc", 4),
        ("[a-z]{10}", 11),
        ("(?:ab){10}", 21),
        ("(?:a{10}){10}", 101),
        (r"\d{4}-\d{2}", 8),
        (r"\pL", 17),
        ("(a", 2),
        ("a)", 3),
        ("a{2,}", 3),
        ("(?i)a", 3),
    ],
)
def test_the_weight_of_a_pattern_comes_from_its_text(pattern: str, weight: int) -> None:
    assert pattern_weight(pattern) == weight


# -- timestamps and durations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("timestamp('2026-11-15T08:00:00Z') + duration('90m')", "2026-11-15T09:30:00Z"),
        ("duration('90m') + timestamp('2026-11-15T08:00:00Z')", "2026-11-15T09:30:00Z"),
        ("timestamp('2026-11-15T08:00:00Z') - duration('P1D')", "2026-11-14T08:00:00Z"),
        ("timestamp('2026-11-15T08:00:00Z') - timestamp('2026-11-15T07:00:00Z')", "3600s"),
        ("duration('1h') - duration('90m')", "-1800s"),
        ("duration('1h') == duration('PT60M')", True),
        ("duration('1w') > duration('6d')", True),
        ("timestamp(now())", "2026-11-15T00:00:00.5Z"),
        ("timestamp(now()) > timestamp('2026-01-01T00:00:00Z')", True),
        ("string(timestamp(0)) + '/' + string(duration('1.5s'))", "1970-01-01T00:00:00Z/1.5s"),
        ("int(timestamp('1970-01-01T00:01:00.9Z'))", 60),
        ("timestamp(timestamp(0)) == timestamp(0)", True),
        ("timestamp(0) == '1970-01-01T00:00:00Z'", False),
        ("timestamp(0) in [timestamp(0)]", True),
        ("duration('-1.5h').getMinutes()", -90),
        ("timestamp('2026-11-15T23:30:00Z').getDate('Europe/Paris')", 16),
        ("timestamp('2026-07-15T23:30:00Z').getHours('Europe/Paris')", 1),
        ("type(timestamp(0)) + ' ' + type(duration('1s'))", "timestamp duration"),
        ("[timestamp(0), {at: duration('1s')}]", ["1970-01-01T00:00:00Z", {"at": "1s"}]),
        ("[timestamp(0)].map(t, t)", ["1970-01-01T00:00:00Z"]),
        ("[timestamp(0)].map(t, [1].map(x, [t]))", [[["1970-01-01T00:00:00Z"]]]),
        ("[1].map(x, [timestamp(x)].map(t, {at: t}))", [[{"at": "1970-01-01T00:00:01Z"}]]),
        ("[1].map(x, x > 0 ? timestamp(x) : x)", ["1970-01-01T00:00:01Z"]),
        ("[1, 2].map(x, timestamp(x))", ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"]),
        ("sort([timestamp(2), timestamp(1)])", ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"]),
        ("max([timestamp(2), timestamp(1)]) == timestamp(2)", True),
        ("first([timestamp(2)])", "1970-01-01T00:00:02Z"),
        ("unique([duration('1s'), duration('1000ms')])", ["1s"]),
        ("json({t: timestamp(0)})", '{"t":"1970-01-01T00:00:00Z"}'),
        ("join([timestamp(0), duration('1s')], ' ')", "1970-01-01T00:00:00Z 1s"),
        ("input.none ?? timestamp(0)", "1970-01-01T00:00:00Z"),
        ("true ? timestamp(0) : 1", "1970-01-01T00:00:00Z"),
        ("[timestamp(0)].filter(t, true)", ["1970-01-01T00:00:00Z"]),
        ("merge({a: 1}, {t: timestamp(0)})", {"a": 1, "t": "1970-01-01T00:00:00Z"}),
        ("bool(timestamp(0))", True),
    ],
)
def test_timestamps_and_durations(text: str, wanted: Any) -> None:
    assert value(text) == wanted
    assert parse(to_text(parse(text))) == parse(text)


def test_they_leave_a_template_as_text() -> None:
    made = Template.make({"at": "${ timestamp(0) }", "in": ["${ [duration('90s')] }"], "say": "at ${ timestamp(0) }!"})
    assert made.evaluate(ROOTS.__getitem__) == {
        "at": "1970-01-01T00:00:00Z",
        "in": [["90s"]],
        "say": "at 1970-01-01T00:00:00Z!",
    }


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)), st.integers(-(10**15), 10**15))
def test_arithmetic_agrees_with_datetime(at: datetime, us: int) -> None:
    text = at.isoformat().replace("+00:00", "Z")
    assert datetime.fromisoformat(value("timestamp(t)", t=text)) == at
    span = f"{us // 10**6}.{us % 10**6:06}s" if us >= 0 else f"-{-us // 10**6}.{-us % 10**6:06}s"
    try:
        later = at + timedelta(microseconds=us)
    except OverflowError:
        with pytest.raises(ExprError, match="out of range"):
            value("timestamp(t) + duration(d)", t=text, d=span)
        return
    assert datetime.fromisoformat(value("timestamp(t) + duration(d)", t=text, d=span)) == later
    assert value("(timestamp(t) + duration(d)) - timestamp(t) == duration(d)", t=text, d=span) is True
    fields = value("[timestamp(t).getFullYear(), timestamp(t).getMonth(), timestamp(t).getDate()]", t=text)
    assert fields == [at.year, at.month - 1, at.day]


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_an_expression_error(text: str) -> None:
    for call in ("timestamp(t)", "duration(t)", "timestamp(0).getHours(t)", "t.matches(t)"):
        try:
            value(call, t=text)
        except ExprError:
            pass
