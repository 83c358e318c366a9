"""The other side of the executor `cloud-run`."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.executors.cloud_run import CloudRunExecutor
from perdure.executors.cloud_run.executor import CloudRunOptions
from perdure.executors.port import Executor, Job
from tests.executors.conformance import Counterpart, shell_works
from tests.executors.gate import Gate
from tests.object_stores import free_port

ROOT = Path(__file__).parents[2]
JOBS = "v2/projects/test/locations/europe-west1/jobs"


@dataclass(frozen=True)
class Server:
    port: int
    folder: Path


@contextmanager
def cloud_run(folder: Path, *, reads: int = 100_000, writes: int = 100_000) -> Iterator[Server]:
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.executors.cloud_run_server",
        str(port),
        str(folder),
        str(reads),
        str(writes),
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == b"ready\n"
        yield Server(port, folder)
        process.kill()


class CloudRunJobs(Counterpart):
    name = "cloud-run"
    hard_kill_s = 60.0

    def __init__(self, server: Server, folder: Path, gate: Gate) -> None:
        self.server, self.gate, self.folder, self.port = server, gate, folder, gate.port

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "gate"}

    def options(self, **more: Any) -> CloudRunOptions:
        given: dict[str, Any] = {
            "project": "test",
            "region": "europe-west1",
            "store": str(self.folder / "store"),
            "image": "local/python",
            "endpoint": f"http://127.0.0.1:{self.port}",
            "reads_per_minute": 60_000,
            "writes_per_minute": 60_000,
            "poll_s": 0.3,
        }
        return CloudRunOptions(**{**given, **more})

    def executor(self) -> Executor:
        return CloudRunExecutor(self.options())

    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        return {"command": shell_works(kind, **values)}

    async def lose(self, job: Job) -> None:
        """The instance vanishes: its processes are killed at once."""
        (self.server.folder / f"lose-{job.name}").touch()

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        return self.gate.shut()

    async def remains(self, job: Job) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.server.port}/{JOBS}/{job.name}", timeout=10) as reply:
                return bool(reply.read())
        except urllib.error.HTTPError as e:
            assert e.code == 404
            e.close()
            return bool(list((self.folder / "store").rglob(f"{job.name}/*")))
