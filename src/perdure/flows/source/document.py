"""A document: a JSON value and the place of everything in it, and the tree it grows from while it is read.

The tree is built in one loop, never by recursion, so that depth is ours to limit. An alias is counted as what it stands for.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from math import isinf
from typing import Any, Final, NoReturn

from perdure.core.limits import ALIASES_MAX, DOCUMENT_DEPTH_MAX, DOCUMENT_NODES_MAX
from perdure.flows.model import SourcePlace
from perdure.flows.problems import PROBLEMS_MAX, DocumentProblem, FlowError, Path, window

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
"""Integers that every JSON codec on the way carries unchanged."""

BREAK = re.compile(r"\r\n|\r|\n")
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_ESCAPE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\x..|\\u.{4}|\\U.{8}|\\.|.", re.S)


class Spot:
    """Where a value stands, and where what is in it stands."""

    __slots__ = ("children", "column", "keys", "line", "raw")

    def __init__(self, line: int, column: int, raw: str | None = None) -> None:
        self.line = line
        self.column = column
        self.raw = raw
        """How a scalar on one line, or a literal block, is written; None of everything else."""
        self.children: dict[str | int, Spot] | None = None
        self.keys: dict[str | int, Spot] | None = None


class Document:
    """A value and the text it came from."""

    def __init__(self, name: str, text: str, value: Any, root: Spot, lines: list[str]) -> None:
        self.name = name
        self.text = text
        self.value = value
        self._root = root
        self._lines = lines

    def place(self, path: Path, *, key: bool = False) -> SourcePlace:
        """Of the value at a path, or of its key. What is not there is placed at what would hold it."""
        spot = self._spot(path, key=key)
        return SourcePlace(spot.line, spot.column)

    def place_within(self, path: Path, offset: int, *, key: bool = False) -> SourcePlace:
        """Of a character of the text at a path; the text's beginning where escapes and folding hide it."""
        spot = self._spot(path, key=key)
        if spot.raw is None:
            return SourcePlace(spot.line, spot.column)
        if spot.raw[:1] in {"|", ">"}:
            return self._in_block(spot, offset)
        return SourcePlace(spot.line, spot.column + _written(spot.raw, offset))

    def line(self, number: int) -> str:
        return self._lines[number - 1] if 1 <= number <= len(self._lines) else ""

    def problem(self, place: SourcePlace, message: str, **more: Any) -> DocumentProblem:
        text, caret = window(self.line(place.line), place.column)
        return DocumentProblem(
            file=self.name, message=message, line=place.line, column=place.column, text=text, caret=caret, **more
        )

    def _spot(self, path: Path, *, key: bool) -> Spot:
        spot = self._root
        for i, step in enumerate(path):
            if key and i == len(path) - 1 and spot.keys is not None and step in spot.keys:
                return spot.keys[step]
            inner = None if spot.children is None else spot.children.get(step)
            if inner is None:
                return spot
            spot = inner
        return spot

    def _in_block(self, spot: Spot, offset: int) -> SourcePlace:
        assert spot.raw is not None
        before = spot.raw[1:][:offset]
        row = before.count("\n")
        said = spot.raw[1:].split("\n")[row] if spot.raw[0] == "|" else ""
        line = self.line(spot.line + 1 + row)
        if not said or not line.endswith(said):
            return SourcePlace(spot.line, spot.column)
        return SourcePlace(spot.line + 1 + row, len(line) - len(said) + len(before) - (before.rfind("\n") + 1) + 1)


def _written(raw: str, offset: int) -> int:
    """How far into a scalar as written its `offset`-th character is."""
    if raw[:1] == "'":
        pos = 1
        for _ in range(offset):
            pos += 2 if raw[pos : pos + 2] == "''" else 1
        return min(pos, len(raw))
    if raw[:1] != '"':
        return min(offset, len(raw))
    pos = 1
    for _ in range(offset):
        m = _ESCAPE.match(raw, pos)
        if m is None:
            break
        pos = m.end()
    return min(pos, len(raw))


class _Frame:
    """A list or mapping that is being filled."""

    __slots__ = ("anchor", "children", "height", "items", "key", "key_spot", "keys", "members", "nodes", "spot")

    def __init__(self, spot: Spot, *, mapping: bool, anchor: str | None, nodes: int) -> None:
        self.spot = spot
        self.members: dict[str, Any] | None = {} if mapping else None
        self.items: list[Any] | None = None if mapping else []
        self.children: dict[str | int, Spot] = {}
        self.keys: dict[str | int, Spot] = {}
        self.key: str | None = None
        self.key_spot: Spot | None = None
        self.anchor = anchor
        self.nodes = nodes
        self.height = 0


