"""Expressions written as JSON, to the same tree as text.

    {"and": [{"eq": ["$shared.state", "ready"]}, {"not": {"exists": "$params.dry_run"}}]}

An operator is an object of one key, `{"eq": [a, b]}`, or one with `op`: `{"op": "eq", "args": [a, b]}`, `{"op": "eq", "left": a,
"right": b}`, `{"op": "eq", "path": "$shared.x", "value": 5}`. Among its operands a string that begins with $params, $shared, $input or
$state is a path, and so is {"path": "a.b"}, which without a root reads shared state; {"value": x} and all the rest are literals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from perdure.core.error_excerpts import EXPR_SHOWN_CHARS_MAX
from perdure.core.errors import ExprError
from perdure.core.expressions.nodes import (
    INTEGER_MAX,
    CallNode,
    Compare,
    ExprNode,
    Fault,
    Get,
    ListOf,
    Literal,
    Logic,
    ObjectOf,
    Root,
    Unary,
    a_kind,
    closest,
    number,
    over,
)
from perdure.core.limits import EXPR_CHARS_MAX, EXPR_DEPTH_MAX

Where = tuple[str | int, ...]

_ROOTS: Final = ("params", "shared", "input", "state")
_LEAF: Final = re.compile(r"\$(?:params|shared|input|state)(?:[.\[].*)?", re.DOTALL)
_STEP: Final = re.compile(r"""\.?([^.\[\]"']+)|\[(-?[0-9]{1,19})\]|\["([^"\\]*)"\]|\['([^'\\]*)'\]""")
_ROOT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:-+[A-Za-z0-9_]+)*")
_COMPARISONS: Final = frozenset(["eq", "ne", "gt", "lt", "ge", "le", "in", "contains"])
_OPERATORS: Final = (*sorted(_COMPARISONS), "and", "or", "not", "exists")
_FORMS: Final = ({"args"}, {"left", "right"}, {"path", "value"}, {"path"}, {"value"})


def tree_of(value: Any) -> ExprNode:
    if isinstance(value, bool):
        return Literal(value=value)
    if not isinstance(value, Mapping):
        raise ExprError(f"an expression is text, true, false or an object, not {a_kind(value)}")
    return _Builder().operand(value, (), 1)


def path_tree(text: str, root: str) -> ExprNode:
    """A path: `$root.a.b[0]["c d"]`, or without a root, which is then `root`."""
    if len(text) > EXPR_CHARS_MAX:
        raise ExprError(f"the path has {len(text)} characters; {EXPR_CHARS_MAX} is the most")
    name, at = root, 0
    if text.startswith("$"):
        found = _ROOT_NAME.match(text, 1)
        if found is None:
            raise ExprError("a root is missing after the $, as in $shared.day", 1, text)
        name, at = found[0], found.end()
    steps: list[str | int] = []
    while at < len(text):
        match = _STEP.match(text, at)
        if match is None or (match[1] is not None and (at > 0) != text.startswith(".", at)):
            raise ExprError("this is no path; steps are written as in $shared.a.b[0]", at, text)
        steps.append(_step(match, text))
        at = match.end()
    if not text:
        raise ExprError("the path is empty")
    base = Root(name=name)
    return Get(base=base, steps=tuple(steps), height=over(base)) if steps else base


def _step(match: re.Match[str], text: str) -> str | int:
    field = next(group for group in match.groups() if group is not None)
    digits = match[2] or (field if match[1] and field.isascii() and field.isdigit() else None)
    if digits is None:
        return field
    if len(digits) > 20 or abs(int(digits)) > INTEGER_MAX:
        raise ExprError("the index is beyond 2^63", match.start(), text)
    return int(digits)


class _Builder:
    def __init__(self) -> None:
        self._nodes = 0

    def operand(self, value: Any, where: Where, depth: int) -> ExprNode:
        if isinstance(value, str) and _LEAF.fullmatch(value):
            return self._path(value, where)
        if isinstance(value, Mapping):
            return self._object(value, where, depth)
        return self._literal(value, where, depth)

    def _object(self, value: Mapping[Any, Any], where: Where, depth: int) -> ExprNode:
        self._count(where, depth)
        keys = {str(key) for key in value}
        if "op" in keys:
            return self._named(value, keys - {"op"}, where, depth)
        if keys == {"path"}:
            return self._path(value["path"], (*where, "path"))
        if keys == {"value"}:
            return self._literal(value["value"], (*where, "value"), depth)
        if len(value) != 1:
            raise ExprError(
                f'an operator is an object of one key, not of {len(value)}; for a literal object write {{"value": …}}',
                path=where,
            )
        ((op, args),) = value.items()
        return self._operation(str(op), args, (*where, str(op)[:EXPR_SHOWN_CHARS_MAX]), depth)

    def _named(self, value: Mapping[Any, Any], keys: set[str], where: Where, depth: int) -> ExprNode:
        op = value["op"]
        if not isinstance(op, str):
            raise ExprError(f"an operator's name is a string, not {a_kind(op)}", path=(*where, "op"))
        if keys not in _FORMS:
            raise ExprError(
                f"`{op}` takes either args, or left and right, or path and value; here are {', '.join(sorted(keys)) or 'none'}",
                path=where,
            )
        if "args" in keys:
            return self._operation(op, value["args"], (*where, op), depth)
        first = {"path": value["path"]} if "path" in keys else value.get("left", value.get("value"))
        rest = [value[key] for key in ("right", "value") if key in keys and keys != {"value"}]
        return self._operation(op, [first, *rest], (*where, op), depth)

    def _operation(self, op: str, args: Any, where: Where, depth: int) -> ExprNode:
        if op not in _OPERATORS:
            close = closest(op, [*_OPERATORS, "path", "value"])
            hint = f"did you mean `{close}`?" if close else f"there are {', '.join(_OPERATORS)}"
            raise ExprError(f"there is no operator `{op[:EXPR_SHOWN_CHARS_MAX]}`; {hint}", path=where)
        if op in ("not", "exists"):
            return self._unary(op, args, where, depth)
        if not isinstance(args, list) or not args:
            raise ExprError(f"`{op}` takes a list of operands, not {_shown(args)}", path=where)
        if op in _COMPARISONS and len(args) != 2:
            raise ExprError(f"`{op}` takes two operands, not {len(args)}", path=where)
        nodes = tuple(self.operand(arg, (*where, index), depth + 1) for index, arg in enumerate(args))
        height = self._over(where, *nodes)
        if op in _COMPARISONS:
            return Compare(op=op, left=nodes[0], right=nodes[1], height=height)
        if len(nodes) == 1:
            return CallNode(name="bool", args=nodes, height=height)
        return Logic(op=op, operands=nodes, height=height)

    def _unary(self, op: str, args: Any, where: Where, depth: int) -> ExprNode:
        if isinstance(args, list):
            if len(args) != 1:
                raise ExprError(f"`{op}` takes one operand, not {len(args)}", path=where)
            args = args[0]
        if op == "exists" and isinstance(args, str):
            operand = self._path(args, where)
        else:
            operand = self.operand(args, where, depth + 1)
        return Unary(op=op, operand=operand, height=self._over(where, operand))

    def _path(self, text: Any, where: Where) -> ExprNode:
        self._count(where, 0)
        if not isinstance(text, str):
            raise ExprError(f"a path is a string, not {a_kind(text)}", path=where)
        try:
            return path_tree(text, "shared")
        except ExprError as exc:
            raise ExprError(exc.message, exc.offset, exc.text, where) from None

    def _literal(self, value: Any, where: Where, depth: int) -> ExprNode:
        self._count(where, depth)
        if isinstance(value, list):
            items = tuple(self._literal(item, (*where, index), depth + 1) for index, item in enumerate(value))
            return ListOf(items=items, height=self._over(where, *items))
        if isinstance(value, Mapping):
            pairs = tuple((str(key), self._literal(item, (*where, str(key)), depth + 1)) for key, item in value.items())
            return ObjectOf(pairs=pairs, height=self._over(where, *(node for _, node in pairs)))
        if value is None or isinstance(value, str | bool):
            return Literal(value=value)
        if not isinstance(value, int | float):
            raise ExprError(f"a {type(value).__name__} is no JSON value", path=where)
        try:
            return Literal(value=number(value))
        except Fault as fault:
            raise ExprError(str(fault), path=where) from None

    def _count(self, where: Where, depth: int) -> None:
        self._nodes += 1
        if self._nodes > EXPR_CHARS_MAX:
            raise ExprError(f"the expression has more than {EXPR_CHARS_MAX} parts", path=where)
        if depth > EXPR_DEPTH_MAX:
            raise ExprError(f"the expression is nested more than {EXPR_DEPTH_MAX} deep; split it up", path=where[:4])

    def _over(self, where: Where, *nodes: ExprNode) -> int:
        try:
            return over(*nodes)
        except Fault as fault:
            raise ExprError(str(fault), path=where[:4]) from None


def _shown(args: Any) -> str:
    return "an empty one" if args == [] else f"{a_kind(args)}"
