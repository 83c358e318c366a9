"""The lines that one attempt, or the code of one run, wrote and that have not been sent yet.

Laws:

1. What one attempt may keep is bounded, in each line and in all; a last line says how many lines were dropped.
2. Values of secrets are masked, also where they come in several writes. They are masked before a line is cut: half of one is not found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from perdure.core.limits import LOG_BYTES_PER_ATTEMPT_MAX, LOG_LINE_CHARS_MAX
from perdure.core.work import LogLine
from perdure.sdk.secrets.known import known, redacted

LINE_OVERHEAD_BYTES: Final = 16
"""Added to the size of each line, so that empty lines are bounded too."""
CUT: Final = "…"
WORKFLOW_SEQ: Final = -1
"""In the place of a task's number: the code of the workflow itself."""


class OutputSink(Protocol):
    """Where the lines of attempts go. Called from any thread."""

    tee: bool
    """Captured output reaches the real streams and handlers as well."""

    def now_us(self) -> int: ...
    def grown(self, output: OutputBuffer, new: bool) -> None:
        """A line was added; `new` says that the output had none waiting before."""


class OutputBuffer:
    """What one attempt wrote and has not been sent yet."""

    __slots__ = (
        "_bytes",
        "_dropped",
        "_held",
        "_lock",
        "_partial",
        "_release",
        "_sink",
        "closed",
        "lines",
        "n",
        "owner",
    )

    def __init__(
        self,
        sink: OutputSink,
        owner: tuple[bytes, int, int, int],
        release: Callable[[str, str], object] | None = None,
    ) -> None:
        """`release` writes to a real stream what `teed` held back."""
        self.owner = owner
        """(run, seq, attempt, namespace)"""
        self.n = 0
        """Number of the next chunk."""
        self.lines: list[LogLine] = []
        self.closed = False
        self._sink = sink
        self._bytes = self._dropped = 0
        self._partial: dict[str, str] = {}
        self._held: dict[str, str] = {}
        """By stream: what has not been passed on, because a secret may begin in it."""
        self._release = release
        # Reentrant: a finalizer that prints may run while a line is being added.
        self._lock = threading.RLock()

    def write(self, stream: str, text: str) -> None:
        """Text as a stream gets it: any number of lines, the last of them perhaps unfinished."""
        with self._lock:
            if self._partial:
                text = self._partial.pop(stream, "") + text
            *whole, rest = text.split("\n")
            if rest:
                # A line that does not end is kept as far as it would be shown; the rest of it is cut anyway. A secret that goes on in the next
                # write is found if its beginning is kept, and lies behind the cut if it is not.
                kept = redacted(shown(rest))[: LOG_LINE_CHARS_MAX + 1 + known.redactor.overlap]
                self._partial[stream] = kept + ("\r" if rest[-1] == "\r" else "")
        for line in whole:
            self.add(stream, "info", shown(line))

    def teed(self, stream: str, text: str) -> str:
        """What of a text may go to the real stream now, without secrets."""
        redactor = known.redactor
        if redactor.is_empty or self._release is None:
            return redacted(text)
        with self._lock:
            text = redactor.text(self._held.pop(stream, "") + text)
            held = 0 if self.closed else redactor.unfinished(text)
            if held:
                self._held[stream] = text[-held:]
        return text[:-held] if held else text

    def add(self, stream: str, level: str, text: str) -> None:
        at_us = self._sink.now_us()
        self.put(LogLine(at_us, stream, level, printable(redacted(text))))

    def put(self, line: LogLine) -> None:
        with self._lock:
            if self.closed:
                return
            size = LINE_OVERHEAD_BYTES + (len(line.text) if line.text.isascii() else len(line.text.encode()))
            if self._dropped or self._bytes + size > LOG_BYTES_PER_ATTEMPT_MAX:
                self._dropped += 1
                return
            self._bytes += size
            new = not self.lines
            self.lines.append(line)
        self._sink.grown(self, new)

    def extend(self, lines: list[LogLine]) -> None:
        """Lines that a child process captured, within the same bounds."""
        with self._lock:
            if self.closed:
                return
            new = not self.lines
            for line in lines:
                line.text = redacted(line.text)
            self.lines.extend(lines)
        self._sink.grown(self, new)

    def close(self) -> None:
        """The attempt is over: unfinished lines are as finished as they will be, and what was dropped is counted."""
        held, self._held = self._held, {}
        for stream, text in held.items():
            if self._release is not None:
                self._release(stream, text)
        with self._lock:
            partial, self._partial = self._partial, {}
            for stream, text in partial.items():
                self.add(stream, "info", shown(text))
            self.closed = True
            new = not self.lines
            if self._dropped:
                text = f"{self._dropped:,} more lines were dropped: an attempt keeps LOG_BYTES_PER_ATTEMPT_MAX={LOG_BYTES_PER_ATTEMPT_MAX:,} bytes"
                self.lines.append(LogLine(self._sink.now_us(), "log", "warning", f"{CUT} {text}"))
            new = new and bool(self.lines)
        if new:
            self._sink.grown(self, True)

    def take(self) -> list[LogLine]:
        with self._lock:
            lines, self.lines = self.lines, []
        return lines


def shown(line: str) -> str:
    """What a terminal would show in the end: a progress bar goes back to the start of its line again and again."""
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


def printable(text: str) -> str:
    """One line that fits and can be stored anywhere: no NUL, no lone surrogates, not too long."""
    if len(text) > LOG_LINE_CHARS_MAX:
        text = text[: LOG_LINE_CHARS_MAX - 1] + CUT
    if "\x00" in text:
        text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
