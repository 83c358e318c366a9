"""From a query text to its tree.

query   = all ("or" all)*
all     = one ("and" one)*
one     = "not" one | "(" query ")" | term
term    = field sign value | field "in" "(" value ("," value)* ")" | field "prefix" value | field "exists" | flag
sign    = "=" | "!=" | "<" | "<=" | ">" | ">="
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from perdure.core.errors import InvalidInput
from perdure.core.limits import (
    ATTRIBUTE_NAME_CHARS_MAX,
    QUERY_CHARS_MAX,
    QUERY_DEPTH_MAX,
    QUERY_TERMS_MAX,
)
from perdure.core.run_query import values
from perdure.core.run_query.nodes import And, Node, Not, Op, Or, Term, Value
from perdure.core.run_query.tokens import QueryToken, problem, tokens_of
from perdure.core.suggestions import did_you_mean

_ORDER: Final = frozenset({Op.EQUAL, Op.LESS, Op.LESS_OR_EQUAL, Op.MORE, Op.MORE_OR_EQUAL})
_TEXT: Final = _ORDER | {Op.PREFIX, Op.EXISTS}
ATTRIBUTE: Final = "attr."
Read = Callable[[str, bool, Op, int], Value]
"""(word, whether it was quoted, operator, now) -> value. Raises InvalidInput without a place."""


class QueryField(NamedTuple):
    read: Read
    ops: frozenset[Op]
    is_flag: bool = False
    """It stands for itself: `stuck` is `stuck = true`."""


def _text(word: str, quoted: bool, op: Op, now_us: int) -> Value:
    return word


def _moment(word: str, quoted: bool, op: Op, now_us: int) -> Value:
    return values.moment(word, now_us)


def _status(word: str, quoted: bool, op: Op, now_us: int) -> Value:
    return values.status(word)


def _run_id(word: str, quoted: bool, op: Op, now_us: int) -> Value:
    return values.run_id(word, op)


def _wait_reason(word: str, quoted: bool, op: Op, now_us: int) -> Value:
    return values.wait_reason(word)


def _flag(word: str, quoted: bool, op: Op, now_us: int) -> Value:
    return values.boolean(word)


_IS: Final = frozenset({Op.EQUAL})
FIELDS: Final[dict[str, QueryField]] = {
    "status": QueryField(_status, _IS),
    "workflow": QueryField(_text, _TEXT),
    "version": QueryField(_text, _TEXT),
    "key": QueryField(_text, _TEXT),
    "id": QueryField(_run_id, _IS | {Op.PREFIX}),
    "parent": QueryField(_run_id, _IS | {Op.PREFIX, Op.EXISTS}),
    "created": QueryField(_moment, _ORDER),
    "finished": QueryField(_moment, _ORDER | {Op.EXISTS}),
    "error_code": QueryField(_text, _TEXT),
    "waiting_on": QueryField(_wait_reason, _IS | {Op.EXISTS}),
    "stuck": QueryField(_flag, _IS, is_flag=True),
    "paused": QueryField(_flag, _IS, is_flag=True),
}
"""What a query may ask about, beside attributes."""
_ATTRIBUTE: Final = QueryField(values.attribute_value, _TEXT)
_KEYWORDS: Final = frozenset({"and", "or", "not", "in", "prefix", "exists"})
_SIGNS: Final = {"=": Op.EQUAL, "==": Op.EQUAL, "!=": Op.EQUAL, "<>": Op.EQUAL, **{op.value: op for op in _ORDER}}
_NEGATED: Final = frozenset({"!=", "<>"})


def parse(query: str, now_us: int) -> Node:
    """Raises InvalidInput, which shows the place of the mistake. An empty text is true."""
    if len(query) > QUERY_CHARS_MAX:
        raise InvalidInput(f"a query of {len(query)} characters is over the limit QUERY_CHARS_MAX={QUERY_CHARS_MAX}")
    return _QueryParser(query, now_us).parse()


class _QueryParser:
    def __init__(self, query: str, now_us: int) -> None:
        self._query, self._now_us = query, now_us
        self._tokens, self._at, self._terms = tokens_of(query), 0, 0

    def parse(self) -> Node:
        if self._next.kind == "end":
            return And(())
        found = self._or(0)
        if self._next.kind != "end":
            raise self._wrong("expected `and`, `or` or the end of the query")
        return found

    @property
    def _next(self) -> QueryToken:
        return self._tokens[self._at]

    def _take(self) -> QueryToken:
        token = self._tokens[self._at]
        self._at += token.kind != "end"
        return token

    def _is(self, word: str) -> bool:
        """Whether this keyword or sign comes next; then it is taken."""
        token = self._next
        if token.kind in ("word", "sign") and token.text.lower() == word:
            self._at += 1
            return True
        return False

    def _wrong(self, what: str, token: QueryToken | None = None) -> InvalidInput:
        return problem(self._query, (token or self._next).at, what)

    def _or(self, depth: int) -> Node:
        parts = [self._and(depth)]
        while self._is("or"):
            parts.append(self._and(depth))
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _and(self, depth: int) -> Node:
        parts = [self._one(depth)]
        while self._is("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self, depth: int) -> Node:
        if depth > QUERY_DEPTH_MAX:
            raise self._wrong(f"the query is nested deeper than QUERY_DEPTH_MAX={QUERY_DEPTH_MAX}")
        if self._is("not"):
            return Not(self._one(depth + 1))
        if self._is("("):
            found = self._or(depth + 1)
            if not self._is(")"):
                raise self._wrong("expected `)`")
            return found
        return self._term()

    def _term(self) -> Node:
        token = self._take()
        name, field = self._field(token)
        ops = ", ".join(_written(field))
        after = self._next
        if field.is_flag and (after.kind == "end" or after.text.lower() in ("and", "or", ")")):
            return self._made(name, Op.EQUAL, True)
        sign = self._take()
        word = sign.text.lower() if sign.kind in ("word", "sign") else ""
        if word == "in":
            return self._in(name, field)
        if word in ("prefix", "exists"):
            op = Op(word)
        elif word in _SIGNS:
            op = _SIGNS[word]
        else:
            hint = did_you_mean(sign.text, ("prefix", "exists", "in")) if sign.kind == "word" else ""
            raise self._wrong(f"expected an operator after {_shown(name)}: {ops}" + (f"; {hint}" if hint else ""), sign)
        if op not in field.ops:
            raise self._wrong(f"{_shown(name)} cannot be compared by `{word}`; use {ops}", sign)
        if op is Op.EXISTS:
            return self._made(name, op, None)
        made = self._made(name, op, self._value(field, op))
        return Not(made) if word in _NEGATED else made

    def _in(self, name: str, field: QueryField) -> Node:
        if not self._is("("):
            raise self._wrong("expected `(` and values: in (a, b)")
        found: list[Node] = [self._made(name, Op.EQUAL, self._value(field, Op.EQUAL))]
        while self._is(","):
            found.append(self._made(name, Op.EQUAL, self._value(field, Op.EQUAL)))
        if not self._is(")"):
            raise self._wrong("expected `,` or `)`")
        return found[0] if len(found) == 1 else Or(tuple(found))

    def _field(self, token: QueryToken) -> tuple[str, QueryField]:
        if token.is_attribute or (token.kind == "word" and token.text.lower().startswith(ATTRIBUTE)):
            name = token.text if token.is_attribute else token.text[len(ATTRIBUTE) :]
            if not 0 < len(name) <= ATTRIBUTE_NAME_CHARS_MAX:
                raise self._wrong(f"the name of an attribute has 1 to {ATTRIBUTE_NAME_CHARS_MAX} characters", token)
            return ATTRIBUTE + name, _ATTRIBUTE
        name = token.text.lower()
        if token.kind != "word" or name in _KEYWORDS:
            raise self._wrong(f"expected a field: {', '.join(FIELDS)}, or attr.NAME", token)
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS) or f"an attribute is written attr.{token.text[:50]}"
            raise self._wrong(f"there is no field {token.text[:50]!r}; {hint}", token)
        return name, FIELDS[name]

    def _value(self, field: QueryField, op: Op) -> Value:
        token = self._next
        is_keyword = token.kind == "word" and token.text.lower() in ("and", "or", "not", "in")
        if token.kind not in ("word", "text") or token.is_attribute or is_keyword:
            raise self._wrong("expected a value; put a text with spaces or signs into quotes")
        self._at += 1
        try:
            return field.read(token.text, token.kind == "text", op, self._now_us)
        except InvalidInput as error:
            raise self._wrong(str(error), token) from None

    def _made(self, name: str, op: Op, value: Value) -> Term:
        self._terms += 1
        if self._terms > QUERY_TERMS_MAX:
            raise self._wrong(f"the query has more than QUERY_TERMS_MAX={QUERY_TERMS_MAX} terms")
        if name.startswith(ATTRIBUTE):
            return Term("attr", op, value, name[len(ATTRIBUTE) :])
        return Term(name, op, value)


def _written(field: QueryField) -> list[str]:
    """The operators of a field as they are written."""
    signs = [op.value for op in Op if op in field.ops and op is not Op.EXISTS and op is not Op.PREFIX]
    words = [op.value for op in (Op.PREFIX, Op.EXISTS) if op in field.ops]
    return [*signs[:1], "!=", *signs[1:], "in", *words]


def _shown(name: str) -> str:
    return f"`{name[:60]}`"
