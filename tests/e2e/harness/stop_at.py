"""A TCP proxy that stops what a client sends at a chosen point, so that the client can be killed there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Self

READ_BYTES = 65_536


class StopAt:
    """Listens on loopback. The `nth` piece that contains `mark`, and everything that a client sends after it, stays here."""

    def __init__(self, address: str, mark: bytes, nth: int) -> None:
        self._target, self._mark, self._left = address.rsplit(":", 1), mark, nth
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.reached = asyncio.Event()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        server, requests = await asyncio.open_connection(self._target[0], int(self._target[1]))
        try:
            ways = [asyncio.create_task(self._up(client, requests)), asyncio.create_task(_down(server, answers))]
            _, rest = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in rest:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._links.discard(link)
            requests.close()
            answers.close()

    async def _up(self, client: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await client.read(READ_BYTES):
                self._left -= self._mark in piece
                if self._left <= 0:
                    self.reached.set()
                    continue  # until the client is gone
                requests.write(piece)
                await requests.drain()


async def _down(server: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await server.read(READ_BYTES):
            answers.write(piece)
            await answers.drain()
