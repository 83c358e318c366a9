"""A client that dies at a chosen event, as a killed process does, and the next one on the same database.

    commit of event n --> durable --> the engine and the worker are abandoned --> the session is reaped --> the next life

The commit does not return: nothing that follows from it happens. What is in the memory of the engine and the worker is lost; running tasks
are cancelled and their reports are thrown away.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import ClassVar, Final

import msgspec

from perdure.app.embedded import Perdure
from perdure.core import ids
from perdure.core.lifecycle import TaskStatus
from perdure.core.work import Activation, Assignment, Decided
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.commits.rows import Batch
from perdure.engine.commits.store import Committed
from perdure.engine.settings import EngineSettings
from perdure.engine.tasks.lost_workers import settle_lost
from perdure.sdk.worker.worker import Worker
from perdure.store.postgres import PostgresStore

ASSIGN_S: Final = 0.003
"""Seconds that a task waits before it begins, so that its schedule is recorded before its result: a moment more to crash in."""
DIE_S: Final = 10.0
"""Seconds that the end of a life may take: tasks that do not stop when they are cancelled keep it from ending."""
EXPIRED_S: Final = -1.0


class CrashPoint:
    """After which event the first life ends, and what was observed of all lives."""

    def __init__(self, after: int = 0) -> None:
        self.after = after
        """0: never."""
        self.events = 0
        """Recorded so far."""
        self.reached = 0
        """The last event that was recorded before the crash."""
        self.crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.session = 0
        """Of the life that ended."""
        self.clock_offset_s = 0.0
        self.names: set[str] = set()
        """Tasks and workflows that were executed."""
        self.repeated: list[str] = []
        """Tasks that were executed again although their result was recorded."""
        self._ended: set[tuple[bytes, int]] = set()

    @property
    def is_due(self) -> bool:
        return 0 < self.after <= self.events and not self.crash.done()

    def recorded(self, batch: Batch) -> None:
        self.events += len(batch.starts) + sum(row.last - row.seq + 1 for row in batch.appends)
        self._ended.update((t.run_id, t.seq) for t in batch.tasks if t.status == TaskStatus.SUCCESS.word)

    def assigned(self, batch: list[Assignment]) -> None:
        for a in batch:
            self.names.add(a.name)
            if (a.run_id, a.seq) in self._ended:
                self.repeated.append(f"{a.name} (task {a.seq} of run {ids.text(a.run_id)}, attempt {a.attempt})")


class MortalStore(PostgresStore):
    """On the connections of an earlier life, if there is one: nothing of a life is kept by them, and preparing statements anew takes longer
    than most runs."""

    def __init__(self, dsn: str, point: CrashPoint, earlier: MortalStore | None) -> None:
        super().__init__(dsn)
        self._point, self._is_open = point, earlier is not None
        if earlier is not None:
            self._pool, self._committing, self._sending = earlier._pool, earlier._committing, earlier._sending

    async def open(self) -> None:
        if not self._is_open:
            await super().open()
        self.shift_clock(self._point.clock_offset_s)
        if self._point.session:
            await self.renew(self._point.session, EXPIRED_S, 0, 0)
            await self.reap(settle_lost)

    async def close(self) -> None:
        """Its connections are left to the next life."""

    async def disconnect(self) -> None:
        await super().close()

    async def commit(self, session: int, number: int, batch: Batch) -> Committed:
        done = await super().commit(session, number, batch)
        point = self._point
        point.recorded(batch)
        if point.is_due:
            point.reached, point.session, point.clock_offset_s = point.events, session, self.clock_offset_s
            point.crash.set_result(None)
        if point.session == session:
            await asyncio.get_running_loop().create_future()  # until it is cancelled
        return done


class MortalWorker(Worker):
    """Tells the crash point what it executes, a moment before it does."""

    point: CrashPoint

    def assign(self, batch: list[Assignment]) -> None:
        self.point.assigned(batch)
        self._held.extend(batch)
        asyncio.get_running_loop().call_later(ASSIGN_S, self._begin, batch)

    _held: list[Assignment]

    def watch(self, point: CrashPoint) -> None:
        self.point, self._held = point, []

    def _begin(self, batch: list[Assignment]) -> None:
        wanted = [a for a in batch if a in self._held]
        self._held = [a for a in self._held if a not in wanted]
        if wanted:
            super().assign(wanted)

    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None:
        token = (run_id, seq, attempt)
        self._held = [a for a in self._held if (a.run_id, a.seq, a.attempt) != token]
        super().cancel(run_id, seq, attempt)

    @property
    def slots_free(self) -> int:
        return super().slots_free - len(self._held)

    def running(self) -> list[tuple[bytes, int, int]]:
        return [*((a.run_id, a.seq, a.attempt) for a in self._held), *super().running()]

    def is_running(self, run_id: bytes, seq: int, attempt: int) -> bool:
        return (run_id, seq, attempt) in self.running()

    def activate(self, batch: list[Activation]) -> list[Decided]:
        self.point.names.update(a.workflow for a in batch)
        return super().activate(batch)

    def drop_held(self) -> None:
        self._held = []


class MortalPerdure(Perdure):
    """One life. `earlier`: the one before, whose connections it takes over."""

    _worker_type: ClassVar[type[Worker]] = MortalWorker

    def __init__(self, dsn: str, point: CrashPoint, settings: EngineSettings, earlier: MortalPerdure | None) -> None:
        # Each record is written at once: the more commits, the more moments there are to crash in.
        options = msgspec.structs.replace(settings, commit=CommitPolicy(lazy_us=0), notify=False)
        super().__init__(dsn, settings=options, tune_gc=False, tracing=False)
        assert isinstance(self.worker, MortalWorker)
        self.worker.watch(point)
        self._point, self._earlier = point, earlier

    async def _check_schema(self, dsn: str) -> None:
        """The client of the environment did."""

    def _new_store(self, dsn: str) -> PostgresStore:
        earlier, self._earlier = self._earlier, None
        kept = None if earlier is None else earlier.store
        assert kept is None or isinstance(kept, MortalStore)
        return MortalStore(dsn, self._point, kept)

    async def die(self) -> None:
        """End without a word to the database."""
        assert isinstance(self.worker, MortalWorker)
        self._backend.close()
        self.worker.drop_held()
        stopped = self.engine.abandon()
        with suppress(TimeoutError):
            async with asyncio.timeout(DIE_S):
                await asyncio.gather(*stopped, return_exceptions=True)
                await self.worker.close()

    async def disconnect(self) -> None:
        """After the last life."""
        assert isinstance(self.store, MortalStore)
        await self.store.disconnect()
