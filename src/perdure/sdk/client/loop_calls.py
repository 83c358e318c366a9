"""Blocking calls from any thread to the event loop of a client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

from perdure.core.errors import PerdureError
from perdure.sdk.client.backend import running_loop

T = TypeVar("T")


class LoopCalls:
    """An event loop that runs in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry out on the loop, and wait here."""
        if running_loop() is self._loop or self._loop.is_closed():
            work.close()
            raise PerdureError(
                "this client is closed"
                if self._loop.is_closed()
                else "a blocking call would stop the event loop that has to answer it; await the methods of the async client here"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # after Ctrl-C nothing goes on behind the caller's back; one that is done stays done

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Item by item, each when it is asked for."""
        end: Any = object()

        async def following() -> Any:
            return await anext(items, end)

        while (item := self.call(following())) is not end:
            yield item


class LoopThread(LoopCalls):
    """An event loop in a daemon thread of its own."""

    def __init__(self) -> None:
        super().__init__(asyncio.new_event_loop())
        self._thread = threading.Thread(target=self._loop.run_forever, name="perdure", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
