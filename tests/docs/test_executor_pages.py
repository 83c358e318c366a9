"""The pages about executors with a counterpart of their own: their flows and their Python run against it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure, flow
from tests.docs.pages import DOCS, Block, blocks_of, matches
from tests.docs.test_snippets import environment
from tests.executors.container import podman as podman_
from tests.executors.container.podman import Podman
from tests.executors.ray import cluster as ray_
from tests.executors.ray.cluster import LOOPBACK, RayCluster

HERE = "tests/docs/test_executor_pages.py"
RAY = DOCS / "how-to" / "run-on-ray.md"
CONTAINERS = DOCS / "how-to" / "run-containers.md"
PAGE_S_MAX = 600


def own_blocks(page: Path, language: str) -> list[Block]:
    return [b for b in blocks_of(page) if b.language == language and b.remark_text == HERE]


@pytest.fixture(scope="module")
def podman(processes: None) -> Iterator[Podman]:
    if podman_.SKIP:
        pytest.skip(podman_.SKIP)
    made = Podman(Path(tempfile.mkdtemp(prefix="podman-")))
    try:
        made.import_image()
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def ray_cluster(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RayCluster, Path]]:
    """With the files of the page, which its nodes and its programs can import."""
    if ray_.SKIP:
        pytest.skip(ray_.SKIP)
    files = tmp_path_factory.mktemp("ray")
    for block in blocks_of(RAY):
        if block.remark == "file":
            (files / block.remark_text).write_text(block.text)
    made = RayCluster(files)
    try:
        made.start()
        yield made, files
    finally:
        made.stop()


@pytest.fixture
def container_env(podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {
        "PERDURE_EXECUTOR_CONTAINER_SOCKET": str(podman.socket),
        "PERDURE_EXECUTOR_CONTAINER_STATE_DIR": str(tmp_path / "state"),
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


async def test_the_flow_of_the_page_about_containers(container_env: dict[str, str], dsn: str) -> None:
    (block,) = own_blocks(CONTAINERS, "yaml")
    async with Perdure(dsn, executors=["container"]) as app:
        await app.deploy(block.text, name="page")
        assert await flow("page").run(files=["a.csv", "b.csv"]) == 2


def test_the_program_of_the_page_about_containers(container_env: dict[str, str], dsn: str, tmp_path: Path) -> None:
    (block,) = own_blocks(CONTAINERS, "python")
    (tmp_path / "page.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        env={**environment(dsn), **container_env},
        capture_output=True,
        text=True,
        timeout=PAGE_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert block.output is not None and matches(block.output, done.stdout), json.dumps(done.stdout)


LARGE_VALUES = """
import asyncio
from perdure import Perdure
from features import prepare

async def main():
    async with Perdure(executors=["ray"]):
        made = await prepare.run(50_000)
        lines = (await made.aread_text()).splitlines()
        print(made.name, len(lines), lines[-1])

asyncio.run(main())
"""


def test_the_large_values_of_the_page_about_ray(ray_cluster: tuple[RayCluster, Path], dsn: str) -> None:
    cluster, files = ray_cluster
    (files / "large.py").write_text(LARGE_VALUES)
    done = subprocess.run(
        [sys.executable, "large.py"],
        cwd=files,
        env={**environment(dsn), **LOOPBACK, "PERDURE_EXECUTOR_RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=PAGE_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "features.csv 50000 12499.75\n"


def test_the_program_of_the_page_about_ray(ray_cluster: tuple[RayCluster, Path], dsn: str, tmp_path: Path) -> None:
    cluster, files = ray_cluster
    (block,) = own_blocks(RAY, "python")
    (files / "page.py").write_text(block.text)
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=files,
        env={**environment(dsn), **LOOPBACK, "PERDURE_EXECUTOR_RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=PAGE_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert block.output is not None and matches(block.output, done.stdout), json.dumps(done.stdout)
