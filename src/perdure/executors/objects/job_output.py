"""What the work prints: passed through for the platform's own logs, and written to the store for Perdure's."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from perdure.core.limits import LOG_BYTES_PER_ATTEMPT_MAX
from perdure.executors.objects.layout import LOG_OBJECT_BYTES_MAX, LOG_OBJECT_S, LOG_OBJECTS_MAX, log_path
from perdure.executors.objects.store import ObjectStore

PENDING_BYTES_MAX: Final = LOG_BYTES_PER_ATTEMPT_MAX
"""Bytes that wait to be written; more is dropped, because Perdure keeps no more of an attempt."""


class JobOutput:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._pending: list[tuple[str, bytearray]] = []
        """In order: a stream and what it printed."""
        self._size = 0
        """Bytes that were kept so far."""
        self._number = 0
        self._is_done = asyncio.Event()

    def add(self, stream: str, data: bytes) -> None:
        out = sys.stdout if stream == "stdout" else sys.stderr
        out.buffer.write(data)
        out.flush()
        data = data[: max(0, PENDING_BYTES_MAX - self._size)]
        self._size += len(data)
        if not data:
            return
        if self._pending and self._pending[-1][0] == stream and len(self._pending[-1][1]) < LOG_OBJECT_BYTES_MAX:
            self._pending[-1][1].extend(data)
        else:
            self._pending.append((stream, bytearray(data)))

    async def upload(self) -> None:
        """Until `finish`."""
        while not self._is_done.is_set():
            try:
                async with asyncio.timeout(LOG_OBJECT_S):
                    await self._is_done.wait()
            except TimeoutError:
                pass
            try:
                await self.flush()
            except Exception:
                pass  # it is written with what comes next

    def finish(self) -> None:
        """Nothing more is printed."""
        self._is_done.set()

    async def flush(self) -> None:
        """Write what is there. What was not written stays first."""
        while self._pending and self._number < LOG_OBJECTS_MAX:
            stream, data = self._pending[0]
            sent = bytes(data)
            await self._store.put(log_path(self._number + 1, stream), sent)
            self._number += 1
            if len(sent) == len(data):
                self._pending.pop(0)
            else:  # more was printed meanwhile
                del data[: len(sent)]
