"""`perdure top`: one page as text and JSON, and the live page in a terminal with its keys, whatever its size."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pexpect
import pytest
from rich.console import Console

from perdure.cli.top_frame import Snapshot, Sorting, by_queue, draw
from tests.cli.live import PROGRAM, clean_environment, perdure
from tests.cli.processes import Running, server, started
from tests.fakes.waiting import until_sync

MODULE = """
from pathlib import Path
from perdure import task, workflow

GATE = Path(__file__).parent / "gate"  # a pipe: reading ends when it was written to

@task
def top_wait() -> None:
    GATE.read_text()

@workflow
async def top_flow() -> None:
    await top_wait()
"""


@pytest.fixture
def running(processes: None, dsn: str, tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "top_tasks.py").write_text(MODULE)
    os.mkfifo(tmp_path / "gate")
    with server(dsn, tmp_path, "--auth", "open") as one:
        with started("worker", "top_tasks.py", "--server", one.grpc, cwd=tmp_path) as worker:
            worker.until("connected to")
            yield one


def test_one_page_and_the_live_page(running: Running) -> None:
    assert perdure("run", "top_flow", PERDURE_URL=running.http).code == 0

    def page_as_data() -> Any:
        done = perdure("top", "-o", "json", PERDURE_URL=running.http)
        assert done.code == 0, done.err
        return json.loads(done.out)

    until_sync(lambda: page_as_data()["workers"] and page_as_data()["runs"]["workers"], "the worker is listed")
    data = page_as_data()
    assert (data["runs"]["active"], data["runs"]["workers"], data["slots"]["total"] > 0) == (1, 1, True)
    piped = perdure("top", PERDURE_URL=running.http)
    assert piped.code == 0, piped.err
    lines = piped.lines
    assert lines[0][:3] == ["runs", "1", "0"]
    assert any(line[0] == "worker" for line in lines)
    page = perdure("top", "--once", PERDURE_URL=running.http, NO_COLOR="1", tty=True).out
    assert "1 running" in page and "ready" in page and "\x1b[" not in page

    environment = clean_environment() | {"PERDURE_URL": running.http, "TERM": "xterm", "NO_COLOR": "1"}
    environment.pop("COLUMNS", None)
    command = ["-c", PROGRAM, "top", "--interval", "0.5"]
    terminal: pexpect.spawn[str] = pexpect.spawn(
        sys.executable, command, env=environment, encoding="utf-8", timeout=60, dimensions=(24, 100)
    )
    terminal.expect_exact("Workers by name")
    terminal.expect_exact("host")
    terminal.send("s")
    terminal.expect_exact("Workers by used")
    terminal.setwinsize(20, 45)
    terminal.expect_exact("Workers by used")
    terminal.expect_exact("ready")
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.before)
    assert max(len(line) for line in drawn.splitlines()) <= 45
    terminal.send("p")
    terminal.expect_exact("Workers by used")
    terminal.send("q")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0


def test_a_server_that_cannot_be_reached_is_an_error() -> None:
    done = perdure("top", PERDURE_URL="http://127.0.0.1:9")
    assert done.code == 5
    assert "127.0.0.1:9" in done.err


# -- the page itself ---------------------------------------------------------------------------------------------------


def a_snapshot(workers: int = 0, queues: int = 0, stuck: int = 0) -> Snapshot:
    worker: dict[str, Any] = {"slots": 10, "runs_held": 1, "ended": 5, "host": "h", "pid": 7, "seen_at": None}
    return Snapshot(
        at=datetime(2026, 11, 18, tzinfo=UTC),
        url="http://db.example.com:8600",
        namespace="default",
        server={"version": "0.2.0", "limits": {"lease_s": 15.0}},
        counts={
            "active": 12345,
            "pending": 45,
            "approvals": 0,
            "dead_letters": 0,
            "engines": 2,
            "workers": workers,
            "failed_24h": 3,
            "commit_p50_ms": 2.5,
            "capped": True,
        },
        totals={"success": 9, "failed": 3, "cancelled": 0, "running": 0, "pending": 0},
        rates=(12.34, 11.0),
        queues=[
            {"queue": f"q{n}", "task": "t", "pending": n, "running": 0, "oldest_age_s": float(n), "workers": 0}
            for n in range(queues)
        ],
        workers=[worker | {"name": f"w{n:02}", "slots_used": n % 10, "failed": n} for n in range(workers)],
        limits=[{"key": "queue/io", "held": 3, "limit": 4, "waiting": 9}],
        stuck=[{"id": f"01a1f085-4899-7000-92b5-{n:012}", "workflow": "order", "stuck": "no"} for n in range(stuck)],
        answer_ms=3.0,
    )


def drawn(snapshot: Snapshot, sorting: Sorting = Sorting.NAME, width: int = 100, height: int | None = None) -> str:
    out = StringIO()
    console = Console(file=out, width=width, color_system=None, highlight=False)
    console.print(draw(snapshot, sorting, width, height=height))
    return out.getvalue()


@pytest.mark.parametrize("width", [30, 45, 80, 200])
@pytest.mark.parametrize("height", [15, 24, 60])
def test_a_page_fits_the_terminal(width: int, height: int) -> None:
    lines = drawn(a_snapshot(workers=30, queues=30, stuck=5), width=width, height=height).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    if height >= 60:
        assert len(lines) <= height


def test_a_page_shows_what_is_wrong_first() -> None:
    page = drawn(a_snapshot(workers=3, queues=2, stuck=1))
    assert "12,300 running   45 pending+" in page
    assert "started 12.3/s" in page
    assert page.index("q1") < page.index("q0"), "the queue with the oldest task comes first"
    assert "01a1f085-4899  order" in page
    assert re.search(r"queue/io +3 +4 +9", page)
    assert drawn(a_snapshot(workers=3), Sorting.FAILED).index("w02") < drawn(
        a_snapshot(workers=3), Sorting.FAILED
    ).index("w00")


def test_a_queue_names_the_tasks_that_no_worker_serves() -> None:
    kinds = [
        {"queue": "io", "task": "read", "pending": 2, "running": 1, "oldest_age_s": 4.0, "workers": 1},
        {"queue": "io", "task": "write", "pending": 3, "running": 0, "oldest_age_s": 9.0, "workers": 0},
    ]
    assert by_queue(kinds) == [{"queue": "io", "pending": 5, "running": 1, "oldest_age_s": 9.0, "unserved": ["write"]}]
