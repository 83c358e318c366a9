"""Expressions: what they read, what they compute, and what they say when they cannot."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.expressions import (
    FUNCTION_NAMES,
    INTEGER_MAX,
    KEYWORDS,
    Expr,
    ExprError,
    check,
    from_json,
    nodes,
    parse,
    parse_path,
    to_text,
    type_of,
)
from perdure.core.expressions.text import text as canonical
from perdure.core.limits import EXPR_BYTES_MAX, EXPR_CHARS_MAX, EXPR_DEPTH_MAX, EXPR_STEPS_MAX

ROOTS: dict[str, Any] = {
    "input": {
        "day": 3,
        "name": "Ada",
        "none": None,
        "flag": False,
        "rate": 1.5,
        "list": [1, 2, 3],
        "nested": {"a": {"b": [{"c": "deep"}]}},
        "user-id": 7,
        "in": "a field may be called like an operator",
        "0": "zero",
    },
    "discover": {"files": ["x.csv", "y.csv"]},
    "fetch-data": {"rows": 10},
    "scalar": 5,
    "index": 1,
    "now": 1_700_000_000.5,
    "big": "x" * 600_000,
    "many": list(range(60_000)),
    "deep": msgspec.json.decode("[" * 500 + "]" * 500),
    "huge": 10**30,
    "vast": 10**5000,
    "nan": math.nan,
}


def value(text: str, **roots: Any) -> Any:
    return parse(text).evaluate((ROOTS | roots).__getitem__)


def same(got: Any, wanted: Any) -> bool:
    """Equal, and of the same type all the way down."""
    if type(got) is not type(wanted):
        return False
    if isinstance(got, list):
        return len(got) == len(wanted) and all(map(same, got, wanted))
    if isinstance(got, dict):
        return list(got) == list(wanted) and all(same(got[key], wanted[key]) for key in got)
    return bool(got == wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("null", None),
        ("true", True),
        ("false", False),
        ("0", 0),
        ("42", 42),
        ("-42", -42),
        ("1.5", 1.5),
        ("2e3", 2000.0),
        ("1.5E-3", 0.0015),
        (str(INTEGER_MAX), INTEGER_MAX),
        (f"-{INTEGER_MAX}", -INTEGER_MAX),
        ("'single'", "single"),
        ('"double"', "double"),
        ('"it\'s"', "it's"),
        (r'"a\n\t\"\\\u00e9\/"', 'a\n\t"\\é/'),
        (r"'\''", "'"),
        (r'"\ud83d\ude00"', "😀"),
        ("'ключ'", "ключ"),
        ("'a\nb'", "a\nb"),
        ("[]", []),
        ("[1, 'a', [null]]", [1, "a", [None]]),
        ("[1,]", [1]),
        ("{}", {}),
        ('{"a": 1, b: {"c": [2]}}', {"a": 1, "b": {"c": [2]}}),
        ("{in: 1, true: 2}", {"in": 1, "true": 2}),
        ("  (((1)))\n", 1),
        ("${ 1 + 1 }", 2),
        ("  ${1}  ", 1),
        ("${ {'a': '}'} }", {"a": "}"}),
    ],
)
def test_a_literal_is_its_value(text: str, wanted: Any) -> None:
    assert same(value(text), wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("input.day", 3),
        ("$input.day", 3),
        ("input['day']", 3),
        ('input["user-id"]', 7),
        ("input.in", "a field may be called like an operator"),
        ("input.list[0]", 1),
        ("input.list.2", 3),
        ("input.list[-1]", 3),
        ("input.list[index]", 2),
        ("input.list[index + 1]", 3),
        ("input[ 'na' + 'me' ]", "Ada"),
        ("input.nested.a.b[0].c", "deep"),
        ("(input.nested).a", {"b": [{"c": "deep"}]}),
        ("discover.files", ["x.csv", "y.csv"]),
        ("fetch-data.rows", 10),
        ("first(discover.files)", "x.csv"),
        ("{'a': 1}.a", 1),
        ("[1, 2][1]", 2),
        ("input.missing", None),
        ("input.missing.deeper[0].still", None),
        ("input.none.field", None),
        ("scalar.field", None),
        ("scalar[0]", None),
        ("input.name[0]", None),
        ("input.list[3]", None),
        ("input.list[-4]", None),
        ("input.list.field", None),
        ("input.list['0']", None),
        ("input.list[true]", None),
        ("input.list[0.0]", None),
        ("input.list[null]", None),
        ("input[0]", "zero"),
        ("input[null]", None),
        ("input.list[99999999999999]", None),
    ],
)
def test_a_path_reads_keys_and_elements_and_is_null_where_it_leads_nowhere(text: str, wanted: Any) -> None:
    assert same(value(text), wanted)


@pytest.mark.parametrize("attribute", ["__class__", "keys", "append", "real", "__len__", "items"])
def test_attributes_of_python_objects_are_out_of_reach(attribute: str) -> None:
    for root in ("input", "input.list", "input.name", "scalar", "deep"):
        assert value(f"{root}.{attribute}") is None
        assert value(f"{root}['{attribute}']") is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 == 1.0", True),
        ("1 eq 1", True),
        ("true == 1", False),
        ("false == 0", False),
        ("true != 1", True),
        ("null == null", True),
        ("null == false", False),
        ("null ne 0", True),
        ("'1' == 1", False),
        ("[1, [2.0]] == [1.0, [2]]", True),
        ("[true] == [1]", False),
        ("[1] == [1, 2]", False),
        ("{'a': 1, 'b': 2} == {'b': 2, 'a': 1}", True),
        ("{'a': 1} == {'a': true}", False),
        ("{'a': 1} == {'b': 1}", False),
        ("[] == {}", False),
        ("deep == deep", True),
        ("nan == nan", False),
        ("2 > 1", True),
        ("2 gt 2", False),
        ("2 >= 2.0", True),
        ("2 ge 3", False),
        ("1 < 1.5", True),
        ("1 lt 1", False),
        ("1 <= 1", True),
        ("2 le 1", False),
        ("'a' < 'b'", True),
        ("'b' >= 'b'", True),
        ("null > 1", False),
        ("1 < null", False),
        ("null >= null", False),
        ("input.missing <= 'x'", False),
        ("'x.csv' in discover.files", True),
        ("1.0 in input.list", True),
        ("true in [1]", False),
        ("[1] in [[1]]", True),
        ("'day' in input", True),
        ("3 in input", False),
        ("'da' in 'Ada'", True),
        ("'' in 'Ada'", True),
        ("null in 'Ada'", False),
        ("1 in null", False),
        ("'z' not in discover.files", True),
        ("'x.csv' not in discover.files", False),
        ("discover.files contains 'y.csv'", True),
        ("input contains 'nope'", False),
        ("'Ada' contains 'd'", True),
    ],
)
def test_comparisons(text: str, wanted: bool) -> None:
    assert value(text) is wanted


@pytest.mark.parametrize("falsy", ["null", "false", "0", "0.0", "''", "[]", "{}", "input.missing"])
def test_what_is_empty_is_false(falsy: str) -> None:
    assert value(f"not {falsy}") is True
    assert value(f"!{falsy}") is True
    assert value(f"{falsy} or false") is False
    assert value(f"{falsy} and true") is False
    assert value(f"{falsy} ? 1 : 2") == 2
    assert value(f"bool({falsy})") is False


@pytest.mark.parametrize("truthy", ["true", "1", "-0.5", "' '", "[0]", "{'a': null}", "input"])
def test_all_else_is_true_and_logic_gives_booleans(truthy: str) -> None:
    assert value(f"not {truthy}") is False
    assert value(f"{truthy} || false") is True
    assert value(f"{truthy} && true") is True
    assert value(f"{truthy} ? 1 : 2") == 1
    assert value(f"bool({truthy})") is True


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("false and 1 / 0", False), ("true or nowhere", True), ("true ? 1 : 1 / 0", 1), ("1 ?? nowhere", 1)],
)
def test_what_need_not_be_known_is_not_looked_at(text: str, wanted: Any) -> None:
    assert same(value(text), wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("exists input.day", True),
        ("exists input.none", False),
        ("exists input.missing.deeper", False),
        ("exists(input.day)", True),
        ("exists input.flag", True),
        ("not exists input.day", False),
        ("exists input.day and exists input.none", False),
        ("exists input.day == true", True),
        ("input.none ?? 5", 5),
        ("input.flag ?? 5", False),
        ("null ?? null ?? 1 ?? 2", 1),
        ("null ?? null", None),
        ("input.missing ?? 0 > 3", False),
        ("input.missing ?? 1 + 1", 2),
        ("default(input.none, 'd')", "d"),
        ("coalesce(null, input.none, 0)", 0),
        ("coalesce(null)", None),
    ],
)
def test_presence(text: str, wanted: Any) -> None:
    assert same(value(text), wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 3 - 2", 5),
        ("10 - (3 - 2)", 9),
        ("12 / 2 / 3", 2),
        ("7 / 2", 3.5),
        ("6 / 3", 2),
        ("6.0 / 3", 2.0),
        ("7 % 3", 1),
        ("-7 % 3", 2),
        ("7.5 % 2", 1.5),
        ("-input.day", -3),
        ("--3", 3),
        ("2 - -2", 4),
        ("2 -2", 0),
        ("input.day-1", 2),
        ("index - 1", 0),
        ("1 + 0.5", 1.5),
        ("'a' + 'b' + 'c'", "abc"),
        ("[1] + [2] + []", [1, 2]),
        ("1 + 2 == 3 and 2 < 3", True),
        ("not 1 == 2", True),
        ("true or false and false", True),
        ("1 == 1 ? 'yes' : 'no'", "yes"),
        ("false ? 1 : true ? 2 : 3", 2),
        ("true ? false ? 1 : 2 : 3", 2),
    ],
)
def test_arithmetic_and_precedence(text: str, wanted: Any) -> None:
    assert same(value(text), wanted)


FUNCTIONS: list[tuple[str, Any]] = [
    ("size([1, 2])", 2),
    ("size({'a': 1})", 1),
    ("size('héllo')", 5),
    ("size(null)", 0),
    ("keys({'b': 1, 'a': 2})", ["b", "a"]),
    ("values({'b': 1, 'a': 2})", [1, 2]),
    ("first([7, 8])", 7),
    ("first([])", None),
    ("first(null)", None),
    ("last([7, 8])", 8),
    ("last('abc')", "c"),
    ("sum([1, 2, 3.5])", 6.5),
    ("sum([])", 0),
    ("min([3, 1, 2])", 1),
    ("min(3, 1.5)", 1.5),
    ("min([])", None),
    ("max('a', 'b')", "b"),
    ("max([])", None),
    ("abs(-3)", 3),
    ("round(2.6)", 3),
    ("round(2.5)", 2),
    ("round(2.345, 1)", 2.3),
    ("round(7)", 7),
    ("int(3.9)", 3),
    ("int(-3.9)", -3),
    ("int(' 42 ')", 42),
    ("int(true)", 1),
    ("float('1.5')", 1.5),
    ("float(2)", 2.0),
    ("string(null)", ""),
    ("string(1.5)", "1.5"),
    ("string(true)", "true"),
    ("string([1, {'a': null}])", '[1,{"a":null}]'),
    ("bool([])", False),
    ("lower('AbC')", "abc"),
    ("upper('AbC')", "ABC"),
    ("trim('  a b ')", "a b"),
    ("split('a,b,,c', ',')", ["a", "b", "", "c"]),
    ("join(['a', 1, true, null], '-')", "a-1-true-"),
    ("join(['a', 'b'])", "ab"),
    ("join([], ',')", ""),
    ("replace('banana', 'an', 'AN')", "bANANa"),
    ("starts_with('abc', 'ab')", True),
    ("ends_with('abc', 'ab')", False),
    ("range(3)", [0, 1, 2]),
    ("range(2, 4)", [2, 3]),
    ("range(6 / 2)", [0, 1, 2]),
    ("range(2.0)", [0, 1]),
    ("range(-1)", []),
    ("flatten([[1], 2, [[3]]])", [1, 2, [3]]),
    (
        "unique([1, 1.0, true, 'a', 'a', [1], [1.0], {'a': 1, 'b': 2}, {'b': 2, 'a': 1}])",
        [1, True, "a", [1], {"a": 1, "b": 2}],
    ),
    ("sort([3, 1.5, 2])", [1.5, 2, 3]),
    ("sort(['b', 'a'])", ["a", "b"]),
    ("sort([])", []),
    ("reverse([1, 2])", [2, 1]),
    ("reverse('ab')", "ba"),
    ("slice([1, 2, 3, 4], 1, 3)", [2, 3]),
    ("slice('abcd', -2)", "cd"),
    ("slice([1, 2, 3], null, -1)", [1, 2]),
    ("slice([1, 2], 5, 9)", []),
    ("default(null, 1)", 1),
    ("coalesce(null, 2)", 2),
    ("merge({'a': 1, 'b': 1}, {'b': 2}, null)", {"a": 1, "b": 2}),
    ("get(input, 'nested.a.b.0.c')", "deep"),
    ("get(input, 'nope.a', 'd')", "d"),
    ("get(input, 'none', 'd')", "d"),
    ("get(input, '0')", "zero"),
    ("get(input.list, -1)", 3),
    ("json({'a': [1, null, 'é']})", '{"a":[1,null,"é"]}'),
    ("json('a')", '"a"'),
    ("parse_json('{\"a\": [1.5]}')", {"a": [1.5]}),
    ("type(null)", "null"),
    ("type(true)", "boolean"),
    ("type(1)", "number"),
    ("type(1.5)", "number"),
    ("type('')", "string"),
    ("type([])", "list"),
    ("type({})", "object"),
    ("now()", 1_700_000_000.5),
    ("uint('7')", 7),
    ("double('2.5')", 2.5),
    ("dyn([1])", [1]),
    ("has(input.list)", True),
    ("has(input.nope)", False),
    ("matches('2026-11', '^[0-9]{4}-[0-9]{2}$')", True),
    ("timestamp('2026-11-15T08:00:00+01:00')", "2026-11-15T07:00:00Z"),
    ("duration('1h30m')", "5400s"),
    ("getFullYear(timestamp(0))", 1970),
    ("getMonth(timestamp(0))", 0),
    ("getDate(timestamp(0))", 1),
    ("getDayOfMonth(timestamp(0))", 0),
    ("getDayOfWeek(timestamp(0))", 4),
    ("getDayOfYear(timestamp(0))", 0),
    ("getHours(timestamp(0), 'Europe/Paris')", 1),
    ("getMinutes(duration('2h'))", 120),
    ("getSeconds(duration('2m'))", 120),
    ("getMilliseconds(duration('1.25s'))", 250),
    ("sha256('abc')", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
]


@pytest.mark.parametrize(("text", "wanted"), FUNCTIONS)
def test_functions(text: str, wanted: Any) -> None:
    assert same(value(text), wanted)


def test_every_function_has_a_row_above() -> None:
    assert {text.partition("(")[0] for text, _ in FUNCTIONS} == FUNCTION_NAMES


def test_a_function_name_without_brackets_is_a_root() -> None:
    assert value("size + first", size=1, first=2) == 3


@pytest.mark.parametrize("word", sorted(KEYWORDS))
def test_a_keyword_is_a_root_behind_a_dollar(word: str) -> None:
    expr = parse(f"${word}.a + 1")
    assert expr.roots == {word}
    assert expr.evaluate({word: {"a": 1}}.__getitem__) == 2
    assert parse(to_text(expr)) == expr


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        ("", 0, "empty"),
        ("  ", 2, "empty"),
        ("${ }", 3, "empty"),
        ("a +", 3, "ends too soon"),
        ("a + * b", 4, "out of place"),
        ("a b", 2, "operator is missing before b"),
        ("a = b", 2, "write =="),
        ("a & b", 2, "write `and`"),
        ("a | b", 2, "write `or`"),
        ("a # b", 2, "means nothing"),
        ("a.", 1, "a field"),
        ("input.user.é", 10, "a field"),
        ("día", 1, "means nothing"),
        ("$", 0, "a root follows"),
        ("'abc", 0, "never closed"),
        (r"'a\q'", 2, "is no escape"),
        (r"'\ud800'", 0, "surrogate"),
        ("(1", 2, "`)` is missing"),
        ("[1", 2, "`]` is missing"),
        ("a[1", 3, "`]` is missing"),
        ("f(1", 3, "`)` is missing"),
        ("{'a' 1}", 5, "`:` is missing"),
        ("{1: 2}", 1, "a key is expected"),
        ("{== : 2}", 1, "a key is expected"),
        ("{'a': 1, a: 2}", 9, "twice"),
        ("a }", 2, "closes nothing"),
        ("${ a", 0, "never closed"),
        ("${ a } + ${ b }", 6, "text after"),
        ("a ? b", 5, "`:` is missing"),
        ("1 < 2 < 3", 6, "do not chain"),
        ("1 not 2", 2, "needs `in`"),
        ("sizee(a)", 0, "did you mean size()"),
        ("zzz(a)", 0, "there are abs, "),
        ("size()", 0, "size() takes 1 argument, not 0"),
        ("1 + split('a')", 4, "split() takes 2 arguments, not 1"),
        ("slice(1)", 0, "2 to 3 arguments"),
        ("min()", 0, "at least one argument"),
        (str(INTEGER_MAX + 1), 0, "beyond 2^63"),
        ("a[" + "9" * 4000 + "]", EXPR_CHARS_MAX, "4000 is the most"),
        ("9" * 3999, 0, "beyond 2^63"),
        ("1e999", 0, "too large"),
        ("1." + "1" * 50, 0, "40 is the most"),
        ("a" * (EXPR_CHARS_MAX + 1), EXPR_CHARS_MAX, "4000 is the most"),
    ],
)
def test_text_that_is_no_expression_is_refused_with_its_place(text: str, offset: int, says: str) -> None:
    with pytest.raises(ExprError) as caught:
        parse(text)
    assert says in caught.value.message
    assert caught.value.offset == offset
    assert caught.value.text == text
    assert caught.value.code == "expression_error"
    assert isinstance(caught.value, InvalidInput)
    assert not text or f"at character {offset + 1} of" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "offset", "says"),
    [
        ("1 + nowhere.at.all", 4, "there is no `nowhere` here"),
        ("index-1", 0, "put spaces around the -"),
        ("1 / 0", 2, "division by zero"),
        ("1.5 % 0.0", 4, "division by zero"),
        ("1 < 'a'", 2, "a number and a string have no order"),
        ("[] >= {}", 3, "a list and an object have no order"),
        ("true > false", 5, "a boolean and a boolean have no order"),
        ("1 + 'a'", 2, "use string()"),
        ("1 + null", 2, "a number and null cannot be added"),
        ("true + 1", 5, "a boolean and a number"),
        ("[] - []", 3, "- takes two numbers"),
        ("'a' * 3", 4, "* takes two numbers"),
        ("-'a'", 0, "takes a number"),
        ("1 in 2", 2, "nothing can be in a number"),
        ("1 in 'abc'", 2, "use string()"),
        ("9223372036854775807 + 1", 20, "beyond 2^63"),
        ("-9223372036854775807 - 1", 21, "beyond 2^63"),
        ("3037000500 * 3037000500", 11, "beyond 2^63"),
        ("huge + 1", 5, "beyond 2^63"),
        ("-huge", 0, "beyond 2^63"),
        ("string(vast)", 0, "no JSON form"),
        ("1e308 * 10", 6, "too large"),
        ("1.0 * nan", 4, "too large"),
        ("  1 / 0", 2, "division by zero"),
        ("${ 1 / 0 }", 2, "division by zero"),
        ("lower(input.none)", 0, 'write (… ?? "")'),
        ("keys([1])", 0, "keys() takes an object, not a list"),
        ("size(5)", 0, "size() takes a list, an object or a string, not a number"),
        ("sum([1, 'a'])", 0, "a string is among"),
        ("sum([9223372036854775807, 1])", 0, "beyond 2^63"),
        ("sort([1, 'a'])", 0, "number and string"),
        ("sort([1, null])", 0, "null and number"),
        ("max([true, false])", 0, "boolean"),
        ("min(5)", 0, "not one number"),
        ("int('x')", 0, "not an integer"),
        ("int('1_000')", 0, "not an integer"),
        ("int('99999999999999999999')", 0, "not an integer"),
        ("int(1e300)", 0, "beyond 2^63"),
        ("int(nan)", 0, "too large"),
        ("round(nan)", 0, "too large"),
        ("round(1.5, 16)", 0, "between 0 and 15"),
        ("round(1.5, 0.5)", 0, "whole numbers"),
        ("float('nan')", 0, "not a number"),
        ("float('1e999')", 0, "too large"),
        ("split('a', '')", 0, "separator is empty"),
        ("replace('a', '', 'b')", 0, "is empty"),
        ("join([[1]])", 0, "use json()"),
        ("parse_json('{')", 0, "not JSON"),
        ("parse_json('[[')", 0, "not JSON"),
        ("range(1.5)", 0, "whole numbers"),
    ],
)
def test_an_operation_without_a_value_says_why_and_where(text: str, offset: int, says: str) -> None:
    expr = parse(text)
    with pytest.raises(ExprError) as caught:
        expr.evaluate(ROOTS.__getitem__)
    assert says in caught.value.message
    assert caught.value.offset == offset
    assert caught.value.text == expr.text


def test_now_needs_a_number() -> None:
    with pytest.raises(ExprError, match="not a string"):
        value("now()", now="noon")
    with pytest.raises(ExprError, match="no `now` here"):
        parse("now()").evaluate({}.__getitem__)


# -- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"range({EXPR_STEPS_MAX + 1})", "steps"),
        ("range(9223372036854775807)", "steps"),
        ("many + many", "steps"),
        ("sort(many)", "steps"),
        ("-1 in many or 'a' in many", "steps"),
        ("size(range(60000)) + size(range(60000))", "steps"),
        ("many == many and many == many", "steps"),
        ("[unique(many), unique(many)]", "steps"),
        ("big + big", "1000000 is the most"),
        ("replace(big, 'x', 'xx')", "1000000 is the most"),
        ("join([big, big])", "1000000 is the most"),
        ("json([big, big])", "1000000 is the most"),
        ("[upper(big), upper(big), upper(big), upper(big), upper(big), upper(big), upper(big)]", "4000000 characters"),
        ("[" + ", ".join(["big contains 'y'"] * 20) + "]", "steps"),
        ("json([" + ", ".join(["many"] * 10) + "])", "steps"),
        (f"parse_json('{'[' * 101}{']' * 101}')", "nested more than 100 deep"),
        (f"parse_json('{'[' * 1900}{']' * 1900}')", "nested|not JSON"),
        ("unique([deep])", "nested more than 100 deep"),
    ],
)
def test_one_evaluation_is_bounded(text: str, says: str) -> None:
    with pytest.raises(ExprError, match=says):
        value(text)


def test_a_bound_is_reached_before_it_is_passed() -> None:
    assert len(value(f"range({EXPR_STEPS_MAX})")) == EXPR_STEPS_MAX
    assert len(value("big + half", half="y" * (EXPR_BYTES_MAX - 600_000))) == EXPR_BYTES_MAX
    assert value(f"size(parse_json('{'[' * 100}{']' * 100}'))") == 1


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("(", ")"), ("[", "]"), ("size(", ")"), ("a[", "]"), ("{'a': ", "}"), ("not ", ""), ("- ", ""), ("exists ", "")],
)
def test_depth_is_bounded(opening: str, closing: str) -> None:
    # The innermost value is a level of the tree itself.
    fits = opening * (EXPR_DEPTH_MAX - 1) + "a" + closing * (EXPR_DEPTH_MAX - 1)
    assert parse(to_text(parse(fits))) == parse(fits)
    for levels in (EXPR_DEPTH_MAX + 1, 300):
        with pytest.raises(ExprError, match=f"nested more than {EXPR_DEPTH_MAX} deep"):
            parse(opening * levels + "a" + closing * levels)


def test_branches_within_branches_are_bounded() -> None:
    with pytest.raises(ExprError, match="nested more than"):
        parse("a ? b : " * 200 + "c")
    with pytest.raises(ExprError, match="nested more than"):
        parse("a ? " * 200 + "b" + " : c" * 200)


@pytest.mark.parametrize("op", ["+", "*", "and", "or", "??"])
def test_a_row_of_operators_is_not_depth(op: str) -> None:
    text = f" {op} ".join(["1"] * 500)
    assert value(text) == {"+": 500, "*": 1, "and": True, "or": True, "??": 1}[op]


def test_a_path_of_any_length_is_not_depth() -> None:
    assert value("input" + ".a" * 1_000) is None


def test_canonical_text_is_within_the_bound_too() -> None:
    with pytest.raises(ExprError, match="in full"):
        parse("!" * 40 + "a" + "+a" * 1_900)


# -- the form --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$params.a", "params.a"),
        ("a['b'][\"c d\"][0].1", 'a.b["c d"][0][1]'),
        ("!a&&b||c", "not a and b or c"),
        ("a and (b or c)", "a and (b or c)"),
        ("(a and b) or c", "a and b or c"),
        ("(a or b) or c", "(a or b) or c"),
        ("a eq b", "a == b"),
        ("(a == b) == c", "(a == b) == c"),
        ("not (a in b)", "not a in b"),
        ("a not in b", "a not in b"),
        ("(not a) == b", "(not a) == b"),
        ("a - (b - c)", "a - (b - c)"),
        ("(a * b) + c", "a * b + c"),
        ("a * (b + c)", "a * (b + c)"),
        ("-(a.b)", "-a.b"),
        ("-(a + b)", "-(a + b)"),
        ("(-a).b", "(-a).b"),
        ("(-1).b", "(-1).b"),
        ("-1.5 - -1", "-1.5 - -1"),
        ("a-b - b", "a-b - b"),
        ("exists(a.b)", "exists a.b"),
        ("exists (a + b)", "exists (a + b)"),
        ("default(a, b) + 1", "(a ?? b) + 1"),
        ("a ? b : (c ? d : e)", "a ? b : c ? d : e"),
        ("(a ? b : c) ? d : e", "(a ? b : c) ? d : e"),
        ("'it\\'s \"q\"'", '"it\'s \\"q\\""'),
        ("{a: 'x'}", '{"a": "x"}'),
        ("1e3", "1000.0"),
        ("size( a ,)", "size(a)"),
    ],
)
def test_canonical_text(text: str, wanted: str) -> None:
    expr = parse(text)
    assert to_text(expr) == wanted
    assert parse(wanted) == expr
    assert shape(parse(wanted).tree) == shape(expr.tree)
    assert hash(parse(wanted)) == hash(expr)


def test_equality_tells_apart_what_python_does_not() -> None:
    assert parse("1") != parse("1.0")
    assert parse("1") != parse("true")
    assert parse("a.b") != parse("a.c")
    assert parse("a.b") != "a.b"


def test_an_expression_says_what_it_reads() -> None:
    expr = parse("input.files[0].name == x[i].y or size(input.files) > now() or $shared['a b'][-1] ?? input.files")
    assert expr.roots == {"input", "x", "i", "now", "shared"}
    assert expr.paths == (
        ("input", "files", 0, "name"),
        ("x",),
        ("i",),
        ("input", "files"),
        ("now",),
        ("shared", "a b", -1),
    )
    assert expr.reads == 7
    assert parse("${ 1 + 1 }").roots == frozenset()


def test_an_expression_cannot_be_changed() -> None:
    expr = parse("${ a }")
    assert expr.text == "a"
    with pytest.raises(AttributeError):
        expr.text = "b"  # type: ignore[misc]
    assert repr(expr) == "parse('a')"


# -- JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("json", "wanted"),
    [
        (True, "true"),
        (False, "false"),
        ("$shared.x > 3", "shared.x > 3"),
        ("${ x }", "x"),
        ({"eq": ["$shared.x", 5]}, "shared.x == 5"),
        ({"ne": ["$params.a.b", None]}, "params.a.b != null"),
        ({"gt": ["$input[0]", 1.5]}, "input[0] > 1.5"),
        ({"lt": ["$state", -1]}, "state < -1"),
        ({"ge": ["$shared.a-b.c", "$sharedx"]}, 'shared["a-b"].c >= "$sharedx"'),
        ({"le": ["shared.x", "$other.x"]}, '"shared.x" <= "$other.x"'),
        ({"and": [True, {"or": [{"not": False}, {"not": [True]}]}]}, "true and (not false or not true)"),
        ({"and": ["$shared.x"]}, "bool(shared.x)"),
        ({"exists": "$shared.x"}, "exists shared.x"),
        ({"exists": "x.y"}, "exists shared.x.y"),
        ({"exists": ["$params['a b']"]}, 'exists params["a b"]'),
        ({"exists": {"path": "$input.a"}}, "exists input.a"),
        ({"in": ["$shared.x", ["a", 1, {"b": ["$shared.x"]}]]}, 'shared.x in ["a", 1, {"b": ["$shared.x"]}]'),
        ({"contains": [{"path": "tags"}, "new"]}, 'shared.tags contains "new"'),
        ({"eq": [{"path": "$params.items.0"}, {"value": {"and": 1}}]}, 'params.items[0] == {"and": 1}'),
        ({"eq": [{"value": "$shared.x"}, 1]}, '"$shared.x" == 1'),
        ({"eq": [{"gt": ["$shared.x", 1]}, True]}, "(shared.x > 1) == true"),
        ({"op": "eq", "args": ["$shared.x", 5]}, "shared.x == 5"),
        ({"op": "eq", "left": "$shared.x", "right": 5}, "shared.x == 5"),
        ({"op": "eq", "path": "$shared.x", "value": 5}, "shared.x == 5"),
        ({"op": "in", "path": "x", "value": [1]}, "shared.x in [1]"),
        ({"op": "exists", "path": "x.y"}, "exists shared.x.y"),
        ({"op": "not", "args": {"op": "exists", "path": "$input.x"}}, "not exists input.x"),
        ({"op": "not", "value": "$input.x"}, "not input.x"),
        ({"path": "a.b"}, "shared.a.b"),
        ({"value": 1}, "1"),
    ],
)
def test_json_means_the_same_as_text(json: Any, wanted: str) -> None:
    expr = from_json(json)
    assert to_text(expr) == wanted
    assert expr == parse(wanted)


@pytest.mark.parametrize(
    ("json", "says"),
    [
        (None, "not null"),
        (5, "not a number"),
        ([True], "not a list"),
        ({}, "one key, not of 0"),
        ({"eq": [1, 2], "ne": [1, 2]}, "one key, not of 2"),
        ({"eqq": [1, 2]}, "did you mean `eq`? (in eqq)"),
        ({"and": [True, {"equal": [1, 2]}]}, "no operator `equal`; there are"),
        ({"and": [True, {"eq": [1]}]}, "`eq` takes two operands, not 1 (in and[1].eq)"),
        ({"and": []}, "not an empty one (in and)"),
        ({"or": {"eq": [1, 2]}}, "takes a list of operands, not an object (in or)"),
        ({"not": [1, 2]}, "`not` takes one operand, not 2 (in not)"),
        ({"exists": 5.5, "x": 1}, "one key"),
        ({"op": 5}, "name is a string"),
        ({"op": "eq"}, "here are none"),
        ({"op": "eq", "left": 1}, "here are left"),
        ({"op": "eq", "path": "x"}, "takes two operands, not 1 (in eq)"),
        ({"op": "eq", "args": [1, 2], "value": 3}, "here are args, value"),
        ({"eq": [{"path": 5}, 1]}, "a path is a string, not a number (in eq[0].path)"),
        ({"eq": [{"path": "a..b"}, 1]}, "no path; steps are written"),
        ({"eq": ["$shared.a[x]", 1]}, "no path"),
        ({"eq": ["$shared.a.", 1]}, "no path"),
        ({"exists": ""}, "path is empty (in exists)"),
        ({"exists": "$"}, "a root is missing"),
        ({"exists": "a[99999999999999999999]"}, "no path"),
        ({"exists": "a.99999999999999999999"}, "beyond 2^63"),
        ({"eq": [2**63, 1]}, "beyond 2^63; use a float, or text (in eq[0])"),
        ({"eq": [math.nan, 1]}, "too large"),
        ({"eq": [b"x", 1]}, "bytes is no JSON value (in eq[0])"),
        ({"in": ["a", list(range(5_000))]}, "more than 4000 parts"),
        ({"in": ["a", ["x" * 5_000]]}, "characters as text; 4000"),
        ("a +", "ends too soon"),
    ],
)
def test_json_that_is_no_expression_is_refused_with_its_place(json: Any, says: str) -> None:
    with pytest.raises(ExprError) as caught:
        from_json(json)
    assert says in str(caught.value)


def test_depth_of_json_is_bounded() -> None:
    json: Any = "$shared.x"
    for _ in range(EXPR_DEPTH_MAX - 2):  # A path of two steps is two levels.
        json = {"and": [json, {"or": [True, False]}]}
    assert from_json(json).evaluate({"shared": {"x": 1}}.__getitem__) is True
    for wrap in ({"not": 0}, {"value": 0}):
        key = next(iter(wrap))
        deep: Any = True
        for _ in range(10_000):
            deep = {"not": deep} if key == "not" else [deep]
        with pytest.raises(ExprError, match="nested more than"):
            from_json(deep if key == "not" else {"value": deep})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a.b", "shared.a.b"),
        ("$params.a.b", "params.a.b"),
        ("$params", "params"),
        ("user-id.x y", 'shared["user-id"]["x y"]'),
        ("a[0]['b.c']", 'shared.a[0]["b.c"]'),
        ("$fetch-data.rows", "fetch-data.rows"),
    ],
)
def test_a_bare_path(text: str, wanted: str) -> None:
    assert to_text(parse_path(text)) == wanted
    assert to_text(parse_path("x", root="output")) == "output.x"


# -- types -----------------------------------------------------------------------------------------------------------

TYPES: dict[str, Any] = {
    "input": {
        "type": "object",
        "properties": {
            "day": {"type": "string"},
            "count": {"type": "integer"},
            "maybe": {"type": ["number", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "mode": {"enum": ["fast", "slow"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
            "ref": {"$ref": "#/$defs/x"},
            "open": {"type": "object"},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "closed": {"type": "object", "additionalProperties": False},
            "free": {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
            "flag": {"type": "boolean"},
            "rows": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        },
    }
}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("input.day > 3", "`input.day` is a string and `3` is a number; they have no order"),
        ("input.day == 3", "they are never equal"),
        ("input.mode == 1", "they are never equal"),
        ("input.dya", "`input` has no field `dya`; did you mean `day`?"),
        ("input.closed.x", "`input.closed` has no field `x`; it has no fields at all"),
        ("input.rows[0].idd", "`input.rows[0]` has no field `idd`; did you mean `id`?"),
        ("input.rows.id", "`input.rows` is a list and has no field `id`"),
        ("input.count.x", "`input.count` is a number and has no fields"),
        ("input.count[0]", "`input.count` is a number and has no elements"),
        ("input.flag > x", "`input.flag` is a boolean, which has no order"),
        ("x in input.count", "`input.count` is a number; nothing can be in that"),
        ("input.flag contains x", "`input.flag` is a boolean; nothing can be in that"),
        ("input.day - 1", "- takes a number, not a string"),
        ("input.day + 1", "a string and a number cannot be added"),
        ("input.flag + x", "+ takes a list, a number or a string, not a boolean"),
        ("-input.day", "the sign - takes a number, not a string"),
        ("lower(input.count)", "lower() takes a string, but `input.count` is a number"),
        ("size(input.tags) == 'a'", "never equal"),
        ("false and [{'a': input.dya}]", "did you mean `day`?"),
        ("x ? input.dya : 1", "did you mean `day`?"),
        ("x[input.dya]", "did you mean `day`?"),
        ("(input.maybe ?? 1) > 'a'", "have no order"),
        ("{'a': 1}.b", "has no field `b`"),
        ("first(input.tags) > 3", "have no order"),
    ],
)
def test_what_cannot_work_is_known_before_it_runs(text: str, problem: str) -> None:
    problems = check(parse(text), TYPES)
    assert len(problems) == 1, problems
    assert problem in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "input.day > 'a'",
        "input.count > 3.5",
        "input.maybe > 3",
        "input.maybe == null",
        "input.day == null",
        "input.mode == 'fast'",
        "input.either > 3",
        "input.either + 'a'",
        "input.ref.anything[0] > 'x'",
        "input.open.anything",
        "input.map.anything > 3",
        "input.free.anything",
        "input.tags[0] + 'a'",
        "input.tags + [1]",
        "input.rows[x].id > 3",
        "unknown.root > 3 or unknown.root > 'a'",
        "input.count in input.tags",
        "x in input.maybe",
        "int(input.day) + 1",
        "input['d' + 'ay'] > 3",
        "sum(input.tags ?? [])",
        "now() - 3600 > input.count",
    ],
)
def test_what_may_work_is_no_problem(text: str) -> None:
    assert check(parse(text), TYPES) == []


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("input.tags", {"type": "array", "items": {"type": "string"}}),
        ("input.count", {"type": "integer"}),
        ("input.map.x", {"type": "integer"}),
        ("input.rows[0].id", {"type": "integer"}),
        ("range(3)", {"type": "array"}),
        ("[1, 2]", {"type": "array", "items": {"type": "number"}}),
        ("sort(input.tags)", {"type": "array", "items": {"type": "string"}}),
        ("input.count + 1", {"type": "number"}),
        ("input.day + x", {"type": "string"}),
        ("input.maybe ?? 0", {"type": "number"}),
        ("null ?? input.tags", {"type": "array", "items": {"type": "string"}}),
        ("x ? input.count : 'a'", {"type": ["number", "string"]}),
        ("not x", {"type": "boolean"}),
        ("unknown.root", None),
        ("input.ref", {"$ref": "#/$defs/x"}),
        ("input.ref.x", None),
        ("unknown ?? 1", None),
    ],
)
def test_the_type_of_an_expression(text: str, wanted: Any) -> None:
    assert type_of(parse(text), TYPES) == wanted


# -- properties ------------------------------------------------------------------------------------------------------


def shape(node: Any) -> Any:
    """A tree without its places, with types where Python's equality is blind to them."""
    if isinstance(node, nodes.Literal):
        return ("literal", type(node.value).__name__, repr(node.value))
    if isinstance(node, nodes.ExprNode):
        fields = [name for name in node.__struct_fields__ if name != "at"]
        return (type(node).__name__, *((name, shape(getattr(node, name))) for name in fields))
    return tuple(map(shape, node)) if isinstance(node, tuple) else node


