"""How a test waits: for a condition with a deadline, never for a while in the hope that it was long enough.

A test that can wait for an event (a future, `Handle.result`, a line of output) does that. These are for what has no event.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")

POLL_S, POLL_MAX_S = 0.01, 0.1
WITHIN_S = 180.0
"""Nothing takes so long, but for a machine that is far too busy."""


async def until(true: Callable[[], T | Awaitable[T]], what: str = "", within_s: float = WITHIN_S) -> T:
    """Return the first value of `true()` that is true."""
    deadline, pause_s = time.monotonic() + within_s, POLL_S
    while True:
        found = true()
        value = await found if inspect.isawaitable(found) else found
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what or inspect.getsource(true).strip()}"
        await asyncio.sleep(pause_s)
        pause_s = min(1.1 * pause_s, POLL_MAX_S)  # what takes seconds is often costly to look at


def until_sync(true: Callable[[], T], what: str = "", within_s: float = WITHIN_S) -> T:
    """As `until`, in a test without an event loop."""
    deadline, pause_s = time.monotonic() + within_s, POLL_S
    while not (value := true()):
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what or inspect.getsource(true).strip()}"
        time.sleep(pause_s)
        pause_s = min(1.1 * pause_s, 10 * POLL_S)
    return value


async def holds(true: Callable[[], object | Awaitable[object]], for_s: float, what: str = "") -> None:
    """Check that `true()` stays true for a time: what must not happen has no event to wait for."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        found = true()
        assert await found if inspect.isawaitable(found) else found, what or inspect.getsource(true).strip()
        await asyncio.sleep(POLL_S)


async def busy(seconds: float) -> None:
    """Work that takes a known time: the body of a task whose duration is what the test is about."""
    await asyncio.sleep(seconds)


def busy_thread(seconds: float) -> None:
    """As `busy`, in a task that blocks its thread."""
    time.sleep(seconds)


async def forever() -> NoReturn:
    """The body of a task that only a cancellation ends."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def forever_thread() -> NoReturn:
    """As `forever`, in a task that blocks its thread."""
    threading.Event().wait()
    raise AssertionError("unreachable")


async def turns(count: int = 1) -> None:
    """Let the event loop run everything that is ready, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)
