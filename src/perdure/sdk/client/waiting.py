"""Waiting for something that a server has to wait for itself, in a time of the caller's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic  # bound here, before workflow guards wrap it
from typing import Final, TypeVar

from perdure.core.deadlines import unanswered

T = TypeVar("T")

WAIT_SHARE: Final = 0.75
"""Of the time that is left: the server is asked to wait that long. The rest is for its answer to arrive."""
LEFT_S_MIN: Final = 0.005
"""Less time than this is not worth another call."""


async def in_time(limit_s: float, ask: Callable[[float], Awaitable[T | None]], *, effect: bool) -> T | None:
    """What `ask(seconds)` finds; None when the time is over without it. `effect`: asking changes something.

    Raises Unavailable if not even the first call was answered in the whole time.
    """
    end_s, was_answered = monotonic() + limit_s, False
    while (left_s := end_s - monotonic()) > LEFT_S_MIN:
        try:
            async with asyncio.timeout(left_s):
                found = await ask(WAIT_SHARE * left_s)
        except TimeoutError as e:
            if was_answered:
                return None
            raise unanswered(limit_s, effect=effect) from e
        if found is not None:
            return found
        was_answered = True
    return None
