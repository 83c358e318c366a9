"""The process executor against real child processes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.executors.port import Executor, Job
from perdure.executors.process import ProcessExecutor
from perdure.executors.process.executor import ProcessOptions
from perdure.executors.process.state import JobDir
from tests.executors.conformance import Conformance, Counterpart, shell_works
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("interpreter")


class Processes(Counterpart):
    name = "process"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def executor(self) -> Executor:
        return ProcessExecutor(ProcessOptions(state_dir=str(self.folder), grace_s=0.5))

    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        return {"command": shell_works(kind, **values)}

    def value(self, report: Any) -> Any:
        return super().value(report)["json"]

    def place(self, job: Job) -> JobDir:
        (found,) = self.folder.glob(f"default/*/{job.name}")
        return JobDir(found)

    async def lose(self, job: Job) -> None:
        """As a machine that is restarted does: the command and its shim are gone at once."""
        # A job runs from when its process is made; a moment later the process has written who it is.
        started = await until(self.place(job).started, "the process begins")
        assert started is not None
        os.killpg(started[0], signal.SIGKILL)

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        """The state directory cannot be written."""
        return self._readonly()

    @asynccontextmanager
    async def _readonly(self) -> AsyncIterator[None]:
        (own,) = [p for p in self.folder.glob("default/*") if p.is_dir()]
        hidden = own.with_name("hidden")
        own.rename(hidden)
        try:
            yield
        finally:
            hidden.rename(own)

    async def remains(self, job: Job) -> bool:
        return bool(list(self.folder.glob(f"default/*/{job.name}")))


@pytest.fixture
def counterpart(tmp_path: Path) -> Processes:
    return Processes(tmp_path / "state")


class TestProcess(Conformance):
    pass
