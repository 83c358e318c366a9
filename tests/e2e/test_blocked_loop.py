"""A task that blocks its worker's event loop is not taken for dead, and people can see what blocks it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from harness.servers import PERDURE, Servers

from perdure import Client
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

BLOCKING = """
import asyncio

import perdure
from perdure import task, workflow
from tests.fakes.waiting import busy, busy_thread


def crunch_numbers_without_yielding(seconds: float) -> None:
    busy_thread(seconds)


@task(heartbeat="2s", retry=1)
async def blocking(seconds: float) -> int:
    await busy(0.1)
    crunch_numbers_without_yielding(seconds)
    return perdure.attempt().number


@task(heartbeat="2s", retry=1)
async def neighbour(seconds: float) -> int:
    for _ in range(round(seconds / 0.2)):
        perdure.attempt().heartbeat()
        await busy(0.2)
    return perdure.attempt().number


@workflow
async def blocked(seconds: float) -> list[int]:
    return list(await asyncio.gather(neighbour(1.0), blocking(seconds)))
"""


def perdure_command(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PERDURE, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PERDURE_URL": url, "NO_COLOR": "1"},
    )


async def test_a_blocked_loop_is_no_missed_heartbeat_and_show_names_the_culprit(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "blocking_flows.py").write_text(BLOCKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Servers(tmp_path / "out", dsn, 1, lease_s=10) as fleet:
        server = fleet.server(0)
        await until(lambda: fleet.is_up(server, "ready"), "the server is up", 40)
        worker = fleet._start("worker", ["worker", "blocking_flows", "--server", fleet.addresses[0]], {})
        await until(lambda: fleet.is_up(worker, "connected"), "the worker is up", 30)
        url = f"http://127.0.0.1:{fleet.ports[0][0]}"
        async with Client(fleet.addresses[0]) as client:
            started = perdure_command(url, "run", "blocked", "seconds=9.0", "--fields", "id")
            assert started.returncode == 0, started.stderr
            run_id = started.stdout.strip().split('"')[-2]

            def culprit_shown() -> str:
                shown = perdure_command(url, "show", run_id).stdout
                return shown if "crunch_numbers_without_yielding" in shown else ""

            seen = await until(culprit_shown)
            # Blocked for four and a half heartbeats: both tasks ended in their first attempt.
            assert await (await client.get(run_id)).result("3m") == [1, 1]
        shown = perdure_command(url, "show", run_id).stdout
        assert "success" in shown
        print(seen)
