"""Text to tree.

The parser climbs precedences. From loose to tight:

    c ? a : b        or ||        and &&        not !
    eq == ne != gt > lt < ge >= le <= in, not in, contains        (these do not chain)
    ??        + -        * / %        - (sign)        exists        a.b  a[0]  f(x)  a.method(x)  a.map(x, body)

A hyphen within a root is part of it where no space stands before it, because tasks may be called `fetch-data`; write `index - 1`, with
spaces, for a difference. Fields take no hyphens: `input["user-id"]`.
"""

from __future__ import annotations

import re
from typing import Final

from perdure.core.errors import ExprError
from perdure.core.expressions.functions import FUNCTIONS, METHODS, Function
from perdure.core.expressions.lex import (
    CONSTANTS,
    Token,
    blank,
    check_length,
    integer_of,
    number_of,
    string_of,
    tokens,
)
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
    ObjectOf,
    Root,
    Unary,
    closest,
    negated,
    over,
    turn_cost,
)
from perdure.core.expressions.patterns import check_pattern
from perdure.core.limits import EXPR_DEPTH_MAX

MACROS: Final = {
    "map": "map",
    "filter": "filter",
    "exists": "exists",
    "exists_one": "exists_one",
    "existsOne": "exists_one",
    "all": "all",
}

_CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _COALESCE, _ADD, _MULTIPLY, _SIGN = range(9)
_RANKS: Final = {
    **dict.fromkeys(["or"], _OR),
    **dict.fromkeys(["and"], _AND),
    **dict.fromkeys(["eq", "ne", "gt", "lt", "ge", "le", "in", "contains", "not"], _COMPARE),  # `not` as in `not in`
    **dict.fromkeys(["??"], _COALESCE),
    **dict.fromkeys("+-", _ADD),
    **dict.fromkeys("*/%", _MULTIPLY),
    "?": _CONDITIONAL,
}
_ENTRIES_MAX: Final = 2 * EXPR_DEPTH_MAX
"""Calls of `_Parser.expression` within each other. A level of a tree takes two at most: one for the operand, one for its brackets."""


def parse_whole(text: str) -> tuple[ExprNode, int, int]:
    """The tree of a text that is one expression, and where the expression begins and ends in it."""
    check_length(text, len(text))
    start = blank(text, 0)
    if text.startswith("${", start):
        node, stop = parse_within(text, start + 2)
        if blank(text, stop) != len(text):
            raise ExprError(
                "there is text after the closing `}`; an expression is one `${ }` and nothing else", stop, text
            )
        return node, start + 2, stop - 1
    found, stop = tokens(text, start)
    if stop < len(text):
        raise ExprError("this `}` closes nothing", stop, text)
    return _Parser(text, found).whole(), start, stop


def parse_within(text: str, start: int) -> tuple[ExprNode, int]:
    """The tree of the expression that begins at `start`, just after a `${`, and where the text goes on after its `}`."""
    found, stop = tokens(text, start)
    if stop >= len(text):
        raise ExprError("this `${` is never closed; for a literal `${` write `$${`", start - 2, text)
    return _Parser(text, found).whole(), stop + 1


