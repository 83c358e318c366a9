"""How long the event loop does not turn, measured from a thread beside it.

While the loop runs one callback nothing else happens: no heartbeat, no answer, no commit. The thread asks it for a sign of life ten times a
second, notes how long that took, and while it takes very long logs the stack that holds the loop: once per stall, and not more often than
every LOG_EVERY_S.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from time import monotonic
from typing import Final

from perdure.core.limits import BLOCKED_STACK_CHARS_MAX
from perdure.engine.counters import Counters

log = logging.getLogger("perdure.engine")

ASK_EVERY_S: Final = 0.1
LOG_AFTER_S: Final = 0.5
LOG_EVERY_S: Final = 10.0


class StallWatch:
    """Begin and end it on the loop that it is to watch."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._asked: float | None = None
        self._logged = False
        self._logged_at = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="perdure-stalls", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        try:
            while not self._stop.wait(ASK_EVERY_S):
                self.look(monotonic())
        except RuntimeError as e:  # the loop is closed
            log.debug("stalls are not watched any more: %s", e)

    def look(self, now_s: float) -> None:
        asked = self._asked
        if asked is None:
            self._asked = now_s
            self._logged = False
            self._loop.call_soon_threadsafe(self._answer)
        elif now_s - asked >= LOG_AFTER_S and not self._logged and now_s - self._logged_at >= LOG_EVERY_S:
            self._logged, self._logged_at = True, now_s
            log.warning("the event loop has not turned for %.1f s; it is at\n%s", now_s - asked, self._stack())

    def _answer(self) -> None:
        if self._asked is not None:
            us = max(0, int((monotonic() - self._asked) * 1e6))
            self._asked = None
            self._counters.measures.loop_stall_us.add(us)
            if us > self._counters.loop_stall_us_max:
                self._counters.loop_stall_us_max = us

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        return "".join(traceback.format_stack(frame))[-BLOCKED_STACK_CHARS_MAX:] if frame is not None else ""
