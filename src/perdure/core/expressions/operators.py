"""What operators of expressions compute: comparison, arithmetic, and values as text. All pure, all on JSON values.

An error is a `Fault`. Work is paid for before it is done: elements and characters are counted by the evaluation's meter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from perdure.core.expressions.nodes import Fault, Meter, a_kind, number
from perdure.core.expressions.times import added, subtracted, time_text, written
from perdure.core.expressions.values import TIMES, Instant, TimeSpan
from perdure.core.limits import EXPR_BYTES_MAX

# Steps per element of what takes longer than to pass by it: measured, so that EXPR_STEPS_MAX takes about as long with each of them.
_COMPARED: Final = 4
_LONG_TEXT: Final = 4_096
"""Characters of a text above which comparing it is paid for."""
_SCALARS: Final = frozenset({str, int, float, bool, type(None), Instant, TimeSpan})
_NUMBERS: Final = frozenset({int, float})
_TIME_CHARS: Final = 32
"""Of a timestamp or a duration as JSON."""
_ENCODER: Final = msgspec.json.Encoder(enc_hook=written)


def equal(left: Any, right: Any, meter: Meter) -> bool:
    """Of any two values. 1 equals 1.0; booleans are no numbers."""
    kind_l, kind_r = type(left), type(right)
    if kind_l in _SCALARS or kind_r in _SCALARS:
        if kind_l is kind_r or (kind_l in _NUMBERS and kind_r in _NUMBERS):
            if kind_l is str and len(left) > _LONG_TEXT:
                meter.scan(left)
            return bool(left == right)
        return False
    return _deep_equal(left, right, meter)


def _deep_equal(left: Any, right: Any, meter: Meter) -> bool:
    todo: list[tuple[Any, Any]] = [(left, right)]
    while todo:
        one, two = todo.pop()
        if isinstance(one, list) and isinstance(two, list):
            if len(one) != len(two):
                return False
            meter.spend(len(one) * _COMPARED)
            todo.extend(zip(one, two, strict=True))
        elif isinstance(one, dict) and isinstance(two, dict):
            if len(one) != len(two):
                return False
            meter.spend(len(one) * _COMPARED)
            if one.keys() != two.keys():
                return False
            todo.extend((value, two[key]) for key, value in one.items())
        elif (type(one) in _SCALARS or type(two) in _SCALARS) and equal(one, two, meter):
            continue
        else:
            return False
    return True


def check_order(left: Any, right: Any, meter: Meter) -> None:
    """Numbers have one, strings, timestamps and durations."""
    if isinstance(left, str) and len(left) > _LONG_TEXT:
        meter.scan(left)
    if not (
        (type(left) in _NUMBERS and type(right) in _NUMBERS)
        or (isinstance(left, str) and isinstance(right, str))
        or (type(left) in TIMES and type(left) is type(right))
    ):
        raise Fault(
            f"{a_kind(left)} and {a_kind(right)} have no order; compare numbers with numbers and strings with strings"
        )


def member(needle: Any, holder: Any, meter: Meter) -> bool:
    """`needle in holder`: an element of a list, a key of an object, a part of a string. Nothing is in null."""
    if isinstance(holder, list):
        if isinstance(needle, str):
            meter.spend(len(holder) * (1 if len(needle) <= _LONG_TEXT else len(needle) >> 6))
            return needle in holder
        meter.spend(len(holder) * 2)
        return any(equal(needle, item, meter) for item in holder)
    if isinstance(holder, dict):
        return isinstance(needle, str) and needle in holder
    if holder is None:
        return False
    if isinstance(holder, str):
        if isinstance(needle, str):
            meter.scan(holder)
            return needle in holder
        if needle is None:
            return False
        raise Fault(f"{a_kind(needle)} cannot be part of a string; use string() on it")
    raise Fault(f"nothing can be in {a_kind(holder)}; it takes a list, an object or a string")


def add(left: Any, right: Any, meter: Meter) -> Any:
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        return _computed(left, right, _plus)
    if isinstance(left, str) and isinstance(right, str):
        meter.build(len(left) + len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        meter.spend(len(left) + len(right))
        return left + right
    if type(left) in TIMES and (total := added(left, right)) is not None:
        return total
    raise Fault(
        f"{a_kind(left)} and {a_kind(right)} cannot be added; + takes two numbers, two strings or two lists"
        + ("; use string() on the other" if isinstance(left, str) or isinstance(right, str) else "")
    )


def _plus(left: float, right: float) -> float:
    return left + right


def _minus(left: float, right: float) -> float:
    return left - right


def _times(left: float, right: float) -> float:
    return left * right


def _over(left: float, right: float) -> float:
    """Two integers give an integer where there is one."""
    if right == 0:
        raise Fault("division by zero")
    if type(left) is int and type(right) is int and left % right == 0:
        return left // right
    return left / right


def _modulo(left: float, right: float) -> float:
    """The sign is the right one's."""
    if right == 0:
        raise Fault("division by zero")
    return left % right


