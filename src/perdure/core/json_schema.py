"""The input of a flow, or the answer to a form, against its JSON Schema: defaults filled in, and what does not fit, in words.

jsonschema-rs decides (draft 2020-12 unless `$schema` names another), formats included. A schema comes from a flow's author and is applied on
servers, so it must not be able to cost much or to reach out:

- patterns are matched by an engine whose time is linear in the text (no lookaround, no backreferences);
- a reference leads to a place in the same schema, and never back to where it came from: with references written out, a schema has at
  most SCHEMA_NODES_MAX parts;
- nothing is fetched.

`schema_problem` refuses a schema that breaks one of these when it is deployed or created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import SCHEMA_NODES_MAX, VALIDATORS_KEPT_MAX
from perdure.core.packages import missing
from perdure.core.payloads import Placed

if TYPE_CHECKING:
    import jsonschema_rs

PATTERN_BYTES_MAX: Final = 1024 * 1024
"""Memory of one compiled pattern."""
_ONE: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords whose value is a schema."""
_LIST: Final = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED: Final = ("dependencies", "dependentSchemas", "patternProperties", "properties")

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "null": (type(None),),
}


def completed(schema: Mapping[str, Any] | None, value: Any, *, offered: bool = False) -> tuple[Any, str]:
    """The input with defaults, and the first thing that is wrong with it ("" for nothing). Of what is merely offered it takes what it knows."""
    if schema is None:
        return value, ""
    if offered and isinstance(value, dict) and schema.get("additionalProperties") is False:
        known: Mapping[str, Any] = schema.get("properties", {})
        value = {k: v for k, v in cast(dict[str, Any], value).items() if k in known}
    if value is None:
        value = {}
    if isinstance(value, dict):
        given = cast(dict[str, Any], value)
        properties: Mapping[str, Any] = schema.get("properties", {})
        defaults = {
            k: s["default"]
            for k, s in properties.items()
            if isinstance(s, Mapping) and "default" in s and k not in given
        }
        value = {**given, **defaults} if defaults else given
        if Placed in map(type, given.values()):
            return value, ""  # it was held against the schema when the run was started, with what is stored
    return value, problem(schema, value, "input")


def problem(schema: Any, value: Any, at: str) -> str:
    """What does not fit, with its path; "" when all does."""
    if not isinstance(schema, Mapping):
        return "" if schema is not False else f"{at} is not allowed"
    try:
        validator = _validator(msgspec.json.encode(schema))
    except (ValueError, RecursionError) as error:  # it was deployed before this was checked, or by other means
        path, said = _schema_said(schema, error)
        return f"{at} cannot be checked, its schema is not usable at /{'/'.join(map(str, path))}: {said}"
    return _problem(cast(Mapping[str, Any], schema), validator, value, at)


class CheckedSchema:
    """A schema that many values are held against: its validator is looked up once."""

    __slots__ = ("_schema", "_validator")

    def __init__(self, schema: Mapping[str, Any], validator: jsonschema_rs.Validator) -> None:
        self._schema, self._validator = schema, validator

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> CheckedSchema | None:
        """None for a schema that is not usable, and where the package that checks is not installed."""
        try:
            return cls(schema, _validator(msgspec.json.encode(schema)))
        except (ValueError, RecursionError, InvalidInput):
            return None

    def problem(self, value: Any, at: str) -> str:
        """As the function of that name."""
        return _problem(self._schema, self._validator, value, at)


def _problem(schema: Mapping[str, Any], validator: jsonschema_rs.Validator, value: Any, at: str) -> str:
    try:
        validator.validate(value)
    except _jsonschema_rs().ValidationError as error:
        return _said(schema, value, error, at)
    except ValueError:  # deeper than the validator goes
        return f"{at} is nested too deep"
    return ""


def schema_problem(schema: Any) -> tuple[tuple[str | int, ...], str] | None:
    """Why a schema cannot be used, and where in it; None if it can."""
    try:
        _validator(msgspec.json.encode(schema))
    except (ValueError, RecursionError) as error:
        return _schema_said(schema, error)
    return None


def _jsonschema_rs() -> Any:
    try:
        import jsonschema_rs
    except ImportError as error:
        raise missing("checking a value against its JSON Schema", "schemas") from error
    return jsonschema_rs


