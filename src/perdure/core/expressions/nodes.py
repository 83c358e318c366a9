"""What an expression is made of: its limits and the nodes of its tree.

Laws:
- Nodes never change. `at` is where the node's own mark (an operator, a name, a bracket) stands in the text it was parsed from.
- `height` is 1 for a leaf and never above EXPR_DEPTH_MAX, so code that walks a tree may recurse.
- The only loops are macros over the elements of a list or the keys of an object. Outside of them one evaluation visits a node at most once,
  so visits are bounded by EXPR_CHARS_MAX; what has to be counted is elements, and a `Meter` counts those. A macro pays for every
  turn what its body has in nodes (`Macro.cost`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from perdure.core.error_excerpts import EXPR_SHOWN_CHARS_MAX
from perdure.core.expressions.values import Fault as Fault
from perdure.core.expressions.values import Instant, TimeSpan
from perdure.core.limits import EXPR_BYTES_MAX, EXPR_DEPTH_MAX, EXPR_STEPS_MAX
from perdure.core.payloads import inside

EXPR_BUILT_MAX: Final = 4 * EXPR_BYTES_MAX
"""Characters that one evaluation may build altogether, intermediate results included."""
INTEGER_MAX: Final = 2**63 - 1
"""Largest magnitude of an integer that is written or computed."""
DATA_DEPTH_MAX: Final = 100
"""Levels of a value that is parsed from JSON, or compared by `unique`."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """What was probably meant."""
    close = get_close_matches(name[:EXPR_SHOWN_CHARS_MAX], list(known), 1)
    return close[0] if close else None


class Meter:
    """What one evaluation has left. Several evaluations that happen in one go share one; `renew` begins the next."""

    # Class attributes stand in for a fresh instance's own: most evaluations spend nothing, and then making one is nearly free.
    steps: int = EXPR_STEPS_MAX
    chars: int = EXPR_BUILT_MAX

    def spend(self, elements: int) -> None:
        """Call before touching that many elements."""
        self.steps -= elements
        if self.steps < 0:
            raise Fault(f"this takes more than {EXPR_STEPS_MAX} steps; do it in a task")

    def renew(self) -> int:
        """Begin anew. Answers the steps that were taken."""
        if not self.__dict__:
            return 0
        taken = EXPR_STEPS_MAX - self.steps + ((EXPR_BUILT_MAX - self.chars) >> 6)
        self.__dict__.clear()
        return taken

    def scan(self, text: str) -> None:
        self.spend((len(text) >> 6) + 1)

    def build(self, chars: int) -> None:
        """Call before building a text of that length."""
        if chars > EXPR_BYTES_MAX:
            raise Fault(f"the text would have {chars} characters; {EXPR_BYTES_MAX} is the most")
        self.chars -= chars
        if self.chars < 0:
            raise Fault(f"this builds more than {EXPR_BUILT_MAX} characters of text; do it in a task")


_CALLED: Final = 6
"""Steps of one call of a function in a macro; any other node takes one. Measured, so that EXPR_STEPS_MAX takes about as long in a macro as
with functions."""
_KINDS: Final = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "list",
    dict: "object",
    Instant: "timestamp",
    TimeSpan: "duration",
}


def kind(value: Any) -> str:
    """The name of a value's type, for messages."""
    found = _KINDS.get(type(value))
    if found is None:
        value = inside(value)
        found = next((name for base, name in _KINDS.items() if isinstance(value, base)), "unknown")
    return found


def a_kind(value: Any) -> str:
    """With its article."""
    name = kind(value)
    return name if name == "null" else f"an {name}" if name in ("object", "unknown") else f"a {name}"


def number(value: float) -> float:
    """A computed number, if it is one that JSON can carry."""
    if type(value) is int:
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise Fault("the integer is beyond 2^63; use a float, or text")
    elif not math.isfinite(value):
        raise Fault("the number is too large for a float")
    return value


