"""Upkeep that no run waits for: partitions ahead, messages that no run can read, content that no run uses, counters
that can be merged."""

from __future__ import annotations

from time import monotonic
from typing import Final

from perdure.core.limits import PAYLOAD_SWEEP_MAX
from perdure.engine.context import EngineContext
from perdure.engine.payloads import Payloads
from perdure.engine.services.service import Service

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
        self._ahead_days = context.settings.partitions_ahead_days
        self._first = True
        self._partitions_at_s = monotonic() + PARTITIONS_S
        self._payloads_at_s = monotonic() + PAYLOADS_S
        self._counts_at_s = monotonic() + COUNTS_S

    async def prepare(self) -> None:
        """Today's partitions and some ahead: before the first write, and every hour."""
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
            await self.prepare()
