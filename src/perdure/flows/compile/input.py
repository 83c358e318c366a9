"""`input:` to a JSON Schema. Properties by name, all of them required unless they say otherwise, or a schema as it is."""

from __future__ import annotations

from typing import Any, Final, cast

from perdure.core.json_schema import problem, schema_problem
from perdure.core.limits import NAME_CHARS_MAX
from perdure.flows.compile.reading import Reader, found
from perdure.flows.problems import Path

SCHEMA_DEPTH_MAX: Final = 16
"""Levels of an input schema."""
PROPERTIES_MAX: Final = 1_000
"""Properties of one object in an input schema."""
TYPES: Final = ("string", "integer", "number", "boolean", "array", "object", "null")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SIZES: Final = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_ALL_OF: Final = ("anyOf", "oneOf", "allOf")


def read_input(r: Reader, value: Any, path: Path, what: str = "input") -> dict[str, Any] | None:
    """None takes anything. `what` it is called in messages."""
    if value is None:
        return None
    fields = r.mapping(value, path, what)
    if fields is None:
        return None
    before = len(r.problems)
    if fields.get("type") == "object":
        _check(r, fields, path, 0)
        if len(r.problems) == before:
            _check_usable(r, fields, path, is_short=False)
        return fields
    if isinstance(fields.get("type"), str):
        r.error(
            (*path, "type"),
            f"the {what}'s type is {fields['type']!r}",
            f"an {what} is an object: type: object, or its properties by name"
            if what == "input"
            else f"a {what} is an object: type: object, or its properties by name",
        )
        return None
    _check_count(r, fields, path)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, item in fields.items():
        at = (*path, name)
        schema = {} if item is None else _property(r, name, item, at, what)
        _check(r, schema, at, 1)
        properties[name] = {k: v for k, v in schema.items() if k != "required" or not isinstance(v, bool)}
        if "default" not in schema and schema.get("required") is not False:
            required.append(name)
    made = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if len(r.problems) == before:
        _check_usable(r, made, path, is_short=True)
    return made


def _check_usable(r: Reader, schema: dict[str, Any], path: Path, is_short: bool) -> None:
    """The whole of it, as it will be used; then its defaults against it. What was published compiled then."""
    if not r.typed:
        return
    unusable = schema_problem(schema)
    if unusable is not None:
        at, said = unusable
        r.error((*path, *(at[1:] if is_short else at)), said)
        return
    shared: dict[str, Any] = {word: schema[word] for word in ("$defs", "definitions", "$schema") if word in schema}
    for name, rules in cast(dict[str, Any], schema.get("properties", {})).items():
        _check_default(r, shared, rules, (*path, name) if is_short else (*path, "properties", name))


def _check_default(r: Reader, shared: dict[str, Any], rules: Any, path: Path) -> None:
    if not isinstance(rules, dict):
        return
    schema = cast(dict[str, Any], rules)
    for name, inner in cast(dict[str, Any], schema.get("properties", {})).items():
        _check_default(r, shared, inner, (*path, "properties", name))
    if "default" in schema and schema_problem(alone := {**shared, **schema}) is None:
        said = problem(alone, schema["default"], "the default")
        if said:
            r.error((*path, "default"), said)


def _property(r: Reader, name: str, item: Any, path: Path, what: str) -> dict[str, Any]:
    if len(name) > NAME_CHARS_MAX:
        r.error(path, f"a property has more than NAME_CHARS_MAX={NAME_CHARS_MAX} characters", key=True)
    if isinstance(item, dict):
        return cast(dict[str, Any], item)
    hint = f"write {{type: {item}}}" if item in TYPES else "write what it looks like, such as {type: string}"
    r.error(path, f"the {what} {name[:NAME_CHARS_MAX]!r} is {found(item)}; it must be a schema", hint)
    return {}


def _check_count(r: Reader, fields: dict[str, Any], path: Path) -> None:
    if len(fields) > PROPERTIES_MAX:
        r.error(path, f"there are more than PROPERTIES_MAX={PROPERTIES_MAX} properties")


def _check(r: Reader, schema: dict[str, Any], path: Path, depth: int) -> None:
    """What is checked at run time has to have the right shape; anything else may stand there."""
    if depth > SCHEMA_DEPTH_MAX:
        r.error(path, f"the schema is nested deeper than SCHEMA_DEPTH_MAX={SCHEMA_DEPTH_MAX}")
        return
    for key, value in schema.items():
        at = (*path, key)
        if key == "type":
            _check_type(r, value, at)
        elif key == "enum":
            r.list_of(value, at, "enum")
        elif key == "required":
            if not (isinstance(value, bool) and depth == 1):
                _check_required(r, value, at)
        elif key in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                r.wanted(at, key, "a number", value)
        elif key in _SIZES:
            r.integer(value, at, key, 0, 1 << 53)
        elif key in {"properties", "items", "additionalProperties", *_ALL_OF}:
            _check_inner(r, key, value, at, depth)


def _check_type(r: Reader, value: Any, path: Path) -> None:
    if not isinstance(value, list):
        r.word(value, path, "type", TYPES)
        return
    for i, item in enumerate(value):
        r.word(item, (*path, i), "type", TYPES)


def _check_required(r: Reader, value: Any, path: Path) -> None:
    items = r.list_of(value, path, "required")
    for i, item in enumerate(items or ()):
        if not isinstance(item, str):
            r.wanted((*path, i), "an entry of required", "the name of a property", item)


def _check_inner(r: Reader, key: str, value: Any, path: Path, depth: int) -> None:
    if key == "properties":
        fields = r.mapping(value, path, key) or {}
        _check_count(r, fields, path)
        for name, item in fields.items():
            _check_schema(r, item, (*path, name), depth + 1)
    elif key in _ALL_OF:
        for i, item in enumerate(r.list_of(value, path, key) or ()):
            _check_schema(r, item, (*path, i), depth + 1)
    else:
        _check_schema(r, value, path, depth + 1)


def _check_schema(r: Reader, value: Any, path: Path, depth: int) -> None:
    if isinstance(value, bool):
        return
    schema = r.mapping(value, path, "a schema")
    if schema is not None:
        # `required: true` is for the short form of the input alone.
        _check(r, schema, path, max(depth, 2))
