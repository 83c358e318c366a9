"""Heartbeats of attempts on their way to the engine: from any thread, and a few per second for each attempt."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Any

from perdure.core.work import Beat
from perdure.sdk.worker.attempts import Attempt, beat_of, pulse_of


class Heartbeats:
    def __init__(
        self,
        send: Callable[[list[Beat]], None],
        is_running: Callable[[Attempt], bool],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        self._send, self._is_running = send, is_running
        self._loop, self._context = loop, context
        self._loop_thread = threading.get_ident()

    def beat(self, attempt: Attempt, details: bytes) -> None:
        """From any thread: forward a heartbeat, or hold it back until the next may go."""
        pulse = pulse_of(attempt)
        wait_s = pulse.wait_s(monotonic(), details)
        if not wait_s:
            self._send_one(attempt)
        elif not pulse.waiting:
            pulse.waiting = True
            self._threadsafe(self._send_later, attempt, wait_s)

    def _send_one(self, attempt: Attempt) -> None:
        beat = beat_of(attempt, pulse_of(attempt).take(monotonic()))
        if threading.get_ident() == self._loop_thread:
            self._send([beat])
        else:
            self._threadsafe(self._send, [beat])

    def _send_later(self, attempt: Attempt, wait_s: float) -> None:
        self._loop.call_later(wait_s, self._send_held_back, attempt, context=self._context)

    def _send_held_back(self, attempt: Attempt) -> None:
        if self._is_running(attempt) and pulse_of(attempt).waiting:
            self._send_one(attempt)

    def _threadsafe(self, call: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args, context=self._context)
        except RuntimeError:  # the loop is closed: the process is going down and the engine treats the attempt as lost
            pass
