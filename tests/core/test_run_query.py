"""A query text becomes exactly one tree, or an error that shows the place of the mistake."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.core.api.runs import RunFilter
from perdure.core.errors import InvalidInput
from perdure.core.limits import ATTRIBUTE_NAME_CHARS_MAX, QUERY_CHARS_MAX, QUERY_DEPTH_MAX, QUERY_TERMS_MAX
from perdure.core.run_query import FIELDS, And, Node, Not, Op, Or, Search, Term, parse
from perdure.core.run_query.filters import query_of
from perdure.core.run_query.nodes import Value
from perdure.core.run_query.tokens import SHOWN_CHARS, QueryToken, problem, tokens_of
from perdure.core.run_query.values import NUMBER_CHARS_MAX, RECORDED_WAITS, STATUSES, is_number, moment

NOW_US = 1_790_000_000_000_000
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US
ID = "0199f6a8-1b2c-7000-8000-0000000000af"
DIGITS = ID.replace("-", "")
A, B, C, D = (Term("key", Op.EQUAL, key) for key in "abcd")
FAILED = Term("status", Op.EQUAL, "failed")


def parsed(text: str) -> Node:
    return parse(text, NOW_US)


def value_of(text: str) -> Value:
    node = parsed(text)
    assert isinstance(node, Term)
    return node.value


def us(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> int:
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()) * 1_000_000


def refused(text: str, at: int, what: str) -> None:
    """The mistake is at this character, counted from 1, and the mark stands below it."""
    with pytest.raises(InvalidInput) as caught:
        parsed(text)
    first, shown, mark = str(caught.value).split("\n")
    assert first.startswith(f"query, character {at}: ")
    assert what in first
    assert shown == "  " + text
    assert mark == " " * (at + 1) + "^"


# -- tokens ------------------------------------------------------------------------------------------------------------


def test_a_text_is_cut_into_words_texts_and_signs_with_their_places() -> None:
    assert tokens_of(" key>='a b',(x_1)") == [
        QueryToken("word", "key", 1),
        QueryToken("sign", ">=", 4),
        QueryToken("text", "a b", 6),
        QueryToken("sign", ",", 11),
        QueryToken("sign", "(", 12),
        QueryToken("word", "x_1", 13),
        QueryToken("sign", ")", 16),
        QueryToken("end", "", 17),
    ]


def test_signs_of_two_characters_are_one_sign() -> None:
    assert [t.text for t in tokens_of("<= >= != == <> = < >")] == ["<=", ">=", "!=", "==", "<>", "=", "<", ">", ""]


def test_a_backslash_in_quotes_stands_before_a_quote_or_a_backslash() -> None:
    texts = [t.text for t in tokens_of(r'"a\"b" "c\\" ' r"'d\'e' 'f" + '"' + "g' " + '"h\'i"')]
    assert texts == ['a"b', "c\\", "d'e", 'f"g', "h'i", ""]


def test_a_quoted_name_of_an_attribute_is_one_token() -> None:
    assert tokens_of("ATTR.'order id' attr.\"\"") == [
        QueryToken("text", "order id", 0, True),
        QueryToken("text", "", 16, True),
        QueryToken("end", "", 23),
    ]


def test_an_error_shows_a_part_of_a_long_query_on_one_line() -> None:
    query = "a" * 100 + "\t!\n" + "b" * 100
    message = str(problem(query, 101, "here"))
    first, shown, mark = message.split("\n")
    assert first == "query, character 102: here"
    assert shown == "  …" + "a" * (SHOWN_CHARS - 1) + " ! " + "b" * (SHOWN_CHARS - 2) + "…"
    assert shown[mark.index("^")] == "!"


def test_an_error_shows_all_of_a_short_query() -> None:
    query = "a" * SHOWN_CHARS + "!" + "b" * (SHOWN_CHARS - 1)
    assert str(problem(query, SHOWN_CHARS, "here")).split("\n")[1:] == ["  " + query, " " * (SHOWN_CHARS + 2) + "^"]


# -- trees -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_query_is_true(text: str) -> None:
    assert parsed(text) == And(())


def test_and_binds_tighter_than_or() -> None:
    assert parsed("key = a or key = b and key = c or key = d") == Or((A, And((B, C)), D))


def test_parentheses_bind_tightest() -> None:
    assert parsed("(key = a or key = b) and (key = c or key = d)") == And((Or((A, B)), Or((C, D))))
    assert parsed("((key = a))") == A


def test_joined_parts_are_one_level() -> None:
    assert parsed("key = a and key = b and key = c") == And((A, B, C))
    assert parsed("key = a or key = b or key = c") == Or((A, B, C))


def test_not_takes_the_next_term_alone() -> None:
    assert parsed("not key = a and key = b") == And((Not(A), B))
    assert parsed("not (key = a and key = b)") == Not(And((A, B)))
    assert parsed("not not key = a") == Not(Not(A))


def test_keywords_and_fields_are_written_in_either_case() -> None:
    text = "NOT KEY = a AND Key In (b, c) OR key PREFIX d or kEy eXists"
    assert parsed(text) == Or(
        (And((Not(A), Or((B, C)))), Term("key", Op.PREFIX, "d"), Term("key", Op.EXISTS)),
    )


@pytest.mark.parametrize(
    ("sign", "op"),
    [
        ("=", Op.EQUAL),
        ("==", Op.EQUAL),
        ("<", Op.LESS),
        ("<=", Op.LESS_OR_EQUAL),
        (">", Op.MORE),
        (">=", Op.MORE_OR_EQUAL),
        ("prefix", Op.PREFIX),
    ],
)
def test_each_operator_has_its_meaning(sign: str, op: Op) -> None:
    assert parsed(f"key {sign} a") == Term("key", op, "a")
    assert parsed(f"attr.n {sign} a") == Term("attr", op, "a", "n")


@pytest.mark.parametrize("sign", ["!=", "<>"])
def test_unequal_is_not_equal(sign: str) -> None:
    assert parsed(f"key {sign} a") == Not(A)


def test_in_is_equality_with_one_of_the_values() -> None:
    assert parsed("key in (a, 'b', c)") == Or((A, B, C))
    assert parsed("key in(a)") == A
    assert parsed("not key in (a, b)") == Not(Or((A, B)))


@pytest.mark.parametrize("name", ["stuck", "paused"])
def test_a_flag_stands_for_itself(name: str) -> None:
    yes = Term(name, Op.EQUAL, True)
    no = Term(name, Op.EQUAL, False)
    assert parsed(name) == yes
    assert parsed(f"({name})") == yes
    assert parsed(f"{name} and key = a") == And((yes, A))
    assert parsed(f"{name} OR key = a") == Or((yes, A))
    assert parsed(f"not {name}") == Not(yes)
    assert parsed(f"{name} != true") == Not(yes)
    assert parsed(f"{name} in (YES, no)") == Or((yes, no))
    assert parsed(f"{name} = False") == no


@pytest.mark.parametrize("name", ["workflow", "version", "key", "error_code"])
def test_texts_are_taken_as_they_are_written(name: str) -> None:
    assert parsed(f"{name} = Order-1.é") == Term(name, Op.EQUAL, "Order-1.é")
    assert parsed(f"{name} = 1e3") == Term(name, Op.EQUAL, "1e3")
    assert parsed(f"{name} = ''") == Term(name, Op.EQUAL, "")
    assert parsed(f"{name} = 'and'") == Term(name, Op.EQUAL, "and")
    assert parsed(f"{name} exists") == Term(name, Op.EXISTS)


def test_prefix_and_exists_are_values_too() -> None:
    assert parsed("key = prefix or key = exists") == Or(
        (Term("key", Op.EQUAL, "prefix"), Term("key", Op.EQUAL, "exists"))
    )


def test_an_attribute_has_any_name() -> None:
    assert parsed("attr.Total.2 exists") == Term("attr", Op.EXISTS, None, "Total.2")
    assert parsed("ATTR.status exists") == Term("attr", Op.EXISTS, None, "status")
    assert parsed("attr.'a = \"b\"' exists") == Term("attr", Op.EXISTS, None, 'a = "b"')
    longest = "n" * ATTRIBUTE_NAME_CHARS_MAX
    assert parsed(f"attr.{longest} exists") == Term("attr", Op.EXISTS, None, longest)


def test_the_example_of_the_reference_is_this_tree() -> None:
    text = (
        'status = failed and workflow = order and (attr.total > 100 or attr.customer prefix "acme-") and created > -2h'
    )
    assert parsed(text) == And(
        (
            FAILED,
            Term("workflow", Op.EQUAL, "order"),
            Or((Term("attr", Op.MORE, Decimal(100), "total"), Term("attr", Op.PREFIX, "acme-", "customer"))),
            Term("created", Op.MORE, NOW_US - 2 * HOUR_US),
        )
    )


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("100", Decimal(100)),
        ("0", Decimal(0)),
        ("-1.50", Decimal("-1.50")),
        ("1e6", Decimal(1_000_000)),
        ("2.5E-3", Decimal("0.0025")),
        ("true", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("01", "01"),
        ("1.", "1."),
        ("1e1000", "1e1000"),
        ("-", "-"),
        ("-x", "-x"),
        ("2026-10-22", "2026-10-22"),
        ("'100'", "100"),
        ('"true"', "true"),
        ("'-2h'", "-2h"),
    ],
)
def test_the_value_of_an_attribute_is_of_the_kind_it_is_written_as(word: str, value: Value) -> None:
    found = value_of(f"attr.a = {word}")
    assert found == value
    assert type(found) is type(value)


def test_the_beginning_of_an_attribute_is_a_text() -> None:
    for word in ("100", "true", "-2h"):
        assert value_of(f"attr.a prefix {word}") == word


def test_a_relative_time_of_an_attribute_is_the_text_that_is_stored() -> None:
    now_us = us(2026, 10, 22, 14) + 1
    assert parse("attr.due < -1d2h", now_us) == Term("attr", Op.LESS, "2026-10-21T12:00:00.000001Z", "due")


def test_a_number_has_a_greatest_length() -> None:
    assert is_number("1" * NUMBER_CHARS_MAX)
    assert not is_number("1" * (NUMBER_CHARS_MAX + 1))


@pytest.mark.parametrize("word", STATUSES)
def test_a_status_is_known_by_its_word(word: str) -> None:
    assert parsed(f"status = {word.upper()}") == Term("status", Op.EQUAL, word)


@pytest.mark.parametrize("word", RECORDED_WAITS)
def test_a_stored_wait_reason_is_known_by_its_word(word: str) -> None:
    assert parsed(f"waiting_on = {word}") == Term("waiting_on", Op.EQUAL, word)
    assert parsed("waiting_on exists") == Term("waiting_on", Op.EXISTS)


@pytest.mark.parametrize("name", ["id", "parent"])
def test_an_id_is_its_digits(name: str) -> None:
    assert parsed(f"{name} = {ID}") == Term(name, Op.EQUAL, DIGITS)
    assert parsed(f"{name} = {DIGITS.upper()}") == Term(name, Op.EQUAL, DIGITS)
    assert parsed(f"{name} prefix {ID[:11].upper()}") == Term(name, Op.PREFIX, "0199f6a81b")
    assert parsed(f"{name} prefix {ID}") == Term(name, Op.PREFIX, DIGITS)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("now", NOW_US),
        ("NOW", NOW_US),
        ("-2h", NOW_US - 2 * HOUR_US),
        ("-1d12h", NOW_US - 36 * HOUR_US),
        ("-0.5ms", NOW_US - 500),
        ("'-1d 12h'", NOW_US - 36 * HOUR_US),
        ("-0s", NOW_US),
        ("-90w", NOW_US - 90 * 7 * DAY_US),
        ("-100w", NOW_US - 100 * 7 * DAY_US),
        ("2026-10-21", us(2026, 10, 21)),
        ("2026-10-21T14:00", us(2026, 10, 21, 14)),
        ("'2026-10-21 14:00:30'", us(2026, 10, 21, 14, 0, 30)),
        ("2026-10-21T14:00:00Z", us(2026, 10, 21, 14)),
        ("2026-10-21T14:00:00+02:00", us(2026, 10, 21, 12)),
        ("2026-10-21T14:00:00.000007-01:30", us(2026, 10, 21, 15, 30) + 7),
    ],
)
@pytest.mark.parametrize("name", ["created", "finished"])
def test_a_moment_is_relative_to_now_or_written_out(name: str, word: str, expected: int) -> None:
    assert parsed(f"{name} >= {word}") == Term(name, Op.MORE_OR_EQUAL, expected)


def test_no_moment_is_before_the_first() -> None:
    assert moment("-1d", HOUR_US) == 0
    assert moment("-1h", HOUR_US + 1) == 1


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("key = 'a", 7, "this text has no closing quote"),
        ('key = a and attr."b = 1', 18, "this text has no closing quote"),
        (r"key = 'a\'", 7, "this text has no closing quote"),
        ("key ! a", 5, "'!' means nothing here"),
    ],
)
def test_what_is_no_token_is_shown(text: str, at: int, what: str) -> None:
    refused(text, at, what)


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("key = a key = b", 9, "expected `and`, `or` or the end of the query"),
        ("key = a)", 8, "expected `and`, `or` or the end of the query"),
        ("key exists a", 12, "expected `and`, `or` or the end of the query"),
        ("(key = a", 9, "expected `)`"),
        ("(key = a key = b)", 10, "expected `)`"),
        ("key in a", 8, "expected `(` and values: in (a, b)"),
        ("key in", 7, "expected `(` and values: in (a, b)"),
        ("key in (a b)", 11, "expected `,` or `)`"),
        ("key in (a", 10, "expected `,` or `)`"),
    ],
)
def test_a_mistake_in_the_structure_is_shown(text: str, at: int, what: str) -> None:
    refused(text, at, what)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("key =", 6),
        ("key = and", 7),
        ("key = OR", 7),
        ("key = not", 7),
        ("key = in", 7),
        ("key = (a)", 7),
        ("key = attr.'a'", 7),
        ("key in ()", 9),
        ("key in (a,)", 11),
        ("key prefix", 11),
    ],
)
def test_a_missing_value_is_shown(text: str, at: int) -> None:
    refused(text, at, "expected a value; put a text with spaces or signs into quotes")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("key = a and", 12),
        ("and key = a", 1),
        ("key = a or or", 12),
        ("not", 4),
        ("()", 2),
        ("= a", 1),
        ("'key' = a", 1),
        ("in (a)", 1),
        ("prefix a", 1),
        ("exists", 1),
    ],
)
def test_a_missing_field_is_shown_with_all_fields(text: str, at: int) -> None:
    refused(text, at, f"expected a field: {', '.join(FIELDS)}, or attr.NAME")


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("status = failed and stauts = success", 21, "there is no field 'stauts'; did you mean 'status'?"),
        ("Error-Code = a", 1, "there is no field 'Error-Code'; did you mean 'error_code'?"),
        ("Quux = a", 1, "there is no field 'Quux'; an attribute is written attr.Quux"),
        ("attr = a", 1, "there is no field 'attr'"),
    ],
)
def test_an_unknown_field_is_shown_with_what_was_probably_meant(text: str, at: int, what: str) -> None:
    refused(text, at, what)


def test_a_long_unknown_field_is_shown_in_part() -> None:
    with pytest.raises(InvalidInput) as caught:
        parsed("q" * 200)
    shown = "q" * 50
    first = str(caught.value).split("\n")[0]
    assert first == f"query, character 1: there is no field '{shown}'; an attribute is written attr.{shown}"


@pytest.mark.parametrize("name", ["attr.", "attr.''", 'ATTR.""'])
def test_an_attribute_without_a_name_is_refused(name: str) -> None:
    refused(f"{name} = 1", 1, "the name of an attribute has 1 to 100 characters")


@pytest.mark.parametrize("quote", ["", "'"])
def test_an_attribute_with_a_long_name_is_refused(quote: str) -> None:
    with pytest.raises(InvalidInput, match="character 15: the name of an attribute has 1 to 100 characters"):
        parsed(f"key = a and ( attr.{quote}{'n' * (ATTRIBUTE_NAME_CHARS_MAX + 1)}{quote} exists )")


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("status", 7, "expected an operator after `status`: =, !=, in"),
        ("status and key = a", 8, "expected an operator after `status`: =, !=, in"),
        ("id 'in' (a)", 4, "expected an operator after `id`: =, !=, in, prefix"),
        ("created ( now )", 9, "expected an operator after `created`: =, !=, <, <=, >, >=, in"),
        ("stuck not paused", 7, "expected an operator after `stuck`: =, !=, in"),
        ("parent exist", 8, "`parent`: =, !=, in, prefix, exists; did you mean 'exists'?"),
        ("key prefx a", 5, "`key`: =, !=, <, <=, >, >=, in, prefix, exists; did you mean 'prefix'?"),
        ("attr.'a b' likes c", 12, "`attr.a b`: =, !=, <, <=, >, >=, in, prefix, exists"),
    ],
)
def test_a_missing_operator_is_shown_with_those_of_the_field(text: str, at: int, what: str) -> None:
    refused(text, at, what)


def test_a_word_that_is_like_no_operator_has_no_hint() -> None:
    with pytest.raises(InvalidInput) as caught:
        parsed("key likes a")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("status < failed", 8, "`status` cannot be compared by `<`; use =, !=, in"),
        ("status exists", 8, "`status` cannot be compared by `exists`; use =, !=, in"),
        ("id >= a", 4, "`id` cannot be compared by `>=`; use =, !=, in, prefix"),
        ("id EXISTS", 4, "`id` cannot be compared by `exists`; use =, !=, in, prefix"),
        ("parent < a", 8, "`parent` cannot be compared by `<`; use =, !=, in, prefix, exists"),
        ("created prefix 2026", 9, "`created` cannot be compared by `prefix`; use =, !=, <, <=, >, >=, in"),
        ("finished prefix 2", 10, "`finished` cannot be compared by `prefix`; use =, !=, <, <=, >, >=, in, exists"),
        ("waiting_on > task", 12, "`waiting_on` cannot be compared by `>`; use =, !=, in, exists"),
        ("paused exists", 8, "`paused` cannot be compared by `exists`; use =, !=, in"),
    ],
)
def test_an_operator_that_a_field_does_not_have_is_refused(text: str, at: int, what: str) -> None:
    refused(text, at, what)


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("status = faild", 10, "there is no status 'faild'; did you mean 'failed'?"),
        ("status in (failed, q)", 20, "'q'; use one of pending, running, success, failed, cancelled"),
        ("waiting_on = tiemr", 14, "there is no wait reason 'tiemr'; did you mean 'timer'?"),
        ("waiting_on = limit", 14, "such as limit, are found by the filter waiting_on beside the query"),
        ("waiting_on = stuck", 14, "waiting_on has no reason 'stuck'; write: stuck"),
        ("waiting_on = paused", 14, "waiting_on has no reason 'paused'; write: paused"),
        ("stuck = 1", 9, "'1' is not a truth value; write true or false"),
        ("id = 0199g", 6, "'0199g' is not the id of a run"),
        ("id prefix -", 11, "'-' is not the id of a run"),
        ("id prefix ''", 11, "'' is not the id of a run"),
        (f"parent = {DIGITS}0", 10, f"'{DIGITS}0' is not the id of a run"),
        ("id = 0199-F", 6, "'0199-F' is the beginning of an id; write: prefix 0199-F"),
        ("attr.a < true", 10, "truth values have no order: use = or !="),
        ("attr.a >= FALSE", 11, "truth values have no order: use = or !="),
        ("attr.a = -5x", 10, "'-5x' is no time"),
        ("created > -5", 11, "'-5' is no time: write how long ago (-2h, -1d12h), a date (2026-10-21)"),
        ("created > -101000d", 11, "'-101000d' is no time"),
        ("created > 2h", 11, "'2h' is no time"),
        ("finished < 2026-13-01", 12, "'2026-13-01' is no time"),
        ("finished = ''", 12, "'' is no time"),
    ],
)
def test_a_value_that_does_not_fit_its_field_is_refused(text: str, at: int, what: str) -> None:
    refused(text, at, what)


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_query_has_a_greatest_length() -> None:
    text = "key = "
    full = text + "a" * (QUERY_CHARS_MAX - len(text))
    assert parsed(full) == Term("key", Op.EQUAL, full[len(text) :])
    with pytest.raises(InvalidInput, match="a query of 4001 characters is over the limit QUERY_CHARS_MAX=4000"):
        parsed(full + "a")


def test_a_query_has_a_greatest_number_of_terms() -> None:
    most = " or ".join(["stuck"] * QUERY_TERMS_MAX)
    assert parsed(most) == Or((Term("stuck", Op.EQUAL, True),) * QUERY_TERMS_MAX)
    with pytest.raises(InvalidInput, match="the query has more than QUERY_TERMS_MAX=100 terms"):
        parsed(most + " or key = a")


def test_each_value_of_in_counts_as_a_term() -> None:
    assert parsed(f"key in ({','.join(['a'] * QUERY_TERMS_MAX)})") == Or((A,) * QUERY_TERMS_MAX)
    with pytest.raises(InvalidInput, match="the query has more than QUERY_TERMS_MAX=100 terms"):
        parsed(f"key in ({','.join(['a'] * (QUERY_TERMS_MAX + 1))})")


def test_a_query_has_a_greatest_depth() -> None:
    assert parsed("(" * QUERY_DEPTH_MAX + "key = a" + ")" * QUERY_DEPTH_MAX) == A
    deeper = "(" * (QUERY_DEPTH_MAX + 1) + "key = a" + ")" * (QUERY_DEPTH_MAX + 1)
    refused(deeper, QUERY_DEPTH_MAX + 2, "the query is nested deeper than QUERY_DEPTH_MAX=20")
    with pytest.raises(InvalidInput, match="nested deeper than QUERY_DEPTH_MAX=20"):
        parsed("not " * (QUERY_DEPTH_MAX + 1) + "key = a")


# -- every text --------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    (
        *FIELDS,
        *("attr.a", "attr.'b c'", "attr.", "and", "or", "not", "in", "prefix", "exists"),
        *("=", "!=", "<", "<=", "(", ")", ",", "!", "'", '"', "\\"),
        *("failed", "timer", "true", "1.5", "-2h", "-1", "now", "2026-10-21", "'x y'", ID),
    )
)
TEXTS = st.text(max_size=100) | st.lists(PIECES, max_size=12).map(" ".join)


@given(TEXTS)
@example("attr.a = -²")
@example("created > ٢٠٢٦-10-21")
@example("\x00")
def test_every_text_is_a_query_or_invalid_input(text: str) -> None:
    try:
        found = parsed(text)
    except InvalidInput as error:
        assert str(error).startswith("query, character ")
    else:
        assert isinstance(found, Term | Not | And | Or)
        assert parsed(f" ( {text} ) " if text.strip() else text) == found


def written(node: Node) -> str:
    """A tree as a text, with a value in quotes."""
    match node:
        case Term():
            value = str(node.value).replace("\\", "\\\\").replace('"', '\\"')
            name = f'attr."{node.attribute}"' if node.field == "attr" else node.field
            return f"{name} exists" if node.op is Op.EXISTS else f'{name} {node.op.value} "{value}"'
        case Not():
            return f"not ({written(node.part)})"
        case And():
            return " and ".join(f"({written(part)})" for part in node.parts)
        case Or():
            return " or ".join(f"({written(part)})" for part in node.parts)
        case Search():
            raise AssertionError("no text says this")


ONE = st.one_of(
    st.builds(Term, st.sampled_from(("key", "workflow")), st.sampled_from(list(Op)[:-1]), st.text(max_size=10)),
    st.builds(Term, st.just("attr"), st.just(Op.LESS), st.text(max_size=10), st.sampled_from(("a", "b c", "="))),
    st.builds(Term, st.sampled_from(("finished", "parent")), st.just(Op.EXISTS)),
)


@given(
    st.recursive(
        ONE,
        lambda inner: st.one_of(
            inner.map(Not),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: And(tuple(parts))),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: Or(tuple(parts))),
        ),
        max_leaves=6,
    )
)
def test_a_tree_that_is_written_out_is_parsed_into_itself(node: Node) -> None:
    assert parsed(written(node)) == node


# -- filters -----------------------------------------------------------------------------------------------------------


def test_no_filters_are_true() -> None:
    assert query_of(RunFilter(), NOW_US) == And(())


def test_all_filters_must_hold() -> None:
    f = RunFilter(
        statuses=frozenset({4, 3}),
        workflow="order",
        since_us=NOW_US - 1,
        until_us=NOW_US + 1,
        attributes=(b'{"a":1}', b'{"b":"x"}'),
        text="AcMe",
        query="key = a or created > -1h",
    )
    assert query_of(f, NOW_US) == And(
        (
            Or((FAILED, Term("status", Op.EQUAL, "cancelled"))),
            Term("workflow", Op.EQUAL, "order"),
            Term("created", Op.MORE_OR_EQUAL, NOW_US - 1000),
            Term("created", Op.LESS, NOW_US + 1),
            Or(
                (
                    And((Term("attr", Op.EQUAL, Decimal(1), "a"),)),
                    And((Term("attr", Op.EQUAL, "x", "b"),)),
                )
            ),
            Search("acme"),
            Or((A, Term("created", Op.MORE, NOW_US - HOUR_US))),
        )
    )


def test_the_first_moment_is_a_bound_too() -> None:
    assert query_of(RunFilter(since_us=0, until_us=0), NOW_US) == And(
        (Term("created", Op.MORE_OR_EQUAL, 0), Term("created", Op.LESS, 0))
    )


def test_attributes_keep_their_kinds() -> None:
    found = query_of(RunFilter(attributes=(b'{"t":"1","y":true,"n":0.1,"i":9007199254740993,"z":null}',)), NOW_US)
    expected: dict[str, Value] = {
        "t": "1",
        "y": True,
        "n": Decimal("0.1"),
        "i": Decimal(9007199254740993),
        "z": None,
    }
    assert found == And((Or((And(tuple(Term("attr", Op.EQUAL, v, n) for n, v in expected.items())),)),))


def test_a_wrong_filter_is_invalid_input() -> None:
    with pytest.raises(InvalidInput, match="query, character 4: '!' means nothing here"):
        query_of(RunFilter(query="key! a"), NOW_US)
    with pytest.raises(InvalidInput, match="write a flat JSON object"):
        query_of(RunFilter(attributes=(b'{"a":[]}',)), NOW_US)


def test_a_duration_without_end_is_refused_and_now_is_a_time_for_attributes_too() -> None:
    with pytest.raises(InvalidInput, match="is no time"):
        parse("created > -" + "9" * 400 + "d", NOW_US)
    term = parse("attr.due < now", NOW_US)
    assert isinstance(term, Term) and isinstance(term.value, str) and term.value.endswith("Z")
    assert parse('attr.due = "now"', NOW_US) == Term("attr", Op.EQUAL, "now", "due")
    with pytest.raises(InvalidInput, match=r"did you mean 'timer'\? Reasons"):
        parse("waiting_on = timr", NOW_US)


def test_how_long_ago_may_be_written_in_iso_8601() -> None:
    assert parse("created > -PT2H", NOW_US) == parse("created > -2h", NOW_US)
    assert parse("attr.due < -P1DT12H", NOW_US) == parse("attr.due < -1d12h", NOW_US)
    assert parse("attr.name = -Pa", NOW_US) == Term("attr", Op.EQUAL, "-Pa", "name")
    with pytest.raises(InvalidInput, match="months, which differ in length"):
        parse("created > -P1M", NOW_US)
