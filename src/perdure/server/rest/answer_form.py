"""The form of an approval as fields of a page: from a JSON Schema to inputs, and from what was typed back to a value.

What is simple gets an input of its own; anything else is typed as JSON. The approval checks the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec

from perdure.core.errors import InvalidInput

PREFIX: Final = "f."
"""Begins the names of a form's own fields, so that none of them is taken for ours."""
FIELDS_MAX: Final = 100
"""Fields that get an input of their own; a form with more is typed as JSON."""
LONG_TEXT: Final = 200
"""A text that may have more characters than this gets several lines."""

Look = Literal["text", "lines", "integer", "number", "checkbox", "select", "json"]


class Field(msgspec.Struct, frozen=True):
    name: str
    label: str
    help: str
    look: Look
    required: bool
    options: list[Any] = []
    default: str = ""
    """As it would be typed; the number of the option of a select, `on` of a checkbox."""
    least: float | None = None
    most: float | None = None

    @property
    def input(self) -> str:
        return PREFIX + self.name


Fields = list[Field]


def fields_of(form: Mapping[str, Any] | None) -> Fields:
    if form is None:
        return []
    properties: Any = form.get("properties")
    if not isinstance(properties, dict) or len(cast(dict[str, Any], properties)) > FIELDS_MAX:
        return [_field("value", form, True)]
    named = cast(dict[str, Any], properties)
    required: Any = form.get("required") or ()
    return [_field(name, schema, name in required) for name, schema in named.items()]


def _field(name: str, schema: Any, required: bool) -> Field:
    rules = cast(dict[str, Any], schema) if isinstance(schema, dict) else {}
    kinds: Any = rules.get("type")
    several: list[Any] = kinds if isinstance(kinds, list) else [kinds]
    types = [t for t in several if t != "null"]
    options: list[Any] = cast(list[Any], rules["enum"]) if isinstance(rules.get("enum"), list) else []
    look = _look(types[0] if len(types) == 1 else None, options, rules)
    label, help_ = rules.get("title"), rules.get("description")
    return Field(
        name=name,
        label=label if isinstance(label, str) and label else name.replace("_", " "),
        help=help_ if isinstance(help_, str) else "",
        look=look,
        required=required and look != "checkbox",
        options=options,
        default=_typed(rules.get("default"), look, options) if "default" in rules else "",
        least=_number(rules.get("minimum")),
        most=_number(rules.get("maximum")),
    )


def _look(kind: Any, options: list[Any], rules: Mapping[str, Any]) -> Look:
    if options:
        return "select"
    match kind:
        case "string":
            longest = rules.get("maxLength")
            return "lines" if isinstance(longest, int) and longest > LONG_TEXT else "text"
        case "integer":
            return "integer"
        case "number":
            return "number"
        case "boolean":
            return "checkbox"
        case _:
            return "json"


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _typed(value: Any, look: Look, options: list[Any]) -> str:
    if look == "select":
        return str(options.index(value)) if value in options else ""
    if look == "checkbox":
        return "on" if value is True else ""
    return value if isinstance(value, str) and look in ("text", "lines") else "" if value is None else json.dumps(value)


def read_fields(form: Mapping[str, Any] | None, given: Mapping[str, str]) -> Any:
    """What was typed, as the form's value."""
    fields = fields_of(form)
    if not fields:
        return None
    value = {f.name: v for f in fields if (v := _value(f, given.get(f.input, ""))) is not msgspec.UNSET}
    alone = isinstance(form, Mapping) and (not isinstance(form.get("properties"), dict) or _is_too_wide(form))
    return value.get("value") if alone else value


def _is_too_wide(form: Mapping[str, Any]) -> bool:
    return len(form["properties"]) > FIELDS_MAX


def _value(field: Field, text: str) -> Any:
    """UNSET for a field that was left empty."""
    if field.look == "checkbox":
        return text != ""
    if text == "":
        return "" if field.required and field.look in ("text", "lines") else msgspec.UNSET
    match field.look:
        case "text" | "lines":
            return text.replace("\r\n", "\n")
        case "select":
            if not text.isdecimal() or int(text) >= len(field.options):
                raise InvalidInput(f"{field.label}: choose one of those there are")
            return field.options[int(text)]
        case "integer" | "number":
            return _read_number(field, text)
        case _:
            try:
                return json.loads(text)
            except (ValueError, RecursionError) as e:
                raise InvalidInput(f"{field.label}: this is not JSON: {e}") from None


def _read_number(field: Field, text: str) -> int | float:
    try:
        number = int(text) if field.look == "integer" else float(text)
    except ValueError:
        raise InvalidInput(f"{field.label}: {text[:30]!r} is no number") from None
    if (isinstance(number, float) and number in (float("inf"), float("-inf"))) or number != number:
        raise InvalidInput(f"{field.label}: {text[:30]!r} is no number")
    is_whole = isinstance(number, float) and number.is_integer()  # pyrefly: ignore[missing-attribute]
    return int(number) if is_whole and abs(number) < 1 << 53 else number
