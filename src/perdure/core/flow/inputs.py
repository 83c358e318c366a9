"""The input of a flow against its schema: defaults filled in, and what does not fit, in words.

A small part of JSON Schema, enough to catch a wrong call early: type, properties, required, additionalProperties, items, enum, const,
bounds of numbers, strings and lists. What is not understood is not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final, cast

DEPTH_MAX: Final = 16
"""Levels of a schema that are looked at."""

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
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
    return value, problem(schema, value, "input")


def problem(schema: Any, value: Any, at: str, depth: int = 0) -> str:
    """What does not fit, with its path; "" when all does."""
    if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
        return ""
    rules = cast(Mapping[str, Any], schema)
    for rule in (_kind, _choices, _bounds):
        if found := rule(rules, value, at):
            return found
    if isinstance(value, dict):
        return _object(rules, cast(dict[str, Any], value), at, depth)
    if isinstance(value, list) and "items" in rules:
        for i, item in enumerate(value):
            if found := problem(rules["items"], item, f"{at}[{i}]", depth + 1):
                return found
    return ""


def _kind(rules: Mapping[str, Any], value: Any, at: str) -> str:
    wanted = rules.get("type")
    if wanted is None:
        return ""
    kinds: list[str] = [wanted] if isinstance(wanted, str) else list(wanted)
    if any(_is(kind, value) for kind in kinds):
        return ""
    return f"{at} must be {' or '.join(kinds)}, not {kind_of(value)}"


def _is(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return kind not in _TYPES or isinstance(value, _TYPES[kind])


def kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return next(
        (k for k in ("object", "array", "string", "integer", "number", "null") if isinstance(value, _TYPES[k])),
        "unknown",
    )


def _choices(rules: Mapping[str, Any], value: Any, at: str) -> str:
    if "enum" in rules and value not in rules["enum"]:
        return f"{at} must be one of {', '.join(map(repr, rules['enum']))}, not {value!r}"
    if "const" in rules and value != rules["const"]:
        return f"{at} must be {rules['const']!r}, not {value!r}"
    return ""


def _bounds(rules: Mapping[str, Any], value: Any, at: str) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for word, low in (("minimum", True), ("maximum", False)):
            bound = rules.get(word)
            if isinstance(bound, (int, float)) and (value < bound if low else value > bound):
                return f"{at} must be {'at least' if low else 'at most'} {bound}, not {value}"
    sized = {str: ("minLength", "maxLength"), list: ("minItems", "maxItems")}
    for kind, words in sized.items():
        if isinstance(value, kind):
            least, most = (rules.get(w) for w in words)
            size = len(cast(Any, value))
            if isinstance(least, int) and size < least:
                return f"{at} is too short: {words[0]} is {least}"
            if isinstance(most, int) and size > most:
                return f"{at} is too long: {words[1]} is {most}"
    return ""


def _object(rules: Mapping[str, Any], value: dict[str, Any], at: str, depth: int) -> str:
    properties: Mapping[str, Any] = rules.get("properties", {})
    for name in rules.get("required", ()):
        if name not in value:
            return f"{at}.{name} is missing"
    for name, item in value.items():
        if name in properties:
            if found := problem(properties[name], item, f"{at}.{name}", depth + 1):
                return found
        elif rules.get("additionalProperties") is False:
            near = get_close_matches(name, list(properties), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(properties) or 'nothing'}"
            return f"{at}.{name} is not known; {hint}"
    return ""
