"""Text to tree.

The lexer is one regular expression without anything to backtrack into; the parser climbs precedences. From loose to tight:

    c ? a : b        or ||        and &&        not !
    eq == ne != gt > lt < ge >= le <= in, not in, contains        (these do not chain)
    ??        + -        * / %        - (sign)        exists        a.b  a[0]  f(x)

A hyphen within a root is part of it where no space stands before it, because tasks may be called `fetch-data`; write `index - 1`, with
spaces, for a difference. Fields take no hyphens: `input["user-id"]`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from perdure.core.errors import ExprError
from perdure.core.expressions.functions import FUNCTIONS
from perdure.core.expressions.nodes import (
    INTEGER_MAX,
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
    ObjectOf,
    Root,
    Unary,
    closest,
    negated,
    number,
    over,
)
from perdure.core.limits import EXPR_CHARS_MAX, EXPR_DEPTH_MAX

OPERATOR_WORDS: Final = frozenset(["and", "or", "not", "in", "exists", "contains", "eq", "ne", "gt", "lt", "ge", "le"])
KEYWORDS: Final = OPERATOR_WORDS | {"true", "false", "null"}
"""Words that are no roots, unless a `$` stands before them."""

_SYMBOLS: Final = {
    "||": "or",
    "&&": "and",
    "!": "not",
    "==": "eq",
    "!=": "ne",
    ">": "gt",
    "<": "lt",
    ">=": "ge",
    "<=": "le",
}
_CONSTANTS: Final = {"true": True, "false": False, "null": None}

_TOKEN: Final = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<field>\.(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+))
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)
    | (?P<name>\$?[A-Za-z_][A-Za-z0-9_]*(?:-+[A-Za-z0-9_]+)*)
    | (?P<string>"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*')
    | (?P<symbol>\?\?|\|\||&&|[=!<>]=|[-+*/%!<>?:,()\[\]{}])
    )""",
    re.VERBOSE | re.DOTALL,
)
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", "'": "'", '"': '"'}
_DIGITS_MAX: Final = 40
"""Characters of a number: more than any that fits, and few enough to convert in no time."""

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


class Token(NamedTuple):
    kind: str
    """op, name, string, number, field, symbol, end"""
    text: str
    at: int


def parse_whole(text: str) -> tuple[ExprNode, int, int]:
    """The tree of a text that is one expression, and where the expression begins and ends in it."""
    _check_length(text, len(text))
    start = _blank(text, 0)
    if text.startswith("${", start):
        node, stop = parse_within(text, start + 2)
        if _blank(text, stop) != len(text):
            raise ExprError(
                "there is text after the closing `}`; an expression is one `${ }` and nothing else", stop, text
            )
        return node, start + 2, stop - 1
    tokens, stop = _tokens(text, start)
    if stop < len(text):
        raise ExprError("this `}` closes nothing", stop, text)
    return _Parser(text, tokens).whole(), start, stop


def parse_within(text: str, start: int) -> tuple[ExprNode, int]:
    """The tree of the expression that begins at `start`, just after a `${`, and where the text goes on after its `}`."""
    tokens, stop = _tokens(text, start)
    if stop >= len(text):
        raise ExprError("this `${` is never closed; for a literal `${` write `$${`", start - 2, text)
    return _Parser(text, tokens).whole(), stop + 1


def _check_length(text: str, length: int) -> None:
    if length > EXPR_CHARS_MAX:
        raise ExprError(f"the expression has {length} characters; {EXPR_CHARS_MAX} is the most", EXPR_CHARS_MAX, text)


def _blank(text: str, start: int) -> int:
    match = _BLANK.match(text, start)
    return match.end() if match else start


def _tokens(text: str, start: int) -> tuple[list[Token], int]:
    """Tokens up to the end of the text or to a `}` that none of them opened."""
    out: list[Token] = []
    at, braces, match_at = start, 0, _TOKEN.match
    while match := match_at(text, at):
        kind = match.lastgroup
        assert kind is not None
        word, begin = match[kind], match.start(kind)
        if kind == "symbol":
            if word == "{":
                braces += 1
            elif word == "}":
                braces -= 1
                if braces < 0:
                    break
            if word in _SYMBOLS:
                kind, word = "op", _SYMBOLS[word]
        elif kind == "name" and word in OPERATOR_WORDS:
            kind = "op"
        out.append(Token(kind, word, begin))
        at = match.end()
        _check_length(text, at - start)
    end = _blank(text, at)
    if match is None and end < len(text):
        raise _unreadable(text, end)
    out.append(Token("end", "", end))
    return out, end


