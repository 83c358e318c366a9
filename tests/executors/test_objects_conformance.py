"""The executor `objects` on a directory, on a real S3 server and on Azurite, with `perdure job` as real processes.

CI runs a short form on the two servers; with PERDURE_OBJECTS=all all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executors import conformance, crashes
from tests.executors.conformance import SHORT, Conformance
from tests.executors.object_jobs import InDirectory, OnServer, behind_gate
from tests.object_stores import ObjectServer, azure_server, s3_server

pytestmark = pytest.mark.usefixtures("interpreter")

ALL = os.environ.get("PERDURE_OBJECTS") == "all"


@pytest.fixture(autouse=True)
def _crashes(forks: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if not ALL and request.cls is not TestInDirectory and request.node.originalname not in SHORT:
        pytest.skip("the long form: PERDURE_OBJECTS=all")
    monkeypatch.setattr(conformance, "crash", crashes.crash)


@pytest.fixture(scope="module")
def s3(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def azure(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with azure_server(tmp_path_factory.mktemp("azure")) as server:
        yield server


class TestInDirectory(Conformance):
    @pytest.fixture
    def counterpart(self, tmp_path: Path) -> InDirectory:
        return InDirectory(tmp_path)


class TestOnS3(Conformance):
    @pytest.fixture
    def counterpart(self, s3: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnServer]:
        yield from behind_gate(s3, tmp_path, monkeypatch)


class TestOnAzure(Conformance):
    @pytest.fixture
    def counterpart(self, azure: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnServer]:
        yield from behind_gate(azure, tmp_path, monkeypatch)
