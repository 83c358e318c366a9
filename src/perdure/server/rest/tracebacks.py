"""A Python traceback for display: the frames of user code first. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_FRAME: Final = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>.*)$')
_LIBRARY: Final = (
    "site-packages/",
    "dist-packages/",
    "/lib/python",
    "<frozen ",
    "perdure/sdk/",
    "perdure/engine/",
    "perdure/core/",
)


class Frame(NamedTuple):
    file: str
    line: int
    function: str
    code: str
    own: bool


def frames(traceback: str) -> list[Frame]:
    """Innermost first."""
    found: list[Frame] = []
    code: list[str] = []
    for text in reversed(traceback.splitlines()):
        match = _FRAME.match(text)
        if match is None:
            code.append(text)
            continue
        file = match["file"]
        own = not any(part in file.replace("\\", "/") for part in _LIBRARY)
        lines = [c for c in reversed(code) if c.startswith("    ") and c.strip(" ~^")]
        found.append(Frame(file, int(match["line"]), match["function"], "\n".join(c[4:] for c in lines), own))
        code = []
    return found
