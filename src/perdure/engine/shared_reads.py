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
        await asyncio.shield(self.begin(what, read))

    def begin(self, what: Hashable, read: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        """The read that is under way, or a new one. It need not be awaited: one that fails without a caller is repeated by the next."""
        reading = self._asked.get(what)
        if reading is None:
            reading = self._asked[what] = asyncio.ensure_future(read())

            def over(done: asyncio.Future[None]) -> None:
                self._asked.pop(what, None)
                if not done.cancelled():
                    done.exception()  # retrieved, so that asyncio does not log it

            reading.add_done_callback(over)
        return reading
