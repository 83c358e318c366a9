"""The executor `objects` on a directory, on a real S3 server and on Azurite, with `perdure job` as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.executors import conformance, crashes
from tests.executors.conformance import Conformance
from tests.executors.object_jobs import InDirectory, OnServer, behind_gate
from tests.object_stores import ObjectServer, azure_server, s3_server


@pytest.fixture(autouse=True)
def _crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "crash", crashes.crash)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
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
