"""What nobody waits for: output of tasks, what is known of running attempts, which workers are connected.

    worker --> log_chunks() --\\
    flights (dispatch.py) ------> gathered here --> set-based writes every half second (output) or three (the rest)
    hub ----> set_workers() --/

Laws:

1. Nothing here is on the path of a commit, holds it up, or makes it fail. A note that cannot be written costs a counter, not a run.
2. Memory is bounded: while the database is slow the oldest output is dropped, and counted.
3. A note on an attempt is written only where its row is this session's and of the same attempt, so a late note changes nothing.
4. Writing a chunk twice is writing it once: (run, seq, attempt, n) is its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from time import monotonic
from typing import Final, Protocol

import msgspec

from perdure.core import ids
from perdure.core.errors import Unavailable
from perdure.core.outage import Outage
from perdure.core.work import LogChunk, LogLine
from perdure.engine.counters import Counters
from perdure.engine.tasks.dispatch import Flight

log = logging.getLogger("perdure.engine")

LOGS_EVERY_S: Final = 0.5
NOTES_EVERY_S: Final = 3.0
LOG_BYTES_MAX: Final = 32 * 1024 * 1024
"""Output that waits in memory to be written; more than that drops the oldest."""
LOG_BATCH_ROWS: Final = 500
LOG_BATCH_BYTES: Final = 4 * 1024 * 1024
NOTES_BATCH_ROWS: Final = 2_000
CHUNK_OVERHEAD_BYTES: Final = 200
"""What a waiting chunk costs beside its text, roughly."""
CLOSE_S: Final = 2.0
"""How long closing waits for the last notes."""


class LogRow(msgspec.Struct, frozen=True, gc=False):
    """A chunk as it is stored. `body` is a JSON array of [at_us, stream, level, text]."""

    run_id: bytes
    seq: int
    attempt: int
    n: int
    ns: int
    lines: int
    body: bytes

    @property
    def size(self) -> int:
        return len(self.body) + CHUNK_OVERHEAD_BYTES


class TaskNote(msgspec.Struct, frozen=True, gc=False):
    """What is known of an attempt that has a row in task_queue."""

    id: bytes
    attempt: int
    worker: str
    started_us: int
    beat_us: int
    details: bytes
    blocked: str


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A connected worker, as people see it."""

    id: bytes
    ns: int
    name: str
    host: str
    pid: int
    sdk: str
    queues: list[str]
    tasks: list[str]
    workflows: list[str]
    slots: int
    slots_used: int
    runs_held: int
    draining: bool
    connected_us: int
    seen_us: int
    blocked: str = ""


class NoteStore(Protocol):
    async def write_logs(self, rows: list[LogRow]) -> None: ...
    async def write_task_notes(self, session: int, notes: list[TaskNote]) -> set[bytes]:
        """The ids of those that found their row."""
        ...

    async def write_workers(self, session: int, rows: list[WorkerRow]) -> None:
        """These are all of the session's workers; rows of others go."""
        ...


