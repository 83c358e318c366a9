"""The functions of expressions, by name. All pure, all on JSON values.

An error is a `Fault`. Work is paid for before it is done: elements and characters are counted by the evaluation's meter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from perdure.core.expressions.conversions import (
    INTEGER,
    accessor,
    as_it_is,
    to_bool,
    to_duration,
    to_float,
    to_int,
    to_timestamp,
    to_uint,
    type_name,
)
from perdure.core.expressions.nodes import DATA_DEPTH_MAX, INTEGER_MAX, Fault, Meter, a_kind, kind, number
from perdure.core.expressions.operators import encoded, plus, text_of
from perdure.core.expressions.patterns import matches
from perdure.core.expressions.values import TIMES
from perdure.core.payloads import NeedPayload, Placed, inside

# Steps per element of what takes longer than to pass by it: measured, so that EXPR_STEPS_MAX takes about as long with each of them.
_KEYED: Final = 6
_WRITTEN: Final = 3
_PARSED: Final = 2
_NUMBERS: Final = frozenset({int, float})
_ROUND_DIGITS_MAX: Final = 15


def _string(meter: Meter, value: Any) -> str:
    return text_of(value, meter)


def _json(meter: Meter, value: Any) -> str:
    return encoded(value, meter)


def _changed(text: str, meter: Meter) -> str:
    """A text of about the length of the one it was made from."""
    meter.build(len(text))
    return text


def _lower(meter: Meter, text: str) -> str:
    meter.scan(text)
    return _changed(text.lower(), meter)


def _upper(meter: Meter, text: str) -> str:
    meter.scan(text)
    return _changed(text.upper(), meter)


def _trim(meter: Meter, text: str) -> str:
    meter.scan(text)
    return _changed(text.strip(), meter)


def _split(meter: Meter, text: str, separator: str) -> list[str]:
    if not separator:
        raise Fault("the separator is empty")
    meter.scan(text)
    meter.spend(text.count(separator) + 1)
    meter.build(len(text))
    return text.split(separator)


def _join(meter: Meter, items: list[Any], separator: str = "") -> str:
    meter.spend(len(items) * _WRITTEN)
    texts: list[str] = []
    for item in items:
        if isinstance(item, list | dict):
            raise Fault(f"{a_kind(item)} cannot be joined into a text; use json() on it")
        texts.append(text_of(item, meter))
    meter.build(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(meter: Meter, text: str, old: str, new: str) -> str:
    if not old:
        raise Fault("the text to replace is empty")
    meter.scan(text)
    meter.build(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def _starts_with(meter: Meter, text: str, start: str) -> bool:
    meter.scan(start)
    return text.startswith(start)


def _ends_with(meter: Meter, text: str, end: str) -> bool:
    meter.scan(end)
    return text.endswith(end)


def _sha256(meter: Meter, text: str) -> str:
    meter.scan(text)
    try:
        return hashlib.sha256(text.encode()).hexdigest()
    except UnicodeEncodeError:
        raise Fault("the string has half of a surrogate pair in it") from None


def _parse_json(meter: Meter, text: str) -> Any:
    meter.build(len(text))
    meter.scan(text)
    meter.spend(_PARSED * (text.count(",") + text.count("[") + text.count("{") + 1))
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as exc:
        raise Fault(f"the string is not JSON: {exc}") from None
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DATA_DEPTH_MAX + 1):
        level = [one for one in level if isinstance(one, list | dict)]
        if not level:
            return
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    raise Fault(f"the value is nested more than {DATA_DEPTH_MAX} deep")


def _abs(_: Meter, value: float) -> float:
    return number(abs(value))


def _round(_: Meter, value: float, digits: int = 0) -> float:
    """Halves go to the even neighbour."""
    number(value)
    if not 0 <= digits <= _ROUND_DIGITS_MAX:
        raise Fault(f"the digits must lie between 0 and {_ROUND_DIGITS_MAX}")
    return number(round(value, digits) if digits else round(value))


def _size(_: Meter, value: Any) -> int:
    return 0 if value is None else len(value)


def _keys(meter: Meter, value: dict[str, Any]) -> list[str]:
    meter.spend(len(value))
    return list(value)


def _values(meter: Meter, value: dict[str, Any]) -> list[Any]:
    meter.spend(len(value))
    return list(value.values())


def _first(_: Meter, items: Any) -> Any:
    return items[0] if items else None


def _last(_: Meter, items: Any) -> Any:
    return items[-1] if items else None


def _sum(meter: Meter, items: list[Any]) -> float:
    meter.spend(len(items))
    total: float = 0
    for item in items:
        if type(item) not in _NUMBERS:
            raise Fault(f"{a_kind(item)} is among the numbers to add")
        total = plus(total, item)
    return total


def _ordered(meter: Meter, items: list[Any], what: str) -> list[Any]:
    """The items, once it is sure that they have an order."""
    meter.spend(len(items))
    kinds = set(map(type, items))
    if kinds == {str}:
        meter.spend(sum(map(len, items)) >> 6)
        return items
    if kinds <= _NUMBERS or (len(kinds) == 1 and kinds <= TIMES):
        return items
    names = " and ".join(sorted({kind(item) for item in items}))
    raise Fault(f"{what} takes numbers only or strings only, not {names}")


def _extreme(pick: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    def run(meter: Meter, *values: Any) -> Any:
        if len(values) == 1:
            if not isinstance(values[0], list):
                raise Fault(f"it takes a list, or several values, not one {kind(values[0])}")
            items = values[0]
        else:
            items = list(values)
        return pick(_ordered(meter, items, "it")) if items else None

    return run


def _sort(meter: Meter, items: list[Any]) -> list[Any]:
    _ordered(meter, items, "it")
    meter.spend(len(items) * len(items).bit_length())
    return sorted(items)


def _reverse(meter: Meter, items: Any) -> Any:
    if isinstance(items, str):
        meter.build(len(items))
    else:
        meter.spend(len(items))
    return items[::-1]


def _slice(meter: Meter, items: Any, start: int | None, stop: int | None = None) -> Any:
    # Positions far outside are as good as the ends; Python takes any integer here.
    begin, end, _ = slice(start, stop).indices(len(items))
    length = max(0, end - begin)
    if isinstance(items, str):
        meter.build(length)
    else:
        meter.spend(length)
    return items[begin:end]


def _range(meter: Meter, first: int, stop: int | None = None) -> list[int]:
    begin, end = (0, first) if stop is None else (first, stop)
    if abs(begin) > INTEGER_MAX or abs(end) > INTEGER_MAX:
        raise Fault("the integer is beyond 2^63")
    meter.spend(max(0, end - begin))
    return list(range(begin, end))


def _flatten(meter: Meter, items: list[Any]) -> list[Any]:
    """One level: lists among the items give their elements."""
    meter.spend(len(items))
    out: list[Any] = []
    for item in items:
        if isinstance(item, list):
            meter.spend(len(item))
            out.extend(item)
        else:
            out.append(item)
    return out


def _unique(meter: Meter, items: list[Any]) -> list[Any]:
    """The first of each of several equal ones."""
    seen: dict[Any, Any] = {}
    meter.spend(len(items) * _KEYED)
    for item in items:
        seen.setdefault(_key(item, meter, 0), item)
    return list(seen.values())


def _key(value: Any, meter: Meter, depth: int) -> Any:
    """Hashable, and the same for equal values."""
    if isinstance(value, str):
        return value
    if depth > DATA_DEPTH_MAX:
        raise Fault(f"an element is nested more than {DATA_DEPTH_MAX} deep")
    if isinstance(value, list):
        meter.spend(len(value) * _KEYED)
        return (list, *(_key(item, meter, depth + 1) for item in value))
    if isinstance(value, dict):
        meter.spend(len(value) * _KEYED)
        return (dict, frozenset((key, _key(item, meter, depth + 1)) for key, item in value.items()))
    return (bool, value) if isinstance(value, bool) else (int, value)


def _merge(meter: Meter, *objects: dict[str, Any] | None) -> dict[str, Any]:
    """Later ones win; null counts as {}."""
    out: dict[str, Any] = {}
    for one in objects:
        if one is not None:
            meter.spend(len(one))
            out.update(one)
    return out


def _get(meter: Meter, value: Any, path: str | int, default: Any = None) -> Any:
    """What stands at a dotted path, unless that is nothing or null."""
    if not isinstance(path, str):
        found = step_into(value, path)
    else:
        meter.spend(path.count(".") + 1)
        found = value
        for step in path.split("."):
            found = step_into(found, int(step) if isinstance(found, list) and INTEGER.fullmatch(step) else step)
    return default if found is None else found


def step_into(value: Any, step: Any) -> Any:
    """One step of a path: a field, or an element, from the end if negative. Null wherever there is none."""
    if isinstance(value, dict):
        if isinstance(step, str):
            return value.get(step)
        return value.get(str(step)) if type(step) is int and -INTEGER_MAX <= step <= INTEGER_MAX else None
    if isinstance(value, list) and type(step) is int and -len(value) <= step < len(value):
        return value[step]
    return step_into(value.inside(), step) if type(value) is Placed else None


_ANY: Final = frozenset({"null", "boolean", "number", "string", "list", "object", "timestamp", "duration"})


class Function(msgspec.Struct, frozen=True):
    run: Callable[..., Any]
    """Takes the meter, then the arguments."""
    params: tuple[frozenset[str], ...]
    """The kinds each argument may have; the last stands for all that follow it."""
    least: int
    most: int
    gives: frozenset[str] | None
    """The kinds its result may have, where that is known."""

    @property
    def arity(self) -> str:
        if self.most >= _MANY:
            return f"at least {self.least} arguments" if self.least != 1 else "at least one argument"
        counts = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        return f"{counts} argument{'' if self.most == 1 else 's'}"


_MANY: Final = 1_000
"""Arguments of a function that takes any number of them."""


def _kinds(text: str) -> frozenset[str]:
    return _ANY if text == "any" else frozenset(text.split("|"))


def _function(
    run: Callable[..., Any], params: str, gives: str | None, least: int | None = None, more: bool = False
) -> Function:
    kinds = tuple(_kinds(part) for part in params.split())
    return Function(
        run,
        kinds,
        len(kinds) if least is None else least,
        _MANY if more else len(kinds),
        _kinds(gives) if gives else None,
    )


def _elsewhere(*_: Any) -> Any:
    raise AssertionError("the compiler of expressions makes its own of this function")


_NULLABLE: Final = "null|string|list|object"

DATE_PARTS: Final = ("getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear")
TIME_PARTS: Final = ("getHours", "getMinutes", "getSeconds", "getMilliseconds")

FUNCTIONS: Final[dict[str, Function]] = {
    "size": _function(_size, _NULLABLE, "number"),
    "keys": _function(_keys, "object", "list"),
    "values": _function(_values, "object", "list"),
    "first": _function(_first, "null|list|string", None),
    "last": _function(_last, "null|list|string", None),
    "sum": _function(_sum, "list", "number"),
    "min": _function(_extreme(min), "list|number|string|timestamp|duration", None, more=True),
    "max": _function(_extreme(max), "list|number|string|timestamp|duration", None, more=True),
    "abs": _function(_abs, "number", "number"),
    "round": _function(_round, "number number", "number", 1),
    "int": _function(to_int, "number|string|boolean|timestamp", "number"),
    "uint": _function(to_uint, "number|string|boolean", "number"),
    "double": _function(to_float, "number|string|boolean", "number"),
    "float": _function(to_float, "number|string|boolean", "number"),
    "string": _function(_string, "any", "string"),
    "bool": _function(to_bool, "any", "boolean"),
    "lower": _function(_lower, "string", "string"),
    "upper": _function(_upper, "string", "string"),
    "trim": _function(_trim, "string", "string"),
    "split": _function(_split, "string string", "list"),
    "join": _function(_join, "list string", "string", 1),
    "replace": _function(_replace, "string string string", "string"),
    "starts_with": _function(_starts_with, "string string", "boolean"),
    "ends_with": _function(_ends_with, "string string", "boolean"),
    "range": _function(_range, "number number", "list", 1),
    "flatten": _function(_flatten, "list", "list"),
    "unique": _function(_unique, "list", "list"),
    "sort": _function(_sort, "list", "list"),
    "reverse": _function(_reverse, "list|string", "list|string"),
    "slice": _function(_slice, "list|string number|null number|null", "list|string", 2),
    "default": _function(_elsewhere, "any any", None),
    "coalesce": _function(_elsewhere, "any", None, more=True),
    "merge": _function(_merge, "null|object null|object", "object", more=True),
    "get": _function(_get, "any string|number any", None, 2),
    "json": _function(_json, "any", "string"),
    "parse_json": _function(_parse_json, "string", None),
    "type": _function(type_name, "any", "string"),
    "now": _function(_elsewhere, "", "number"),
    "sha256": _function(_sha256, "string", "string"),
    "matches": _function(matches, "string string", "boolean"),
    "has": _function(_elsewhere, "any", "boolean"),
    "dyn": _function(as_it_is, "any", None),
    "timestamp": _function(to_timestamp, "string|number|timestamp", "timestamp"),
    "duration": _function(to_duration, "string|number|duration", "duration"),
    **{name: _function(accessor(name), "timestamp string", "number", 1) for name in DATE_PARTS},
    **{name: _function(accessor(name), "timestamp|duration string", "number", 1) for name in TIME_PARTS},
}
METHODS: Final = {
    "startsWith": "starts_with",
    "endsWith": "ends_with",
    **{name: name for name in ("matches", "size", *DATE_PARTS, *TIME_PARTS)},
}
"""Functions by the names that they have behind a value and a dot: `input.day.startsWith("2026")`. `contains` is an operator."""
INTEGER_ARGUMENTS: Final = {"round": {1}, "range": {0, 1}, "slice": {1, 2}, "get": {1}}
"""Where a number has to be a whole one."""


_HOLDERS: Final = frozenset({Placed, list, dict})
_SHALLOW: Final = frozenset(
    {
        "bool",
        "coalesce",
        "default",
        "dyn",
        "first",
        "get",
        "keys",
        "last",
        "merge",
        "reverse",
        "size",
        "slice",
        "type",
        "values",
    }
)
"""Functions that do not look at the members of their arguments: stored ones need not be loaded for them."""


def readable(value: Any) -> Any:
    """An argument with its stored values, of a list or an object also those of its members. NeedPayload names all that are missing."""
    if type(value) is Placed:
        return value.inside()
    items: Any = value.values() if isinstance(value, dict) else value
    if Placed not in map(type, items):
        return value
    missing = [item.reference for item in items if type(item) is Placed and not item.is_loaded]
    if missing:
        raise NeedPayload(missing)
    if isinstance(value, dict):
        return {key: inside(item) for key, item in value.items()}
    return [inside(item) for item in value]


def call(name: str, args: list[Any], meter: Meter) -> Any:
    """A function's result, after its arguments were checked."""
    function = FUNCTIONS[name]
    read = inside if name in _SHALLOW else readable
    args = [read(value) if type(value) in _HOLDERS else value for value in args]
    params, whole = function.params, INTEGER_ARGUMENTS.get(name, ())
    last = len(params) - 1
    for index, value in enumerate(args):
        takes = params[index if index < last else last]
        if takes is not _ANY and kind(value) not in takes:
            raise Fault(f"{name}() takes {listed(takes)}, not {a_kind(value)}" + _advice(value, takes))
        if index in whole and type(value) is float:
            if not value.is_integer():
                raise Fault(f"{name}() takes whole numbers, not {value}")
            args[index] = int(value)
    try:
        return function.run(meter, *args)
    except Fault as fault:
        raise Fault(f"{name}(): {fault}") from None


def listed(kinds: frozenset[str]) -> str:
    names = [f"an {name}" if name == "object" else f"a {name}" for name in sorted(kinds - {"null"})]
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _advice(value: Any, takes: frozenset[str]) -> str:
    if value is None:
        empty = "[]" if "list" in takes else "{}" if "object" in takes else '""' if "string" in takes else "0"
        return f"; the path may be missing: write (… ?? {empty})"
    return ""
