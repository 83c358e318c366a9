"""The programs of a fleet as forks of one process that has imported them: a replacement costs a tenth of the processor time."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import cast

from harness.fleet import EngineProcess
from harness.servers import PATHS, TREE, Release, Servers
from tests.fakes.killed_forks import KilledFork, Nursery

PROGRAMS = "harness.forked_program:run_program"


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
