"""Tree to closures. Compiled once, run often: a closure takes the scope and the meter, and holds everything else."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from perdure.core.errors import ExprError
from perdure.core.expressions.functions import call, step_into
from perdure.core.expressions.nodes import (
    Arith,
    CallNode,
    Coalesce,
    Compare,
    Cond,
    ExprNode,
    Fault,
    Get,
    ListOf,
    Literal,
    Logic,
    Meter,
    ObjectOf,
    Root,
    Unary,
    a_kind,
    kind,
)
from perdure.core.expressions.operators import ARITHMETIC, check_order, equal, member, negative
from perdure.core.payloads import inside

Scope = Callable[[str], Any]
"""From the name of a root to its value. KeyError: there is no such root."""
Run = Callable[[Scope, Meter], Any]
Path = tuple[str | int, ...]
"""A root and the steps from there."""


def compiled(node: ExprNode, text: str, start: int) -> tuple[Run, list[Path]]:
    """The closure, and every path it reads, as far as that is fixed.

    `text` is the expression's own, which begins at `start` in what the tree was parsed from.
    """
    compiler = _Compiler(text, start)
    return compiler.of(node), compiler.reads


class _Compiler:
    def __init__(self, text: str, start: int) -> None:
        self._text, self._start = text, start
        self.reads: list[Path] = []

    def of(self, node: ExprNode) -> Run:
        match node:
            case Literal(value=value):
                return lambda scope, meter: value
            case Root(name=name):
                return self._root(node, name)
            case Get():
                return self._get(node)
            case ListOf(items=items):
                return self._list(items)
            case ObjectOf(pairs=pairs):
                return self._object(pairs)
            case Unary():
                return self._unary(node)
            case Logic():
                return self._logic(node)
            case Compare():
                return self._compare(node)
            case Arith():
                return self._arith(node)
            case Coalesce(operands=operands):
                return self._coalesce(operands)
            case Cond():
                return self._cond(node)
            case CallNode():
                return self._call(node)
            case _:
                raise AssertionError(f"no such node: {node!r}")

    def _error(self, fault: Fault | str, at: int) -> ExprError:
        return ExprError(str(fault), max(0, at - self._start), self._text)

    def _root(self, node: ExprNode, name: str, *steps: str | int) -> Run:
        self.reads.append((name, *steps))

        def run(scope: Scope, meter: Meter) -> Any:
            try:
                return scope(name)
            except KeyError:
                raise self._unknown(name, node.at) from None

        return run

    def _unknown(self, name: str, at: int) -> ExprError:
        hint = "; for a difference, put spaces around the -" if "-" in name else ""
        return self._error(f"there is no `{name}` here{hint}", at)

    def _get(self, node: Get) -> Run:
        steps = node.steps
        if not isinstance(node.base, Root):
            return self._walk(self.of(node.base), steps)
        root = self._root(node.base, node.base.name, *_fixed(steps))
        fields = [step for step in steps if isinstance(step, str)]
        if len(fields) < len(steps):
            return self._walk(root, steps)
        return self._fields(root, fields) if len(fields) > 1 else self._field(node.base, fields[0])

    def _walk(self, base: Run, steps: tuple[str | int | ExprNode, ...]) -> Run:
        walk = [self.of(step) if isinstance(step, ExprNode) else step for step in steps]

        def run(scope: Scope, meter: Meter) -> Any:
            value = base(scope, meter)
            for step in walk:
                value = step_into(value, step(scope, meter) if callable(step) else step)
            return value

        return run

    def _fields(self, root: Run, fields: list[str]) -> Run:
        def run(scope: Scope, meter: Meter) -> Any:
            value = root(scope, meter)
            for field in fields:
                if not isinstance(value, dict):
                    value = inside(value)
                    if not isinstance(value, dict):
                        return None
                value = value.get(field)
            return value

        return run

    def _field(self, root: Root, field: str) -> Run:
        """The commonest of all, without a closure in between."""
        name = root.name

        def run(scope: Scope, meter: Meter) -> Any:
            try:
                value = scope(name)
            except KeyError:
                raise self._unknown(name, root.at) from None
            return value.get(field) if isinstance(value, dict) else step_into(value, field)

        return run

    def _list(self, items: tuple[ExprNode, ...]) -> Run:
        runs = [self.of(item) for item in items]
        return lambda scope, meter: [run(scope, meter) for run in runs]

    def _object(self, pairs: tuple[tuple[str, ExprNode], ...]) -> Run:
        runs = [(key, self.of(value)) for key, value in pairs]
        return lambda scope, meter: {key: run(scope, meter) for key, run in runs}

    def _unary(self, node: Unary) -> Run:
        operand = self.of(node.operand)
        if node.op == "not":
            return lambda scope, meter: not inside(operand(scope, meter))
        if node.op == "exists":
            return lambda scope, meter: operand(scope, meter) is not None

        def run(scope: Scope, meter: Meter) -> Any:
            value = operand(scope, meter)
            try:
                return negative(value)
            except Fault as fault:
                raise self._error(fault, node.at) from None

        return run

    def _logic(self, node: Logic) -> Run:
        runs = [self.of(operand) for operand in node.operands]
        decides = node.op == "or"

        def run(scope: Scope, meter: Meter) -> bool:
            for operand in runs:
                if bool(inside(operand(scope, meter))) is decides:
                    return decides
            return not decides

        return run

    def _compare(self, node: Compare) -> Run:
        left, right, test = self.of(node.left), self.of(node.right), _TESTS[node.op]

        def run(scope: Scope, meter: Meter) -> bool:
            one, two = inside(left(scope, meter)), inside(right(scope, meter))
            try:
                return test(one, two, meter)
            except Fault as fault:
                raise self._error(fault, node.at) from None

        return run

    def _arith(self, node: Arith) -> Run:
        first = self.of(node.first)
        rest = [(ARITHMETIC[op], self.of(operand)) for op, operand in node.rest]

        def run(scope: Scope, meter: Meter) -> Any:
            value = inside(first(scope, meter))
            for operate, operand in rest:
                other = inside(operand(scope, meter))
                try:
                    value = operate(value, other, meter)
                except Fault as fault:
                    raise self._error(fault, node.at) from None
            return value

        return run

    def _coalesce(self, operands: tuple[ExprNode, ...]) -> Run:
        runs = [self.of(operand) for operand in operands]

        def run(scope: Scope, meter: Meter) -> Any:
            for operand in runs:
                if (value := operand(scope, meter)) is not None:
                    return value
            return None

        return run

    def _cond(self, node: Cond) -> Run:
        test, then, other = self.of(node.test), self.of(node.then), self.of(node.other)
        return lambda scope, meter: then(scope, meter) if inside(test(scope, meter)) else other(scope, meter)

    def _call(self, node: CallNode) -> Run:
        if node.name == "now":
            return self._now(node)
        name, runs = node.name, [self.of(arg) for arg in node.args]

        def run(scope: Scope, meter: Meter) -> Any:
            args = [arg(scope, meter) for arg in runs]
            try:
                return call(name, args, meter)
            except Fault as fault:
                raise self._error(fault, node.at) from None

        return run

    def _now(self, node: CallNode) -> Run:
        root = self._root(node, "now")

        def run(scope: Scope, meter: Meter) -> Any:
            moment = root(scope, meter)
            if kind(moment) != "number":
                raise self._error(f"now() is a number of seconds, not {a_kind(moment)}", node.at)
            return moment

        return run


def _fixed(steps: tuple[str | int | ExprNode, ...]) -> list[str | int]:
    out: list[str | int] = []
    for step in steps:
        if isinstance(step, ExprNode):
            break
        out.append(step)
    return out


def _ordering(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any, Meter], bool]:
    def test(left: Any, right: Any, meter: Meter) -> bool:
        if left is None or right is None:
            return False
        check_order(left, right, meter)
        return holds(left, right)

    return test


_TESTS: dict[str, Callable[[Any, Any, Meter], bool]] = {
    "eq": equal,
    "ne": lambda left, right, meter: not equal(left, right, meter),
    "gt": _ordering(operator.gt),
    "lt": _ordering(operator.lt),
    "ge": _ordering(operator.ge),
    "le": _ordering(operator.le),
    "in": member,
    "not in": lambda left, right, meter: not member(left, right, meter),
    "contains": lambda left, right, meter: member(right, left, meter),
}
