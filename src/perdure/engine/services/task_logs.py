"""Output of tasks on its way to the database.

Laws:

1. Nothing here is on the path of a commit, holds it up, or makes it fail. A chunk that cannot be written costs a counter, not a run.
2. Memory is bounded: while the database is slow the oldest output is dropped, and counted.
3. Writing a chunk twice is writing it once: (run, seq, attempt, n) is its key.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from time import monotonic
from typing import Final, Protocol

import msgspec

from perdure.core.errors import Unavailable
from perdure.core.outage import Outage
from perdure.core.work import LogChunk, LogLine
from perdure.engine.counters import Counters
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

LOG_BYTES_MAX: Final = 32 * 1024 * 1024
"""Output that waits in memory to be written; more than that drops the oldest."""
LOG_BATCH_ROWS: Final = 500
LOG_BATCH_BYTES: Final = 4 * 1024 * 1024
CHUNK_OVERHEAD_BYTES: Final = 200
"""What a waiting chunk costs beside its text, roughly."""
CLOSE_S: Final = 2.0
"""How long closing waits for the last output."""


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


class TaskLogStore(Protocol):
    async def write_logs(self, rows: list[LogRow]) -> None: ...


class TaskLogs(Service):
    name = "writing task output"
    poll_s = 0.5

    def __init__(self, counters: Counters, store: TaskLogStore) -> None:
        super().__init__()
        self._store, self._counters = store, counters
        self._chunks: deque[LogRow] = deque()
        self._bytes = 0
        self._outage = Outage(self.name, log, monotonic)

    def add(self, chunks: list[LogChunk]) -> None:
        for c in chunks:
            row = LogRow(c.run_id, c.seq, c.attempt, c.n, c.ns, len(c.lines), encode_lines(c.lines))
            self._chunks.append(row)
            self._bytes += row.size
        while self._bytes > LOG_BYTES_MAX and self._chunks:
            self._bytes -= self._chunks.popleft().size
            self._counters.log_chunks_dropped += 1

    @property
    def waiting(self) -> int:
        """Chunks that are not written yet."""
        return len(self._chunks)

    async def poll_once(self) -> None:
        await self.write()

    async def close(self) -> None:
        """The engine leaves: the last output is written."""
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.write()
        except TimeoutError:
            pass
        if self._chunks:
            log.warning("%d chunks of task output were not written before the engine closed", len(self._chunks))

    async def write(self) -> bool:
        """Everything that waits, batch by batch. False: the database is away, and what was taken waits again."""
        while batch := self._take():
            if not await self._write(batch):
                return False
        return True

    def _take(self) -> list[LogRow]:
        batch: list[LogRow] = []
        size = 0
        while self._chunks and len(batch) < LOG_BATCH_ROWS and size < LOG_BATCH_BYTES:
            row = self._chunks.popleft()
            size += row.size
            batch.append(row)
        self._bytes -= size
        return batch

    async def _write(self, batch: list[LogRow]) -> bool:
        """A batch that the database refuses is split until the chunk at fault stands alone; that one is dropped."""
        try:
            await self._store.write_logs(batch)
        except Unavailable as e:
            self._counters.telemetry_write_failures += 1
            self._outage.failed(e)
            self._put_back(batch)
            return False
        except asyncio.CancelledError:
            self._put_back(batch)
            raise
        except Exception as e:
            self._counters.telemetry_write_failures += 1
            if len(batch) == 1:
                log.warning("a chunk of task output was dropped, the database refuses it: %s", e)
                self._counters.log_chunks_dropped += 1
                return True
            middle = len(batch) // 2
            if not await self._write(batch[:middle]):
                self._put_back(batch[middle:], behind=middle)
                return False
            return await self._write(batch[middle:])
        self._outage.over()
        self._counters.log_chunks += len(batch)
        return True

    def _put_back(self, batch: list[LogRow], behind: int = 0) -> None:
        """Where they were. They are the oldest: should there be too much now, they are the first to go."""
        first = list(islice(self._chunks, behind))
        for _ in first:
            self._chunks.popleft()
        self._chunks.extendleft(reversed([*first, *batch]))
        self._bytes += sum(row.size for row in batch)


def encode_lines(lines: list[LogLine]) -> bytes:
    """What a task prints may hold anything, even halves of characters; those become question marks."""
    try:
        return msgspec.json.encode(lines)
    except UnicodeEncodeError:
        return msgspec.json.encode([LogLine(x.at_us, x.stream, x.level, _clean(x.text)) for x in lines])


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
