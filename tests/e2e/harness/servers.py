"""Real `perdure server` and `perdure worker` processes on one database, for tests that hit them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.fleet import EngineProcess, Fleet
from perdure.localpg.postmaster import free_port

PATHS = [str(Path(__file__).resolve().parents[n]) for n in (1, 3)]
"""Where processes find `harness` and `tests`."""


@dataclass(frozen=True)
class Release:
    """A version of Perdure that processes run: the tree's own unless said."""

    name: str = "tree"
    python: Path = Path(sys.executable)
    source: Path | None = None
    """Where `perdure` is imported from, if not from the environment of `python`."""

    @property
    def perdure(self) -> list[str]:
        return [str(self.python), "-X", "faulthandler", "-c", "from perdure.cli.main import main; main()"]

    def environment(self) -> dict[str, str]:
        paths = [*([str(self.source)] if self.source is not None else []), *PATHS, os.environ.get("PYTHONPATH", "")]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "NO_COLOR": "1", "GRPC_VERBOSITY": "NONE"}


TREE = Release()
PERDURE = TREE.perdure


class Servers(Fleet):
    """Servers have fixed addresses, so that workers find them again after a restart."""

    def __init__(self, directory: Path, dsn: str, servers: int, *, lease_s: float) -> None:
        super().__init__(directory, dsn)
        self._lease_s = lease_s
        self.ports = [(free_port(), free_port()) for _ in range(servers)]

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{grpc}" for _, grpc in self.ports]

    def server(self, number: int, release: Release = TREE) -> EngineProcess:
        http, grpc = self.ports[number]
        arguments = ["--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", "--auth", "open", "--drain", "10s"]
        lease = {"PERDURE_ENGINE_LEASE_S": f"{self._lease_s}s", "PERDURE_ENGINE_HEARTBEAT_S": f"{self._lease_s / 4}s"}
        return self._start(f"server-{number}", ["server", "--dsn", self.dsn, *arguments], lease, release)

    def worker(
        self,
        addresses: Sequence[str],
        slots: int = 30,
        module: str | Sequence[str] = "harness.flows",
        queue: str = "",
        release: Release = TREE,
    ) -> EngineProcess:
        modules = [module] if isinstance(module, str) else module
        arguments = [*modules, "--server", ",".join(addresses), "--slots", str(slots)]
        return self._start("worker", ["worker", *arguments, *(["--queue", queue] if queue else [])], {}, release)

    def client(
        self, file: Path, *arguments: str, release: Release = TREE, environment: dict[str, str] | None = None
    ) -> EngineProcess:
        """A program that imports `perdure`."""
        return self._spawn(file.stem, [str(release.python), str(file), *arguments], environment or {}, release)

    def _start(
        self, name: str, arguments: list[str], environment: dict[str, str], release: Release = TREE
    ) -> EngineProcess:
        return self._spawn(name, [*release.perdure, *arguments], environment, release)

    def _spawn(self, name: str, command: list[str], environment: dict[str, str], release: Release) -> EngineProcess:
        number = len(self.engines)
        out, err = (self.directory / f"{number}-{name}-{release.name}.{kind}" for kind in ("out", "err"))
        own = release.environment() | {"PERDURE_TEST_LEDGER": str(self.ledger)} | environment
        with out.open("wb") as o, err.open("wb") as e:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=o, stderr=e, env=own)
        self.engines.append(EngineProcess(process, out, err))
        return self.engines[-1]

    def is_up(self, one: EngineProcess, word: str) -> bool:
        return one.process.poll() is None and word in one.err.read_text()


def drained(one: EngineProcess, seconds: float = 30.0) -> int:
    """SIGTERM, and how it ended."""
    one.send(signal.SIGTERM)
    return one.process.wait(seconds)
