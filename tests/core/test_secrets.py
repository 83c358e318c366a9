from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.payloads import Placed, Reference, encode_tree
from perdure.core.redaction import Redactor, forms_of
from perdure.core.secrets import SecretPlace, checked_secret_name, filled

VALUE = "s3cr/t+välue&'x'"
TOKEN = SecretPlace(("headers", "a"), ("TOKEN",))


def value_of(name: str) -> str:
    return f"<{name}>"


def test_a_reference_at_a_listed_place_becomes_the_value() -> None:
    given = b'{"headers":{"a":{"$secret":"TOKEN"},"b":{"$secret":["x ","A"," y ","B",""]}}}'
    places = [TOKEN, SecretPlace(("headers", "b"), ("A", "B"))]
    assert json.loads(filled(given, places, value_of)) == {"headers": {"a": "<TOKEN>", "b": "x <A> y <B>"}}


def test_data_that_looks_like_a_reference_stays_data() -> None:
    forged = {"headers": {"a": {"$secret": "TOKEN"}, "other": {"$secret": "TOKEN"}}, "$secret": "TOKEN"}
    found = json.loads(filled(json.dumps(forged).encode(), [TOKEN], value_of))
    assert found == {"headers": {"a": "<TOKEN>", "other": {"$secret": "TOKEN"}}, "$secret": "TOKEN"}
    nothing = json.loads(filled(json.dumps(forged).encode(), [], value_of))
    assert nothing == forged


@pytest.mark.parametrize(
    "changed",
    [
        '"text"',
        "null",
        '{"$secret":"OTHER"}',
        '{"$secret":["","OTHER",""]}',
        '{"$secret":["TOKEN"]}',
        '{"$secret":"TOKEN","b":1}',
    ],
)
def test_a_listed_place_that_names_another_secret_is_refused(changed: str) -> None:
    with pytest.raises(InvalidInput, match="TOKEN where its flow puts one"):
        filled(f'{{"headers":{{"a":{changed}}}}}'.encode(), [TOKEN], value_of)
    with pytest.raises(InvalidInput, match="it was changed"):
        filled(b'{"headers":[]}', [TOKEN], value_of)


def test_values_by_reference_stay_in_an_input_with_secrets() -> None:
    blob = Placed(Reference(bytes(32), 5, is_blob=True))
    made = encode_tree({"headers": {"a": {"$secret": "TOKEN"}}, "blob": blob})
    assert filled(made, [TOKEN], value_of) == encode_tree({"headers": {"a": "<TOKEN>"}, "blob": blob})


@pytest.mark.parametrize(
    "name", ["", ".x", "-x", "a/b", "../x", "a b", "x" * 129, "ä", "KEY", "KEY.FILE", "perdure_api_key"]
)
def test_names_are_checked(name: str) -> None:
    with pytest.raises(InvalidInput):
        checked_secret_name(name)


def test_usual_names_are_names() -> None:
    for name in ("TOKEN", "db-password", "team.key_2", "x" * 128):
        assert checked_secret_name(name) == name


@pytest.mark.parametrize(
    "form",
    [
        VALUE,
        json.dumps(VALUE),
        msgspec.json.encode(VALUE).decode(),
        repr(VALUE),
        quote(VALUE),
        quote(VALUE, safe="").lower(),
        quote_plus(VALUE),
        base64.b64encode(VALUE.encode()).decode(),
        base64.urlsafe_b64encode(VALUE.encode()).decode(),
        base64.b64encode(f"user:{VALUE}".encode()).decode(),
        base64.b64encode(f"me:{VALUE}\n".encode()).decode(),
    ],
)
def test_every_form_of_a_value_is_masked(form: str) -> None:
    redactor = Redactor({VALUE: "TOKEN"})
    assert "***TOKEN***" in redactor.text(f"before {form} after")
    assert "***TOKEN***" in redactor.data(f"before {form} after".encode()).decode()
    assert redactor.is_in(form.encode())


def test_lines_of_a_key_are_masked_each_but_not_its_frame() -> None:
    key = "-----BEGIN KEY-----\nAAAABBBBCCCC\nDDDDEEEEFFFF\n-----END KEY-----"
    redactor = Redactor({key: "KEY"})
    assert redactor.text("DDDDEEEEFFFF") == "***KEY***"
    assert redactor.text("-----BEGIN KEY-----") == "-----BEGIN KEY-----"


def test_the_end_of_a_text_that_may_begin_a_value_is_known() -> None:
    redactor = Redactor({"abcabcabd": "T"})
    assert [redactor.unfinished(text) for text in ("xx", "xa", "xabcab", "abcabcab", "abcabcabc")] == [0, 1, 5, 8, 6]


@given(st.text(min_size=8, max_size=40), st.integers(0, 40), st.binary(max_size=5))
def test_a_value_of_any_characters_is_masked_in_any_base64(value: str, cut: int, before: bytes) -> None:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        return
    redactor = Redactor({value: "T"})
    assert value in forms_of(value)
    assert value not in redactor.text(f"{value[:cut]} {value}") or value in "***T***"
    assert redactor.is_in(base64.b64encode(before + data))
