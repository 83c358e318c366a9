"""A TCP proxy on loopback that can be shut: the service behind it cannot be reached then."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fakes.waiting import turns


class Gate:
    """Runs in a thread of its own, for tests whose event loops come and go."""

    def __init__(self, target: int, port: int = 0) -> None:
        self._target = target
        self._open = True
        self._links: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._socket.close()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        self._open = False
        self._loop.call_soon_threadsafe(self._drop)
        try:
            yield
        finally:
            self._open = True

    def _drop(self) -> None:
        for writer in list(self._links):
            writer.transport.abort()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(asyncio.start_server(self._accept, sock=self._socket))
        self._loop.run_forever()
        self._drop()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        for _ in range(3):  # transports close in later turns
            self._loop.run_until_complete(turns())
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._links |= {writer, back}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        for one in (writer, back):
            self._links.discard(one)
            one.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
