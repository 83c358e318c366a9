"""The executor `kubernetes` against a real kube-apiserver with the real Job controller, or an emulator of them: see cluster.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executors import conformance, crashes
from tests.executors.cluster import Cluster, cluster, programs
from tests.executors.conformance import Conformance
from tests.executors.gate import Gate
from tests.executors.kubernetes_jobs import KubernetesJobs


@pytest.fixture(autouse=True)
def _crashes(forks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "crash", crashes.crash)


@pytest.fixture(scope="module")
def live(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), programs()) as one:
        yield one


@pytest.fixture
def counterpart(live: Cluster, tmp_path: Path) -> Iterator[KubernetesJobs]:
    gate = Gate(live.port)
    yield KubernetesJobs(live, tmp_path, gate)
    gate.close()


class TestKubernetes(Conformance):
    pass
