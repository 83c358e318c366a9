"""Notifications between engines, after writes that concern another engine. Never needed for correctness."""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.engine.context import EngineContext

GATHER_S: Final = 0.005


class Notifications:
    def __init__(self, context: EngineContext) -> None:
        self._store, self._session, self._counters = context.store, context.session, context.counters
        self._enabled = context.settings.notify
        self._due: set[str] = set()

    def send(self, topic: str) -> None:
        """Wake other engines, at most once in a few milliseconds, outside any transaction, and only when there are others."""
        if not self._session.others or not self._enabled:
            return
        if not self._due:
            asyncio.get_running_loop().call_later(GATHER_S, self._send)
        self._due.add(topic)

    def _send(self) -> None:
        topics, self._due = self._due, set()
        self._counters.notifications += 1
        task = asyncio.get_running_loop().create_task(self._store.notify(",".join(sorted(topics))))
        task.add_done_callback(lambda t: t.cancelled() or t.exception())