class _Parser:
    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text, self._tokens = text, tokens
        self._next = 0
        self._entries = self._brackets = 0

    def whole(self) -> ExprNode:
        if self._tokens[0].kind == "end":
            raise ExprError("the expression is empty", self._tokens[0].at, self._text)
        try:
            node = self.expression(_CONDITIONAL)
        except Fault as fault:  # From a constructor of nodes: the token before this one made it too deep.
            raise self._error(str(fault), self._tokens[max(0, self._next - 1)]) from None
        token = self._tokens[self._next]
        if token.kind != "end":
            raise self._unexpected(token)
        return node

    def expression(self, rank: int) -> ExprNode:
        """An operand and every operator after it that binds at least as tightly as `rank`."""
        self._entries += 1
        if self._entries > _ENTRIES_MAX:
            raise self._too_deep()
        left = self._operand()
        while True:
            token = self._tokens[self._next]
            if token.kind != "op" and token.kind != "symbol":
                break
            found = _RANKS.get(token.text)
            if found is None or found < rank:
                break
            left = self._operation(left, token, found)
        self._entries -= 1
        return left

    def _operation(self, left: ExprNode, token: Token, rank: int) -> ExprNode:
        match rank:
            case 0:
                return self._conditional(left, token)
            case 1 | 2:
                nodes = self._row(left, token.text, rank)
                return Logic(op=token.text, operands=nodes, at=token.at, height=over(*nodes))
            case 4:
                return self._comparison(left, token)
            case 5:
                nodes = self._row(left, "??", rank)
                return Coalesce(operands=nodes, at=token.at, height=over(*nodes))
            case _:
                return self._arithmetic(left, token, rank)

    def _row(self, left: ExprNode, op: str, rank: int) -> tuple[ExprNode, ...]:
        nodes = [left]
        while self._tokens[self._next].text == op and self._tokens[self._next].kind in ("op", "symbol"):
            self._next += 1
            nodes.append(self.expression(rank + 1))
        return tuple(nodes)

    def _arithmetic(self, left: ExprNode, first: Token, rank: int) -> ExprNode:
        rest: list[tuple[str, ExprNode]] = []
        while (token := self._tokens[self._next]).kind == "symbol" and _RANKS.get(token.text) == rank:
            self._next += 1
            rest.append((token.text, self.expression(rank + 1)))
        return Arith(first=left, rest=tuple(rest), at=first.at, height=over(left, *(node for _, node in rest)))

    def _comparison(self, left: ExprNode, token: Token) -> ExprNode:
        self._next += 1
        op = token.text
        if op == "not":
            if self._tokens[self._next].text != "in":
                raise self._error("`not` between two values needs `in` after it", token)
            self._next += 1
            op = "not in"
        right = self.expression(_COMPARE + 1)
        after = self._tokens[self._next]
        if after.kind == "op" and _RANKS.get(after.text) == _COMPARE:
            raise self._error("comparisons do not chain; join two of them with `and`", after)
        return Compare(op=op, left=left, right=right, at=token.at, height=over(left, right))

    def _conditional(self, test: ExprNode, token: Token) -> ExprNode:
        self._next += 1
        then = self.expression(_CONDITIONAL)
        self._expect(":", "the other value of the `?`")
        other = self.expression(_CONDITIONAL)
        return Cond(test=test, then=then, other=other, at=token.at, height=over(test, then, other))

    def _operand(self) -> ExprNode:
        token = self._tokens[self._next]
        self._next += 1
        if token.kind == "op":
            return self._prefixed(token)
        if token.text == "-" and token.kind == "symbol":
            return negated(self.expression(_SIGN), token.at)
        return self._steps(self._primary(token))

    def _prefixed(self, token: Token) -> ExprNode:
        if token.text == "not":
            operand = self.expression(_NOT)
        elif token.text == "exists":
            self._entries += 1
            if self._entries > _ENTRIES_MAX:
                raise self._too_deep()
            operand = self._operand()
            self._entries -= 1
        else:
            raise self._unexpected(token)
        return Unary(op=token.text, operand=operand, at=token.at, height=over(operand))

    def _primary(self, token: Token) -> ExprNode:
        match token.kind:
            case "name":
                return self._named(token)
            case "string" | "raw":
                return Literal(value=string_of(self._text, token), at=token.at)
            case "number":
                return Literal(value=number_of(self._text, token), at=token.at)
            case "symbol" if token.text in "([{":
                return self._bracketed(token)
            case _:
                raise self._unexpected(token)

    def _named(self, token: Token) -> ExprNode:
        name = token.text
        if name in CONSTANTS:
            return Literal(value=CONSTANTS[name], at=token.at)
        if self._tokens[self._next][:2] == ("symbol", "("):
            return self._call(token)
        return Root(name=name.removeprefix("$"), at=token.at)

    def _bracketed(self, token: Token) -> ExprNode:
        self._open()
        match token.text:
            case "(":
                node = self.expression(_CONDITIONAL)
                self._expect(")", "this bracket's end")
            case "[":
                items = self._items("]")
                node = ListOf(items=items, at=token.at, height=over(*items))
            case _:
                pairs = self._pairs()
                node = ObjectOf(pairs=pairs, at=token.at, height=over(*(value for _, value in pairs)))
        self._brackets -= 1
        return node

    def _steps(self, base: ExprNode) -> ExprNode:
        steps: list[str | int | ExprNode] = []
        at = 0
        while True:
            token = self._tokens[self._next]
            if token.kind == "field":
                self._next += 1
                if self._tokens[self._next][:2] == ("symbol", "("):
                    base, steps, at = self._method(_path(base, steps, at), token), [], 0
                    continue
                field = token.text[1:]
                steps.append(integer_of(self._text, field, token) if field.isdigit() else field)
            elif token.text == "[" and token.kind == "symbol":
                self._next += 1
                self._open()
                steps.append(_step(self.expression(_CONDITIONAL)))
                self._expect("]", "the index's end")
                self._brackets -= 1
            else:
                break
            at = at or token.at
        return _path(base, steps, at)

    def _arguments(self) -> tuple[ExprNode, ...]:
        self._next += 1
        self._open()
        args = self._items(")")
        self._brackets -= 1
        return args

    def _method(self, receiver: ExprNode, token: Token) -> ExprNode:
        name = token.text[1:]
        if name in MACROS:
            return self._macro(receiver, name, token)
        args = self._arguments()
        height = over(receiver, *args)
        if name == "contains":
            if len(args) != 1:
                raise self._error(f".contains() takes 1 argument, not {len(args)}", token)
            return Compare(op="contains", left=receiver, right=args[0], at=token.at, height=height)
        if name not in METHODS:
            close = closest(name, [*MACROS, *METHODS, "contains"])
            hint = f"did you mean .{close}()?" if close else f"there are {', '.join([*MACROS, 'contains', *METHODS])}"
            if name in FUNCTIONS:
                hint = f"write {name}(…) with the value as its first argument"
            raise self._error(f"there is no method .{name}(); {hint}", token)
        function = FUNCTIONS[METHODS[name]]
        if not function.least <= len(args) + 1 <= function.most:
            raise self._error(f".{name}() takes {_behind(function)}, not {len(args)}", token)
        self._check_pattern(name, (receiver, *args))
        return CallNode(name=METHODS[name], args=(receiver, *args), at=token.at, height=height)

    def _macro(self, base: ExprNode, name: str, token: Token) -> ExprNode:
        self._next += 1
        self._open()
        element = self._tokens[self._next]
        if element.kind != "name" or not _ELEMENT.fullmatch(element.text) or element.text in _NO_ELEMENTS:
            raise self._error(f"a name for the element is expected here, as in .{name}(x, …)", element)
        self._next += 1
        self._expect(",", f"what .{name}() computes of each element")
        parts = self._items(")")
        self._brackets -= 1
        if len(parts) not in ((1, 2) if name == "map" else (1,)):
            raise self._error(f".{name}() takes a name and one expression" + (" or two" * (name == "map")), token)
        only, body = parts if len(parts) == 2 else (None, parts[0])
        return Macro(
            op=MACROS[name],
            base=base,
            name=element.text,
            body=body,
            only=only,
            cost=turn_cost(body, only),
            at=token.at,
            height=over(base, *parts),
        )

    def _check_pattern(self, name: str, args: tuple[ExprNode, ...]) -> None:
        """A pattern that is written out is read now, and not first in a run."""
        if name != "matches":
            return
        pattern = args[1]
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            try:
                check_pattern(pattern.value)
            except Fault as fault:
                raise ExprError(str(fault), pattern.at, self._text) from None

    def _call(self, token: Token) -> ExprNode:
        args = self._arguments()
        name = token.text
        height = over(*args)
        function = FUNCTIONS.get(name)
        if function is None:
            close = closest(name, FUNCTIONS)
            hint = f"; did you mean {close}()?" if close else f"; there are {', '.join(sorted(FUNCTIONS))}"
            raise self._error(f"there is no function {name}(){hint}", token)
        if not function.least <= len(args) <= function.most:
            raise self._error(f"{name}() takes {function.arity}, not {len(args)}", token)
        if name == "has" and not isinstance(args[0], Get):
            raise self._error("has() takes a field, as in has(input.day)", token)
        self._check_pattern(name, args)
        if name in ("default", "coalesce"):
            return Coalesce(operands=args, at=token.at, height=height) if args[1:] else next(iter(args))
        return CallNode(name=name, args=args, at=token.at, height=height)

    def _items(self, closing: str) -> tuple[ExprNode, ...]:
        out: list[ExprNode] = []
        while not self._closes(closing):
            out.append(self.expression(_CONDITIONAL))
            if not self._goes_on(closing):
                break
        return tuple(out)

    def _pairs(self) -> tuple[tuple[str, ExprNode], ...]:
        out: dict[str, ExprNode] = {}
        while not self._closes("}"):
            token = self._tokens[self._next]
            self._next += 1
            if token.kind not in ("name", "string", "raw", "op"):
                raise self._error('a key is expected here, as in {"day": 1}', token)
            key = string_of(self._text, token) if token.kind in ("string", "raw") else self._source(token)
            if key in out:
                raise self._error(f"the object has the key {key!r} twice", token)
            self._expect(":", f"the value of {key!r}")
            out[key] = self.expression(_CONDITIONAL)
            if not self._goes_on("}"):
                break
        return tuple(out.items())

    def _open(self) -> None:
        self._brackets += 1
        if self._brackets > EXPR_DEPTH_MAX:
            raise self._too_deep()

    def _closes(self, closing: str) -> bool:
        if self._tokens[self._next][:2] == ("symbol", closing):
            self._next += 1
            return True
        return False

    def _goes_on(self, closing: str) -> bool:
        """After an element: True after a comma, False after the closing bracket."""
        if self._closes(","):
            return True
        self._expect(closing, "the next element or the end")
        return False

    def _expect(self, text: str, why: str) -> None:
        token = self._tokens[self._next]
        if token[:2] != ("symbol", text):
            raise self._error(f"a `{text}` is missing here, for {why}", token)
        self._next += 1

    def _source(self, token: Token) -> str:
        """A bare key as written, which an operator's token no longer says."""
        if token.kind == "op" and not self._text.startswith(token.text, token.at):
            raise self._error('a key is expected here, as in {"day": 1}', token)
        return token.text

    def _error(self, message: str, token: Token) -> ExprError:
        return ExprError(message, token.at, self._text)

    def _too_deep(self) -> ExprError:
        token = self._tokens[min(self._next, len(self._tokens) - 1)]
        return self._error(f"the expression is nested more than {EXPR_DEPTH_MAX} deep; split it up", token)

    def _unexpected(self, token: Token) -> ExprError:
        if token.kind == "end":
            return self._error("the expression ends too soon; a value is missing", token)
        if token.kind in ("name", "string", "raw", "number") and self._next and self._tokens[self._next] is token:
            return self._error(f"an operator is missing before {token.text}", token)
        return self._error(f"`{token.text}` is out of place here", token)


_ELEMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_ELEMENTS: Final = frozenset([*CONSTANTS, "now"])
"""Names that an element cannot have; operators are no names at all."""


def _behind(function: Function) -> str:
    """How many arguments a function takes as a method."""
    least, most = function.least - 1, function.most - 1
    return (
        "no arguments" if most == 0 else f"{most if least == most else f'{least} to {most}'} argument{'s' * (most > 1)}"
    )


def _path(base: ExprNode, steps: list[str | int | ExprNode], at: int) -> ExprNode:
    if not steps:
        return base
    if isinstance(base, Get):  # In brackets, as in (a.b).c: the same path.
        steps, base = [*base.steps, *steps], base.base
    return Get(base=base, steps=tuple(steps), at=at, height=over(base, *(s for s in steps if isinstance(s, ExprNode))))


def _step(index: ExprNode) -> str | int | ExprNode:
    """A literal key or index is as good as a field."""
    if isinstance(index, Literal) and type(index.value) in (str, int):
        assert isinstance(index.value, str | int)
        return index.value
    return index
