"""Telemetry of running attempts and connected workers.

    flights, backlog (tasks/) -----\\
    hub ----> set_workers() --------> gathered here --> set-based writes every few seconds

Laws:

1. Nothing here delays a commit or makes it fail. A telemetry write that fails is counted, and affects no run.
2. Telemetry of an attempt is written only where its row belongs to this session and attempt, so a late write changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from time import monotonic
from typing import Final, Protocol

import msgspec

from perdure.core import ids
from perdure.core.limits import BACKLOG_KINDS_MAX
from perdure.core.outage import Outage
from perdure.engine.context import EngineContext
from perdure.engine.services.service import Service
from perdure.engine.tasks.attempts import Attempts
from perdure.engine.tasks.backlog import Backlog
from perdure.engine.tasks.flight import Flight
from perdure.engine.tasks.worker_windows import NO_LOAD, WorkerLoad

log = logging.getLogger("perdure.engine")

AGAIN_S: Final = 0.5
"""Before a list of workers that could not be written is written again, where it says what is served."""
NOTES_BATCH_ROWS: Final = 2_000
CLOSE_S: Final = 2.0
"""How long closing waits for the last writes."""


class TaskNote(msgspec.Struct, frozen=True, gc=False):
    """Telemetry of an attempt that has a row in task_queue."""

    id: bytes
    attempt: int
    worker: str
    started_us: int
    beat_us: int
    details: bytes
    blocked: str


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A connected worker, for display."""

    id: bytes
    ns: int
    name: str
    host: str
    pid: int
    sdk: str
    queues: list[str]
    tasks: list[str]
    versions: dict[str, str]
    """Workflow -> version."""
    build_id: str
    slots: int
    slots_used: int
    runs_held: int
    draining: bool
    connected_us: int
    seen_us: int
    blocked: str = ""
    load: WorkerLoad = NO_LOAD


class BacklogRow(msgspec.Struct, frozen=True, gc=False):
    """Tasks of one kind that this engine has in memory, and that have no row in task_queue."""

    ns: int
    queue: str
    name: str
    waiting: int
    running: int
    oldest_us: int | None
    """Since when the one waits that has waited longest."""


class TelemetryStore(Protocol):
    async def write_task_notes(self, session: int, notes: list[TaskNote]) -> set[bytes]:
        """The ids of those that found their row."""
        ...

    async def write_workers(self, session: int, rows: list[WorkerRow]) -> None:
        """These are all of the session's workers; rows of others go."""
        ...

    async def write_backlog(self, session: int, rows: list[BacklogRow]) -> None:
        """This is all that the session has in memory; rows of other kinds go."""
        ...


class Telemetry(Service):
    name = "writing the progress of attempts and the list of workers"
    poll_s = 3.0

    def __init__(self, context: EngineContext, store: TelemetryStore, attempts: Attempts, backlog: Backlog) -> None:
        super().__init__()
        self._backlog = backlog
        self._backlog_written = Outage("writing what waits in memory", log, monotonic)
        self._had_backlog = 0
        """The session under which rows of the backlog were last written; 0: none are there."""
        self._store, self._session, self._counters = store, context.session, context.counters
        self._attempts, self._worker_of = attempts, context.worker.name_of
        self._progress = Outage("writing the progress of attempts", log, monotonic)
        self._workers_written = Outage("writing the list of workers", log, monotonic)
        self.workers: list[WorkerRow] = []
        """The workers of this engine, as of the last `set_workers`."""
        self._workers_due = self._served_due = False
        self._workers_of = 0
        """Under which session they were last written."""

    def set_workers(self, rows: list[WorkerRow]) -> None:
        """All workers that are connected now. Called again whenever that changes, and every few seconds for their load."""
        if _served(rows) != _served(self.workers):
            # Whether a run's code is connected anywhere is decided by these rows (sql/endings.sql), so that must not wait for a poll.
            self._served_due = True
            self.wake()
        self.workers = rows
        self._workers_due = True

    async def poll_once(self) -> float | None:
        await self.write()
        return AGAIN_S if self._served_due else None

    async def close(self) -> None:
        """Remove the workers of this engine."""
        self.set_workers([])
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.write()
        except TimeoutError:
            pass

    async def write(self) -> None:
        """Write telemetry of attempts and workers. A failed write is repeated in the next round."""
        if not self._session.id:
            return
        await self._quietly(self._write_task_notes, self._progress)
        await self._quietly(self._write_workers, self._workers_written)
        await self._quietly(self._write_backlog, self._backlog_written)

    async def _quietly(self, write: Callable[[], Awaitable[None]], outage: Outage) -> None:
        try:
            await write()
            outage.over()
        except Exception as e:
            self._counters.telemetry_write_failures += 1
            outage.failed(e)

    async def _write_task_notes(self) -> None:
        due = list(
            islice((f for f in self._attempts.flights.values() if f.row and not f.is_recorded), NOTES_BATCH_ROWS)
        )
        if not due:
            return
        by_id = {ids.derive(f.assignment.run_id, ids.TASK, f.assignment.seq): f for f in due}
        notes = [self._note(task_id, f) for task_id, f in by_id.items()]
        for f in due:
            f.is_recorded = True  # before the write: what changes during it is due again
        found: set[bytes] = set()
        try:
            found = await self._store.write_task_notes(self._session.id, notes)
        finally:
            for task_id, f in by_id.items():
                if task_id not in found:  # its row is not committed yet, or this write failed
                    f.is_recorded = False

    def _note(self, task_id: bytes, f: Flight) -> TaskNote:
        a = f.assignment
        worker = f.worker or self._worker_of(a.run_id, a.seq)
        return TaskNote(task_id, a.attempt, worker, f.sent_us, f.beat_us, f.details, f.blocked)

    async def _write_backlog(self) -> None:
        session, rows = self._session.id, backlog_rows(self._backlog, self._attempts.flights.values())
        if rows or self._had_backlog == session:
            self._had_backlog = session
            await self._store.write_backlog(session, rows)
            self._had_backlog = session if rows else 0

    async def _write_workers(self) -> None:
        session = self._session.id
        if not self._workers_due and (session == self._workers_of or not self.workers):
            return
        self._workers_due = self._served_due = False
        try:
            await self._store.write_workers(session, self.workers)
            self._workers_of = session
        except BaseException:
            self._workers_due = self._served_due = True
            raise


def backlog_rows(backlog: Backlog, flights: Iterable[Flight]) -> list[BacklogRow]:
    """By kind, the largest BACKLOG_KINDS_MAX. Attempts with a row in task_queue are counted there."""
    running = Counter((f.assignment.ns, f.queue, f.name) for f in flights if not f.row)
    waiting = backlog.waiting()
    rows = [
        BacklogRow(*kind, waiting.get(kind, (0, None))[0], running[kind], waiting.get(kind, (0, None))[1])
        for kind in waiting.keys() | running.keys()
    ]
    return sorted(rows, key=lambda r: r.waiting + r.running, reverse=True)[:BACKLOG_KINDS_MAX]


def _served(rows: list[WorkerRow]) -> set[tuple[bytes, str, str]]:
    return {(row.id, *served) for row in rows for served in row.versions.items()}
