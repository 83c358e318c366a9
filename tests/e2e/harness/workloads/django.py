"""A Django application that saves a model and starts its workflow in one transaction, killed at every step of the request.

Afterwards each committed row has exactly one run of its workflow and one of its Django task, and each run has a committed row.

The application is examples/django_library/after, served by a threaded WSGI server, with `manage.py perdure_worker` beside it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg

from harness.fleet import EngineProcess
from harness.forked import Forked, Visitor, send_request
from harness.servers import drained
from harness.storm import Group, Storm, Target, Workload, fetch_rows
from perdure.core.events import RunStarted
from perdure.wire.codec import decode_events
from tests.fakes.django_project import AFTER, environment, manage
from tests.fakes.killed_forks import Nursery
from tests.fakes.waiting import until_sync

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
SERVER = "tests.e2e.harness.library_server:serve"
WORKER = Path(__file__).parents[1] / "library_worker.py"
CLIENTS = 2
RANDOM_KILL_S_MAX = 0.25
STOP_S = 120.0
COPIES = 1 << 24
MEMBERS = {"takes": 1, "declines": 2}
"""By name. The transactions of the second one roll back on purpose, after the start and the enqueuing."""


@dataclass
class Library:
    database: psycopg.Connection[Any]
    dsn: str

    def fill(self) -> None:
        self.database.execute("insert into library_book (id, title, copies) values (1, 'Middlemarch', %s)", [COPIES])
        for name, id in MEMBERS.items():
            self.database.execute("insert into library_member values (%s, %s, %s)", [id, name, f"{name}@example.org"])

    def holds(self) -> dict[int, str]:
        """Id -> run."""
        return dict(self.database.execute("select id, run from library_hold").fetchall())

    def settle(self) -> None:
        """Every transaction that a killed server has left is gone, and every request in SQL was carried out."""

        def is_settled() -> bool:
            row = self.database.execute(
                "select (select count(*) from perdure.sql_request where name in ('prepare_hold', 'django_task'))"
                " + (select count(*) from library_hold where status <> 'ready')"
                " + (select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%')"
            ).fetchone()
            return row == (0,)

        until_sync(is_settled)

    async def check(self) -> int:
        holds = self.holds()
        keys, confirmed = await _runs_of(self.dsn)
        assert keys == {run: f"hold-{id}" for id, run in holds.items()}
        assert sorted(confirmed) == sorted(holds)
        (copies,) = self.database.execute("select copies from library_book").fetchone() or (0,)
        assert copies == COPIES - len(holds), "each copy was taken once"
        return len(holds)


async def _runs_of(dsn: str) -> tuple[dict[str, str], list[int]]:
    """Of the workflow: run -> key. Of the Django task: the holds that they are about."""
    query = (
        "select r.run_id::text as run, r.key, r.workflow, h.body from (select run_id, key, workflow from perdure.run"
        " union all select run_id, key, workflow from perdure.run_queue) r"
        " left join perdure.history h on h.run_id = r.run_id and h.seq = 1 where r.workflow in ('prepare_hold', 'django_task')"
    )
    keys, confirmed = {}, []
    for found in await fetch_rows(dsn, query):
        if found["workflow"] == "prepare_hold":
            keys[found["run"]] = found["key"]
        else:
            started = decode_events(found["body"])[0]
            assert isinstance(started, RunStarted)
            confirmed.append(int(json.loads(started.input)["call"]["args"][0]))
    return keys, confirmed


class Reader(Visitor):
    """Places holds. `acknowledged`: those that were answered with 201."""

    def __init__(self, number: int, port: int) -> None:
        super().__init__(number, port)
        self.acknowledged: list[int] = []
        self.statuses: Counter[int | None] = Counter()
        """None: the server died before it answered."""

    def visit(self) -> None:
        who = self.random.choice(["takes", "takes", "takes", "declines"])
        status, placed = place_hold(self.port, who)
        assert status in (None, 201 if who == "takes" else 500), (who, status)
        self.statuses[status] += 1
        if status == 201:
            self.acknowledged.append(placed["hold"])


def place_hold(port: int, who: str) -> tuple[int | None, Any]:
    """Status and body; (None, None) if the server dies before it has answered."""
    body = urlencode({"book": 1, "member": MEMBERS[who]})
    status, data = send_request(port, "POST", "/holds/", body, {"Content-Type": "application/x-www-form-urlencoded"})
    try:
        return status, json.loads(data) if status and status < 300 else None
    except ValueError:  # it died within its answer
        return None, None


class LibraryWorker(Group):
    """Asked to stop, it ends without an error."""

    every_s, engines = (3.0, 6.0), 1

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm, "library worker", self._worker, 1, "ready")

    def _worker(self, _: int) -> EngineProcess:
        known = environment(self._storm.dsn, AFTER)
        return self._storm.fleet.client(WORKER, environment=known)

    async def stop(self) -> None:
        await super().stop()
        (one,) = self.processes
        assert await asyncio.to_thread(drained, one, STOP_S) == 0, one.err.read_text()
        assert "Traceback" not in one.err.read_text(), one.err.read_text()


class DjangoLibrary(Workload):
    name = "django"

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        await asyncio.to_thread(manage, AFTER, storm.dsn, "migrate")
        database = storm.stack.enter_context(psycopg.connect(storm.dsn, autocommit=True))
        nursery = await asyncio.to_thread(storm.stack.enter_context, Nursery(SERVER, environment(storm.dsn)))
        self._library = Library(database, storm.dsn)
        self._library.fill()
        self._server = Forked(storm, "library", nursery, STEPS, RANDOM_KILL_S_MAX)
        self._readers = [Reader(n, nursery.port) for n in range(CLIENTS)]
        return self._server, LibraryWorker(storm)

    async def load(self, storm: Storm) -> None:
        for one in self._readers:
            one.start()
        await storm.calm.wait()
        for one in self._readers:
            await asyncio.to_thread(one.end)

    async def is_hit(self) -> bool:
        return self._server.is_hit

    async def settle(self, storm: Storm) -> None:
        """Holds wait for their members for a week: they are cancelled."""
        await asyncio.to_thread(self._library.settle)
        self._holds = await self._library.check()
        await (await storm.client.bulk("cancel", "workflow = prepare_hold", reason="over")).wait("120s")

    async def check(self, storm: Storm) -> str:
        assert await self._library.check() == self._holds
        assert {id for one in self._readers for id in one.acknowledged} <= self._library.holds().keys()
        statuses = sum((one.statuses for one in self._readers), Counter())
        assert statuses[201] and statuses[500] and statuses[None]
        kills = self._server.done
        return f"{kills.total()} kills {dict(kills)}, {self._holds} holds, answers {dict(statuses)}"
