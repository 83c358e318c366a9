"""Finding and loading people's code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perdure.programs.modules import discover

TASKS = "from perdure import task\n\n@task\ndef one() -> int:\n    return 1\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TASKS, True),
        ("from perdure import workflow as flow\n@flow\nasync def w() -> None: ...\n", True),
        ("import perdure\n@perdure.task(retry=3)\ndef t() -> None: ...\n", True),
        ("import perdure as p\n@p.workflow\nasync def w() -> None: ...\n", True),
        ("from celery import task\n@task\ndef t(): ...\n", False),
        ("import perdure\nprint(perdure)\n", False),
        ("x = 1\n", False),
        ("def broken(:\n", True),
    ],
)
def test_files_with_tasks_are_found_without_running_them(tmp_path: Path, text: str, found: bool) -> None:
    (tmp_path / "a.py").write_text(text)
    assert bool(discover(tmp_path).modules) is found


def test_a_program_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(f"import asyncio\n{TASKS}\nasync def main(): ...\n\nasyncio.run(main())\n")
    (tmp_path / "guarded.py").write_text(
        f"import asyncio\n{TASKS}\nif __name__ == '__main__':\n    asyncio.run(main())\n"
    )
    found = discover(tmp_path)
    assert [p.name for p in found.modules] == ["guarded.py"]
    assert [p.name for p in found.programs] == ["main.py"]


def worker(directory: Path, *modules: str) -> subprocess.CompletedProcess[str]:
    """Loading happens before connecting, so no server is needed to see it fail."""
    program = "import sys; from perdure.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "worker", *modules], cwd=directory, capture_output=True, text=True, timeout=120
    )


@pytest.mark.usefixtures("interpreter")
def test_a_module_that_raises_shows_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text("def inner():\n    return 1 / 0\n\ninner()\n")
    done = worker(tmp_path, "flows")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "Traceback (most recent call last):"
    assert 'flows.py", line 4' in done.stderr.splitlines()[1]
    assert "perdure/app" not in done.stderr
    assert "perdure: flows cannot be imported: ZeroDivisionError: division by zero" in done.stderr


@pytest.mark.usefixtures("interpreter")
def test_an_import_that_is_missing_inside_is_not_taken_for_the_module(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text("import nowhere_to_be_found\n")
    done = worker(tmp_path, "flows")
    assert done.returncode == 1
    assert "No module named 'nowhere_to_be_found'" in done.stderr
    assert 'flows.py", line 1' in done.stderr


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("nowhere", "there is no module 'nowhere'"),
        ("package.nowhere", "there is no module 'package.nowhere'"),
        ("nowhere.py", "there is no file nowhere.py"),
        ("empty", "empty defines no tasks and no workflows"),
        ("tasks:nothing", "tasks has no 'nothing'"),
    ],
)
def test_modules_that_are_of_no_use_say_so(tmp_path: Path, module: str, said: str) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "tasks.py").write_text(TASKS)
    done = worker(tmp_path, module)
    assert done.returncode == 2
    assert said in done.stderr


@pytest.mark.usefixtures("interpreter")
def test_a_script_that_exits_when_imported(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("raise SystemExit(0)\n")
    done = worker(tmp_path, "script.py")
    assert done.returncode == 1
    assert "SystemExit" in done.stderr
