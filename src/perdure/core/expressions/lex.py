"""Text to tokens, and tokens to the literals that they stand for.

The lexer is one regular expression. No alternative of it can match a text in two ways, so it has nothing to backtrack into.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from perdure.core.errors import ExprError
from perdure.core.expressions.nodes import INTEGER_MAX, Fault, number
from perdure.core.limits import EXPR_CHARS_MAX

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
CONSTANTS: Final = {"true": True, "false": False, "null": None}

_TOKEN: Final = re.compile(
    r"""[ \t\r\n]*(?:
      (?P<field>\.(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]+))
    | (?P<number>0[xX][0-9a-fA-F]+[uU]?|[0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+|[uU])?)
    | (?P<raw>[rR](?:"{3}(?:[^"]|"(?!""))*"{3}|'{3}(?:[^']|'(?!''))*'{3}|"[^"]*"|'[^']*'))
    | (?P<name>\$?[A-Za-z_][A-Za-z0-9_]*(?:-+[A-Za-z0-9_]+)*)
    | (?P<string>"{3}(?:[^"\\]|\\.|"(?!""))*"{3}|'{3}(?:[^'\\]|\\.|'(?!''))*'{3}|"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*')
    | (?P<symbol>\?\?|\|\||&&|[=!<>]=|[-+*/%!<>?:,()\[\]{}])
    )""",
    re.VERBOSE | re.DOTALL,
)
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_ESCAPE: Final = re.compile(
    r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xX]([0-9a-fA-F]{2})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPED: Final = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "b": "\b",
    "f": "\f",
    "a": "\a",
    "v": "\v",
    **{char: char for char in "/\\'\"?`"},
}
_UNICODE_MAX: Final = 0x10FFFF
_DIGITS_MAX: Final = 40
"""Characters of a number: more than any that fits, and few enough to convert in no time."""


class Token(NamedTuple):
    kind: str
    """op, name, string, raw, number, field, symbol, end"""
    text: str
    at: int


def check_length(text: str, length: int) -> None:
    if length > EXPR_CHARS_MAX:
        raise ExprError(f"the expression has {length} characters; {EXPR_CHARS_MAX} is the most", EXPR_CHARS_MAX, text)


def blank(text: str, start: int) -> int:
    match = _BLANK.match(text, start)
    return match.end() if match else start


def tokens(text: str, start: int) -> tuple[list[Token], int]:
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
        check_length(text, at - start)
    end = blank(text, at)
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


def number_of(source: str, token: Token) -> float:
    text = token.text.rstrip("uU")
    if text.isdigit():
        return integer_of(source, text, token)
    if text[:2] in ("0x", "0X"):
        return integer_of(source, text[2:], token, 16)
    if len(text) > _DIGITS_MAX:
        raise ExprError(f"the number has {len(text)} characters; {_DIGITS_MAX} is the most", token.at, source)
    try:
        return number(float(text))
    except Fault as fault:
        raise ExprError(str(fault), token.at, source) from None


def integer_of(source: str, digits: str, token: Token, base: int = 10) -> int:
    if len(digits) > _DIGITS_MAX or (value := int(digits, base)) > INTEGER_MAX:
        raise ExprError("the integer is beyond 2^63; use a float, or text", token.at, source)
    return value


def string_of(source: str, token: Token) -> str:
    """What a string says, raw or not."""
    if token.kind == "raw":
        return _inner(token.text[1:])
    inner = _inner(token.text)
    if "\\" in inner:
        inner = _ESCAPE.sub(lambda found: _unescaped(source, found, token), inner)
        try:  # Halves of a pair become one character.
            inner = inner.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise ExprError("the string has half of a surrogate pair in it", token.at, source) from None
    return inner


def _unescaped(source: str, found: re.Match[str], token: Token) -> str:
    at = token.at + (len(token.text) - len(_inner(token.text))) // 2 + found.start()
    digits = found[1] or found[2] or found[3]
    if digits or found[4]:
        code = int(digits, 16) if digits else int(found[4], 8)
        if code > _UNICODE_MAX:
            raise ExprError(f"\\U{digits} is beyond Unicode", at, source)
        return chr(code)
    char = _ESCAPED.get(found[5])
    if char is None:
        raise ExprError(f"\\{found[5]} is no escape; a backslash is written \\\\", at, source)
    return char


def _inner(quoted: str) -> str:
    """What stands between one quote, or three, at each end."""
    size = 3 if len(quoted) >= 6 and quoted[:3] in ('"""', "'''") else 1
    return quoted[size:-size]
