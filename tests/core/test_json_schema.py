"""Inputs and forms against their JSON Schema: everything in a schema counts, and no schema can hurt a server."""

from __future__ import annotations

import decimal
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import json_schema
from perdure.core.approvals import check_value
from perdure.core.json_schema import completed, problem, schema_problem
from perdure.core.limits import SCHEMA_NODES_MAX, VALIDATORS_KEPT_MAX
from perdure.errors import InvalidInput
from perdure.flows.compile import compile_flow
from perdure.flows.problems import DocumentProblem, FlowError
from perdure.flows.source import read
from perdure.sdk.approvals import form_of

STREET = {"type": "object", "properties": {"street": {"type": "string"}}, "required": ["street"]}

COUNTS: list[tuple[dict[str, Any], Any, Any, str]] = [
    ({"type": "string"}, "a", 1, "value must be string, not integer"),
    ({"type": ["string", "null"]}, None, 1.5, "value must be string or null, not number"),
    ({"type": "integer"}, 2.0, True, "value must be integer, not boolean"),
    ({"enum": ["a", 1]}, 1, "b", "value must be one of 'a', 1, not 'b'"),
    ({"const": 3}, 3, 4, "value must be 3, not 4"),
    ({"minimum": 1}, 1, 0, "value must be at least 1, not 0"),
    ({"maximum": 1}, 1, 2, "value must be at most 1, not 2"),
    ({"exclusiveMinimum": 0}, 1, 0, "value must be above 0, not 0"),
    ({"exclusiveMaximum": 9}, 8, 9, "value must be below 9, not 9"),
    ({"multipleOf": 5}, 10, 12, "value must be a multiple of 5, not 12"),
    ({"minLength": 2}, "ab", "a", "value is too short: minLength is 2"),
    ({"maxItems": 1}, [1], [1, 2], "value is too long: maxItems is 1"),
    ({"minProperties": 1}, {"a": 1}, {}, "value is too short: minProperties is 1"),
    ({"pattern": "^[a-z]+$"}, "abc", "a1", "value must match the pattern '^[a-z]+$', not be 'a1'"),
    ({"format": "date"}, "2026-11-15", "15.11.2026", "value must be a date, not '15.11.2026'"),
    ({"format": "email"}, "a@b.example", "nobody", "value must be a email, not 'nobody'"),
    ({"format": "uuid"}, "6f1c1f0e-0b3b-4f6e-9d0e-0d0b7b0c1a2b", "x", "value must be a uuid, not 'x'"),
    ({"uniqueItems": True}, [1, 2], [1, 1], "value holds the same item twice"),
    (
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        None,
        "x",
        "value fits none of 2 forms: value must be integer, not string; value must be null, not string",
    ),
    (
        {"oneOf": [{"type": "integer"}, {"minimum": 1}]},
        0,
        2,
        "value fits more than one of the 2 forms of which it must fit one",
    ),
    ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 2, 4, "value must be at most 3, not 4"),
    ({"not": {"type": "null"}}, 1, None, "value does not fit"),
    ({"$ref": "#/$defs/street", "$defs": {"street": STREET}}, {"street": "x"}, {}, "value.street is missing"),
    ({"additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "x"}, "value.a must be integer, not string"),
    (
        {"properties": {"name": {}}, "additionalProperties": False},
        {"name": 1},
        {"nmae": 1},
        "value.nmae is not known; did you mean 'name'?",
    ),
    ({"additionalProperties": False}, {}, {"a": 1}, "value.a is not known; it takes nothing"),
    ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": 1}, {"n_a": "x"}, "value.n_a must be integer"),
    ({"propertyNames": {"maxLength": 1}}, {"a": 1}, {"aa": 1}, "value does not fit"),
    ({"items": {"items": {"type": "integer"}}}, [[1]], [[1], ["x"]], "value[1][0] must be integer, not string"),
    ({"prefixItems": [{"type": "integer"}], "items": False}, [1], [1, 2], "value[1] is not allowed"),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}, "value.b is missing"),
    ({"if": {"const": 1}, "then": False}, 2, 1, "value is not allowed"),
    ({"contains": {"const": 1}}, [1], [2], "value does not fit"),
]


@pytest.mark.parametrize(("schema", "good", "bad", "said"), COUNTS)
def test_every_keyword_counts(schema: dict[str, Any], good: Any, bad: Any, said: str) -> None:
    assert schema_problem(schema) is None
    assert problem(schema, good, "value") == ""
    assert problem(schema, bad, "value").startswith(said)


@pytest.mark.parametrize(("schema", "good", "bad", "said"), COUNTS)
def test_a_form_says_no_where_an_input_does(schema: dict[str, Any], good: Any, bad: Any, said: str) -> None:
    form = {"type": "object", "properties": {"x": schema}, "$defs": schema.get("$defs", {})}
    assert completed(form, {"x": good})[1] == ""
    assert completed(form, {"x": bad})[1].startswith(said.replace("value", "input.x").split(":")[0])
    check_value(form, {"x": good})
    with pytest.raises(InvalidInput, match="the answer does not fit the form"):
        check_value(form, {"x": bad})


