"""Upkeep that no run waits for: partitions ahead, partitions too old, messages that no run can read."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

from perdure.engine.context import EngineContext
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

PARTITIONS_S: Final = 3600.0


class Upkeep(Service):
    name = "upkeep of the database"
    poll_s = 10.0

    def __init__(self, context: EngineContext) -> None:
        super().__init__()
        self._store = context.store
        self._retention_days, self._ahead_days = context.settings.retention_days, context.settings.partitions_ahead_days
        self._first = True
        self._partitions_at_s = monotonic() + PARTITIONS_S

    async def prepare(self) -> None:
        """Before the first write: today's partitions and some ahead."""
        await self._store.create_partitions(self._ahead_days)

    async def poll_once(self) -> None:
        if self._first:  # nothing is urgent while an engine opens
            self._first = False
            return
        await self._store.sweep()
        if monotonic() >= self._partitions_at_s:
            self._partitions_at_s = monotonic() + PARTITIONS_S
            await self.partitions()

    async def partitions(self) -> int:
        """Create what will be needed, drop what is too old; rows of active runs are carried forward first."""
        await self._store.create_partitions(self._ahead_days)
        if self._retention_days is None:
            return 0
        dropped = await self._store.drop_partitions(self._retention_days)
        if dropped:
            log.info("dropped %d partitions older than %g days", dropped, self._retention_days)
        return dropped
