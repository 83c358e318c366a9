"""Keeps control characters in names, errors, results and log lines from reaching the terminal.

`guard()` replaces stdout and stderr with streams that escape control characters (core/names.py). `console()` escapes text in the
same way before it adds colours.
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
    """A text stream that escapes control characters."""

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
    """For workers, whose tasks print what they like."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, Guarded):
            setattr(sys, name, stream.raw)


class ProgressLine:
    """One line on stderr that is written over; nothing in a pipe."""

    def __init__(self) -> None:
        stream = sys.stderr
        self._raw: Any = stream.raw if isinstance(stream, Guarded) else stream
        self._shown = stream.isatty()

    def __call__(self, text: str) -> None:
        if self._shown:
            self._raw.write(f"\r\x1b[K{escaped(text)}")
            self._raw.flush()

    def end(self) -> None:
        self("")


def console(stream: Any = None) -> Console:
    """A console for tables and colours on `stream`, by default stdout."""
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
