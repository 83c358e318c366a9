from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executors.container.podman import SKIP, Podman


@pytest.fixture(scope="package")
def podman_service(processes: None) -> Iterator[Podman]:
    if SKIP:
        pytest.skip(SKIP)
    # A short path: that of a socket has at most 107 characters.
    podman = Podman(Path(tempfile.mkdtemp(prefix="podman-")))
    try:
        podman.import_image()
        podman.start()
        yield podman
    finally:
        podman.close()


@pytest.fixture
def podman(podman_service: Podman) -> Iterator[Podman]:
    """With a running service and no containers of other tests."""
    yield podman_service
    podman_service.run("rm", "--all", "--force", "--volumes", "--time", "0")
