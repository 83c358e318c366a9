"""Questions to the database that many ask at the same moment, and that are asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any


class Once:
    """Those who need the same at the same time share the answer. When what is known here gets too old, a thousand starts notice together."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, asyncio.Future[None]] = {}

    async def ask(self, what: Hashable, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`read` keeps the answer itself. One of those who wait may be cancelled; the others get theirs."""
        reading = self._asked.get(what)
        if reading is None:
            reading = self._asked[what] = asyncio.ensure_future(read())
            reading.add_done_callback(lambda _: self._asked.pop(what, None))
        await asyncio.shield(reading)
