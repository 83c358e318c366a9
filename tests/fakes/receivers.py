"""Receivers of notifications: a real HTTP server and a real SMTP server on ports of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler

from perdure.localpg.postmaster import free_port

Answer = Callable[["Received"], tuple[int, dict[str, str]]]


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    port: int
    requests: list[Received] = field(default_factory=list)
    answer: Answer = lambda _: (204, {})
    held: asyncio.Event | None = None
    """While it is not set, requests are not answered."""
    think_s: float = 0.0
    """How long an answer takes."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by each request, before its answer."""

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def of(self, path: str) -> list[Received]:
        return [r for r in self.requests if r.path == path]

    async def has(self, requests: int, within_s: float) -> None:
        """Returns while the last of them is not answered yet."""
        async with asyncio.timeout(within_s):
            while len(self.requests) < requests:
                self.arrived.clear()
                await self.arrived.wait()

    @property
    def ids(self) -> list[str]:
        return [r.headers["webhook-id"] for r in self.requests]


async def _passed(seconds: float) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, done.set)
    await done.wait()


async def _request(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(head[0].split(" ")[1], headers, body)


@contextlib.asynccontextmanager
async def http_receiver() -> AsyncGenerator[Receiver]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            got = await _request(reader)
            one.requests.append(got)
            one.arrived.set()
            if one.held is not None:
                await one.held.wait()
            if one.think_s:
                await _passed(one.think_s)
            status, headers = one.answer(got)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"HTTP/1.1 {status} Said\r\n{lines}connection: close\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    one = Receiver(server.sockets[0].getsockname()[1])
    try:
        yield one
    finally:
        if one.held is not None:
            one.held.set()
        server.close()


@contextlib.contextmanager
def smtp_receiver() -> Any:
    """Its port, and the mails that it has taken."""
    mails: list[Message] = []

    class Keep(MessageHandler):
        def handle_message(self, message: Message) -> None:
            mails.append(message)

    controller = Controller(Keep(), hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        yield controller.port, mails
    finally:
        controller.stop()
