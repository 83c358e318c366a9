"""Expressions: `input.day >= 3 and size(discover.files) > 0`. Text or JSON in, one value out; no access to anything but the scope.

    text --parse--> tree --evaluate--> closures
    JSON --json_form-->  |  --text--> canonical text
                          '---types--> problems at publish time

Laws:
- parse and evaluate raise ExprError and nothing else, in bounded time and memory (the limits are in nodes.py).
- An expression only reads: keys of objects and elements of lists. A path that leads nowhere is null.
- Its value is a JSON value: timestamps and durations, which exist within it, leave it as text.
- The same expression over the same scope has the same value, on every machine and forever.
- parse(to_text(e)) == e. Equality is that of the canonical text.
- A value may share parts with the scope or with the expression. Do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.core.errors import ExprError
from perdure.core.expressions.evaluate import Path, Run, Scope, compiled
from perdure.core.expressions.functions import FUNCTIONS
from perdure.core.expressions.json_form import path_tree, tree_of
from perdure.core.expressions.lex import KEYWORDS
from perdure.core.expressions.nodes import EXPR_BUILT_MAX, INTEGER_MAX, ExprNode, Meter
from perdure.core.expressions.parse import parse_whole, parse_within
from perdure.core.expressions.text import text as canonical
from perdure.core.expressions.types import Schema, problems_of, schema_of
from perdure.core.limits import EXPR_BYTES_MAX, EXPR_CHARS_MAX, EXPR_DEPTH_MAX, EXPR_STEPS_MAX

__all__ = [
    "EXPR_BUILT_MAX",
    "EXPR_BYTES_MAX",
    "EXPR_CHARS_MAX",
    "EXPR_DEPTH_MAX",
    "EXPR_STEPS_MAX",
    "FUNCTION_NAMES",
    "INTEGER_MAX",
    "KEYWORDS",
    "Expr",
    "ExprError",
    "Path",
    "Schema",
    "Scope",
    "check",
    "from_json",
    "parse",
    "parse_at",
    "parse_path",
    "to_text",
    "type_of",
]

FUNCTION_NAMES: Final = frozenset(FUNCTIONS)
"""Words that stand for a function where a `(` follows."""
_GROWTH_MAX: Final = 6
"""How much longer a canonical text can be than what was written: a raw control character becomes six."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expr:
    """A compiled expression. Immutable. Make it with `parse` or `from_json`."""

    text: str
    """As written, without `${ }`. Offsets of errors in evaluation count from its start."""
    tree: ExprNode
    roots: frozenset[str]
    paths: tuple[Path, ...]
    """What it reads, root first, each as far as it is fixed: `a.b[i].c` reads a.b and i."""
    reads: int
    """How many times it reads something at most: no value is larger than this many of what it read, plus what it built."""
    run: Run = field(repr=False)

    def evaluate(self, scope: Scope, meter: Meter | None = None) -> Any:
        """Its value. Raises ExprError. Without a meter it has one of its own."""
        try:
            return self.run(scope, Meter() if meter is None else meter)
        except RecursionError:
            raise ExprError("the expression does not fit on the stack here", 0, self.text) from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expr) and to_text(self) == to_text(other)

    def __hash__(self) -> int:
        return hash(to_text(self))

    def __repr__(self) -> str:
        return f"parse({self.text!r})"


def parse(text: str) -> Expr:
    """An expression, with or without `${ }` around it. Offsets of errors count from the start of `text`."""
    tree, start, stop = parse_whole(text)
    return _expr(tree, text, start, stop)


def parse_at(text: str, start: int) -> tuple[Expr, int]:
    """The expression that begins at `start`, just after a `${`, and where the text goes on after its `}`."""
    tree, stop = parse_within(text, start)
    return _expr(tree, text, start, stop - 1), stop


def parse_path(text: str, root: str = "shared") -> Expr:
    """A bare path of the JSON form: `$params.a.b`, or `a.b`, which begins at `root`. Steps may have any characters but . [ ]."""
    return parse(canonical(path_tree(text, root)))


def from_json(value: Any) -> Expr:
    """An expression in JSON: `{"eq": ["$shared.day", 3]}`. Text is parsed; true and false stand for themselves."""
    if isinstance(value, str):
        return parse(value)
    text = canonical(tree_of(value))
    if len(text) > EXPR_CHARS_MAX:
        raise ExprError(f"the expression has {len(text)} characters as text; {EXPR_CHARS_MAX} is the most")
    return parse(text)


def to_text(expr: Expr) -> str:
    return canonical(expr.tree)


def check(expr: Expr, types: Mapping[str, Schema]) -> list[str]:
    """What cannot work, as far as the JSON Schemas of roots tell. A root without one may be anything."""
    return problems_of(expr.tree, types)


def type_of(expr: Expr, types: Mapping[str, Schema]) -> Schema | None:
    """A JSON Schema of its value; None where nothing is known."""
    return schema_of(expr.tree, types)


def _expr(tree: ExprNode, text: str, start: int, stop: int) -> Expr:
    if (stop - start) * _GROWTH_MAX > EXPR_CHARS_MAX and len(canonical(tree)) > EXPR_CHARS_MAX:
        raise ExprError(f"the expression in full has more than {EXPR_CHARS_MAX} characters", start, text)
    inner = text[start:stop]
    own = inner.strip()
    run, reads, repeats = compiled(tree, own, start + inner.index(own))
    paths = tuple(dict.fromkeys(reads))
    times = len(reads) if not repeats else EXPR_STEPS_MAX
    return Expr(own, tree, frozenset(str(path[0]) for path in paths), paths, times, run)