@lru_cache(maxsize=VALIDATORS_KEPT_MAX)
def _validator(schema: bytes) -> jsonschema_rs.Validator:
    package = _jsonschema_rs()
    rules = msgspec.json.decode(schema)
    _count(rules, rules, (), frozenset())
    validator: jsonschema_rs.Validator = package.validator_for(
        rules,
        formats={"decimal": _is_decimal},  # what a Decimal of Python is called
        validate_formats=True,
        ignore_unknown_formats=False,
        retriever=_fetches_nothing,
        pattern_options=package.RegexOptions(size_limit=PATTERN_BYTES_MAX, dfa_size_limit=PATTERN_BYTES_MAX),
    )
    return validator


def _fetches_nothing(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is not fetched")


def _is_decimal(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", text) is not None


class _Unusable(ValueError):
    def __init__(self, path: tuple[str | int, ...], said: str) -> None:
        super().__init__(said)
        self.path, self.said = path, said


def _count(
    root: Any, schema: Any, path: tuple[str | int, ...], within: frozenset[str], budget: list[int] | None = None
) -> None:
    """Walk a schema with its references written out: each step costs one of the budget, repeated or not."""
    left = [SCHEMA_NODES_MAX] if budget is None else budget
    left[0] -= 1
    if left[0] < 0:
        raise _Unusable(
            (), f"the schema has more than SCHEMA_NODES_MAX={SCHEMA_NODES_MAX} parts, references written out"
        )
    if not isinstance(schema, Mapping):
        return
    rules = cast(Mapping[str, Any], schema)
    for word in ("$dynamicRef", "$recursiveRef"):
        if word in rules:
            raise _Unusable((*path, word), f"{word} is not supported; use $ref to a place in the same schema")
    if "$id" in rules and path:
        raise _Unusable((*path, "$id"), "$id is supported at the top of a schema only")
    if "$ref" in rules:
        ref = rules["$ref"]
        target = _target(root, ref)
        if target is _NOWHERE:
            raise _Unusable(
                (*path, "$ref"),
                f"$ref {str(ref)[:200]!r} leads to no place in this schema; write '#/$defs/name'. Nothing is fetched.",
            )
        if ref in within:
            raise _Unusable((*path, "$ref"), f"$ref {ref!r} leads back to itself; recursive schemas are not supported")
        _count(root, target, path, within | {ref}, left)
    for key, at, inner in _inner(rules):
        _count(root, inner, (*path, key, *at), within, left)


def _inner(rules: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str | int, ...], Any]]:
    """The schemas directly within one."""
    for key in _ONE:
        if isinstance(rules.get(key), Mapping):
            yield key, (), rules[key]
    for key in _LIST:
        if isinstance(rules.get(key), list):
            for i, item in enumerate(rules[key]):
                yield key, (i,), item
    for key in _NAMED:
        if isinstance(rules.get(key), Mapping):
            for name, item in rules[key].items():
                yield key, (name,), item


_NOWHERE: Final = object()


