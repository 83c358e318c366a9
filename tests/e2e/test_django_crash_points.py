"""A Django application that is killed at each step of a request: the commit decides about the row and about its run.

The application is examples/django_library/after, served by a threaded WSGI server, with `manage.py perdure_worker` beside it. test_kills.py kills
it under load.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from harness.forked import STEP_S
from harness.workloads.django import COMMITTED, SERVER, STEPS, STOP_S, Library, place_hold

from tests.fakes.django_project import AFTER, environment, manage
from tests.fakes.killed_forks import Nursery
from tests.fakes.waiting import until_sync

pytestmark = pytest.mark.usefixtures("processes")


@contextmanager
def working(dsn: str, directory: Path) -> Iterator[None]:
    """`manage.py perdure_worker`. Asked to stop, it ends without an error."""
    errors = directory / "worker.err"
    with errors.open("wb") as file:
        command = [sys.executable, "manage.py", "perdure_worker"]
        process = subprocess.Popen(command, cwd=AFTER, env=environment(dsn), stdout=file, stderr=file)
    try:
        until_sync(lambda: process.poll() is not None or "\nready" in errors.read_text())
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, errors.read_text()
        assert "Traceback" not in errors.read_text(), errors.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(STOP_S)


@contextmanager
def served(dsn: str, directory: Path) -> Iterator[tuple[Nursery, Library]]:
    manage(AFTER, dsn, "migrate")
    with (
        working(dsn, directory),
        psycopg.connect(dsn, autocommit=True) as database,
        Nursery(SERVER, environment(dsn)) as nursery,
    ):
        library = Library(database, dsn)
        library.fill()
        yield nursery, library


def killed_at(step: str, nursery: Nursery, **arguments: bool) -> None:
    """A server that is killed at a step of its only request."""
    with ThreadPoolExecutor(1) as thread, nursery.fork(arguments, pause_at=step) as server:
        server.wait_for("ready")
        answer = thread.submit(place_hold, nursery.port, "takes")
        server.wait_for(step, STEP_S)
        server.kill()
        assert answer.result() == (None, None)


async def test_the_commit_decides_about_row_and_run_at_each_step(dsn: str, tmp_path: Path) -> None:
    with served(dsn, tmp_path) as (nursery, library):
        counts = []
        for step in STEPS:
            killed_at(step, nursery)
            library.settle()
            counts.append(await library.check())
        assert counts == [sum(s in COMMITTED for s in STEPS[: n + 1]) for n in range(len(STEPS))]

        # An application that starts the run after its transaction fails these tests.
        killed_at("after the commit", nursery, starts_behind_the_commit=True)
        until_sync(lambda: library.database.execute("select count(*) from perdure.sql_request").fetchone() == (0,))
        assert len(library.holds()) == counts[-1] + 1
        with pytest.raises(AssertionError):
            await library.check()
