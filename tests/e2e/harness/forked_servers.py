"""The programs of a fleet as forks of one process that has imported them: a replacement costs a tenth of the processor time."""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from harness.fleet import EngineProcess
from harness.servers import PATHS, TREE, Release, Servers
from perdure.cli.main import main
from tests.fakes.killed_forks import KilledFork, Nursery, Steps

PROGRAMS = "harness.forked_servers:run_program"


def run_program(listener: socket.socket, arguments: dict[str, Any], steps: Steps) -> None:
    listener.close()
    for number, file in enumerate(arguments["files"], 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.environ.clear()
    os.environ.update(arguments["environment"])
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    sys.argv = arguments["words"]
    try:
        main() if sys.argv[0] == "perdure" else runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


class ForkedProcess:
    """What a fleet uses of `subprocess.Popen`."""

    def __init__(self, fork: KilledFork) -> None:
        self._fork, self.pid = fork, fork.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None and (status := self._fork.ended(0.001)) is not None:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, within_s: float) -> int:
        if self.returncode is None:
            status = self._fork.ended(within_s)
            if status is None:
                raise subprocess.TimeoutExpired(str(self.pid), within_s)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class ForkedServers(Servers):
    def __init__(self, directory: Path, dsn: str, servers: int, *, lease_s: float) -> None:
        super().__init__(directory, dsn, servers, lease_s=lease_s)
        self.nursery = Nursery(PROGRAMS, {"PYTHONPATH": os.pathsep.join(PATHS)})

    def _spawn(
        self, name: str, command: list[str], environment: dict[str, str], release: Release = TREE
    ) -> EngineProcess:
        number = len(self.engines)
        files = [self.directory / f"{number}-{name}.{kind}" for kind in ("out", "err")]
        for file in files:
            file.touch()
        program = release.perdure
        words = ["perdure", *command[len(program) :]] if command[: len(program)] == program else command[1:]
        own = release.environment() | {"PERDURE_TEST_LEDGER": str(self.ledger)} | environment
        fork = self.nursery.fork({"files": [str(f) for f in files], "environment": own, "words": words})
        process = cast("subprocess.Popen[bytes]", ForkedProcess(fork))
        self.engines.append(EngineProcess(process, *files))
        return self.engines[-1]
