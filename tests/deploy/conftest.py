from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import supervisor
from tests.deploy.images import SKIP, Podman

IMAGE = "localhost/perdure"


@pytest.fixture(scope="session")
def podman(processes: None) -> Iterator[Podman]:
    """With the image of this tree, and stand-ins for PostgreSQL and Prometheus."""
    if SKIP:
        pytest.skip(SKIP)
    # A short path: sockets of containers are made below it.
    one = Podman(Path(tempfile.mkdtemp(prefix="d-", dir=supervisor.directory_in(Path("/var/tmp")))))
    try:
        one.import_bases()
        one.build(IMAGE)
        yield one
    finally:
        one.close()
