"""`manage.py perdure_worker`: with a server, and its mistakes. tests/e2e/test_django_crash_points.py runs it without a server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from harness.servers import PATHS, Servers, drained

from tests.fakes.django_project import AFTER, environment, manage
from tests.fakes.waiting import until_sync

PLACED = """
insert into library_book values (1, 'Middlemarch', 3);
insert into library_member values (1, 'Ada', 'ada@example.org');
insert into library_hold (id, book_id, member_id, status, placed_at, run)
values (1, 1, 1, 'placed', now(), perdure.start('prepare_hold', '{"hold_id": 1}')::text);
"""


@pytest.mark.usefixtures("processes")
def test_it_is_a_worker_of_a_server_with_the_workflows_and_queues_of_the_project(dsn: str, tmp_path: Path) -> None:
    manage(AFTER, dsn, "migrate")
    with Servers(tmp_path, dsn, 1, lease_s=5.0) as fleet, psycopg.connect(dsn, autocommit=True) as database:
        server = fleet.server(0)
        until_sync(lambda: fleet.is_up(server, "ready"))
        own = {
            "DJANGO_SETTINGS_MODULE": "tests.frameworks.django_server_settings",
            "LIBRARY_SERVER": fleet.addresses[0],
        }
        path = os.pathsep.join([environment(dsn)["PYTHONPATH"], *PATHS])
        errors = tmp_path / "worker.err"
        with errors.open("wb") as file:
            worker = subprocess.Popen(
                [sys.executable, "manage.py", "perdure_worker", "--threads", "3"],
                cwd=AFTER,
                env=environment(dsn) | own | {"PYTHONPATH": path},
                stdout=file,
                stderr=file,
            )
        try:
            until_sync(lambda: worker.poll() is not None or "connected to" in errors.read_text())
            assert "serving workflow prepare_hold and tasks announce, put_back, set_aside" in errors.read_text()
            until_sync(
                lambda: database.execute("select name from perdure.workflow where name = 'prepare_hold'").fetchone()
            )
            database.execute(PLACED)
            until_sync(lambda: database.execute("select status from library_hold").fetchone() == ("ready",))
            assert database.execute("select copies from library_book").fetchone() == (2,), "a transactional task"
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(120) == 0, errors.read_text()
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait(120)
        assert drained(server) == 0


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--slots", "0"], "slots is 0; it must be 1 or more"),
        (["--drain", "soon"], "--drain"),
    ],
)
def test_mistakes_are_said_without_a_traceback(arguments: list[str], text: str) -> None:
    command = [sys.executable, "manage.py", "perdure_worker", *arguments]
    nowhere = environment("postgresql://127.0.0.1:1/none")
    done = subprocess.run(command, cwd=AFTER, env=nowhere, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr
