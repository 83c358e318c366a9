"""Three releases: the one before this tree, from its wheels; this tree; and one to come, which is this tree with a migration more."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.servers import Release

import perdure
from perdure.store.migrate import load

ROOT = Path(__file__).parents[2]
RELEASED = Path(__file__).parent / "released"
NEXT = Path(__file__).parent / "next.sql"


@pytest.fixture(scope="session")
def old(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The wheels in an environment of their own, with the dependencies that are locked here."""
    at = tmp_path_factory.mktemp("released")
    locked = at / "locked.txt"
    _uv("export", "--frozen", "--quiet", "--no-emit-workspace", "--no-hashes", "--output-file", str(locked))
    _uv("venv", "--quiet", "--python", sys.executable, str(at / "env"))
    python = at / "env" / "bin" / "python"
    wheels = sorted(map(str, RELEASED.glob("*.whl")))
    _uv("pip", "install", "--quiet", "--python", str(python), "--constraints", str(locked), *wheels)
    (version,) = {Path(wheel).name.split("-")[1] for wheel in wheels}
    return Release(version, python)


@pytest.fixture(scope="session")
def coming(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """A copy of the source whose last migration is next.sql, which changes the tables that are busiest."""
    source = tmp_path_factory.mktemp("next")
    given = Path(perdure.__path__[0])
    shutil.copytree(given, source / "perdure", ignore=shutil.ignore_patterns("ui"))
    (source / "perdure" / "server" / "ui").mkdir()
    shutil.copy(NEXT, source / "perdure" / "store" / "migrations" / f"{len(load()) + 1:04}_next.sql")
    return Release("next", source=source)


def _uv(*arguments: str) -> None:
    uv = shutil.which("uv")
    assert uv is not None
    done = subprocess.run([uv, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
