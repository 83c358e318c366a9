"""The executor `container` against real containers of Podman."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.executors.container import ContainerExecutor
from perdure.executors.container.spec import ContainerOptions
from perdure.executors.port import Executor, Job
from tests.executors.conformance import Conformance, Counterpart, shell_works
from tests.executors.container.podman import IMAGE, Podman


class Containers(Counterpart):
    name = "container"

    def __init__(self, podman: Podman, folder: Path) -> None:
        self.podman, self.folder = podman, folder

    def executor(self) -> Executor:
        return ContainerExecutor(
            ContainerOptions(
                socket=str(self.podman.socket),
                state_dir=str(self.folder / "state"),
                mounts=str(self.folder),
                grace_s=1.0,
            )
        )

    def work(self, kind: str, **values: Any) -> dict[str, Any]:
        command = ["cat", "/perdure/io/input.json"] if kind == "echo" else shell_works(kind, **values)
        folder = str(self.folder)
        return {
            "image": IMAGE,
            "pull": "never",
            "command": command,
            "mounts": [{"source": folder, "target": folder, "read_only": False}],
        }

    def value(self, report: Any) -> Any:
        return super().value(report)["json"]

    async def lose(self, job: Job) -> None:
        self.podman.run("rm", "--force", "--volumes", "--time", "0", job.name)

    def unreachable(self) -> AbstractAsyncContextManager[None]:
        return self._stopped()

    @asynccontextmanager
    async def _stopped(self) -> AsyncIterator[None]:
        self.podman.stop()
        try:
            yield
        finally:
            self.podman.start()

    async def remains(self, job: Job) -> bool:
        return job.name in self.podman.containers() or bool(list(self.folder.glob(f"state/**/{job.name}")))


@pytest.fixture
def counterpart(podman: Podman, tmp_path: Path) -> Containers:
    return Containers(podman, tmp_path)


class TestContainer(Conformance):
    pass
