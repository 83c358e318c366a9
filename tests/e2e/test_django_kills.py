"""A Django application that saves a model and starts its workflow in one transaction, killed at every step of the request.

Afterwards each committed row has exactly one run of its workflow and one of its Django task, and each run has a committed row.

The application is examples/django_library/after, served by a threaded WSGI server, with `manage.py perdure_worker` beside it. PERDURE_KILLS says how
often the server is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from perdure import SyncPerdure
from perdure.core.events import RunStarted
from tests.fakes.django_project import AFTER, environment, manage
from tests.fakes.killed_forks import Nursery
from tests.fakes.waiting import until_sync

pytestmark = pytest.mark.usefixtures("interpreter")

STEPS = (
    "before the save",
    "after the save",
    "after the start",
    "before the commit",
    "after the commit",
    "before the response",
)
"""Where tests/e2e/harness/library_server.py stops."""
COMMITTED = ("after the commit", "before the response")
"""Of these, those at which the hold is there already."""
KILLS = int(os.environ.get("PERDURE_KILLS", "12"))
CLIENTS = 3
ANSWER_S = 120.0
STEP_S = 120.0
RANDOM_KILL_S_MAX = 0.25
STOP_S = 120.0
COPIES = 1 << 24
MEMBERS = {"takes": 1, "declines": 2}
"""By name. The transactions of the second one roll back on purpose, after the start and the enqueuing."""


@dataclass
class Library:
    nursery: Nursery
    database: psycopg.Connection[Any]
    dsn: str

    def holds(self) -> dict[int, str]:
        """Id -> run."""
        return dict(self.database.execute("select id, run from library_hold").fetchall())


class Reader(threading.Thread):
    """Places holds without a pause. `acknowledged`: those that were answered with 201."""

    def __init__(self, number: int, port: int) -> None:
        super().__init__(daemon=True)
        self._random, self._port = random.Random(number), port
        self.stopped = threading.Event()
        self.acknowledged: list[int] = []
        self.statuses: Counter[int | None] = Counter()
        """None: the server died before it answered."""
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                who = self._random.choice(["takes", "takes", "takes", "declines"])
                status, answer = place_hold(self._port, who)
                assert status in (None, 201 if who == "takes" else 500), (who, status)
                self.statuses[status] += 1
                if status == 201:
                    self.acknowledged.append(answer["hold"])
        except BaseException as error:
            self.error = error


def place_hold(port: int, who: str) -> tuple[int | None, Any]:
    """Status and body; (None, None) if the server dies before it answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
    try:
        body = urlencode({"book": 1, "member": MEMBERS[who]})
        connection.request("POST", "/holds/", body, {"Content-Type": "application/x-www-form-urlencoded"})
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data) if answer.status < 300 else None
    except (ConnectionError, HTTPException, ValueError):  # ValueError: it died within its answer
        return None, None
    finally:
        connection.close()


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
def library(dsn: str, directory: Path) -> Iterator[Library]:
    manage(AFTER, dsn, "migrate")
    with (
        working(dsn, directory),
        psycopg.connect(dsn, autocommit=True) as database,
        Nursery("tests.e2e.harness.library_server:serve", environment(dsn)) as nursery,
    ):
        database.execute("insert into library_book (id, title, copies) values (1, 'Middlemarch', %s)", [COPIES])
        for name, id in MEMBERS.items():
            database.execute("insert into library_member values (%s, %s, %s)", [id, name, f"{name}@example.org"])
        yield Library(nursery, database, dsn)


