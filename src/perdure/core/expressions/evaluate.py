"""Tree to closures. Compiled once, run often: a closure takes the scope and the meter, and holds everything else."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from perdure.core.errors import ExprError
from perdure.core.expressions.functions import call, readable, step_into
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
    Macro,
    Meter,
    ObjectOf,
    Root,
    Unary,
    a_kind,
    children,
    kind,
)
from perdure.core.expressions.operators import ARITHMETIC, check_order, equal, member, negative
from perdure.core.expressions.times import time_text
from perdure.core.expressions.values import TIMES
from perdure.core.payloads import inside

Scope = Callable[[str], Any]
"""From the name of a root to its value. KeyError: there is no such root."""
Run = Callable[[Scope, Meter], Any]
Path = tuple[str | int, ...]
"""A root and the steps from there."""


_TIME_MAKERS: Final = ("timestamp", "duration")
_LOOKED_AT_BITS: Final = 4
"""So many elements (as a power of two) whose type is looked at count as a step."""


class CompiledRun(NamedTuple):
    run: Run
    reads: list[Path]
    """Every path it reads, as far as that is fixed."""
    repeats: bool
    """Whether it may read a path more than once, or what it has built."""


def compiled(node: ExprNode, text: str, start: int) -> CompiledRun:
    """`text` is the expression's own, which begins at `start` in what the tree was parsed from."""
    compiler = _Compiler(text, start)
    # A look at the text is much cheaper than one at the tree, and most expressions know no times.
    may_make = any(word in text for word in _TIME_MAKERS)
    run = compiler.leaving(node) if may_make and _makes_times(node) else compiler.of(node)
    return CompiledRun(run, compiler.reads, compiler.repeats)


def _makes_times(node: ExprNode) -> bool:
    return (isinstance(node, CallNode) and node.name in _TIME_MAKERS) or any(map(_makes_times, children(node)))


