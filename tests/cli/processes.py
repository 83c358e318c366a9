"""`perdure` as a process of its own, read line by line."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.cli.live import PROGRAM, clean_environment

LINE_S_MAX = 60.0


class Program:
    """A process whose output, both streams together, is waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.seen: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def close(self) -> None:
        """Whatever it started in its own session goes with it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(10)

    def until(self, text: str, within_s: float = LINE_S_MAX) -> str:
        """The next line that contains the text."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {text!r} within {within_s} s in:\n" + "\n".join(self.seen)) from None
            if line is None:
                raise AssertionError(f"it ended without {text!r}:\n" + "\n".join(self.seen))
            self.seen.append(line)
            if text in line:
                return line

    def stop(self, number: int = signal.SIGINT, within_s: float = 20.0) -> int:
        self.process.send_signal(number)
        code = self.process.wait(within_s)
        if code:
            print(self.rest())  # pytest shows it if that fails the test
        return code

    def rest(self) -> str:
        out = []
        while (line := self._lines.get(timeout=LINE_S_MAX)) is not None:
            out.append(line)
        return "\n".join(out)


@contextmanager
def started(*words: str | Path, cwd: Path, program: list[str] | None = None, **environment: str) -> Iterator[Program]:
    command = [*(program or [sys.executable, "-c", PROGRAM]), *map(str, words)]
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=clean_environment() | {"COLUMNS": "200"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        # A test run in the background of a shell ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    one = Program(process)
    try:
        yield one
    finally:
        one.close()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class Running:
    def __init__(self, program: Program, http: str, grpc: str) -> None:
        self.program, self.http, self.grpc = program, http, grpc


@contextmanager
def server(dsn: str, cwd: Path, *words: str, **environment: str) -> Iterator[Running]:
    http, grpc = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with started("server", "--dsn", dsn, "--http", http, "--grpc", grpc, *words, cwd=cwd, **environment) as program:
        said = program.until("Perdure is ready")
        assert f"http://{http}" in said and grpc in said
        yield Running(program, f"http://{http}", grpc)
