"""Clients that start and signal runs, and repeat each request until it is acknowledged.

An acknowledgement is written to a file and fsynced before the client goes on, so the files say exactly what may not be lost. Since every
client repeats under the key of the request until it has an answer, the database holds as many runs as starts were acknowledged: fewer are
lost, more are duplicates.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perdure import Client
from perdure.core.errors import PerdureError, RunFinished
from perdure.testing.ledger import Signals, Starts
from tests.fakes.waiting import busy

MODULE, NAME = "harness.audited", "audited"
CALL_S = 20.0


@dataclass(frozen=True)
class Start:
    """When the first request for it began, when it was acknowledged, and the run."""

    began: float
    at: float
    run_id: str
    key: str


@dataclass
class Load:
    """`clients` at a time, each of which starts runs one after the other and signals them."""

    addresses: list[str]
    directory: Path
    clients: int = 6
    pause_s: float = 0.1
    name: str = "load"
    acknowledged: list[Start] = field(default_factory=list)
    signalled: int = 0
    refused: int = 0
    _over: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Leaving it waits until every request that was begun is acknowledged."""
        self._starts, self._signals = Starts(self.directory / "starts.jsonl"), Signals(self.directory / "signals.jsonl")
        # Its ledger is where PERDURE_TEST_LEDGER says now, which differs from test to test.
        for module in (MODULE, "harness.flows"):
            sys.modules.pop(module, None)
        from harness import audited

        self._audited: Any = audited
        self._over.clear()
        async with Client(",".join(self.addresses), call_timeout=CALL_S), asyncio.TaskGroup() as group:
            for client in range(self.clients):
                group.create_task(self._one(client))
            try:
                yield self
            finally:
                self._over.set()

    async def _one(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            key = f"{self.name}-{client}-{number}"
            number += 1
            began = time.monotonic()
            run_id = await self._started(key)
            self._starts.acknowledged(run_id)
            self.acknowledged.append(Start(began, time.monotonic(), run_id, key))
            await self.signal(run_id, key)
            await busy(self.pause_s)

    async def signal(self, run_id: str, key: str) -> None:
        """What a run waits for; what it has heard already is dropped."""
        for n in range(self._audited.WORDS):
            await self._sent(run_id, f"{key}-{n}")
            self._signals.acknowledged(run_id, self._audited.word.name, f"{key}-{n}")
            self.signalled += 1

    async def _started(self, key: str) -> str:
        while True:
            try:
                async with asyncio.timeout(CALL_S + 5):
                    return (await self._audited.audited.options(key=key, on_conflict="attach").start(len(key))).id
            except (PerdureError, TimeoutError):
                await self._again()

    async def _sent(self, run_id: str, text: str) -> None:
        while True:
            try:
                async with asyncio.timeout(CALL_S + 5):
                    await self._audited.word.send(run_id, text, key=text)
                    return
            except RunFinished:  # it has heard all its signals
                return
            except (PerdureError, TimeoutError):
                await self._again()

    async def _again(self) -> None:
        self.refused += 1
        await busy(0.1)

    def acknowledged_since(self, moment: float) -> int:
        return sum(start.at > moment for start in self.acknowledged)

    def longest_gap_s(self, since: float, until: float) -> float:
        """The longest time without an acknowledged start, from the last one before `since`."""
        before = [start.at for start in self.acknowledged if start.at <= since]
        inside = [start.at for start in self.acknowledged if since < start.at <= until]
        moments = [*before[-1:], *inside, until]
        return max(b - a for a, b in zip(moments, moments[1:], strict=False))
