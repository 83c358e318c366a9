"""What a start of a Python workflow is checked against: names and required ones, in every form of a call."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from perdure.core.limits import SCHEMA_BYTES_MAX
from perdure.core.parameters import Parameters, call_problem, decode, encode, parameters_schema
from perdure.sdk.payloads.signatures import Signature


def plain(name: str, copies: int = 1) -> None: ...
def none() -> None: ...
def keyword(name: str, *, loud: bool) -> None: ...
def variadic(first: int, *rest: int, **named: int) -> None: ...


@pytest.mark.parametrize(
    ("fn", "raw", "wrong"),
    [
        (plain, b'{"name":"a"}', ""),
        (plain, b'{"name":"a","copies":2}', ""),
        (plain, b'{"*":["a",2]}', ""),
        (plain, b'{"*":["a"],"copies":2}', ""),
        (plain, b'{"**":{"name":"a","whatever":1}}', ""),
        (plain, b"", "the argument 'name' of w is missing; it takes name, copies (optional)"),
        (plain, b"{}", "the argument 'name' of w is missing; it takes name, copies (optional)"),
        (plain, b'{"nmae":"a"}', "w has no argument 'nmae'; did you mean 'name'? it takes name, copies (optional)"),
        (plain, b'{"*":["a",2,3]}', "w was given 3 arguments by position; it takes name, copies (optional)"),
        (plain, b'{"*":["a"],"name":"b"}', "the argument 'name' of w is given twice, by position and by name"),
        (plain, b'{"**":{"copies":1}}', "the argument 'name' of w is missing; it takes name, copies (optional)"),
        (plain, b"[1]", "the arguments of w are not an object of names and values; it takes name, copies (optional)"),
        (none, b"", ""),
        (none, b'{"x":1}', "w has no argument 'x'; it takes no arguments"),
        (keyword, b'{"*":["a"],"loud":true}', ""),
        (keyword, b'{"*":["a",true]}', "w was given 2 arguments by position; it takes name, loud"),
        (variadic, b'{"*":[1,2,3],"other":4}', ""),
        (variadic, b'{"first":1,"rest":[2],"named":{"x":1}}', ""),
        (variadic, b"{}", "the argument 'first' of w is missing; it takes first, rest (optional), named (optional)"),
    ],
)
def test_a_call_is_held_against_the_parameters(fn: Any, raw: bytes, wrong: str) -> None:
    published = decode(encode(Signature.of(fn).parameters()))
    assert published is not None
    assert call_problem("w", published, raw) == wrong


@pytest.mark.parametrize(
    "raw", [b'{"name":"a"}', b'{"*":["a",2]}', b'{"**":{"name":"a","x":1}}', b'{"*":["a"],"copies":2}']
)
def test_what_passes_is_what_the_code_can_read(raw: bytes) -> None:
    signature = Signature.of(plain)
    assert call_problem("w", signature.parameters(), raw) == ""
    signature.decode_call(raw)


def test_what_a_later_version_publishes_is_not_an_error() -> None:
    assert decode(b'{"names":["a"],"something":1}') == Parameters(names=("a",))
    assert decode(b'{"names":7}') is None


def test_types_are_published_for_forms_unless_they_are_long() -> None:
    def order(name: str, count: int = 1) -> None: ...

    published = decode(encode(Signature(order).parameters()))
    assert published is not None and parameters_schema(published) == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}},
        "required": ["name"],
        "additionalProperties": False,
    }
    long = Literal[tuple(f"choice {n}" for n in range(SCHEMA_BYTES_MAX // 8))]  # type: ignore[valid-type]

    def choose(one: long) -> None: ...  # type: ignore[valid-type]

    choose.__annotations__["one"] = long
    untyped = Signature(choose).parameters()
    assert untyped.schema is None and parameters_schema(untyped)["properties"] == {"one": {}}