def _computed(left: Any, right: Any, operate: Callable[[float, float], float]) -> float:
    try:
        return number(operate(left, right))
    except OverflowError:
        raise Fault("the number is too large for a float") from None


def plus(left: float, right: float) -> float:
    """The sum of two numbers, within the bounds of numbers."""
    return _computed(left, right, _plus)


def _of_numbers(sign: str, operate: Callable[[float, float], float]) -> Callable[[Any, Any, Meter], Any]:
    def run(left: Any, right: Any, _: Meter) -> Any:
        if type(left) in _NUMBERS and type(right) in _NUMBERS:
            return _computed(left, right, operate)
        raise Fault(f"{sign} takes two numbers, not {a_kind(left)} and {a_kind(right)}")

    return run


_numbers_minus: Final = _of_numbers("-", _minus)


def _subtract(left: Any, right: Any, meter: Meter) -> Any:
    if type(left) in TIMES and (rest := subtracted(left, right)) is not None:
        return rest
    return _numbers_minus(left, right, meter)


ARITHMETIC: Final[dict[str, Callable[[Any, Any, Meter], Any]]] = {
    "+": add,
    "-": _subtract,
    "*": _of_numbers("*", _times),
    "/": _of_numbers("/", _over),
    "%": _of_numbers("%", _modulo),
}


def negative(value: Any) -> float:
    if type(value) in _NUMBERS:
        return number(-value)
    raise Fault(f"the sign - takes a number, not {a_kind(value)}")


def text_of(value: Any, meter: Meter) -> str:
    """As it stands in a text: strings as they are, null as nothing, the rest as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if type(value) in TIMES:
        return time_text(value)
    return encoded(value, meter)


def encoded(value: Any, meter: Meter) -> str:
    """Compact JSON."""
    meter.build(weigh(value, meter, EXPR_BYTES_MAX))
    try:
        return _ENCODER.encode(value).decode()
    except (TypeError, ValueError, OverflowError) as exc:
        raise Fault(f"the value has no JSON form: {exc}") from None
    except RecursionError:
        raise Fault("the value is nested too deeply for JSON") from None


def weigh(value: Any, meter: Meter | None, most: int) -> int:
    """Roughly the characters of a value's JSON form; counting stops above `most`. Elements are paid for by the meter, if there is one."""
    if isinstance(value, str):
        return len(value) + 2
    total = 0
    todo = [value]
    while todo and total <= most:
        here = todo.pop()
        if isinstance(here, str):
            total += len(here) + 3
        elif isinstance(here, list):
            if meter:
                meter.spend(len(here))
            total += 2
            todo.extend(here)
        elif isinstance(here, dict):
            if meter:
                meter.spend(len(here) * 2)
            total += 2
            todo.extend(here)
            todo.extend(here.values())
        else:
            total += _TIME_CHARS if type(here) in TIMES else 4
    return total
