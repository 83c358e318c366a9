"""Text on its way to a terminal. Names, error texts, results and log lines come from others: none of it may steer the terminal.

`guard()` puts a stream in front of stdout and stderr that writes control characters out (core/names.py); colours come from `console()`, which
does the same for every piece of text before it adds its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from perdure.core.names import escaped

if TYPE_CHECKING:
    from rich.console import Console


class Guarded:
    """A text stream that escapes what is written to it."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    def write(self, text: str) -> int:
        self.raw.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def guard() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Guarded):
            setattr(sys, name, Guarded(stream))


def unguard() -> None:
    """For a process that runs other people's programs: what they print is theirs."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Guarded):
            setattr(sys, name, stream.raw)


def console(stream: Any = None) -> Console:
    """A console for tables and colours on `stream`, stdout unless given."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(escaped(segment.text), segment.style)

    raw = sys.stdout if stream is None else stream
    raw = raw.raw if isinstance(raw, Guarded) else raw
    color_system: Any = None if os.environ.get("NO_COLOR") else "auto"  # rich would keep bold and dim
    return Safe(file=raw, highlight=False, emoji=False, markup=False, color_system=color_system)
