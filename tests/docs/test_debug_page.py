"""docs/how-to/debug-a-run.md: its sessions, in a real terminal, against a real server and worker."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.store.verify import verify
from tests.cli.live import PROGRAM, clean_environment
from tests.cli.processes import Running, server, started
from tests.docs.pages import DOCS, blocks_of
from tests.docs.sessions import Reader, comparable, sessions_of
from tests.fakes.waiting import until_sync

PAGE = DOCS / "how-to" / "debug-a-run.md"


@pytest.fixture
def stage(processes: None, dsn: str, tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    """A server, and a worker of the page's program."""
    (block,) = [b for b in blocks_of(PAGE) if b.remark == "file"]
    (tmp_path / block.remark_text).write_text(block.text + "\n")
    with (
        server(dsn, tmp_path, "--auth", "open") as running,
        started("worker", "orders.py", "--server", running.grpc, cwd=tmp_path, PERDURE_URL=running.http) as worker,
    ):
        worker.until("connected")
        yield running, tmp_path


def environment(running: Running, directory: Path) -> dict[str, str]:
    """With a command `perdure` that is this one, and a home of its own, so that `@last` is of this test."""
    command = directory / "bin" / "perdure"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!{sys.executable}\n{PROGRAM}\n")
    command.chmod(0o755)
    return clean_environment() | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PERDURE_URL": running.http,
        "HOME": str(directory),
        "XDG_STATE_HOME": str(directory / "state"),
        "NO_COLOR": "1",
        "COLUMNS": "100",
        "TERM": "xterm",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }


def test_the_sessions_of_the_page_show_what_it_says(stage: tuple[Running, Path], dsn: str) -> None:
    running, directory = stage
    variables = environment(running, directory)

    def at_rest() -> None:
        """Until every run has ended: what the next command shows of it does not change any more."""
        from urllib.request import urlopen

        def is_over() -> bool:
            with urlopen(f"{running.http}/api/v1/runs?status=running&status=pending") as reply:
                return not json.load(reply)["items"]

        until_sync(is_over)

    reader = Reader(directory, variables, at_rest)
    sessions = sessions_of(PAGE)
    assert len(sessions) >= 5
    for session in sessions:
        shown = reader.play(session)
        assert comparable(shown) == comparable(session), shown
    tallies = asyncio.run(verify(dsn))
    assert {t.number: t.examples for t in tallies if t.violations} == {}