def _target(root: Any, ref: Any) -> Any:
    """What a pointer such as #/$defs/name leads to."""
    if ref == "#":
        return root
    if not isinstance(ref, str) or not ref.startswith("#/"):
        return _NOWHERE
    found = root
    for part in ref[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = cast(Mapping[str, Any], found)[key]
        elif isinstance(found, list) and key.isdigit() and int(key) < len(cast(Sequence[Any], found)):
            found = cast(Sequence[Any], found)[int(key)]
        else:
            return _NOWHERE
    return found


def _schema_said(schema: Any, error: Exception) -> tuple[tuple[str | int, ...], str]:
    if isinstance(error, _Unusable):
        return error.path, error.said
    if not hasattr(error, "instance_path"):  # the validator's own recursion limit, or Python's
        return (), "the schema is nested too deep"
    path = cast(tuple[str | int, ...], tuple(getattr(error, "instance_path", ())))
    message = str(getattr(error, "message", error)).partition("\n")[0]
    path = path or _place_of(schema, (), message) or ()
    word = str(path[-1]) if path else ""
    value = schema
    for part in path:
        value = value[part]
    if not path and "meta-schema" in message:
        value = schema.get("$schema")
        return ("$schema",), f"$schema {str(value)[:200]!r} is not a known draft; leave it out for 2020-12"
    if word == "format" and isinstance(value, str):
        return path, f"the format {value[:200]!r} is not known"
    if word == "pattern" or "patternProperties" in path:
        return path, (
            f"{str(value)[:200]!r} is not a usable pattern: it must be a regular expression without lookaround and "
            "backreferences, and not too large"
        )
    return path, f"this is not valid JSON Schema: {message[:500]}"


def _place_of(schema: Any, path: tuple[str | int, ...], message: str) -> tuple[str | int, ...] | None:
    """Where the format or pattern stands that jsonschema-rs before 0.60 only names. langgraph-api needs those versions."""
    rules = cast(Mapping[str, Any], schema)
    for word, said in (("format", "Unknown format: {!r}"), ("pattern", '{} is not a "regex"')):
        value = rules.get(word)
        written = value if word == "format" else msgspec.json.encode(value).decode()
        if isinstance(value, str) and message.startswith(said.format(written)):
            return (*path, word)
    patterns = rules.get("patternProperties")
    for pattern in cast(Mapping[str, Any], patterns) if isinstance(patterns, Mapping) else ():
        if message.startswith(f'{msgspec.json.encode(pattern).decode()} is not a "regex"'):
            return (*path, "patternProperties", pattern)
    places = (
        _place_of(inner, (*path, key, *at), message) for key, at, inner in _inner(rules) if isinstance(inner, Mapping)
    )
    return next((place for place in places if place is not None), None)


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next((kind for kind, types in _TYPES.items() if kind != "number" and isinstance(value, types)), "number")


def _said(schema: Mapping[str, Any], root: Any, error: jsonschema_rs.ValidationError, at: str) -> str:
    """The validator's error in our words."""
    where, value = at, root
    for part in error.instance_path:
        where += f"[{part}]" if isinstance(part, int) else f".{part}"
        value = value[part]
    rule, limit = error.kind.name, error.kind.value
    match rule:
        case "type":
            kinds = _at(schema, error.schema_path)
            listed = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else limit
            return f"{where} must be {' or '.join(map(str, listed))}, not {kind_of(value)}"
        case "enum":
            return f"{where} must be one of {', '.join(map(repr, limit))}, not {_shown(value)}"
        case "const":
            return f"{where} must be {_shown(limit)}, not {_shown(value)}"
        case "minimum" | "maximum":
            return f"{where} must be {'at least' if rule == 'minimum' else 'at most'} {limit}, not {value}"
        case "exclusiveMinimum" | "exclusiveMaximum":
            return f"{where} must be {'above' if rule == 'exclusiveMinimum' else 'below'} {limit}, not {value}"
        case "multipleOf":
            return f"{where} must be a multiple of {limit}, not {value}"
        case "minLength" | "minItems" | "minProperties":
            return f"{where} is too short: {rule} is {limit}"
        case "maxLength" | "maxItems" | "maxProperties":
            return f"{where} is too long: {rule} is {limit}"
        case "pattern":
            return f"{where} must match the pattern {limit!r}, not be {_shown(value)}"
        case "format":
            return f"{where} must be a {limit}, not {_shown(value)}"
        case "uniqueItems":
            return f"{where} holds the same item twice"
        case "required" | "dependentRequired" | "dependencies":
            return f"{where}.{limit} is missing"
        case "additionalProperties" | "unevaluatedProperties":
            rules = _at(schema, list(error.schema_path)[:-1])
            return _unknown(rules if isinstance(rules, Mapping) else {}, limit[0], where)
        case "anyOf" | "oneOf":
            return _alternatives(schema, root, error, where, at)
        case "falseSchema":
            if error.schema_path[-1:] == ["additionalProperties"] and isinstance(value, dict) and value:
                return _unknown({}, next(iter(cast(dict[str, Any], value))), where)
            return f"{where} is not allowed"
        case _:
            return f"{where} does not fit: {error.message[:500]}"


def _alternatives(
    schema: Mapping[str, Any], root: Any, error: jsonschema_rs.ValidationError, where: str, at: str
) -> str:
    context: list[list[Any]] = error.kind.context  # type: ignore[attr-defined]
    reasons = [_said(schema, root, branch[0], at) for branch in context if branch]
    if not reasons or type(error.kind).__name__ == "OneOfMultipleValid":
        return f"{where} fits more than one of the {len(context)} forms of which it must fit one"
    return f"{where} fits none of {len(context)} forms: {'; '.join(dict.fromkeys(reasons))}"[:2_000]


def _unknown(rules: Mapping[str, Any], name: str, where: str) -> str:
    properties = list(cast(Mapping[str, Any], rules.get("properties", {})))
    near = get_close_matches(name, properties, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(properties) or 'nothing'}"
    return f"{where}.{name} is not known; {hint}"


def _at(schema: Any, path: Any) -> Any:
    """The part of a schema that a rule stands in; None where references make the path another one."""
    found = schema
    for part in path:
        if isinstance(found, Mapping) and part in found:
            found = cast(Mapping[str, Any], found)[part]
        elif isinstance(found, list) and isinstance(part, int) and part < len(cast(Sequence[Any], found)):
            found = cast(Sequence[Any], found)[part]
        else:
            return None
    return found


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
