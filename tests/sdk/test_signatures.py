"""Offers: whoever calls gives all there is, the function takes what its parameters name. And the schema of a call."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import jsonschema_rs
import msgspec
import pydantic
import pytest

from perdure.core.calls import OFFER, encode_offer
from perdure.core.errors import PayloadMismatch
from perdure.sdk.payloads.signatures import Signature


def plain(a: int, b: int = 2) -> None: ...


def keyed(a: int, /, *rest: int, scale: float = 1.0, **more: Any) -> None: ...


def nothing() -> None: ...


class Model(pydantic.BaseModel):
    n: int


def modelled(m: Model, k: str = "x") -> None: ...


class Named(TypedDict, total=False):
    x: int


def unpacked(**more: Unpack[Named]) -> None: ...


@pytest.mark.parametrize(
    ("fn", "offered", "expected"),
    [
        (plain, {"a": 1, "z": 9, "b": 3}, ((1, 3), {})),
        (plain, {"z": [1, {"a": 2}], "a": 1}, ((1, 2), {})),
        (nothing, {"a": 1}, ((), {})),
        (nothing, {}, ((), {})),
        (keyed, {"a": 1, "rest": [5], "scale": 2, "c": None}, ((1,), {"scale": 2.0, "rest": [5], "c": None})),
        (modelled, {"m": {"n": 4}, "other": 1}, ((Model(n=4), "x"), {})),
        (unpacked, {"x": 1, "y": 2}, ((), {"x": 1})),
    ],
)
def test_a_function_takes_what_its_parameters_name(fn: Any, offered: dict[str, Any], expected: object) -> None:
    assert Signature(fn).decode_call(encode_offer(offered)) == expected


def test_an_offer_begins_as_the_constant_says() -> None:
    assert encode_offer({"a": "ä"}).startswith(OFFER)
    assert json.loads(encode_offer({"a": "ä"})) == {"**": {"a": "ä"}}


def test_space_after_the_key_is_no_matter() -> None:
    assert Signature(plain).decode_call(b'{"**": {"a": 1, "q": 2}}') == ((1, 2), {})


def test_what_is_missing_is_named_with_what_was_offered() -> None:
    def both(day: str, city: str, n: int = 1) -> None: ...

    with pytest.raises(PayloadMismatch, match=r"needs `day` and `city`, and was offered days, n\. Did you mean 'days'"):
        Signature(both).decode_call(encode_offer({"n": 1, "days": "x"}))
    with pytest.raises(PayloadMismatch, match="was offered nothing"):
        Signature(plain).decode_call(encode_offer({}))


def test_a_long_offer_is_not_listed_whole() -> None:
    with pytest.raises(PayloadMismatch, match="and 80 more"):
        Signature(plain).decode_call(encode_offer({f"k{i:03}": i for i in range(100)}))


@pytest.mark.parametrize("offered", [{"a": "one"}, {"a": None}, {"a": 1, "b": 1.5}])
def test_a_value_of_the_wrong_type_is_refused_as_in_any_call(offered: dict[str, Any]) -> None:
    with pytest.raises(PayloadMismatch, match=r"the arguments of plain\(\) does not fit"):
        Signature(plain).decode_call(encode_offer(offered))


@pytest.mark.parametrize("data", [b'{"**":1}', b'{"**":[1]}', b'{"**":{"a":1},"b":{}}', b'{"**":', b'{"**":{"a":1}}}'])
def test_what_is_no_offer_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadMismatch, match="not an offer"):
        Signature(plain).decode_call(data)


# -- schemas -----------------------------------------------------------------------------------------------------------


@dataclass
class Size:
    width: int
    height: int = 1


@dataclass
class Round:
    radius: float


class Opaque:
    pass


BEST = Size(1)


def described(
    a: int, size: Size, shape: Size | Round, models: list[Model], best: Size = BEST, *, k: str = "x", **more: float
) -> None:
    """Draws it.

    At length.
    """


def test_the_schema_of_a_call_names_parameters_types_defaults_and_what_is_required() -> None:
    schema = Signature(described).json_schema()
    assert schema["description"] == "Draws it."
    assert schema["required"] == ["a", "size", "shape", "models"] and schema["additionalProperties"] is False
    properties = schema["properties"]
    assert list(properties) == ["a", "size", "shape", "models", "best", "k", "more"]
    assert properties["a"] == {"type": "integer"}
    assert properties["k"] == {"type": "string", "default": "x"}
    assert properties["best"] == {"allOf": [{"$ref": "#/$defs/Size"}], "default": {"width": 1, "height": 1}}
    assert properties["models"]["items"]["properties"]["n"]["type"] == "integer"
    assert len(properties["shape"]["anyOf"]) == 2


def test_every_reference_of_a_schema_leads_somewhere() -> None:
    schema = Signature(described).json_schema()
    text = json.dumps(schema)
    references = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}
    assert references and all(r.removeprefix("#/$defs/") in schema["$defs"] for r in references)
    assert not any(set(r) & set(" |[]") for r in references)


def test_a_schema_accepts_what_the_signature_writes() -> None:
    schema = Signature(described).json_schema()
    call = Signature(described).encode_call((1, Size(2), Round(1.5), [Model(n=3)]), {"other": 2.5})
    jsonschema_rs.validate(schema, json.loads(call))
    for wrong in ({"a": "one"}, {**json.loads(call), "unknown": 1}, {**json.loads(call), "models": [{"n": "x"}]}):
        assert not jsonschema_rs.is_valid(schema, wrong)


def test_what_cannot_be_described_takes_anything() -> None:
    def vague(a, b: object, when: Any = Opaque()) -> None: ...  # type: ignore[no-untyped-def]  # noqa: B008

    assert Signature(vague).json_schema() == {
        "type": "object",
        "properties": {"a": {}, "b": {}, "when": {}},
        "additionalProperties": False,
        "required": ["a", "b"],
    }
    assert msgspec.json.encode(Signature(nothing).json_schema())


def test_a_call_by_names_may_name_what_kwargs_take() -> None:
    def collect(a: int, **more: int) -> None: ...

    signature = Signature(collect)
    assert signature.decode_call(b'{"a": 1, "b": 2, "c": 3}') == ((1,), {"b": 2, "c": 3})
    assert signature.decode_call(signature.encode_call((1,), {"b": 2})) == ((1,), {"b": 2})
    assert signature.decode_call(b'{"a": 1}') == ((1,), {})
