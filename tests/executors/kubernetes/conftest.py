from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executors.cluster import Cluster, cluster, programs
from tests.executors.gate import Gate
from tests.executors.kubernetes_jobs import KubernetesJobs


@pytest.fixture(scope="package")
def live(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The real control plane where PERDURE_KUBERNETES names one, or else the emulator."""
    with cluster(tmp_path_factory.mktemp("cluster"), programs()) as one:
        yield one


@pytest.fixture(scope="package")
def emulated(processes: None, live: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if programs() is None:
        yield live
        return
    with cluster(tmp_path_factory.mktemp("emulated")) as one:
        yield one


@pytest.fixture
def jobs(live: Cluster, tmp_path: Path) -> Iterator[KubernetesJobs]:
    """Without an object store."""
    gate = Gate(live.port)
    yield KubernetesJobs(live, tmp_path, gate, store=False)
    gate.close()
