"""Real `perdure server` and `perdure worker` processes on one database, for tests that hit them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.fleet import EngineProcess, Fleet
from perdure.localpg.postmaster import free_port

PERDURE = [sys.executable, "-X", "faulthandler", "-c", "from perdure.cli.main import main; main()"]
PATHS = [str(Path(__file__).resolve().parents[n]) for n in (1, 3)]
"""Where processes find `harness` and `tests`."""


class Servers(Fleet):
    """Servers have fixed addresses, so that workers find them again after a restart."""

    def __init__(self, directory: Path, dsn: str, servers: int, *, lease_s: float) -> None:
        super().__init__(directory, dsn)
        self._lease_s = lease_s
        self.ports = [(free_port(), free_port()) for _ in range(servers)]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{grpc}" for _, grpc in self.ports]

    def server(self, number: int) -> EngineProcess:
        http, grpc = self.ports[number]
        arguments = ["--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", "--auth", "open", "--drain", "10s"]
        lease = {"PERDURE_ENGINE_LEASE_S": f"{self._lease_s}s", "PERDURE_ENGINE_HEARTBEAT_S": f"{self._lease_s / 4}s"}
        return self._start(f"server-{number}", ["server", "--dsn", self.dsn, *arguments], lease)

    def worker(
        self, addresses: Sequence[str], slots: int = 30, module: str = "harness.flows", queue: str = ""
    ) -> EngineProcess:
        arguments = [
            module,
            "--server",
            ",".join(addresses),
            "--slots",
            str(slots),
            *(["--queue", queue] if queue else []),
        ]
        return self._start("worker", ["worker", *arguments], {})

    def _start(self, name: str, arguments: list[str], environment: dict[str, str]) -> EngineProcess:
        number = len(self.engines)
        out, err = self.directory / f"{number}-{name}.out", self.directory / f"{number}-{name}.err"
        path = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])
        own = {"PERDURE_TEST_LEDGER": str(self.ledger), "PYTHONPATH": path, "NO_COLOR": "1", "GRPC_VERBOSITY": "NONE"}
        with out.open("wb") as o, err.open("wb") as e:
            process = subprocess.Popen(
                [*PERDURE, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=o,
                stderr=e,
                env={**os.environ, **own, **environment},
            )
        self.engines.append(EngineProcess(process, out, err))
        return self.engines[-1]

    def is_up(self, one: EngineProcess, word: str) -> bool:
        return one.process.poll() is None and word in one.err.read_text()


def drained(one: EngineProcess, seconds: float = 30.0) -> int:
    """SIGTERM, and how it ended."""
    one.send(signal.SIGTERM)
    return one.process.wait(seconds)