class ExprNode(msgspec.Struct, frozen=True, kw_only=True):
    at: int = 0
    height: int = 1


class Literal(ExprNode, frozen=True):
    value: str | float | bool | None


class ListOf(ExprNode, frozen=True):
    items: tuple[ExprNode, ...]


class ObjectOf(ExprNode, frozen=True):
    pairs: tuple[tuple[str, ExprNode], ...]


class Root(ExprNode, frozen=True):
    name: str


class Get(ExprNode, frozen=True):
    """`base.field[0][expression]`: fields and fixed indexes stand as they are, computed ones as nodes."""

    base: ExprNode
    steps: tuple[str | int | ExprNode, ...]


class Unary(ExprNode, frozen=True):
    op: str
    """not, exists, -"""
    operand: ExprNode


class Logic(ExprNode, frozen=True):
    op: str
    """and, or"""
    operands: tuple[ExprNode, ...]


class Compare(ExprNode, frozen=True):
    op: str
    """eq ne gt lt ge le in contains, and `not in`"""
    left: ExprNode
    right: ExprNode


class Arith(ExprNode, frozen=True):
    """A row of operators of one rank, worked from the left."""

    first: ExprNode
    rest: tuple[tuple[str, ExprNode], ...]


class Coalesce(ExprNode, frozen=True):
    operands: tuple[ExprNode, ...]


class Cond(ExprNode, frozen=True):
    test: ExprNode
    then: ExprNode
    other: ExprNode


class CallNode(ExprNode, frozen=True):
    name: str
    args: tuple[ExprNode, ...]


class Macro(ExprNode, frozen=True):
    """`base.map(name, body)`: the body for each element of a list, or each key of an object, under a name of its own."""

    op: str
    """map, filter, exists, exists_one, all"""
    base: ExprNode
    name: str
    body: ExprNode
    """A condition; of `map` the value."""
    cost: int
    """Steps of one turn."""
    only: ExprNode | None = None
    """Of `map`: which elements."""


def children(node: ExprNode) -> tuple[ExprNode, ...]:
    match node:
        case ListOf(items=nodes) | Logic(operands=nodes) | Coalesce(operands=nodes) | CallNode(args=nodes):
            return nodes
        case ObjectOf(pairs=pairs):
            return tuple(value for _, value in pairs)
        case Get(base=base, steps=steps):
            return (base, *(step for step in steps if isinstance(step, ExprNode)))
        case Unary(operand=operand):
            return (operand,)
        case Compare(left=left, right=right):
            return (left, right)
        case Arith(first=first, rest=rest):
            return (first, *(operand for _, operand in rest))
        case Cond(test=test, then=then, other=other):
            return (test, then, other)
        case Macro(base=base, body=body, only=only):
            return (base, body) if only is None else (base, only, body)
        case _:
            return ()


def turn_cost(*parts: ExprNode | None) -> int:
    """Steps of one turn of a macro with these parts. Macros within them pay for their own turns."""
    return sum(_visited(part) for part in parts if part is not None)


def _visited(node: ExprNode) -> int:
    below = (node.base,) if isinstance(node, Macro) else children(node)
    return (_CALLED if isinstance(node, CallNode) else 1) + sum(map(_visited, below))


def over(*below: ExprNode) -> int:
    """The height of a node above these."""
    height = 1 + max((node.height for node in below), default=0)
    if height > EXPR_DEPTH_MAX:
        raise Fault(f"the expression is nested more than {EXPR_DEPTH_MAX} deep; split it up")
    return height


def negated(operand: ExprNode, at: int) -> ExprNode:
    """Minus a literal number is a literal number."""
    if isinstance(operand, Literal) and type(operand.value) in (int, float):
        assert isinstance(operand.value, int | float)
        return Literal(value=-operand.value, at=at)
    return Unary(op="-", operand=operand, at=at, height=over(operand))
