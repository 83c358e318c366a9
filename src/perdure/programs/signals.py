"""Signals of every Perdure process: the first SIGTERM or SIGINT asks it to stop, the second ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@asynccontextmanager
async def signals(stop: Callable[[], object]) -> AsyncGenerator[None]:
    loop = asyncio.get_running_loop()
    seen = 0

    def asked(number: int) -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            os._exit(128 + number)
        stop()

    for number in SIGNALS:
        loop.add_signal_handler(number, asked, number)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
