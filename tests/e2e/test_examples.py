"""Every example is a program that runs by itself, prints what it says it prints, and ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.store.cluster import PrivateCluster

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED: dict[str, list[str]] = {
    "hello": ["result: HELLO, WORLD!", "1 RunStarted", "RunSucceeded"],
    "fan_out": ["1,000 tasks in", "sum of squares is 332,833,500", "  3: failed (ValueError: 3 is odd)", "  4: 2"],
    "durable_sleep": ["the run sleeps", "was killed with SIGKILL", "result: a croissant and a cake"],
    "approval": ["approved by Ada, published at https://example.org/good-news", "rejected by Grace", "is refused"],
    "saga": [
        "trip to Lisbon booked",
        "  cancelling hotel-in-Oslo\n  cancelling flight-to-Oslo",
        "no trip: CardDeclined",
    ],
    "children": [
        "sees its child's failure: ValueError: an empty chapter",
        "Perdure: 14 words in 3 chapters",
        "child runs: 5",
    ],
    "signals": ["closes at 78", "ended with RunContinued"],
    "embedded_two_processes": ["this process executed", "the other one executed", "200 tasks, 2 processes"],
}


def run_example(name: str, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "PERDURE_DSN", "PERDURE_HOME")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=180,
        env={**kept, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {f.stem for f in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_example_says_what_it_is_and_how_to_run_it(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text()
    assert text.startswith('"""')
    assert f"    python examples/{name}.py\n" in text


@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_runs_and_prints_what_happens(name: str, dsn: str) -> None:
    out = run_example(name, DATABASE_URL=dsn)
    for text in EXPECTED[name]:
        assert text in out


def test_the_killed_process_did_the_first_step_and_the_survivor_the_second(dsn: str) -> None:
    out = run_example("durable_sleep", DATABASE_URL=dsn)
    first = re.search(r"process (\d+) starts the run", out)
    second = re.search(r"process (\d+) waits for the same run", out)
    assert first is not None
    assert second is not None
    assert re.findall(r"\[process (\d+)\] baking (\w+)", out) == [(first[1], "croissant"), (second[1], "cake")]


def test_an_example_needs_no_database_of_yours(open_directory: Callable[[], Path]) -> None:
    home = open_directory()
    try:
        out = run_example("hello", PERDURE_HOME=str(home))
    finally:
        PrivateCluster(home / "pg").stop("immediate")
    assert "result: HELLO, WORLD!" in out
