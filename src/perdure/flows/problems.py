"""What is wrong with a document, said the way compilers do: file, line, column, the line itself and a caret below it.

Laws:

1. All problems are reported, not just the first one, up to PROBLEMS_MAX.
2. A message names what was found, what is wanted and, where a name is near, what was probably meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from perdure.core.errors import InvalidInput

PROBLEMS_MAX: Final = 50
"""Problems reported of one document; reading stops there."""
TEXT_CHARS_MAX: Final = 160
"""Characters shown of a source line."""

Path = tuple[str | int, ...]


class DocumentProblem(msgspec.Struct, frozen=True, kw_only=True):
    file: str
    message: str
    line: int = 0
    """From 1; 0: the document came without text."""
    column: int = 0
    text: str = ""
    """The source line, or the part of it around the column."""
    caret: int = 0
    """Where in `text` the column is, from 0."""
    hint: str = ""
    """What to do, or what was probably meant."""
    severity: Literal["error", "warning"] = "error"
    path: Path = ()

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else f"{self.file}{_at(self.path)}"
        said = f"{self.message}; {self.hint}" if self.hint else self.message
        head = f"{where}: warning: {said}" if self.severity == "warning" else f"{where}: {said}"
        if not self.text.strip():
            return head
        below = "".join("\t" if c == "\t" else " " for c in self.text[: self.caret])
        return f"{head}\n{self.text}\n{below}^"


class FlowError(InvalidInput):
    """The flow's document is not valid; `problems` says what is wrong and where."""

    __module__ = "perdure.errors"
    code = "invalid_flow"

    def __init__(self, problems: Sequence[DocumentProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: (p.line, p.column)))
        super().__init__("\n".join(str(p) for p in self.problems))


def window(line: str, column: int) -> tuple[str, int]:
    """The part of a line that is shown for a column (from 1), and where in it the column is (from 0)."""
    at = max(0, min(column - 1, len(line)))
    if len(line) <= TEXT_CHARS_MAX:
        return line, at
    begin = max(0, min(at - TEXT_CHARS_MAX // 2, len(line) - TEXT_CHARS_MAX))
    return line[begin : begin + TEXT_CHARS_MAX], at - begin


def one_of(known: Iterable[str]) -> str:
    return ", ".join(known)


def _at(path: Path) -> str:
    out = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
    return f": {out}" if out else ""
