"""Statements that a server leaves without an answer, because it is halted or cut off and another one has taken its place.

Such a server closes no connection: a statement would wait for its time limit, a minute, although the cluster failed over long ago. So while
a statement has been waiting for STALLED_S, a new connection is made now and then. If another server answers it than the one that is waited
for, every connection to that one is ended, and what waited is repeated as after any other lost connection. A statement that is merely slow,
waits for a lock or for a standby is left alone: a new connection finds the same server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from perdure.store import pooling

log = logging.getLogger("perdure.store")

STALLED_S: Final = 5.0
AGAIN_S: Final = 1.0
"""Between two looks while a statement goes on waiting."""


class Stalls:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._waiting: dict[object, asyncio.TimerHandle] = {}
        self._look: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self) -> Generator[None]:
        """While a connection is used."""
        key = object()
        self._waiting[key] = asyncio.get_running_loop().call_later(STALLED_S, self._stalled, key)
        try:
            yield
        finally:
            self._waiting.pop(key).cancel()

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def _stalled(self, key: object) -> None:
        self._waiting[key] = asyncio.get_running_loop().call_later(AGAIN_S, self._stalled, key)
        if self._look is None or self._look.done():
            self._look = asyncio.create_task(self._find_successor(), name="perdure-stalled")

    async def _find_successor(self) -> None:
        try:
            fresh: Any = await pooling.dial(self._dsn, {})
        except Exception as e:
            log.debug("a statement waits for the database, and a new connection fails: %s", e or type(e).__name__)
            return
        fresh.terminate()
        if cut := pooling.cut_others(self._dsn, fresh.server):
            log.warning("another server has taken over from the one that does not answer; connections ended: %d", cut)
