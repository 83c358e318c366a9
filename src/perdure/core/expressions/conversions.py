"""Conversions of values by their names, and the parts of timestamps and durations."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from perdure.core.expressions.nodes import Fault, Meter, kind, number
from perdure.core.expressions.times import NS, part, read_instant, read_span
from perdure.core.expressions.values import Instant, TimeSpan

INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_FLOAT: Final = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?")


def to_int(_: Meter, value: Any) -> int:
    """Towards zero."""
    if isinstance(value, str):
        if not INTEGER.fullmatch(value.strip()):
            raise Fault("the string is not an integer")
        return int(number(int(value)))
    if type(value) is Instant:
        return value.ns // NS
    return int(number(int(number(value))))


def to_uint(meter: Meter, value: Any) -> int:
    whole = to_int(meter, value)
    if whole < 0:
        raise Fault("the number is negative")
    return whole


def to_float(_: Meter, value: Any) -> float:
    if isinstance(value, str):
        if not _FLOAT.fullmatch(value.strip()):
            raise Fault("the string is not a number")
        return number(float(value))
    return float(number(value))


def to_bool(_: Meter, value: Any) -> bool:
    return bool(value)


def type_name(_: Meter, value: Any) -> str:
    return kind(value)


def as_it_is(_: Meter, value: Any) -> Any:
    return value


def to_timestamp(_: Meter, value: Any) -> Instant:
    return read_instant(value)


def to_duration(_: Meter, value: Any) -> TimeSpan:
    return read_span(value)


def accessor(name: str) -> Callable[..., Any]:
    def run(_: Meter, value: Any, zone: str | None = None) -> int:
        return part(name, value, zone)

    return run
