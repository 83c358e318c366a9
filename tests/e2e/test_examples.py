"""Every example is a program that runs by itself, prints what it says it prints, and ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.localpg.cluster import PrivateCluster
from tests.fakes.failures import Failures

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED: dict[str, list[str]] = {
    "hello": ["result: HELLO, WORLD!", "1 RunStarted", "RunSucceeded"],
    "fan_out": ["1,000 tasks in", "sum of squares is 332,833,500", "  3: failed (ValueError: 3 is odd)", "  4: 2"],
    "blobs": ["total 4799685, 878593 bytes, orders.csv.gz is smaller: True", "checked: True"],
    "durable_sleep": ["the run sleeps", "was killed with SIGKILL", "result: a croissant and a cake"],
    "approval": [
        "Good News: published at https://example.org/very-good-news for 3 euros",
        "rejected by grace (no sources)",
        "is refused",
    ],
    "agent": [
        "the agent wants to pay; ada approves",
        "result: Your order arrived late, so: 20 euros for order 7.",
        "tasks: support.model_stream, support.tool, support.model_stream, support.tool, support.model_stream",
    ],
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
    "updates": [
        "Ada sits on [1, 2]",
        "Barbara is refused: between one and four seats, please",
        "Grace sits on [3, 4, 5]",
        "Edsger is refused: only 1 seats are left",
        "asked again: Ada sits on [1, 2]",
        "1 seat is free",
        "the house: {'Ada': [1, 2], 'Grace': [3, 4, 5]}",
    ],
    "limits": [
        "for each customer: {'ada': 2, 'grace': 2}",
        "took a second, at least: True",
        "all the others: True",
        "three starts, 1 run: indexed 'draft'",
        "three items, 1 run: 3 events: a b c",
        "two starts under one key, 1 run: indexed 'night'",
    ],
    "retries": [
        "page of example.org at attempt 3",
        "polite: after 0.",
        "TaskFailed: FinalError: the card has expired",
        "TaskTimeout: TimeoutError: the task did not end within 0.5 s of being scheduled (finish_within)",
        "TaskTimeout: TimeoutError: the task did not begin within 0.2 s (start_within)",
    ],
    "cancellation": [
        "the run was cancelled: enough",
        "cleaned up in a process\ncleaned up in a thread\ncleaned up on the event loop",
        "the child run unwinds\nthe parent run unwinds",
    ],
    "events": [
        "the bicycle's ticket again: he has it",
        "Ada runs to platform 4\nGrace runs to platform 4\nEdsger runs to platform 12",
        "3 pieces for platform 4: a trunk, a hatbox, a bicycle",
    ],
    "schedules": [
        "3 readings or more, 0:00:01 apart",
        "kitchen: 21 degrees at second ",
        "backfill of an hour ago: 5 planned, 5 started",
        "once more: 0 started",
    ],
    "embedded_two_processes": ["this process executed", "the other one executed", "200 tasks, 2 processes"],
}


def run_example(name: str, **environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("PERDURE_DSN", "PERDURE_HOME")}
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


def test_every_example_says_what_it_is_and_how_to_run_it() -> None:
    with Failures() as failures:
        for name in EXPECTED:
            with failures.of(f"examples/{name}.py"):
                text = (EXAMPLES / f"{name}.py").read_text()
                assert text.startswith('"""'), "has no docstring"
                assert f"    python examples/{name}.py\n" in text, "does not say how to run it"


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("name", EXPECTED)
def test_the_example_runs_and_prints_what_happens(name: str, dsn: str) -> None:
    out = run_example(name, PERDURE_DSN=dsn)
    for text in EXPECTED[name]:
        assert text in out


@pytest.mark.usefixtures("processes")
def test_the_killed_process_did_the_first_step_and_the_survivor_the_second(dsn: str) -> None:
    out = run_example("durable_sleep", PERDURE_DSN=dsn)
    first = re.search(r"process (\d+) starts the run", out)
    second = re.search(r"process (\d+) waits for the same run", out)
    assert first is not None
    assert second is not None
    assert re.findall(r"\[process (\d+)\] baking (\w+)", out) == [(first[1], "croissant"), (second[1], "cake")]


@pytest.mark.usefixtures("processes")
def test_an_example_needs_no_database_of_yours(open_directory: Callable[[], Path]) -> None:
    home = open_directory()
    try:
        out = run_example("hello", PERDURE_HOME=str(home))
    finally:
        PrivateCluster(home / "pg").stop("immediate")
    assert "result: HELLO, WORLD!" in out
