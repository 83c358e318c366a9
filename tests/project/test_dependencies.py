"""What pyproject.toml declares agrees with what the code needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import google.protobuf

from perdure.wire.pb import api_pb2, worker_pb2
from tests.fakes.failures import Failures

ROOT = Path(__file__).parents[2]
PROJECTS = [
    tomllib.loads((ROOT / file).read_text())["project"] for file in ("pyproject.toml", "packages/core/pyproject.toml")
]
DECLARED = {
    re.split(r"[><=~!\[;]", line)[0]: line
    for project in PROJECTS
    for lines in (project["dependencies"], *project["optional-dependencies"].values())
    for line in lines
}


def test_the_generated_code_runs_on_the_oldest_protobuf_that_is_declared() -> None:
    oldest = re.search(r">=(\d+)\.(\d+)", DECLARED["protobuf"])
    assert oldest is not None
    for module in (api_pb2, worker_pb2):
        made = re.search(r"# Protobuf Python Version: (\d+)\.(\d+)", Path(module.__file__).read_text())
        assert made is not None
        assert made.groups() == oldest.groups()


def test_protobuf_is_bounded_by_the_majors_that_its_generated_code_runs_on() -> None:
    """A major's generated code runs on that major and on the next (protobuf.dev/support/cross-version-runtime-guarantee)."""
    made = int(re.search(r">=(\d+)", DECLARED["protobuf"]).group(1))  # type: ignore[union-attr]
    assert DECLARED["protobuf"].endswith(f",<{made + 2}")
    assert int(google.protobuf.__version__.split(".")[0]) in (made, made + 1)


def test_packages_whose_internals_are_used_have_an_upper_bound() -> None:
    with Failures() as failures:
        for package in ("cronsim", "fastapi", "typer", "uvicorn"):
            with failures.of(package):
                assert ",<" in DECLARED[package]


def test_httpx_is_not_imported() -> None:
    """It had no release since 2024; httpx2 continues it."""
    for root in ("src", "tests", "examples"):
        for file in (ROOT / root).rglob("*.py"):
            assert not re.search(r"^\s*(import|from) httpx\b", file.read_text(), re.M), file
