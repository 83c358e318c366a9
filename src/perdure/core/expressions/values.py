"""Values that exist only within an expression, besides those of JSON. times.py says what can be done with them.

They are neither structs nor dataclasses: an encoder would take those for objects, and write them without a word.
"""

from __future__ import annotations

from typing import Any, Final


class Fault(Exception):
    """Why an operation has no value. The evaluator adds the position and raises an ExprError; it never leaves this package."""


class _Nanoseconds:
    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.ns == other.ns

    def __hash__(self) -> int:
        return hash((type(self), self.ns))

    def __lt__(self, other: Any) -> bool:
        return bool(self.ns < other.ns)

    def __le__(self, other: Any) -> bool:
        return bool(self.ns <= other.ns)

    def __gt__(self, other: Any) -> bool:
        return bool(self.ns > other.ns)

    def __ge__(self, other: Any) -> bool:
        return bool(self.ns >= other.ns)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.ns})"


class Instant(_Nanoseconds):
    """A timestamp: nanoseconds since 1970."""

    __slots__ = ()


class TimeSpan(_Nanoseconds):
    """A duration in nanoseconds, of either sign."""

    __slots__ = ()


TIMES: Final = frozenset({Instant, TimeSpan})
