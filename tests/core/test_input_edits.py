"""An edit changes one field of a run's input, or says which part of its path leads nowhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.input_edits import edited

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("a", "b", "0", "*")), inner),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("raw", "path", "expected"),
    [
        (b'{"a":1,"b":2}', "a", b'{"a":9,"b":2}'),
        (b'{"a":1}', "b", b'{"a":1,"b":9}'),
        (b'{"a":{"b":{"c":1,"d":2}}}', "a.b.c", b'{"a":{"b":{"c":9,"d":2}}}'),
        (b'{"a":{"b":1}}', "a.c", b'{"a":{"b":1,"c":9}}'),
        (b'{"a":[1,{"b":2}]}', "a.0", b'{"a":[9,{"b":2}]}'),
        (b'{"a":[1,{"b":2}]}', "a.1.b", b'{"a":[1,{"b":9}]}'),
        (b'{"0":1}', "0", b'{"0":9}'),
        (b"", "a", b'{"a":9}'),
        (b"[1,[2,3]]", "1.1", b"[1,[2,9]]"),
    ],
)
def test_one_field_is_changed_and_nothing_else(raw: bytes, path: str, expected: bytes) -> None:
    assert edited(raw, {path: b"9"}) == expected


def test_edits_are_done_in_their_order() -> None:
    assert edited(b"{}", {"a": b'{"b":1,"c":2}', "a.b": b'"x"', "d": b"null"}) == b'{"a":{"b":"x","c":2},"d":null}'


def test_an_input_without_edits_is_written_anew() -> None:
    assert edited(b'{ "a": "\\u00e9" }', {}) == '{"a":"é"}'.encode()


# -- calls by position -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", b'{"*":[9,{"x":2}],"d":4}'),
        ("b", b'{"*":[1,9],"d":4}'),
        ("b.x", b'{"*":[1,{"x":9}],"d":4}'),
        ("c", b'{"*":[1,{"x":2}],"d":4,"c":9}'),
        ("d", b'{"*":[1,{"x":2}],"d":9}'),
        ("*.1.x", b'{"*":[1,{"x":9}],"d":4}'),
    ],
)
def test_a_parameter_is_found_at_its_position(path: str, expected: bytes) -> None:
    assert edited(b'{"*":[1,{"x":2}],"d":4}', {path: b"9"}, ["a", "b", "c", "d"]) == expected


def test_one_object_is_looked_into_where_no_names_are_known() -> None:
    assert edited(b'{"*":[{"x":1}]}', {"x": b"9", "y": b"8"}) == b'{"*":[{"x":9,"y":8}]}'


def test_one_object_is_not_looked_into_where_names_are_known() -> None:
    assert edited(b'{"*":[{"x":1}]}', {"x": b"9"}, ["a"]) == b'{"*":[{"x":1}],"x":9}'


@pytest.mark.parametrize("args", [b"[1]", b'[{"x":1},2]', b"[]"])
def test_arguments_that_are_not_one_object_are_not_looked_into(args: bytes) -> None:
    assert edited(b'{"*":' + args + b"}", {"x": b"9"}) == b'{"*":' + args + b',"x":9}'


def test_an_offer_is_looked_into() -> None:
    assert edited(b'{"**":{"url":"u","n":{"m":1}}}', {"url": b'"v"', "n.m": b"2"}) == b'{"**":{"url":"v","n":{"m":2}}}'
    assert edited(b'{"**":{"a":1}}', {"a": b"2"}, ["a"]) == b'{"**":{"a":2}}'


def test_two_stars_beside_other_names_are_no_offer() -> None:
    assert edited(b'{"**":{"a":1},"b":2}', {"a": b"9"}) == b'{"**":{"a":1},"b":2,"a":9}'


def test_a_star_without_a_list_is_no_call_by_position() -> None:
    assert edited(b'{"*":{"a":1}}', {"a": b"9"}, ["a"]) == b'{"*":{"a":1},"a":9}'


# -- paths that lead nowhere -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "path", "step"),
    [
        (b'{"a":1}', "b.c", "b"),
        (b'{"a":{"b":1}}', "a.x.c", "x"),
        (b'{"a":1}', "a.b", "b"),
        (b'{"a":"text"}', "a.0", "0"),
        (b'{"a":null}', "a.b.c", "b"),
        (b'{"a":[1]}', "a.1", "1"),
        (b'{"a":[1]}', "a.-1", "-1"),
        (b'{"a":[1]}', "a.x", "x"),
        (b'{"a":[1]}', "a.", ""),
        (b'{"a":[1]}', "a.²", "²"),
        (b'{"a":[1]}', "a.٠", "٠"),
        (b'{"a":[{"b":1}]}', "a.1.b", "1"),
        (b"{}", "", ""),
        (b'{"a":{}}', "a.", ""),
        (b"{}", "*", "*"),
        (b"{}", "**", "**"),
        (b'{"*":[1]}', "*", "*"),
        (b'{"**":{"a":1}}', "**", "**"),
        (b'{"**":1}', "a", "a"),
        (b'{"*":[1,2]}', "*.2", "2"),
        (b"7", "a", "a"),
        (b"null", "a", "a"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(raw: bytes, path: str, step: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        edited(raw, {path: b"9"})
    assert str(caught.value) == (
        f"the input has nothing at {path!r}: there is no {step!r}; `perdure show RUN` prints the input"
    )


@pytest.mark.parametrize("raw", [b"{", b"\x80", b"\x00\x01"])
def test_an_input_that_is_not_json_cannot_be_edited(raw: bytes) -> None:
    with pytest.raises(InvalidInput, match="^the input of the run is not JSON, so no field of it can be edited: "):
        edited(raw, {"a": b"1"})


@given(st.dictionaries(st.sampled_from(("a", "b")), JSON), st.sampled_from(("a", "b", "c")), JSON)
def test_a_field_of_the_input_is_what_it_was_set_to(call: dict[str, Any], name: str, value: Any) -> None:
    found = edited(json.dumps(call).encode(), {name: json.dumps(value).encode()})
    assert json.loads(found) == {**call, name: value}


@given(JSON, st.lists(st.sampled_from(("a", "b", "0", "1", "*", "**", "")), min_size=1, max_size=4).map(".".join))
def test_a_path_changes_the_input_or_is_invalid_input(call: Any, path: str) -> None:
    before = json.dumps(call).encode()
    try:
        found = edited(before, {path: b'"new"'})
    except InvalidInput as error:
        assert f"nothing at {path!r}" in str(error)
    else:
        assert b'"new"' in found
        assert edited(found, {path: b'"new"'}) == found


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"\x00stored", b"{"])
def test_a_value_that_is_not_json_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidInput, match="the value for 'a' is not JSON"):
        edited(b'{"a":1}', {"a": value})


def test_a_keyword_beside_one_positional_object_is_edited_where_it_is() -> None:
    assert edited(b'{"*":[{"a":1}],"depth":3}', {"depth": b"4"}) == b'{"*":[{"a":1}],"depth":4}'
    with pytest.raises(InvalidInput, match="nothing at"):
        edited(b'{"a":[1]}', {"a." + "9" * 5_000: b"1"})
