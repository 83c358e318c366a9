"""JSON text to a document. YAML would read most of it too, but has other ideas about surrogates, line separators and long keys."""

from __future__ import annotations

import json
import re
from typing import Any

from perdure.flows.source.document import Document, Spot, Tree

_JSON_TOKEN = re.compile(
    r"[ \t\r\n]*(?:(?P<mark>[{}\[\],:])"
    r'|(?P<text>"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)(?![0-9A-Za-z.])"
    r"|(?P<word>true|false|null)(?![0-9A-Za-z]))"
)
_JSON_SPACE = re.compile(r"[ \t\r\n]*")


class JsonSource(Tree):
    def json(self) -> Document | None:
        """The document when the text is JSON; None when it is not, and may be YAML."""
        self.begin()
        pos = 0
        after = ""
        """The mark before this token; `v` after a value."""
        while True:
            m = _JSON_TOKEN.match(self.text, pos)
            if m is None or self.root is not None:
                break
            pos = m.end()
            kind = m.lastgroup
            assert kind is not None
            token = m.group(kind)
            if kind != "mark":
                if not self._json_value(kind, token, m.start(kind), after):
                    return None
                after = "v"
                continue
            if not self._json_mark(token, m.start(kind), after):
                return None
            after = "v" if token in "}]" else token
        if self.root is None or _JSON_SPACE.match(self.text, pos).end() != len(self.text):  # type: ignore[union-attr]
            return None
        return self.document()

    def _json_value(self, kind: str, token: str, at: int, after: str) -> bool:
        key = self.at_key()
        if not self._json_may_begin(after) or (key and kind != "text"):
            return False
        spot = Spot(*self.at(at), token)
        if kind == "text":
            try:
                value: Any = json.loads(token)
            except ValueError:
                return False
        elif kind == "number":
            value = self.float(token, spot) if any(c in ".eE" for c in token) else self.integer(token, 10, spot)
        else:
            value = {"true": True, "false": False, "null": None}[token]
        self.scalar(value, spot)
        return True

    def _json_mark(self, token: str, at: int, after: str) -> bool:
        top = self.stack[-1] if self.stack else None
        if token in "{[":
            if not self._json_may_begin(after) or self.at_key():
                return False
            self.open(Spot(*self.at(at)), mapping=token == "{")
            return True
        if top is None:
            return False
        if token == ":":
            return after == "v" and top.members is not None and top.key is not None
        if token == ",":
            return after == "v" and (top.members is None or top.key is None)
        if (token == "}") != (top.members is not None) or top.key is not None or after not in {"v", "{", "["}:
            return False
        self.close()
        return True

    def _json_may_begin(self, after: str) -> bool:
        """Whether a key or a value may stand here."""
        if not self.stack:
            return after == ""
        if self.stack[-1].members is None:
            return after in {"[", ","}
        return after in {"{", ","} if self.stack[-1].key is None else after == ":"
