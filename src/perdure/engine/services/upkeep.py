"""Upkeep that no run waits for: partitions ahead, partitions too old, mail that nobody can read."""

from __future__ import annotations

import asyncio
import logging
import random

from perdure.engine.ports import Store

log = logging.getLogger("perdure.engine")

SWEEP_S = 10.0
PARTITIONS_S = 3600.0


class Maintenance:
    def __init__(self, store: Store, retention_days: float | None, ahead_days: int) -> None:
        self._store, self._retention_days, self._ahead_days = store, retention_days, ahead_days

    async def prepare(self) -> None:
        """Before the first write: today's partitions and some ahead."""
        await self._store.create_partitions(self._ahead_days)

    async def run(self) -> None:
        elapsed = 0.0
        while True:
            pause = SWEEP_S * random.uniform(0.8, 1.2)
            await asyncio.sleep(pause)
            await self._store.sweep()
            elapsed += pause
            if elapsed >= PARTITIONS_S:
                elapsed = 0.0
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
