"""Reads of the database that concurrent callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any


class SharedReads:
    """Concurrent callers share one read: when a cache entry expires, a thousand starts notice together."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, asyncio.Future[None]] = {}

    async def ask(self, what: Hashable, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`read` stores the result itself. A cancelled caller does not cancel the read for the others."""
        reading = self._asked.get(what)
        if reading is None:
            reading = self._asked[what] = asyncio.ensure_future(read())
            reading.add_done_callback(lambda _: self._asked.pop(what, None))
        await asyncio.shield(reading)
