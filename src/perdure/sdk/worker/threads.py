"""A lane: a few threads that execute attempts and hand the ends back in batches. A hold: one of them, while it executes one attempt."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable

from perdure.core.work import Report
from perdure.sdk.worker.async_exceptions import raise_in, take_back
from perdure.sdk.worker.attempts import Attempt, AttemptCancelled

Ended = tuple[Attempt, Report | None]


class ThreadInterrupt:
    """The thread that made it, until `close`: the only time at which AttemptCancelled may be raised there.

    Python raises it between two of the thread's instructions, so it may also arrive in the lines around the user's code, even in
    `close`; the caller of that code handles it there (`PlainCalls.run`). What was raised and has not arrived when `close` ends is
    taken back: nothing reaches the next attempt. The lock is taken without waiting on one side and may be taken again on the other,
    because an exception that arrives right after it was taken would leave it taken.
    """

    __slots__ = ("_lock", "_open", "_raised", "_thread")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._open, self._raised = True, False

    def interrupt(self) -> None:
        """From another thread: stop what the thread is doing, if that is still this."""
        if not self._lock.acquire(blocking=False):
            return  # it is just closing
        try:
            if self._open:
                self._raised = True
                raise_in(self._thread, AttemptCancelled)
        finally:
            self._lock.release()

    def close(self) -> None:
        """In the thread itself, after the attempt's code."""
        with self._lock:
            self._open = False
            if self._raised:
                take_back()


class ThreadLane:
    """One wake-up of the loop however many threads finished. Threads are started when there is work for them."""

    def __init__(
        self,
        name: str,
        threads: int,
        claim: Callable[[Attempt, ThreadLane], bool],
        run: Callable[[Attempt], Report],
        deliver: Callable[[list[Ended]], None],
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._max, self._claim, self._run, self._deliver = name, threads, claim, run, deliver
        self._leave = leave
        self._todo: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._done: deque[Ended] = deque()
        self._signalled = False
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._threads: list[threading.Thread] = []
        self._busy = 0

    def submit(self, attempt: Attempt) -> None:
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._max:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._todo.put(attempt)

    @property
    def is_gone(self) -> bool:
        """After `close`: no thread is left."""
        return not any(t.is_alive() for t in self._threads)

    def _work(self) -> None:
        try:
            self._take_turns()
        finally:
            self._leave()

    def _take_turns(self) -> None:
        while (attempt := self._todo.get()) is not None:
            self._done.append((attempt, self._run(attempt) if self._claim(attempt, self) else None))
            with self._lock:
                if self._signalled:
                    continue
                self._signalled = True
            try:
                self._loop.call_soon_threadsafe(self._collect)
            except (
                RuntimeError
            ):  # the loop is closed: the process is going down and the engine treats the attempt as lost
                return

    def _collect(self) -> None:
        with self._lock:
            self._signalled = False
        ended: list[Ended] = []
        while self._done:
            ended.append(self._done.popleft())
        self._busy -= len(ended)
        self._deliver(ended)

    def close(self) -> None:
        for _ in self._threads:
            self._todo.put(None)
