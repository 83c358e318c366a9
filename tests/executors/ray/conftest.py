from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.executors.ray.cluster import LOOPBACK, SKIP, RayCluster


@pytest.fixture(scope="package")
def ray_cluster(processes: None) -> Iterator[RayCluster]:
    if SKIP:
        pytest.skip(SKIP)
    cluster = RayCluster()
    os.environ.update(LOOPBACK)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
