"""Types survive from the call to the await, under mypy strict and pyright strict, and mistakes are found."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("processes")

HERE = Path(__file__).parent
SOURCE = HERE.parent.parent / "src"
SAMPLE = HERE / "sample.py"
MISTAKES = HERE / "mistakes.py"
PROGRAM = HERE / "program.py"


def _marked() -> list[int]:
    lines = MISTAKES.read_text().splitlines()
    return [n for n, line in enumerate(lines, 1) if line.endswith("# error")]


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=300, cwd=cwd)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def _mypy(file: Path, work: Path) -> list[tuple[int, str]]:
    """(line, message) of every error in the file."""
    config = work / "mypy.ini"
    config.write_text(f"[mypy]\nstrict = True\nmypy_path = {SOURCE}:{HERE}\ncache_dir = {work / 'cache'}\n")
    out = _run("mypy", "--config-file", str(config), "--no-error-summary", str(file), cwd=work)
    errors = [re.match(r"(.+?):(\d+): error: (.*)", line) for line in out.splitlines()]
    assert all(m is None or Path(m[1]).name == file.name for m in errors), out
    return [(int(m[2]), m[3]) for m in errors if m is not None]


def _pyright(file: Path, work: Path) -> list[tuple[int, str]]:
    """It looks at files below its project only, hence the copies."""
    for copied in (SAMPLE, MISTAKES, PROGRAM):
        shutil.copy(copied, work)
    config = {
        "include": [file.name],
        "extraPaths": [str(SOURCE)],
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "reportUnusedCoroutine": False,
    }
    (work / "pyrightconfig.json").write_text(json.dumps(config))
    out = json.loads(_run("pyright", "--project", str(work), "--outputjson", cwd=work))
    assert out["summary"]["filesAnalyzed"] >= 1
    found = [d for d in out["generalDiagnostics"] if d["severity"] == "error"]
    assert all(Path(d["file"]).name == file.name for d in found), found
    return [(d["range"]["start"]["line"] + 1, d["message"]) for d in found]


CHECKERS = pytest.mark.parametrize("checker", [_mypy, _pyright], ids=["mypy", "pyright"])


@CHECKERS
def test_the_sample_is_accepted_with_every_inferred_type(checker, tmp_path: Path) -> None:
    assert checker(SAMPLE, tmp_path) == []


@CHECKERS
def test_the_same_program_is_typed_in_its_async_and_blocking_forms(checker, tmp_path: Path) -> None:
    assert checker(PROGRAM, tmp_path) == []


@CHECKERS
def test_every_planted_mistake_is_found_and_nothing_else(checker, tmp_path: Path) -> None:
    found = checker(MISTAKES, tmp_path)
    marked = _marked()
    assert len(marked) >= 10
    lines = {line for line, _ in found}
    assert [n for n in marked if n not in lines] == [], "mistakes that were not found"
    assert [f for f in found if f[0] not in marked] == [], "errors where there is no mistake"
