"""Hypothesis tries other examples in every run of the tests, and the same ones again when given the seed that was printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

SHOW = "PERDURE_SHOW_EXAMPLES"


@given(st.integers(), st.text())
def test_examples(number: int, text: str) -> None:
    """Nothing is claimed here: the test below runs this one in processes of its own and compares what was drawn."""
    if path := os.environ.get(SHOW):
        with Path(path).open("a", encoding="utf-8") as shown:
            shown.write(f"{number} {text!r}\n")


def drawn(path: Path, seed: str | None) -> tuple[str, str]:
    """The examples of one run, and the seed that it printed."""
    path.unlink(missing_ok=True)
    env = {k: v for k, v in os.environ.items() if k != "PERDURE_HYPOTHESIS_SEED"} | {
        SHOW: str(path),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    if seed is not None:
        env["PERDURE_HYPOTHESIS_SEED"] = seed
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_asyncio.plugin", f"{__file__}::test_examples"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"PERDURE_HYPOTHESIS_SEED=(\d+)", done.stdout)
    assert found is not None, done.stdout
    return path.read_text(encoding="utf-8"), found[1]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("ci", ["true", ""], ids=["in CI", "elsewhere"])
def test_examples_are_new_each_time_and_come_again_with_their_seed(
    tmp_path: Path, ci: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    if ci:
        monkeypatch.setenv("CI", ci)
    examples, seed = drawn(tmp_path / "shown", None)
    others, _ = drawn(tmp_path / "shown", None)
    assert examples != others
    assert drawn(tmp_path / "shown", seed) == (examples, seed)