def kill_often(nursery: Nursery) -> Counter[str]:
    """How often at each step: half of them at the steps in turn, half at random."""
    moments, done = random.Random(1), Counter[str]()
    for number in range(KILLS):
        step = STEPS[number // 2 % len(STEPS)] if number % 2 else "at random"
        with nursery.fork({}, pause_at=step, nth=moments.randint(1, 4)) as server:
            server.wait_for("ready")
            if step == "at random":
                assert server.news(moments.uniform(0, RANDOM_KILL_S_MAX)) is None
            else:
                server.wait_for(step, STEP_S)
            assert server.kill() == signal.SIGKILL
        done[step] += 1
    return done


def settle(found: Library) -> None:
    """Every transaction that a killed server has left is gone, and every request in SQL was carried out."""

    def is_settled() -> bool:
        row = found.database.execute(
            "select (select count(*) from perdure.sql_request) + (select count(*) from library_hold where status <> 'ready')"
            " + (select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%')"
        ).fetchone()
        return row == (0,)

    until_sync(is_settled)


def runs_of(dsn: str) -> tuple[dict[str, str], list[int]]:
    """Of the workflow: run -> key. Of the Django task: the holds that they are about."""
    with SyncPerdure(dsn, worker=False, tune_gc=False) as client:
        runs = list(client.runs())
        keys = {run.id: run.key for run in runs if run.workflow == "prepare_hold"}
        confirmed: list[int] = []
        for run in runs:
            if run.workflow == "django_task":
                started = client.get(run.id).history()[0].event
                assert isinstance(started, RunStarted)
                confirmed.append(json.loads(started.input)["call"]["args"][0])
    assert len(runs) == len(keys) + len(confirmed), "there are no others"
    return keys, confirmed


def check(found: Library) -> int:
    holds = found.holds()
    keys, confirmed = runs_of(found.dsn)
    assert keys == {run: f"hold-{id}" for id, run in holds.items()}
    assert sorted(confirmed) == sorted(holds)
    (copies,) = found.database.execute("select copies from library_book").fetchone() or (0,)
    assert copies == COPIES - len(holds), "each copy was taken once"
    return len(holds)


def test_every_committed_row_has_one_run_and_every_run_a_committed_row(dsn: str, tmp_path: Path) -> None:
    with library(dsn, tmp_path) as found:
        readers = [Reader(n, found.nursery.port) for n in range(CLIENTS)]
        for one in readers:
            one.start()
        try:
            kills = kill_often(found.nursery)
        except AssertionError as error:
            error.add_note(f"readers: {[one.error for one in readers]}")
            raise
        with found.nursery.fork({}) as server:
            server.wait_for("ready")
            for one in readers:
                one.stopped.set()
            for one in readers:
                one.join()
                assert one.error is None, one.error
        settle(found)
        holds = check(found)
        assert {id for one in readers for id in one.acknowledged} <= found.holds().keys()
    statuses = sum((one.statuses for one in readers), Counter())
    print(f"{sum(kills.values())} kills {dict(kills)}, {holds} holds, {2 * holds} runs, answers {dict(statuses)}")
    assert statuses[201] and statuses[500] and statuses[None]


def killed_at(step: str, nursery: Nursery, **arguments: bool) -> None:
    """A server that is killed at a step of its only request."""
    with ThreadPoolExecutor(1) as thread, nursery.fork(arguments, pause_at=step) as server:
        server.wait_for("ready")
        answer = thread.submit(place_hold, nursery.port, "takes")
        server.wait_for(step, STEP_S)
        server.kill()
        assert answer.result() == (None, None)


def test_the_commit_decides_about_row_and_run_at_each_step_unless_the_start_comes_behind_it(
    dsn: str, tmp_path: Path
) -> None:
    with library(dsn, tmp_path) as found:
        counts = []
        for step in STEPS:
            killed_at(step, found.nursery)
            settle(found)
            counts.append(check(found))
        assert counts == [sum(s in COMMITTED for s in STEPS[: n + 1]) for n in range(len(STEPS))]

        # An application that starts the run after its transaction fails these tests.
        killed_at("after the commit", found.nursery, starts_behind_the_commit=True)
        until_sync(lambda: found.database.execute("select count(*) from perdure.sql_request").fetchone() == (0,))
        assert len(found.holds()) == counts[-1] + 1
        with pytest.raises(AssertionError):
            check(found)
