"""Walks a page as its reader does: saves its files, types its commands into terminals, and compares what they print.

Beside the remarks of tests/docs/pages.py, the line above a `console` block may hold

    <!-- terminal: 1 -->             typed into terminal 1; each command ends before the next one is typed
    <!-- terminal: 1, stays -->      the last command goes on running; the walk goes on when it has printed what the page shows
    <!-- terminal: 1, prints -->    what still runs in terminal 1 prints this; the walk goes on then
    <!-- terminal: 3, pid of 2 -->   PID stands for the process that runs in terminal 2

and `<!-- ctrl-c: 1 -->`, on a line of its own, presses Ctrl-C in terminal 1. As a program, this file walks a page with a stopwatch:

    python -m tests.docs.walks PAGE [--install WHEEL...]
"""

from __future__ import annotations

import argparse
import fcntl
import os
import queue
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.docs.pages import Block, blocks_of, matches

COMMAND_S_MAX: Final = 120.0
INSTALL_S_MAX: Final = 900.0
STOP_S_MAX: Final = 90.0
_INSTALL: Final = re.compile(r"(python3 -m venv|pip install|\. \.venv/bin/activate)\b")
_CTRL_C: Final = re.compile(r"^<!-- ctrl-c: (\w+) -->$")
_TERMINAL: Final = re.compile(r"(\w+)(?:, (stays|prints)|, pid of (\w+))?")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PICTURE: Final = re.compile(r"[✓✗●] \S+  (?:success  in|failed  in|running  for|cancelled  in) ")
_KILLED: Final = re.compile(r"(.+) & sleep \d+; kill -9 \$!")
_READS: Final = re.compile(r"perdure (show|list|flow graph)\b")
READ_S_MAX: Final = 40.0
COLUMNS: Final = 110
Log = Callable[[str], None]


class Terminal:
    """A shell whose commands are typed one after the other."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory, self._environment = directory, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    @property
    def pid(self) -> int:
        assert self._process is not None, "no command runs in this terminal"
        return self._process.pid

    def type(self, command: str) -> None:
        """Start a command. What it replaces the shell with has the process id that the page means."""
        assert self._process is None or self._process.poll() is not None, f"a command still runs before `{command}`"
        simple = not re.search(r"[;&|<>]", command)
        self._lines = queue.Queue()
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {command}" if simple else command],
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        threading.Thread(target=self._read, args=(ours, self._lines), daemon=True).start()

    @staticmethod
    def _read(terminal: int, lines: queue.Queue[str | None]) -> None:
        rest = b""
        # A terminal whose programs have ended answers with an error in place of an end.
        with suppress(OSError):
            while data := os.read(terminal, 65536):
                *whole, rest = (rest + data).split(b"\n")
                for line in whole:
                    lines.put(_plain(line) + "\n")
        os.close(terminal)
        if rest:
            lines.put(_plain(rest))
        lines.put(None)

    def until(self, expected: str, within_s: float = COMMAND_S_MAX) -> str:
        """What the command prints: all of it, or, if `expected` is given, up to that."""
        deadline, printed = time.monotonic() + within_s, ""
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not printed within {within_s:.0f} s:\n{expected}\nbut\n{printed}") from None
            if line is None:
                assert not expected, f"the command ended. The page shows\n{expected}\nbut it printed\n{printed}"
                return printed
            printed += line
            if expected and matches(expected, printed):
                return printed

    def code(self) -> int:
        assert self._process is not None
        return self._process.wait(STOP_S_MAX)

    def send(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Ctrl-C, then, if that does not end it, the end."""
        self.send(number)
        if self._process is not None:
            try:
                self._process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self.send(signal.SIGKILL)
                self._process.wait(STOP_S_MAX)


def _plain(line: bytes) -> str:
    return _COLOURS.sub("", line.decode("utf-8", "replace")).replace("\r", "")


class Walk:
    """A page and its terminals."""

    def __init__(self, page: Path, directory: Path, environment: dict[str, str], install: Callable[[str], str]) -> None:
        self._page, self._directory, self._environment, self._install = page, directory, environment, install
        self._terminals: dict[str, Terminal] = {}
        self.change: Callable[[str], str] = lambda text: text
        """Made to everything that is typed and compared, such as another port."""

    def run(self, log: Log) -> None:
        try:
            for step in steps_of(self._page):
                if isinstance(step, str):
                    log(f"[Ctrl-C in terminal {step}]")
                    self._terminal(step).stop()
                elif step.remark == "file":
                    log(f"[save {step.remark_text}]")
                    (self._directory / step.remark_text).write_text(self.change(step.text) + "\n")
                else:
                    self._block(step, log)
        finally:
            for terminal in self._terminals.values():
                terminal.stop()

    def _terminal(self, name: str) -> Terminal:
        return self._terminals.setdefault(name, Terminal(self._directory, self._environment))

    def _block(self, block: Block, log: Log) -> None:
        found = _TERMINAL.fullmatch(block.remark_text)
        assert found is not None, block.remark_text
        name, role, pid_of = found.groups()
        if role == "prints":
            log(self._terminal(name).until(self.change(block.text)).rstrip())
            return
        parts = ("\n" + block.text).split("\n$ ")[1:]
        for at, part in enumerate(parts):
            command, _, expected = part.partition("\n")
            if _INSTALL.match(command) and not (command := self._install(command)):
                continue
            if pid_of:
                log(f"{name}$ {command.replace('PID', str(self._terminal(pid_of).pid))}")
                self._terminal(pid_of).stop(signal.SIGKILL)
                continue
            log(f"{name}$ {command}")
            typed, expected = self.change(command), self.change(expected)
            if killed := _KILLED.fullmatch(typed):
                # A slow machine prints later: it is killed when it has printed what the page shows.
                self._terminal(name).type(killed[1])
                log(self._terminal(name).until(expected).rstrip())
                self._terminal(name).stop(signal.SIGKILL)
            elif role == "stays" and at + 1 == len(parts):
                self._terminal(name).type(typed)
                log(self._terminal(name).until(expected).rstrip())
            else:
                log(self._ended(self._terminal(name), f"{self._page.name}, line {block.line}", typed, expected))

    def _ended(self, terminal: Terminal, place: str, command: str, expected: str) -> str:
        """What a command prints. One that only reads is repeated until it prints what the page shows, as a reader would."""
        deadline = time.monotonic() + (READ_S_MAX if _READS.match(command) else 0)
        within_s = INSTALL_S_MAX if _INSTALL.match(command) else COMMAND_S_MAX
        while True:
            terminal.type(command)
            printed, code = last_picture(terminal.until("", within_s)).rstrip(), terminal.code()
            fits = not expected.strip() or matches(expected, printed)
            if fits and (code == 0 or "✗" in expected):
                return printed
            assert time.monotonic() < deadline, (
                f"{place}: `{command}` ends with {code}, prints\n{printed}\nnot\n{expected}"
            )


def last_picture(text: str) -> str:
    """What a command that draws over its own output leaves on the terminal."""
    pictures = [found.start() for found in _PICTURE.finditer(text)]
    return text[pictures[-1] :] if len(pictures) > 1 else text


def steps_of(page: Path) -> list[Block | str]:
    """Files, commands, and the names of terminals in which Ctrl-C is pressed, in the order of the page."""
    lines = page.read_text().splitlines()
    steps: list[tuple[int, Block | str]] = [
        (number, found[1]) for number, line in enumerate(lines) if (found := _CTRL_C.match(line))
    ]
    steps += [(b.line, b) for b in blocks_of(page) if b.remark in ("file", "terminal")]
    return [step for _, step in sorted(steps, key=lambda step: step[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--install", nargs="*", default=[], help="in place of perdure on an index")
    parser.add_argument("--environment", type=Path, help="one that has Perdure; nothing is installed then")
    arguments = parser.parse_args()
    began = time.monotonic()

    def log(text: str) -> None:
        for line in text.splitlines():
            sys.stdout.write(f"{time.monotonic() - began:6.1f}  {line}\n")
        sys.stdout.flush()

    def install(command: str) -> str:
        if arguments.environment:
            return ""
        if command.startswith("pip install"):
            words = [w for w in shlex.split(command)[2:] if not w.startswith("perdure")]
            return shlex.join(["pip", "install", "-qqq", *arguments.install, *words])
        return "python3 -m venv .venv" if command.startswith("python3") else ""

    with tempfile.TemporaryDirectory(prefix="perdure-walk-") as made:
        os.chmod(made, 0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_")}
        programs = (arguments.environment or Path(made) / ".venv") / "bin"
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        state = {"XDG_STATE_HOME": f"{made}/state", "TERM": "xterm", "NO_COLOR": "1", "PATH": path}
        Walk(arguments.page, Path(made), kept | state, install).run(log)
    log("done")


if __name__ == "__main__":
    main()