class _Compiler:
    def __init__(self, text: str, start: int) -> None:
        self._text, self._start = text, start
        self._elements: list[str] = []
        """Names that the macros around give to elements."""
        self.reads: list[Path] = []
        self.repeats = False

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
            case Macro():
                return self._macro(node, self.of)
            case _:
                raise AssertionError(f"no such node: {node!r}")

    def _error(self, fault: Fault | str, at: int) -> ExprError:
        return ExprError(str(fault), max(0, at - self._start), self._text)

    def leaving(self, node: ExprNode) -> Run:
        """The closure of a node whose value leaves the expression: without timestamps and durations. Only what may hold some is looked at."""
        if not _makes_times(node):
            return self.of(node)
        match node:
            case ListOf(items=items):
                runs = [self.leaving(item) for item in items]
                return lambda scope, meter: [run(scope, meter) for run in runs]
            case ObjectOf(pairs=pairs):
                named = [(key, self.leaving(value)) for key, value in pairs]
                return lambda scope, meter: {key: run(scope, meter) for key, run in named}
            case Cond(test=test, then=then, other=other):
                return _choose(self.of(test), self.leaving(then), self.leaving(other))
            case Macro(op="map", base=base) if not _makes_times(base):
                return self._macro(node, self.leaving)  # No element is a time, so only the body makes some.
            case _:
                return self._plain(node)

    def _plain(self, node: ExprNode) -> Run:
        inner = self.of(node)

        def run(scope: Scope, meter: Meter) -> Any:
            value = inner(scope, meter)
            try:
                return _without_times(value, meter)
            except Fault as fault:
                raise self._error(fault, node.at) from None

        return run

    def _root(self, node: ExprNode, name: str, *steps: str | int) -> Run:
        if name not in self._elements:
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
        return _choose(self.of(node.test), self.of(node.then), self.of(node.other))

    def _call(self, node: CallNode) -> Run:
        if node.name == "now":
            return self._now(node)
        if node.name == "has":
            return self._has(node)
        name, runs = node.name, [self.of(arg) for arg in node.args]

        def run(scope: Scope, meter: Meter) -> Any:
            args = [arg(scope, meter) for arg in runs]
            try:
                return call(name, args, meter)
            except Fault as fault:
                raise self._error(fault, node.at) from None

        return run

    def _has(self, node: CallNode) -> Run:
        """Whether there is such a field, even if it is null."""
        (path,) = node.args
        assert isinstance(path, Get)
        known = len(self.reads)
        self.of(path)
        reads = self.reads[known:]
        base = self.of(Get(base=path.base, steps=path.steps[:-1]) if path.steps[1:] else path.base)
        last = path.steps[-1]
        step = self.of(last) if isinstance(last, ExprNode) else last
        self.reads[known:] = reads  # The path once, and not the way to its last step as well.

        def run(scope: Scope, meter: Meter) -> bool:
            holder = inside(base(scope, meter))
            key = step(scope, meter) if callable(step) else step
            if isinstance(holder, dict):
                return (str(key) if type(key) is int else key) in holder if isinstance(key, str | int) else False
            return isinstance(holder, list) and type(key) is int and -len(holder) <= key < len(holder)

        return run

    def _macro(self, node: Macro, of_body: Callable[[ExprNode], Run]) -> Run:
        self.repeats = True
        base = self.of(node.base)
        self._elements.append(node.name)
        body = of_body(node.body)
        only = self.of(node.only) if node.only is not None else None
        self._elements.pop()
        name, op, cost, collect = node.name, node.op, node.cost, _COLLECTORS[node.op]

        def run(scope: Scope, meter: Meter) -> Any:
            items = inside(base(scope, meter))
            if not isinstance(items, list | dict):
                hint = "; the path may be missing: write (… ?? [])" if items is None else ""
                raise self._error(f".{op}() takes a list or an object, not {a_kind(items)}{hint}", node.at)
            if isinstance(items, list):
                self._pay(meter, len(items) >> _LOOKED_AT_BITS, node.at)
                readable(items)  # All that is missing is asked for at once, and not one by one.
            element: Any = None

            def within(root: str) -> Any:
                return element if root == name else scope(root)

            def turns() -> Iterator[tuple[Any, Any]]:
                nonlocal element
                for element in items:
                    self._pay(meter, cost, node.at)
                    if only is None or inside(only(within, meter)):
                        yield element, body(within, meter)

            return collect(turns())

        return run

    def _pay(self, meter: Meter, steps: int, at: int) -> None:
        try:
            meter.spend(steps)
        except Fault as fault:
            raise self._error(fault, at) from None

    def _now(self, node: CallNode) -> Run:
        root = self._root(node, "now")

        def run(scope: Scope, meter: Meter) -> Any:
            moment = root(scope, meter)
            if kind(moment) != "number":
                raise self._error(f"now() is a number of seconds, not {a_kind(moment)}", node.at)
            return moment

        return run


def _choose(test: Run, then: Run, other: Run) -> Run:
    return lambda scope, meter: then(scope, meter) if inside(test(scope, meter)) else other(scope, meter)


def _without_times(value: Any, meter: Meter) -> Any:
    if type(value) in TIMES:
        return time_text(value)
    if isinstance(value, list):
        meter.spend(len(value))
        return [_without_times(item, meter) for item in value]
    if isinstance(value, dict):
        meter.spend(len(value))
        return {key: _without_times(item, meter) for key, item in value.items()}
    return value


Turns = Iterator[tuple[Any, Any]]
"""An element, and what the body of a macro says of it."""


def _exists_one(turns: Turns) -> bool:
    return sum(1 for _, found in turns if inside(found)) == 1


_COLLECTORS: Final[dict[str, Callable[[Turns], Any]]] = {
    "map": lambda turns: [value for _, value in turns],
    "filter": lambda turns: [element for element, found in turns if inside(found)],
    "exists": lambda turns: any(inside(found) for _, found in turns),
    "exists_one": _exists_one,
    "all": lambda turns: all(inside(found) for _, found in turns),
}


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
