"""How long tasks take: real time on a worker, or the shifted clock of a database whose past is being made."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure import Perdure

STEP_S = 20.0
"""The clock moves on by no more than this at a time, so that engines keep what they hold."""
TURN_S = 0.012
"""Real time between two steps, for what the last one has set off."""


class Past:
    """Moves a database's clock through the past while runs are at work."""

    def __init__(self, client: Perdure, begin_s: float) -> None:
        self.client = client
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self.behind_s = begin_s
        client.store.shift_clock(-begin_s)

    async def pause(self, seconds: float) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-self.behind_s + seconds, next(self._numbers), done))
        await done

    async def forward(self, to_behind_s: float) -> None:
        """Until the clock is so far behind the real one, stopping wherever an engine or a task has something to do."""
        while self.behind_s > to_behind_s:
            await asyncio.sleep(TURN_S)
            due_s = await self._due_s()
            step = min(STEP_S, self.behind_s - to_behind_s, STEP_S if due_s is None else max(due_s, 0.05))
            if self._waiting:
                step = min(step, max(0.0, self._waiting[0][0] + self.behind_s))
            self._shift(step)

    async def _due_s(self) -> float | None:
        """Seconds until an engine has something to do."""
        engine, store = self.client.engine, self.client.store
        due = await store.next_due(engine.runs.claimable, list(engine.dispatcher.served), flows=True)
        engine.clock.sync(due.clock_us)
        engine.timers.fire()
        for service in (engine.claims, engine.start_deadlines, engine.endings):
            service.wake()
        wakes = [w for w in (engine.next_wake_us(), due.run_at_us, due.task_at_us) if w is not None and w < 1 << 62]
        return (min(wakes) - due.clock_us) / 1e6 if wakes else None

    def jump(self, to_behind_s: float) -> None:
        """At once, over time in which nothing happens."""
        self._shift(max(0.0, self.behind_s - to_behind_s))

    def _shift(self, seconds: float) -> None:
        self.behind_s -= seconds
        self.client.store.shift_clock(-self.behind_s)
        while self._waiting and self._waiting[0][0] <= -self.behind_s + 1e-6:
            done = heapq.heappop(self._waiting)[2]
            if not done.done():
                done.set_result(None)


past: Past | None = None


async def pause(seconds: float) -> None:
    if past is not None:
        await past.pause(seconds)
    else:
        await asyncio.sleep(seconds)
