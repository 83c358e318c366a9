"""Terminal sessions of a page, driven through a real terminal.

A session is a `text` block that begins with `$ `. What stands after `$ ` is typed into a shell of the reader, what stands after a prompt of
the debugger is typed there. Ids, times, durations, addresses and versions differ each time: they are replaced by a word before what
was printed is compared with the page.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pexpect

from tests.docs.pages import blocks_of

PROMPT = "(perdure) "
LINE_S = 60
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")
_CHANGING = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"), "ID"),
    (re.compile(r"https?://[\w.:]+"), "URL"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s|µs|us)\b"), "TOOK"),
    (re.compile(r"\(now\)|\(\w+ ago\)"), "AGO"),
    (re.compile(r"\b[0-9a-f]{12}\b"), "VERSION"),
    (re.compile(r"(/[\w.-]+)+/orders\.py"), "orders.py"),
    (re.compile(r"[ \t]+"), " "),
)


def sessions_of(page: Path) -> list[str]:
    return [b.text for b in blocks_of(page) if b.language == "text" and b.text.startswith("$ ")]


def comparable(text: str) -> list[str]:
    out: list[str] = []
    for line in _COLOURS.sub("", text).replace("\r", "").splitlines():
        for pattern, word in _CHANGING:
            line = pattern.sub(word, line)
        if line.strip():
            out.append(line.strip())
    return out


class Reader:
    """Types the sessions of a page, and keeps what a terminal shows."""

    def __init__(self, cwd: Path, environment: dict[str, str], after: Callable[[], None]) -> None:
        self._cwd, self._environment, self._after = cwd, environment, after

    def play(self, session: str) -> str:
        """What the terminal shows in the course of a session."""
        shown: list[str] = []
        lines = session.splitlines()
        for at, line in enumerate(lines):
            if line.startswith("$ "):
                end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("$ ")), len(lines))
                typed = [x.removeprefix(PROMPT) for x in lines[at + 1 : end] if x.startswith(PROMPT)]
                shown += [line, self._command(line.removeprefix("$ "), typed)]
                self._after()
        return "\n".join(shown)

    def _command(self, command: str, typed: list[str]) -> str:
        words = shlex.split(command)
        child: pexpect.spawn[str] = pexpect.spawn(
            words[0],
            words[1:],
            cwd=str(self._cwd),
            env=self._environment,
            encoding="utf-8",
            timeout=LINE_S,
            dimensions=(50, 150),  # type: ignore[arg-type]
        )
        out = ""
        for answer in typed:
            child.expect_exact(PROMPT)
            out += child.before + PROMPT
            child.sendline(answer)
        child.expect(pexpect.EOF)
        out += child.before
        child.close()
        return out
