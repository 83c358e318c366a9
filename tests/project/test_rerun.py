"""What CI does with a test that fails: it runs once more, alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("interpreter")

SCRIPT = Path(__file__).parents[1] / "rerun.py"
GOOD = "def test_good():\n    pass\n"
FLAKY = """
from pathlib import Path
import pytest
@pytest.mark.parametrize("name", ["a b"])
def test_flaky(name):
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    print("printed by", "the first" if first else "the second")
    assert not first, "only the first time"
"""
BROKEN = "def test_broken():\n    assert 1 == 2\n"


def run(directory: Path, *tests: str, args: tuple[str, ...] = ()) -> tuple[int, str]:
    for number, text in enumerate(tests):
        (directory / f"test_{number}.py").write_text(text)
    command = [sys.executable, str(SCRIPT), "-q", "-p", "no:cacheprovider", *args]
    lean = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PERDURE_CHECKS_RECORD": str(directory / "record.jsonl"),
    }
    done = subprocess.run(command, cwd=directory, env=lean, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout


def closing_line(output: str) -> str:
    return re.sub(r" in [0-9.]+s$", "", output.rstrip().rsplit("\n", 1)[-1])


@pytest.mark.parametrize("args", [(), ("-p", "xdist", "-n", "2", "--dist", "loadfile")])
def test_one_that_passes_alone_is_flaky_and_does_not_fail_ci(tmp_path: Path, args: tuple[str, ...]) -> None:
    code, output = run(tmp_path, GOOD, FLAKY, args=args)
    assert code == 0
    shown = output.split("== FLAKY test_1.py::test_flaky[a b]\n")[1]
    first, second = shown.split("-- the second time, alone\n")
    assert "only the first time" in first and "printed by the first" in first
    assert "1 passed" in second
    assert "== flaky tests: 1 failed and then passed alone\n  test_1.py::test_flaky[a b]\n" in second
    assert closing_line(output) == "1 passed, 1 flaky"


def test_one_that_fails_twice_fails_ci(tmp_path: Path) -> None:
    code, output = run(tmp_path, GOOD, FLAKY, BROKEN)
    assert code == 1
    assert "== FLAKY test_1.py::test_flaky[a b]\n" in output
    assert "== FAILED TWICE test_2.py::test_broken\n" in output
    assert closing_line(output) == "1 failed, 1 passed, 1 flaky"


def test_the_closing_line_of_a_run_without_failures_is_pytests_own(tmp_path: Path) -> None:
    code, output = run(tmp_path, GOOD)
    assert (code, closing_line(output)) == (0, "1 passed")


def test_what_cannot_be_collected_is_not_run_again(tmp_path: Path) -> None:
    code, output = run(tmp_path, GOOD, "import no_such_module\n")
    assert (code, "FLAKY" in output) == (2, False)


def test_many_failures_are_no_accident(tmp_path: Path) -> None:
    code, output = run(
        tmp_path, "import pytest\n@pytest.mark.parametrize('n', range(41))\ndef test_b(n):\n    assert 0\n"
    )
    assert code == 1
    assert "41 tests failed, more than 40: none is run again." in output
    assert closing_line(output) == "41 failed"


def recorded(directory: Path) -> dict[str, str]:
    lines = (directory / "record.jsonl").read_text().splitlines()
    return {entry["part"]: entry["result"] for entry in map(json.loads, lines)}


def test_files_of_a_stopped_run_are_on_record(tmp_path: Path) -> None:
    run(tmp_path, GOOD, "import os\ndef test_stops():\n    os._exit(1)\n", args=("--record",))
    assert recorded(tmp_path) == {"test_0.py light": "passed", "test_0.py whole": "passed"}


def test_files_of_a_parallel_run_are_on_record(tmp_path: Path) -> None:
    run(tmp_path, GOOD, BROKEN, args=("--record", "-p", "xdist", "-n", "2", "--dist", "loadfile"))
    found = recorded(tmp_path)
    assert found["test_0.py whole"] == "passed" and found["test_1.py whole"] == "failed"
