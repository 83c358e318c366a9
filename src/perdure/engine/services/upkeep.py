"""Upkeep that no run waits for: partitions ahead, partitions too old, messages that no run can read, content that no run uses, counters
that can be merged."""

from __future__ import annotations

import logging
from time import monotonic
from typing import Final

from perdure.core.limits import PAYLOAD_SWEEP_MAX
from perdure.engine.context import EngineContext
from perdure.engine.payloads import Payloads
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

PARTITIONS_S: Final = 3600.0
PAYLOADS_S: Final = 60.0
"""Seconds between two sweeps of stored content."""
COUNTS_S: Final = 60.0
"""Seconds between two merges of the counters of ended runs."""


class Upkeep(Service):
    name = "upkeep of the database"
    poll_s = 10.0

    def __init__(self, context: EngineContext, payloads: Payloads) -> None:
        super().__init__()
        self._store, self._payloads = context.store, payloads
        self._retention_days, self._ahead_days = context.settings.retention_days, context.settings.partitions_ahead_days
        self._first = True
        self._partitions_at_s = monotonic() + PARTITIONS_S
        self._payloads_at_s = monotonic() + PAYLOADS_S
        self._counts_at_s = monotonic() + COUNTS_S

    async def prepare(self) -> None:
        """Before the first write: today's partitions and some ahead."""
        await self._store.create_partitions(self._ahead_days)

    async def poll_once(self) -> None:
        if self._first:  # nothing is urgent while an engine opens
            self._first = False
            return
        await self._store.sweep()
        if monotonic() >= self._payloads_at_s:
            self._payloads_at_s = monotonic() + PAYLOADS_S
            await self._payloads.sweep(PAYLOAD_SWEEP_MAX)
        if monotonic() >= self._counts_at_s:
            self._counts_at_s = monotonic() + COUNTS_S
            await self._store.merge_counts()
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
