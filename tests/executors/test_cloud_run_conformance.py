"""The executor `cloud-run`: Google's own client against cloud_run_server.py, a local implementation of the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executors import conformance, crashes
from tests.executors.cloud_run_jobs import CloudRunJobs, Server, cloud_run
from tests.executors.conformance import Conformance
from tests.executors.gate import Gate


@pytest.fixture(autouse=True)
def _crashes(forks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "crash", crashes.crash)


@pytest.fixture(scope="module")
def server(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with cloud_run(tmp_path_factory.mktemp("cloud-run")) as one:
        yield one


@pytest.fixture
def counterpart(server: Server, tmp_path: Path) -> Iterator[CloudRunJobs]:
    gate = Gate(server.port)
    yield CloudRunJobs(server, tmp_path, gate)
    gate.close()


class TestCloudRun(Conformance):
    pass