NAMES = st.sampled_from(["a", "b", "input", "fetch-data", "in", "true", "size"])
TEXTS = st.text(max_size=6)
NUMBERS = st.integers(-INTEGER_MAX, INTEGER_MAX) | st.floats(allow_nan=False, allow_infinity=False)


def many(children: st.SearchStrategy[nodes.ExprNode], least: int = 0) -> st.SearchStrategy[tuple[nodes.ExprNode, ...]]:
    return st.lists(children, min_size=least, max_size=3).map(tuple)


def grown(children: st.SearchStrategy[nodes.ExprNode]) -> st.SearchStrategy[nodes.ExprNode]:
    step = TEXTS | st.integers(-5, 5) | children.filter(lambda node: not _fixed_step(node))
    return st.one_of(
        st.builds(lambda items: nodes.ListOf(items=items, height=nodes.over(*items)), many(children)),
        st.builds(
            lambda pairs: nodes.ObjectOf(pairs=tuple(pairs.items()), height=nodes.over(*pairs.values())),
            st.dictionaries(TEXTS, children, max_size=3),
        ),
        st.builds(
            lambda base, steps: nodes.Get(
                base=base, steps=steps, height=nodes.over(base, *(s for s in steps if isinstance(s, nodes.ExprNode)))
            ),
            children.filter(lambda node: not isinstance(node, nodes.Get)),
            st.lists(step, min_size=1, max_size=3).map(tuple),
        ),
        st.builds(
            lambda op, operand: nodes.Unary(op=op, operand=operand, height=nodes.over(operand)),
            st.sampled_from(["not", "exists"]),
            children,
        ),
        st.builds(lambda operand: nodes.negated(operand, 0), children),
        st.builds(
            lambda op, operands: nodes.Logic(op=op, operands=operands, height=nodes.over(*operands)),
            st.sampled_from(["and", "or"]),
            many(children, 2),
        ),
        st.builds(
            lambda op, left, right: nodes.Compare(op=op, left=left, right=right, height=nodes.over(left, right)),
            st.sampled_from(["eq", "ne", "gt", "lt", "ge", "le", "in", "contains", "not in"]),
            children,
            children,
        ),
        st.builds(_arith, children, st.sampled_from(["+-", "*/%"]), many(children, 1), st.randoms()),
        st.builds(lambda operands: nodes.Coalesce(operands=operands, height=nodes.over(*operands)), many(children, 2)),
        st.builds(
            lambda one, two, three: nodes.Cond(test=one, then=two, other=three, height=nodes.over(one, two, three)),
            children,
            children,
            children,
        ),
        st.builds(
            lambda name, args: nodes.CallNode(name=name, args=args, height=nodes.over(*args)),
            st.sampled_from(["max", "min", "merge"]),
            many(children, 2),
        ),
    )


