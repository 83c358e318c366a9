"""Tree to canonical text: words for logic, symbols for comparison, double quotes, and no bracket that is not needed."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from perdure.core.expressions.lex import KEYWORDS
from perdure.core.expressions.nodes import (
    Arith,
    CallNode,
    Coalesce,
    Compare,
    Cond,
    ExprNode,
    Get,
    ListOf,
    Literal,
    Logic,
    Macro,
    ObjectOf,
    Root,
    Unary,
)

_SYMBOLS: Final = {"eq": "==", "ne": "!=", "gt": ">", "lt": "<", "ge": ">=", "le": "<="}
_FIELD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMARY: Final = 10


def text(node: ExprNode) -> str:
    match node:
        case Literal(value=value):
            return _literal(value)
        case Root(name=name):
            return f"${name}" if name in KEYWORDS else name
        case Get(base=base, steps=steps):
            return _within(base, _PRIMARY) + "".join(map(_step, steps))
        case ListOf(items=items):
            return f"[{_row(items)}]"
        case ObjectOf(pairs=pairs):
            return "{" + ", ".join(f"{_literal(key)}: {text(value)}" for key, value in pairs) + "}"
        case CallNode(name=name, args=args):
            return f"{name}({_row(args)})"
        case Macro(op=op, base=base, name=name, body=body, only=only):
            return f"{_within(base, _PRIMARY)}.{op}({name}, {_row((body,) if only is None else (only, body))})"
        case _:
            return _operation(node)


def _operation(node: ExprNode) -> str:
    rank = _rank(node)
    match node:
        case Unary(op=op, operand=operand):
            return f"{op if op == '-' else op + ' '}{_within(operand, rank if op == 'not' else _PRIMARY)}"
        case Logic(op=op, operands=operands):
            return f" {op} ".join(_within(operand, rank + 1) for operand in operands)
        case Coalesce(operands=operands):
            return " ?? ".join(_within(operand, rank + 1) for operand in operands)
        case Compare(op=op, left=left, right=right):
            return f"{_within(left, rank + 1)} {_SYMBOLS.get(op, op)} {_within(right, rank + 1)}"
        case Arith(first=first, rest=rest):
            return _within(first, rank + 1) + "".join(f" {op} {_within(other, rank + 1)}" for op, other in rest)
        case Cond(test=test, then=then, other=other):
            return f"{_within(test, rank + 1)} ? {text(then)} : {text(other)}"
        case _:
            raise AssertionError(f"no such node: {node!r}")


def _rank(node: ExprNode) -> int:
    """How tightly its own operator binds, as in parse.py."""
    match node:
        case Cond():
            return 0
        case Logic(op=op):
            return 1 if op == "or" else 2
        case Unary(op="not"):
            return 3
        case Compare():
            return 4
        case Coalesce():
            return 5
        case Arith(rest=rest):
            return 6 if rest[0][0] in "+-" else 7
        case Unary(op="-"):
            return 8
        case Literal(value=bool() | None | str()):
            return _PRIMARY
        case Literal(value=value) if str(value).startswith("-"):
            return 8
        case Unary():
            return 9
        case _:
            return _PRIMARY


def _within(node: ExprNode, rank: int) -> str:
    inner = text(node)
    return inner if _rank(node) >= rank else f"({inner})"


def _row(nodes: tuple[ExprNode, ...]) -> str:
    return ", ".join(map(text, nodes))


def _step(step: str | int | ExprNode) -> str:
    if isinstance(step, str):
        return f".{step}" if _FIELD.fullmatch(step) else f"[{_literal(step)}]"
    return f"[{step if isinstance(step, int) else text(step)}]"


def _literal(value: str | float | bool | None) -> str:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return _quoted(value)
    return msgspec.json.encode(value).decode()


def _quoted(value: str) -> str:
    """As JSON has it. A text that UTF-8 cannot carry is quoted without it."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
