"""Values by reference in and out of real containers, through a real engine."""

from __future__ import annotations

from pathlib import Path

from perdure.executors.container.executor import ContainerExecutor
from perdure.executors.container.spec import ContainerOptions
from tests.executors.container.podman import IMAGE, Podman
from tests.executors.payload_works import check_large_values


async def test_large_values(podman: Podman, dsn: str, tmp_path: Path) -> None:
    options = ContainerOptions(socket=str(podman.socket), state_dir=str(tmp_path / "state"))
    await check_large_values(
        dsn, ContainerExecutor(options), "perdure.job.container", stdin="stdin", image=IMAGE, pull="never"
    )