def _fixed_step(node: nodes.ExprNode) -> bool:
    return isinstance(node, nodes.Literal) and type(node.value) in (str, int)


def _arith(first: nodes.ExprNode, ops: str, others: tuple[nodes.ExprNode, ...], random: Any) -> nodes.ExprNode:
    rest = tuple((random.choice(ops), other) for other in others)
    return nodes.Arith(first=first, rest=rest, height=nodes.over(first, *others))


TREES = st.recursive(
    st.builds(lambda value: nodes.Literal(value=value), st.none() | st.booleans() | NUMBERS | TEXTS)
    | st.builds(lambda name: nodes.Root(name=name), NAMES),
    grown,
    max_leaves=12,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab1", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=400)
@given(TREES)
def test_canonical_text_parses_to_the_same_tree(tree: nodes.ExprNode) -> None:
    text = canonical(tree)
    if len(text) <= EXPR_CHARS_MAX:
        expr = parse(text)
        assert shape(expr.tree) == shape(tree)
        assert to_text(expr) == text


@settings(max_examples=400)
@given(TREES, st.dictionaries(NAMES, JSON))
def test_an_evaluation_ends_in_a_value_or_an_expression_error(tree: nodes.ExprNode, roots: dict[str, Any]) -> None:
    text = canonical(tree)
    if len(text) <= EXPR_CHARS_MAX:
        assert_sound(parse(text), roots)


@settings(max_examples=400)
@given(st.text() | st.text("ab01.$[](){}'\"\\+-*/%!=<>&|?:, \nnot in"), st.dictionaries(NAMES, JSON))
def test_any_text_is_an_expression_or_an_expression_error(text: str, roots: dict[str, Any]) -> None:
    try:
        expr = parse(text)
    except ExprError as exc:
        assert 0 <= exc.offset <= len(text)
    else:
        assert_sound(expr, roots)


@given(JSON | st.dictionaries(st.sampled_from(["and", "eq", "not", "exists", "op", "path", "value", "args"]), JSON))
def test_any_json_is_an_expression_or_an_expression_error(json: Any) -> None:
    try:
        expr = from_json(json)
    except ExprError:
        return
    assert parse(to_text(expr)) == expr


def assert_sound(expr: Expr, roots: dict[str, Any]) -> None:
    try:
        got = expr.evaluate(roots.__getitem__)
    except ExprError as exc:
        assert 0 <= exc.offset <= len(expr.text)
        return
    assert_json(got)
    assert expr.roots <= roots.keys() or any(word in to_text(expr) for word in ("and", "or", "?"))


def assert_json(value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            assert_json(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            assert type(key) is str
            assert_json(item)
    else:
        assert value is None or type(value) in (bool, int, float, str)


# A second, slow reading of logic and equality: a tree of tuples, evaluated by the book.
LOGIC = st.recursive(
    JSON.map(lambda value: ("literal", value)) | st.sampled_from(["a", "b", "c"]).map(lambda name: ("root", name)),
    lambda inner: (
        st.tuples(st.just("not"), inner) | st.tuples(st.sampled_from(["and", "or", "eq", "ne"]), inner, inner)
    ),
    max_leaves=10,
)


def spelled(tree: Any) -> str:
    match tree:
        case ("literal", value):
            return msgspec.json.encode(value).decode()
        case ("root", name):
            return str(name)
        case ("not", inner):
            return f"not ({spelled(inner)})"
        case (op, left, right):
            return f"({spelled(left)}) {op} ({spelled(right)})"
        case _:
            raise AssertionError(tree)


def by_the_book(tree: Any, roots: dict[str, Any]) -> Any:
    match tree:
        case ("literal", value):
            return value
        case ("root", name):
            return roots[name]
        case ("not", inner):
            return by_the_book(inner, roots) in (None, False, 0, "", [], {})
        case ("and", left, right):
            return by_the_book(("not", ("not", left)), roots) and by_the_book(("not", ("not", right)), roots)
        case ("or", left, right):
            return by_the_book(("not", ("not", left)), roots) or by_the_book(("not", ("not", right)), roots)
        case (op, left, right):
            return (
                tagged(by_the_book(left, roots)) == tagged(by_the_book(right, roots))
                if op == "eq"
                else (tagged(by_the_book(left, roots)) != tagged(by_the_book(right, roots)))
            )
        case _:
            raise AssertionError(tree)


def tagged(value: Any) -> Any:
    """So that Python's == is ours: booleans are no numbers."""
    if isinstance(value, bool):
        return ("boolean", value)
    if isinstance(value, list):
        return [tagged(item) for item in value]
    return {key: tagged(item) for key, item in value.items()} if isinstance(value, dict) else value


@settings(max_examples=400)
@given(LOGIC, st.fixed_dictionaries({"a": JSON, "b": JSON, "c": JSON}))
def test_logic_and_equality_agree_with_the_book(tree: Any, roots: dict[str, Any]) -> None:
    assert same(parse(spelled(tree)).evaluate(roots.__getitem__), by_the_book(tree, roots))
