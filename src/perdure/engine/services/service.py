"""One loop of an engine that asks the database for something to do.

    poll_once --> pause until the next thing is due, or about `poll_s` --> poll_once ...
                    ^-- wake(), wake_in(): a local act, a notification, a moment that became known

Laws:

1. Nothing depends on being woken: without it a service finds everything within about `poll_s`, with jitter, so that many engines do not
   ask in step.
2. Being woken during a poll means another poll, because what it was about may have been committed after the question.
3. A service that fails is tried again with growing pauses; an outage is logged once, and once when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine
from time import monotonic
from typing import Any, Final

from perdure.core.errors import Unavailable
from perdure.core.limits import OUTAGE_OVER_S
from perdure.core.outage import Outage

log = logging.getLogger("perdure.engine")

FIRST_PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 5.0
"""Before a service that keeps failing is tried again."""
STEADY_S: Final = 5.0
"""A loop that ran for this long before it failed begins with the first pause again."""
CANCEL_AGAIN_S: Final = 5.0
"""Before a task that has not ended is cancelled again; longer than what a service does at its end."""
TIMER_SLACK_S: Final = 0.002
"""After a moment by our clock, so that it has come by the database's."""


class Service:
    name: str
    """What it does, for logs: "delivering named events"."""
    poll_s: float
    failed_pause_s_max: float = PAUSE_S_MAX

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("-inf")
        self.polling = True
        """It is at work, or has not polled yet: what it holds is not known elsewhere."""

    def wake(self) -> None:
        """Poll at once."""
        self._woken.set()

    def wake_in(self, delay_us: int) -> None:
        """Poll when this much time has passed; the earliest moment counts."""
        if delay_us <= 0:
            self._woken.set()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + delay_us / 1e6 + TIMER_SLACK_S
        if self._timer is None or self._timer.cancelled() or at < self._timer_at or self._timer_at <= loop.time():
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = at
            self._timer = loop.call_at(at, self._woken.set)

    @property
    def is_woken(self) -> bool:
        return self._woken.is_set()

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def poll_once(self) -> float | None:
        """Do what is to be done. Answers in how many seconds something is due, if that is known and sooner than the next poll."""
        raise NotImplementedError

    async def run(self) -> None:
        """Poll for ever."""
        while True:
            self._woken.clear()
            self.polling = True
            try:
                pause_s = await self.poll_once()
            finally:
                self.polling = False
            await self._pause(pause_s)

    async def _pause(self, pause_s: float | None) -> None:
        poll_s = self.poll_s * random.uniform(0.75, 1.25)
        try:
            async with asyncio.timeout(poll_s if pause_s is None else min(max(pause_s, 0.0), poll_s)):
                await self._woken.wait()
        except TimeoutError:
            pass


Body = Callable[[], Coroutine[Any, Any, None]]
Recover = Callable[[Exception], Awaitable[bool]]
"""Answers whether it dealt with the error; if not, it is an outage."""


async def keep_running(
    name: str, body: Body, recover: Recover | None = None, *, pause_s_max: float = PAUSE_S_MAX
) -> None:
    """Run a loop again whenever it fails, until it returns by itself."""
    pause_s, outage = FIRST_PAUSE_S, Outage(name, log, monotonic)
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        steady = loop.call_later(OUTAGE_OVER_S, outage.over)
        try:
            await body()
            return
        except Exception as e:
            if is_cancelled():
                # A driver may answer a cancellation by an error of its own, as of a rollback on a connection that was cut.
                raise asyncio.CancelledError from e
            if recover is None or not await recover(e):
                outage.failed(e, unexpected=not isinstance(e, Unavailable))
        finally:
            steady.cancel()
        if loop.time() - began > STEADY_S:
            pause_s = FIRST_PAUSE_S
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, pause_s_max)


def is_cancelled() -> bool:
    """Whether the current task was asked to end, also if an error has taken the place of the request."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def ended(tasks: Collection[asyncio.Task[None]], again_s: float = CANCEL_AGAIN_S) -> None:
    """Cancel tasks until all have ended: one that loses its cancellation would go on for ever, and be waited for as long."""
    while left := [task for task in tasks if not task.done()]:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=again_s)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they ended with has been seen
