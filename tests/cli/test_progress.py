"""How far tasks are: said on the loop, in a thread and in a process, given by REST, drawn by `perdure watch`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pexpect
import pytest

from tests.cli.live import PROGRAM, clean_environment, perdure
from tests.cli.processes import Running, server, started
from tests.fakes.waiting import until_sync

MODULE = """
import asyncio
from pathlib import Path
from perdure import attempt, task, workflow

GATE = Path(__file__).parent / "gate"  # a pipe: reading ends when it was written to

@task
async def on_the_loop() -> None:
    for n in range(1, 3):
        attempt().progress(n, 5, f"reading {'abc'[n]}.csv")
    attempt().heartbeat({"file": "b"})
    await asyncio.to_thread(GATE.read_text)

@task
def in_a_thread() -> None:
    attempt().progress(1_500_000, text="rows\\x1b[2J of\\nmany")
    GATE.read_text()

@task(process=True)
def in_a_process() -> None:
    attempt().progress(3, 4)
    GATE.read_text()

@workflow
async def slow() -> None:
    await asyncio.gather(on_the_loop(), in_a_thread(), in_a_process())
"""


@pytest.fixture
def running(processes: None, dsn: str, tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "slow_tasks.py").write_text(MODULE)
    os.mkfifo(tmp_path / "gate")
    with server(dsn, tmp_path, "--auth", "open") as one:
        with started("worker", "slow_tasks.py", "--server", one.grpc, cwd=tmp_path) as worker:
            worker.until("connected to")
            yield one


def tasks_of(one: Running, run: str) -> dict[str, Any]:
    page = httpx2.get(f"{one.http}/api/v1/runs/{run}/tasks", timeout=120).json()
    return {task["name"]: task for task in page["items"]}


def test_progress_is_given_by_the_api_and_drawn_as_bars(running: Running, tmp_path: Path) -> None:
    started_run = perdure("run", "slow", "-o", "json", PERDURE_URL=running.http)
    run = json.loads(started_run.out)["id"]

    def all_said() -> bool:
        tasks = tasks_of(running, run)
        return (
            len(tasks) == 3
            and all(task["progress"] for task in tasks.values())
            and bool(tasks["on_the_loop"]["details"])
        )

    until_sync(all_said)
    tasks = tasks_of(running, run)
    assert tasks["on_the_loop"]["progress"] == {"done": 2, "total": 5, "text": "reading c.csv"}
    assert tasks["on_the_loop"]["details"] == {"file": "b"}, "a heartbeat with details keeps the progress"
    assert tasks["in_a_thread"]["progress"] == {"done": 1_500_000, "total": None, "text": "rows [2J of many"}
    assert tasks["in_a_process"]["progress"] == {"done": 3, "total": 4, "text": ""}
    assert tasks["in_a_process"]["details"] is None

    terminal: pexpect.spawn[str] = pexpect.spawn(
        sys.executable,
        ["-c", PROGRAM, "watch", run],
        env=clean_environment() | {"PERDURE_URL": running.http, "TERM": "xterm", "NO_COLOR": "1"},
        encoding="utf-8",
        timeout=120,
        dimensions=(50, 150),  # type: ignore[arg-type]
    )
    terminal.expect_exact("1,500,000  rows [2J of many")
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.before + terminal.after)
    assert "━" * 20 + " 40%  2/5  reading c.csv" in drawn
    terminal.expect_exact("75%  3/4")
    (tmp_path / "gate").write_text("")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.before)
    assert "75%" not in last[last.rindex("✓ slow") :], "a task that has ended has no bar"