class Notes:
    def __init__(self, store: NoteStore) -> None:
        self._store = store
        self._logs: deque[LogRow] = deque()
        self._log_bytes = 0
        self._counters = Counters()
        self._output = Outage("writing task output", log, monotonic)
        self._progress = Outage("writing the progress of attempts", log, monotonic)
        self._workers_written = Outage("writing the list of workers", log, monotonic)
        self._session: Callable[[], int] = lambda: 0
        self._flights: Callable[[], Iterable[Flight]] = lambda: ()
        self._worker_of: Callable[[bytes, int], str] = lambda run_id, seq: ""
        self.workers: list[WorkerRow] = []
        """The workers of this engine, as the hub last told."""
        self._workers_due = self._served_due = False
        self._workers_of = 0
        """Under which session they were last written."""

    def attach(
        self,
        counters: Counters,
        session: Callable[[], int],
        flights: Callable[[], Iterable[Flight]],
        worker_of: Callable[[bytes, int], str],
    ) -> None:
        """Called by the engine before it opens."""
        self._counters, self._session, self._flights, self._worker_of = counters, session, flights, worker_of

    # -- intake -----------------------------------------------------------------------------------------------------

    def log_chunks(self, chunks: list[LogChunk]) -> None:
        for c in chunks:
            row = LogRow(c.run_id, c.seq, c.attempt, c.n, c.ns, len(c.lines), encode_lines(c.lines))
            self._logs.append(row)
            self._log_bytes += row.size
        while self._log_bytes > LOG_BYTES_MAX and self._logs:
            self._log_bytes -= self._logs.popleft().size
            self._counters.log_chunks_dropped += 1

    def set_workers(self, rows: list[WorkerRow]) -> None:
        """All workers that are connected now. Told again whenever that changes, and every few seconds for their load."""
        # Whether a run's code is connected anywhere is decided by these rows (sql/endings.sql), so that must not wait for the next round.
        self._served_due |= _served(rows) != _served(self.workers)
        self.workers = rows
        self._workers_due = True

    @property
    def waiting(self) -> int:
        """Chunks of output that are not written yet."""
        return len(self._logs)

    # -- writing ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write for ever. Trouble with the database is waited out; it never reaches the engine."""
        elapsed_s = NOTES_EVERY_S  # the first round writes everything
        while True:
            await self.write_logs()
            if elapsed_s >= NOTES_EVERY_S:
                elapsed_s = 0.0
                await self.write_rest()
            elif self._served_due and self._session():
                await self._quietly(self._write_workers, self._workers_written)
            await asyncio.sleep(LOGS_EVERY_S)
            elapsed_s += LOGS_EVERY_S

    async def close(self) -> None:
        """The engine leaves: the last output is written, its workers are nobody's any more."""
        self.set_workers([])
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.write_logs()
                await self.write_rest()
        except TimeoutError:
            log.warning("%d chunks of task output were not written before the engine closed", len(self._logs))

    async def write_logs(self) -> bool:
        """Everything that waits, batch by batch. False: the database is away, and what was taken waits again."""
        while batch := self._take_logs():
            if not await self._write_logs(batch):
                return False
        return True

    def _take_logs(self) -> list[LogRow]:
        batch: list[LogRow] = []
        size = 0
        while self._logs and len(batch) < LOG_BATCH_ROWS and size < LOG_BATCH_BYTES:
            row = self._logs.popleft()
            size += row.size
            batch.append(row)
        self._log_bytes -= size
        return batch

    async def _write_logs(self, batch: list[LogRow]) -> bool:
        """A batch that the database refuses is split until the chunk at fault stands alone; that one is dropped."""
        try:
            await self._store.write_logs(batch)
        except Unavailable as e:
            self._counters.note_failures += 1
            self._output.failed(e)
            self._put_back(batch)
            return False
        except asyncio.CancelledError:
            self._put_back(batch)
            raise
        except Exception as e:
            self._counters.note_failures += 1
            if len(batch) == 1:
                log.warning("a chunk of task output was dropped, the database refuses it: %s", e)
                self._counters.log_chunks_dropped += 1
                return True
            middle = len(batch) // 2
            if not await self._write_logs(batch[:middle]):
                self._put_back(batch[middle:], behind=middle)
                return False
            return await self._write_logs(batch[middle:])
        self._output.over()
        self._counters.log_chunks += len(batch)
        return True

    def _put_back(self, batch: list[LogRow], behind: int = 0) -> None:
        """Where they were. They are the oldest: should there be too much now, they are the first to go."""
        first = list(islice(self._logs, behind))
        for _ in first:
            self._logs.popleft()
        self._logs.extendleft(reversed([*first, *batch]))
        self._log_bytes += sum(row.size for row in batch)

    async def write_rest(self) -> None:
        """Notes on attempts and workers. What failed is simply due again in the next round."""
        if not self._session():
            return
        await self._quietly(self._write_task_notes, self._progress)
        await self._quietly(self._write_workers, self._workers_written)

    async def _quietly(self, write: Callable[[], Awaitable[None]], outage: Outage) -> None:
        try:
            await write()
            outage.over()
        except Exception as e:
            self._counters.note_failures += 1
            outage.failed(e)

    async def _write_task_notes(self) -> None:
        due = list(islice((f for f in self._flights() if f.row and not f.noted), NOTES_BATCH_ROWS))
        if not due:
            return
        by_id = {ids.derive(f.assignment.run_id, ids.TASK, f.assignment.seq): f for f in due}
        notes = [self._note(task_id, f) for task_id, f in by_id.items()]
        for f in due:
            f.noted = True  # before the write: what changes during it is due again
        found: set[bytes] = set()
        try:
            found = await self._store.write_task_notes(self._session(), notes)
        finally:
            for task_id, f in by_id.items():
                if task_id not in found:  # its row is not committed yet, or this write failed
                    f.noted = False

    def _note(self, task_id: bytes, f: Flight) -> TaskNote:
        a = f.assignment
        worker = f.worker or self._worker_of(a.run_id, a.seq)
        return TaskNote(task_id, a.attempt, worker, f.sent_us, f.beat_us, f.details, f.blocked)

    async def _write_workers(self) -> None:
        session = self._session()
        if not self._workers_due and (session == self._workers_of or not self.workers):
            return
        self._workers_due = self._served_due = False
        try:
            await self._store.write_workers(session, self.workers)
            self._workers_of = session
        except BaseException:
            self._workers_due = self._served_due = True
            raise


def _served(rows: list[WorkerRow]) -> set[tuple[bytes, str]]:
    return {(row.id, workflow) for row in rows for workflow in row.workflows}


def encode_lines(lines: list[LogLine]) -> bytes:
    """What a task prints may hold anything, even halves of characters; those become question marks."""
    try:
        return msgspec.json.encode(lines)
    except UnicodeEncodeError:
        return msgspec.json.encode([LogLine(x.at_us, x.stream, x.level, _clean(x.text)) for x in lines])


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