REFUSED: list[tuple[dict[str, Any], tuple[str | int, ...], str]] = [
    ({"properties": {"a": {"type": "strin"}}}, ("properties", "a", "type"), "not valid JSON Schema"),
    ({"properties": {"a": {"minimum": "x"}}}, ("properties", "a", "minimum"), "not valid JSON Schema"),
    ({"properties": {"a": {"format": "dat"}}}, ("properties", "a", "format"), "the format 'dat' is not known"),
    ({"items": {"pattern": "("}}, ("items", "pattern"), "not a usable pattern"),
    ({"items": {"pattern": "(?=a)b"}}, ("items", "pattern"), "without lookaround"),
    ({"items": {"pattern": r"(a)\1"}}, ("items", "pattern"), "backreferences"),
    ({"items": {"pattern": "a{1000}{1000}"}}, ("items", "pattern"), "not too large"),
    ({"items": {"$ref": "http://127.0.0.1:1/x"}}, ("items", "$ref"), "Nothing is fetched"),
    ({"items": {"$ref": "file:///etc/passwd"}}, ("items", "$ref"), "Nothing is fetched"),
    ({"items": {"$ref": "other.json"}}, ("items", "$ref"), "Nothing is fetched"),
    ({"items": {"$ref": "#/$defs/none"}}, ("items", "$ref"), "leads to no place"),
    ({"items": {"$ref": "#"}}, ("items", "items", "$ref"), "leads back to itself"),
    ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, ("items", "$ref"), "leads back"),
    ({"items": {"$dynamicRef": "#a"}}, ("items", "$dynamicRef"), "not supported"),
    ({"items": {"$id": "http://a/b"}}, ("items", "$id"), "at the top"),
    ({"$schema": "http://127.0.0.1:1/x"}, ("$schema",), "not a known draft"),
]


@pytest.mark.parametrize(("schema", "path", "said"), REFUSED)
def test_a_schema_that_cannot_be_used_is_refused_with_its_place(
    schema: dict[str, Any], path: tuple[str | int, ...], said: str
) -> None:
    found = schema_problem(schema)
    assert found is not None and said in found[1]
    assert found[0] == path
    assert "cannot be checked" in problem(schema, {}, "value"), "it does not fail open either"


def test_an_older_draft_means_what_it_says() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True}
    assert schema_problem(schema) is None
    assert problem(schema, 1, "value") != "" and problem(schema, 2, "value") == ""


def test_references_cannot_multiply() -> None:
    """Thirty definitions, each of which applies the one before twice, would be applied a billion times."""
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for i in range(1, 31):
        definitions[f"d{i}"] = {"allOf": [{"$ref": f"#/$defs/d{i - 1}"}] * 2}
    found = schema_problem({"$defs": definitions, "$ref": "#/$defs/d30"})
    assert found is not None and f"SCHEMA_NODES_MAX={SCHEMA_NODES_MAX}" in found[1]
    assert schema_problem({"properties": {f"p{i}": {"type": "string"} for i in range(1_000)}}) is None


def test_patterns_take_linear_time() -> None:
    """With backtracking, 30 letters would take minutes; here 100,000 are nothing."""
    assert problem({"pattern": "^(a+)+$"}, "a" * 100_000 + "!", "value") != ""


def test_a_value_or_schema_that_is_nested_very_deep_is_refused_and_breaks_nothing() -> None:
    value: Any = 1
    schema: dict[str, Any] = {}
    for _ in range(700):
        value, schema = [value], {"items": schema}
    assert schema_problem(schema) is not None
    assert isinstance(problem({"type": "array"}, value, "value"), str)


def test_compiled_schemas_are_kept_up_to_a_bound() -> None:
    json_schema._validator.cache_clear()
    for i in range(VALIDATORS_KEPT_MAX + 10):
        problem({"minimum": i}, i, "value")
    for _ in range(5):
        problem({"minimum": VALIDATORS_KEPT_MAX + 9}, 1_000, "value")
    info = json_schema._validator.cache_info()
    assert (info.currsize, info.hits) == (VALIDATORS_KEPT_MAX, 5)


def problems_of(text: str) -> list[DocumentProblem]:
    with pytest.raises(FlowError) as raised:
        compile_flow(read(text))
    return raised.value.problems


def test_a_deployed_schema_is_refused_at_its_line() -> None:
    made = problems_of("flow: f\ninput:\n  day: {type: string, format: dat}\ntasks: {a: {value: 1}}")
    assert [(p.line, p.message) for p in made] == [(3, "the format 'dat' is not known")]
    made = problems_of(
        "flow: f\ninput:\n  type: object\n  properties:\n    n: {$ref: 'http://x/y'}\ntasks: {a: {value: 1}}"
    )
    assert [p.line for p in made] == [5]
    made = problems_of("flow: f\ntasks:\n  a:\n    approval:\n      form: {n: {type: string, pattern: '('}}\n")
    assert [p.line for p in made] == [5]
    made = problems_of("flow: f\ninput: {n: {type: integer, exclusiveMinimum: 0, default: 0}}\ntasks: {a: {value: 1}}")
    assert [p.message for p in made] == ["the default must be above 0, not 0"]


def test_a_form_of_any_type_can_be_used() -> None:
    """Formats and patterns that only a type's library knows are left to the type."""
    pydantic = pytest.importorskip("pydantic")

    class Paid(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        amount: decimal.Decimal
        secret: pydantic.SecretStr

    for kind in (decimal.Decimal, bytes, Paid):
        form = form_of(kind)
        assert schema_problem(form) is None
    assert problem(form_of(decimal.Decimal), "x", "value") != ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(VALUES, st.sampled_from([schema for schema, *_ in COUNTS]))
def test_the_verdict_is_that_of_the_validator(value: Any, schema: dict[str, Any]) -> None:
    assert (problem(schema, value, "value") == "") == jsonschema_rs.is_valid(schema, value, validate_formats=True)
