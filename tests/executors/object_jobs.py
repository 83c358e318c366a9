"""The other side of the executor `objects`: a store, and a launcher that starts `perdure job` as a process of this machine."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure.executors.objects.executor import ObjectsExecutor, ObjectsOptions
from perdure.executors.objects.layout import path_of
from perdure.executors.objects.store import ObjectStore
from perdure.executors.port import Executor, Job
from tests.executors.conformance import Counterpart, shell_works
from tests.executors.gate import Gate
from tests.object_stores import ObjectServer

STALE_S = 12.0
"""Long enough for a job on a busy machine, and a loss is noticed within the suite's patience."""
LAUNCHER = """\
#!/bin/sh
# As a batch system does: takes the job and returns. $1 is its name, $2 its spec.
{exports}
setsid {python} -c 'from perdure.cli.main import main; main()' job "$2" > /dev/null 2> {folder}/"$1".err < /dev/null &
echo $! > {folder}/"$1".pid
"""


class ObjectJobs(Counterpart):
    name = "objects"
    hard_kill_s = 60.0

    def __init__(self, folder: Path, url: str, env: dict[str, str]) -> None:
        self.folder, self.url = folder, url
        folder.mkdir(parents=True, exist_ok=True)
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())
        self.launcher = folder / "launch"
        self.launcher.write_text(LAUNCHER.format(exports=exports, python=sys.executable, folder=folder))
        self.launcher.chmod(0o755)

    def executor(self) -> Executor:
        launch = f"{self.launcher} {{name}} {{spec}}"
        return ObjectsExecutor(ObjectsOptions(store=self.url, launch=launch, poll_s=0.2, stale_s=STALE_S))

    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        return {"command": shell_works(kind, **values)}

    async def lose(self, job: Job) -> None:
        """The machine of the job vanishes: `perdure job` and its work are killed at once."""
        pid = int((self.folder / f"{job.name}.pid").read_text())
        job_process = psutil.Process(pid)
        # First `perdure job`, which would report the end of its work.
        for process in (job_process, *job_process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):  # the work may end with it
                process.send_signal(signal.SIGKILL)

    async def remains(self, job: Job) -> bool:
        return bool(await ObjectStore(self.url).list(path_of(job)))


class InDirectory(ObjectJobs):
    def __init__(self, folder: Path) -> None:
        self.store = folder / "store"
        super().__init__(folder / "jobs", str(self.store), {})

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        return self._away()

    @asynccontextmanager
    async def _away(self) -> AsyncIterator[None]:
        """The file system of the store is not mounted."""
        hidden = self.store.with_name("hidden")
        self.store.rename(hidden)
        self.store.write_text("")
        try:
            yield
        finally:
            self.store.unlink()
            hidden.rename(self.store)


class OnServer(ObjectJobs):
    def __init__(self, folder: Path, url: str, env: dict[str, str], gate: Gate) -> None:
        super().__init__(folder, url, env)
        self._gate = gate

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_gate"}

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        """Of the executor alone: jobs have a connection of their own."""
        return self._gate.shut()


def behind_gate(server: ObjectServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnServer]:
    gate = Gate(server.port)
    for name, value in server.env.items():
        monkeypatch.setenv(name, value.replace(f":{server.port}", f":{gate.port}"))
    yield OnServer(folder, f"{server.url}/{os.urandom(4).hex()}", server.env, gate)
    gate.close()