def _unreadable(text: str, at: int) -> ExprError:
    char = text[at]
    if char in "\"'":
        return ExprError(f"the string that begins with this {char} is never closed", at, text)
    hint = {
        "=": "; to compare, write ==",
        "&": "; write `and` or &&",
        "|": "; write `or` or ||",
        "$": "; a root follows it at once, as in $params",
        ".": '; a field of letters, digits and _ follows it at once, as in input.day, others as in input["day-1"]',
    }.get(char, '; other names than letters, digits and _ are written as in input["…"]' if char.isalpha() else "")
    return ExprError(f"{char!r} means nothing here{hint}", at, text)


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
            case "string":
                return Literal(value=self._unquoted(token), at=token.at)
            case "number":
                return Literal(value=self._number(token), at=token.at)
            case "symbol" if token.text in "([{":
                return self._bracketed(token)
            case _:
                raise self._unexpected(token)

    def _named(self, token: Token) -> ExprNode:
        name = token.text
        if name in _CONSTANTS:
            return Literal(value=_CONSTANTS[name], at=token.at)
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
                field = token.text[1:]
                steps.append(self._integer(field, token) if field.isdigit() else field)
                self._next += 1
            elif token.text == "[" and token.kind == "symbol":
                self._next += 1
                self._open()
                steps.append(_step(self.expression(_CONDITIONAL)))
                self._expect("]", "the index's end")
                self._brackets -= 1
            else:
                break
            at = at or token.at
        if not steps:
            return base
        if isinstance(base, Get):  # In brackets, as in (a.b).c: the same path.
            steps, base = [*base.steps, *steps], base.base
        return Get(
            base=base, steps=tuple(steps), at=at, height=over(base, *(s for s in steps if isinstance(s, ExprNode)))
        )

    def _call(self, token: Token) -> ExprNode:
        self._next += 1
        self._open()
        args = self._items(")")
        self._brackets -= 1
        name = token.text
        height = over(*args)
        function = FUNCTIONS.get(name)
        if function is None:
            close = closest(name, FUNCTIONS)
            hint = f"; did you mean {close}()?" if close else f"; there are {', '.join(sorted(FUNCTIONS))}"
            raise self._error(f"there is no function {name}(){hint}", token)
        if not function.least <= len(args) <= function.most:
            raise self._error(f"{name}() takes {function.arity}, not {len(args)}", token)
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
            if token.kind not in ("name", "string", "op"):
                raise self._error('a key is expected here, as in {"day": 1}', token)
            key = self._unquoted(token) if token.kind == "string" else self._source(token)
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

    def _number(self, token: Token) -> float:
        text = token.text
        if text.isdigit():
            return self._integer(text, token)
        if len(text) > _DIGITS_MAX:
            raise self._error(f"the number has {len(text)} characters; {_DIGITS_MAX} is the most", token)
        try:
            return number(float(text))
        except Fault as fault:
            raise self._error(str(fault), token) from None

    def _integer(self, digits: str, token: Token) -> int:
        if len(digits) > _DIGITS_MAX or (value := int(digits)) > INTEGER_MAX:
            raise self._error("the integer is beyond 2^63; use a float, or text", token)
        return value

    def _unquoted(self, token: Token) -> str:
        inner = token.text[1:-1]
        if "\\" in inner:
            inner = _ESCAPE.sub(lambda found: self._unescaped(found, token), inner)
            try:  # Halves of a pair become one character.
                inner = inner.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                raise self._error("the string has half of a surrogate pair in it", token) from None
        return inner

    def _unescaped(self, found: re.Match[str], token: Token) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        char = _ESCAPED.get(found[2])
        if char is None:
            at = token.at + 1 + found.start()
            raise ExprError(f"\\{found[2]} is no escape; a backslash is written \\\\", at, self._text)
        return char

    def _error(self, message: str, token: Token) -> ExprError:
        return ExprError(message, token.at, self._text)

    def _too_deep(self) -> ExprError:
        token = self._tokens[min(self._next, len(self._tokens) - 1)]
        return self._error(f"the expression is nested more than {EXPR_DEPTH_MAX} deep; split it up", token)

    def _unexpected(self, token: Token) -> ExprError:
        if token.kind == "end":
            return self._error("the expression ends too soon; a value is missing", token)
        if token.kind in ("name", "string", "number") and self._next and self._tokens[self._next] is token:
            return self._error(f"an operator is missing before {token.text}", token)
        return self._error(f"`{token.text}` is out of place here", token)


def _step(index: ExprNode) -> str | int | ExprNode:
    """A literal key or index is as good as a field."""
    if isinstance(index, Literal) and type(index.value) in (str, int):
        assert isinstance(index.value, str | int)
        return index.value
    return index
