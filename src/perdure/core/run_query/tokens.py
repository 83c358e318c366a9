"""Words, texts and signs of a query, each with its place."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from perdure.core.errors import InvalidInput

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<sign><=|>=|!=|==|<>|=|<|>|\(|\)|,)
      | (?P<text>(?:attr\.)?"(?:[^"\\]|\\.)*"|(?:attr\.)?'(?:[^'\\]|\\.)*')
      | (?P<word>[^\s()<>=!,"']+)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
SHOWN_CHARS: Final = 60
"""Characters of a query on either side of the place that an error points at."""


class QueryToken(NamedTuple):
    kind: str
    """`word`, `text`, `sign` or `end`."""
    text: str
    """Of a `text` without its quotes."""
    at: int
    is_attribute: bool = False
    """`attr."a name"`"""


def tokens_of(query: str) -> list[QueryToken]:
    found: list[QueryToken] = []
    at = 0
    while at < len(query):
        match = _TOKEN.match(query, at)
        if match is None:
            quote = query[at] in "\"'"
            raise problem(query, at, "this text has no closing quote" if quote else f"{query[at]!r} means nothing here")
        kind, text = match.lastgroup or "", match[0]
        if kind == "text":
            is_attribute = text[0] not in "\"'"
            quoted = text[len("attr.") :] if is_attribute else text
            found.append(QueryToken("text", _ESCAPED.sub(r"\1", quoted[1:-1]), at, is_attribute))
        elif kind != "space":
            found.append(QueryToken(kind, text, at))
        at = match.end()
    found.append(QueryToken("end", "", len(query)))
    return found


def problem(query: str, at: int, what: str) -> InvalidInput:
    """An error that shows its place in the query."""
    first, last = max(0, at - SHOWN_CHARS), at + SHOWN_CHARS
    before, after = "…" if first else "", "…" if last < len(query) else ""
    shown = "".join(" " if c.isspace() else c for c in query[first:last])
    mark = " " * (len(before) + at - first)
    return InvalidInput(f"query, character {at + 1}: {what}\n  {before}{shown}{after}\n  {mark}^")
