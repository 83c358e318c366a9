"""Time that skips: the clock of one client is set forward, from one thing that waits for it to the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from perdure.app.embedded import Perdure
from perdure.core.durations import FOREVER_US, Duration, datetime_of, to_us
from perdure.core.errors import PerdureError

SETTLE_S = 30.0
"""How long the environment waits for running tasks before it says which ones keep time from moving."""
INPUT_S = 5.0
"""How long `run` waits, in real time, for input that another part of the test may be about to send."""
GROUP_JUMPS_MAX = 100


class Clockwork:
    """Shifts the database clock of the client's own connections."""

    def __init__(self, client: Perdure) -> None:
        self._client = client
        self._syncing = asyncio.Lock()

    async def skip_until(
        self, result: asyncio.Future[Any], name: str, may_skip: Callable[[], bool] = lambda: True
    ) -> None:
        """Skip every wait until the result of a run of the workflow `name` is there; while `may_skip`."""
        waited_s = 0.0
        while not result.done():
            await self.settle(result.done)
            wake = await self._next_wake_us() if may_skip() else None
            if wake is not None and not result.done():
                await self._jump(min(wake, await self._next_fire_us() or wake))
                waited_s = 0.0
            await asyncio.wait([result], timeout=0.01)
            waited_s = waited_s + 0.01 if may_skip() else 0.0
            if waited_s > INPUT_S:
                raise PerdureError(
                    f"{name} waits for a signal, a promise or a run elsewhere and nothing came for {INPUT_S:g} s; "
                    "use env.start(), send what it waits for, then await handle.result()"
                )

    @property
    def now(self) -> datetime:
        """The environment's time."""
        return datetime_of(self._client.engine.clock.now_us())

    async def advance(self, d: Duration) -> None:
        """Let time pass. Timers on the way fire in order, each followed by everything it sets off."""
        await self.advance_to(self._client.engine.clock.now_us() + to_us(d))

    async def advance_to(self, target: int) -> None:
        """The same to a moment, in Unix microseconds."""
        await self.settle()
        while (wake := await self._next_us()) is not None and wake <= target:
            await self._jump(wake)
        await self._jump(target)

    async def close_groups(self) -> None:
        """Let time pass until no flow-control group is due: one without tasks is found out by the engine that looks at it then."""
        for _ in range(GROUP_JUMPS_MAX):
            due = await self._client.store.next_due([], [], flows=True)
            moments = [m for m in (due.task_group_at_us, due.run_group_at_us) if m is not None and m < FOREVER_US]
            if not moments:
                return
            await self._jump(min(moments))

    async def _jump(self, to_us_: int) -> None:
        """Set the clock forward; it never goes back."""
        await self._sync(to_us_)
        self._client.engine.timers.fire()
        await self.settle()

    async def _sync(self, to_us_: int = 0) -> None:
        """Read the time. One at a time: an answer from before a jump would set the clock of the engine back."""
        store, clock = self._client.store, self._client.engine.clock
        async with self._syncing:
            behind_us = to_us_ - clock.now_us()
            if behind_us > 0:
                store.shift_clock(store.clock_offset_s + behind_us / 1e6)
            clock.sync((await store.next_due([], [], flows=True)).clock_us)

    async def _next_wake_us(self) -> int | None:
        engine = self._client.engine
        due = await self._client.store.next_due(engine.runs.claimable, list(engine.dispatcher.served), flows=True)
        begin_us = await self._next_start_us()
        moments = (engine.next_wake_us(), due.run_at_us, due.task_at_us, begin_us)
        wakes = [w for w in moments if w is not None and w < 1 << 62]
        return min(wakes, default=None)

    async def _next_us(self) -> int | None:
        """When anything happens next: a run wakes, or a schedule fires."""
        moments = (await self._next_wake_us(), await self._next_fire_us())
        return min((m for m in moments if m is not None), default=None)

    async def _next_fire_us(self) -> int | None:
        return (await self._client.engine.scheduler.store.next_fire()).fire_us

    async def _next_start_us(self) -> int | None:
        """When the next deferred start begins."""
        return (await self._client.engine.deferred_starts.next_due())[1]

    async def settle(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Wait until only time or a message can change anything, or until `is_over`."""
        try:
            async with asyncio.timeout(SETTLE_S):
                await self._until_quiet(is_over)
        except TimeoutError:
            running = {f.name for f in self._client.engine.attempts.flights.values()}
            raise PerdureError(
                f"time cannot move: after {SETTLE_S:g} s there is still work to do. Running tasks: {', '.join(sorted(running)) or 'none'}; "
                "mock tasks that take long"
            ) from None

    async def _until_quiet(self, is_over: Callable[[], bool]) -> None:
        engine = self._client.engine
        while not is_over():
            await self._sync()
            engine.timers.fire()
            # Asked twice: a run may have been claimed and brought here while the database was asked.
            if self._is_quiet and not await self._anything_due() and self._is_quiet:
                return
            for service in (engine.claims, engine.start_deadlines, engine.endings):
                service.wake()
            await asyncio.sleep(0.002)

    @property
    def _is_quiet(self) -> bool:
        engine = self._client.engine
        return engine.is_quiet and not (engine.named_events.polling or engine.named_events.is_woken)

    async def _anything_due(self) -> bool:
        engine = self._client.engine
        due = await self._client.store.next_due(engine.runs.claimable, list(engine.dispatcher.served), flows=True)
        fire_us = await self._next_fire_us()
        if fire_us is not None and fire_us <= due.clock_us:
            engine.scheduler.wake()
        begin_us = await self._next_start_us()
        if engine.deferred_starts.is_busy or (begin_us or due.clock_us + 1) <= due.clock_us:
            engine.deferred_starts.wake()
            return True
        moments = (
            due.run_at_us,
            due.task_at_us,
            due.task_group_at_us,
            due.run_group_at_us,
            engine.next_wake_us(),
            fire_us,
        )
        return due.has_messages or any(m is not None and m <= due.clock_us for m in moments)
