"""A bound on how long workflow code may compute without giving the worker a turn.

Everything of a worker shares one thread: tasks, heartbeats, the code of all its runs. Code that never awaits holds all of it. Another thread
looks on. When one stretch of workflow code has taken WORKFLOW_STRETCH_S_MAX of CPU time, `Overrun` is raised inside it, where it stands. That is no
Exception, so `except Exception` lets it pass; code that swallows it gets it again. Code that survives OVERRUN_TRIES of them (a bare
`except:` in a loop, or C code that does not return) cannot be stopped: `unstoppable` is called, from the thread.

Laws:

1. `Overrun` is only ever raised between `enter` and `leave`, and `leave` takes back one that has not arrived. They run twice per activation, so they take the
   lock only when it matters: the thread says that it is about to raise (`_raising`) before it looks again whether the stretch goes on, and `leave` ends the
   stretch before it looks whether the thread says so. One of them sees the other.
2. Whether it arrived is not asked: a stretch in which it was raised is over, even if the code swallowed it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from perdure.core.limits import OVERRUN_TRIES, WORKFLOW_STRETCH_S_MAX
from perdure.sdk.worker.async_exceptions import raise_in, take_back
from perdure.sdk.worker.watchdog import stack_of

log = logging.getLogger("perdure.worker")

LOOK_S: Final = 0.25


class Overrun(BaseException):
    """Raised into workflow code that has computed for too long."""


class StretchBound:
    """Bounds the thread that enters it, always the same one."""

    def __init__(self, unstoppable: Callable[[bytes, str], None], limit_s: float = WORKFLOW_STRETCH_S_MAX) -> None:
        self._unstoppable, self._limit_s = unstoppable, limit_s
        self._thread_id = 0
        self._spent_s: Callable[[], float] = time.monotonic
        self._lock = threading.Lock()
        self._run: bytes | None = None
        """Whose code is running."""
        self._number = 0
        self._raising = False
        """The thread is about to raise."""
        self._raised = 0
        self._stack = ""
        self._seen = (0, 0.0)
        """The stretch that was running at the last look, and the clock when it was first seen."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def enter(self, run_id: bytes) -> None:
        if self._thread is None:
            self._thread_id = threading.get_ident()
            self._spent_s = _cpu_clock(self._thread_id)
            self._thread = threading.Thread(target=self._watch, name="perdure-overrun", daemon=True)
            self._thread.start()
        if self._raised:
            self._raised, self._stack = 0, ""
        self._number += 1  # first: a run must never be seen with the number of the stretch before
        self._run = run_id

    def leave(self) -> str:
        """In the thread that entered: the stack at which the code was stopped, or nothing. May be called again."""
        self._run = None
        if not self._raising and not self._raised:
            return ""
        with self._lock:
            if self._raised:
                take_back()
            return self._stack

    def stop(self) -> None:
        self._stop.set()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        number, run = self._number, self._run
        if run is None:
            return
        now_s = self._spent_s()
        if self._seen[0] != number:
            self._seen = (number, now_s)
            return
        if now_s - self._seen[1] < self._limit_s:
            return
        with self._lock:
            self._raising = True
            try:
                if self._run is None or self._number != number:
                    return
                self._stack = self._stack or stack_of(self._thread_id)
                self._raised += 1
                tries = self._raised
                raise_in(self._thread_id, Overrun)
            finally:
                self._raising = False
        if tries == OVERRUN_TRIES:
            log.critical("workflow code of run %s cannot be stopped; it is at\n%s", run.hex(), self._stack)
            self._unstoppable(run, self._stack)


def _cpu_clock(thread_id: int) -> Callable[[], float]:
    """The CPU time of a thread where the system reports it for other threads; otherwise wall-clock time."""
    try:
        clock = time.pthread_getcpuclockid(thread_id)
        time.clock_gettime(clock)
    except (AttributeError, OSError):
        return time.monotonic
    return lambda: time.clock_gettime(clock)