class Tree:
    """One reading of one text."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.starts = [0, *(m.end() for m in BREAK.finditer(text))]
        self.lines = BREAK.split(text)
        self.begin()

    def begin(self) -> None:
        self.problems: list[DocumentProblem] = []
        self.stack: list[_Frame] = []
        self.nodes = 0
        self.aliases = 0
        self.anchors: dict[str, tuple[Any, Spot, int, int] | None] = {}
        self.root: tuple[Any, Spot] | None = None

    def problem(self, line: int, column: int, message: str, hint: str = "") -> None:
        if line > len(self.lines):  # the parser means the end of the text
            line, column = len(self.lines), len(self.lines[-1]) + 1
        line = max(1, line)
        column = max(1, min(column, len(self.lines[line - 1]) + 1))
        text, caret = window(self.lines[line - 1], column)
        self.problems.append(
            DocumentProblem(
                file=self.name, message=message, line=line, column=column, text=text, caret=caret, hint=hint
            )
        )
        if len(self.problems) >= PROBLEMS_MAX:
            raise FlowError(self.problems)

    def fatal(self, line: int, column: int, message: str, hint: str = "") -> NoReturn:
        self.problem(line, column, message, hint)
        raise FlowError(self.problems)

    def open(self, spot: Spot, *, mapping: bool, anchor: str | None = None) -> None:
        if self.at_key():
            self.fatal(spot.line, spot.column, "a key is a list or a mapping", "keys are text")
        self._count(spot, 1)
        if len(self.stack) >= DOCUMENT_DEPTH_MAX:
            self.fatal(
                spot.line, spot.column, f"the document is nested deeper than DOCUMENT_DEPTH_MAX={DOCUMENT_DEPTH_MAX}"
            )
        if anchor is not None:
            self.anchors[anchor] = None
        self.stack.append(_Frame(spot, mapping=mapping, anchor=anchor, nodes=self.nodes))

    def close(self) -> None:
        frame = self.stack.pop()
        frame.spot.children = frame.children
        frame.spot.keys = frame.keys
        value: Any = frame.items if frame.members is None else frame.members
        if frame.anchor is not None:
            self.anchors[frame.anchor] = (value, frame.spot, self.nodes - frame.nodes + 1, frame.height + 1)
        self.add(value, frame.spot, frame.height + 1)

    def scalar(self, value: Any, spot: Spot, anchor: str | None = None, *, plain: bool = False) -> None:
        self._count(spot, 1)
        if isinstance(value, str) and UNSTORABLE.search(value):
            self.problem(
                spot.line, spot.column, "the text holds U+0000 or half a surrogate pair, which cannot be stored"
            )
            value = ""
        if anchor is not None:
            self.anchors[anchor] = (value, spot, 1, 0)
        if self.at_key():
            self._key(value, spot, plain=plain)
        else:
            self.add(value, spot, 0)

    def alias(self, anchor: str, spot: Spot) -> None:
        if self.at_key():
            self.fatal(spot.line, spot.column, f"the key is an alias, *{anchor}", "write the key out")
        self.aliases += 1
        if self.aliases > ALIASES_MAX:
            self.fatal(spot.line, spot.column, f"the document uses anchors more than ALIASES_MAX={ALIASES_MAX} times")
        if anchor not in self.anchors:
            self.fatal(spot.line, spot.column, f"nothing above is anchored as &{anchor[:100]}")
        known = self.anchors[anchor]
        if known is None:
            self.fatal(spot.line, spot.column, f"*{anchor[:100]} stands within the very value it stands for")
        value, there, nodes, height = known
        self._count(spot, nodes)
        if len(self.stack) + height > DOCUMENT_DEPTH_MAX:
            self.fatal(
                spot.line, spot.column, f"the document is nested deeper than DOCUMENT_DEPTH_MAX={DOCUMENT_DEPTH_MAX}"
            )
        self.add(value, there, height)

    def add(self, value: Any, spot: Spot, height: int) -> None:
        if not self.stack:
            self.root = (value, spot)
            return
        frame = self.stack[-1]
        frame.height = max(frame.height, height)
        if frame.items is not None:
            frame.children[len(frame.items)] = spot
            frame.items.append(value)
            return
        assert frame.members is not None and frame.key is not None and frame.key_spot is not None
        frame.members[frame.key] = value
        frame.children[frame.key] = spot
        frame.keys[frame.key] = frame.key_spot
        frame.key = None

    def at_key(self) -> bool:
        return bool(self.stack) and self.stack[-1].members is not None and self.stack[-1].key is None

    def _key(self, value: Any, spot: Spot, *, plain: bool) -> None:
        frame = self.stack[-1]
        assert frame.members is not None
        if not isinstance(value, str):
            said = json.dumps(value)
            self.problem(spot.line, spot.column, f"the key {said} is not text", f"put quotes around it: '{said}'")
            value = said
        elif plain and value == "<<":
            self.problem(
                spot.line,
                spot.column,
                "merge keys (<<) are not part of YAML 1.2",
                "write the keys out, or use `defaults:`",
            )
        if value in frame.members:
            line = frame.keys[value].line
            self.problem(spot.line, spot.column, f"duplicate key {value[:100]!r}; it is on line {line} already")
        frame.key = value
        frame.key_spot = spot

    def _count(self, spot: Spot, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > DOCUMENT_NODES_MAX:
            self.fatal(
                spot.line,
                spot.column,
                f"the document has more than DOCUMENT_NODES_MAX={DOCUMENT_NODES_MAX} keys and values",
            )

    def document(self) -> Document:
        if self.problems:
            raise FlowError(self.problems)
        value, spot = self.root or (None, Spot(1, 1))
        return Document(self.name, self.text, value, spot, self.lines)

    def integer(self, text: str, base: int, spot: Spot) -> int:
        value = int(text, base) if len(text) <= 100 else INTEGER_MAX + 1
        if INTEGER_MIN <= value <= INTEGER_MAX:
            return value
        self.problem(
            spot.line, spot.column, "the integer does not fit into 64 bits", "put quotes around it to keep it as text"
        )
        return 0

    def float(self, text: str, spot: Spot) -> float:
        value = float(text)
        if isinf(value):
            self.problem(
                spot.line,
                spot.column,
                "the number is too large for a double",
                "put quotes around it to keep it as text",
            )
            return 0.0
        return value

    def at(self, offset: int) -> tuple[int, int]:
        row = bisect_right(self.starts, offset) - 1
        return row + 1, offset - self.starts[row] + 1
