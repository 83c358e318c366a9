"""The output of a container as Docker and Podman stream it, read from the socket.

Podman sends each line as a chunk of its own, and an HTTP library takes about 0.1 ms for each: half a minute for 300,000 lines, which this reads in a
second. So requests for output are written and read here; every other request goes through the library.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

READ_BYTES: Final = 256 * 1024
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one piece of output in a stream; more is no stream of output."""
HEAD_S: Final = 30.0
"""The longest that an engine may take until it begins to answer."""
STREAMS: Final = {0: "stdout", 1: "stdout", 2: "stderr"}


class BrokenStream(Exception):
    """It ended before its end, or is not what was asked for."""


async def get(socket: str, path: str) -> AsyncGenerator[tuple[int, bytes]]:
    """The body of an answer in pieces, each with the status of the answer. Raises OSError or BrokenStream."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n\r\n".encode())
        try:
            async with asyncio.timeout(HEAD_S):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
            status = int(head.split(b" ", 2)[1])
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError, ValueError) as e:
            raise BrokenStream("there was no answer") from e
        yield status, b""  # also of an answer without a body
        pieces = _chunks(reader) if b"\r\ntransfer-encoding: chunked\r\n" in head else _rest(reader)
        async with aclosing(pieces):
            async for piece in pieces:
                yield status, piece
    finally:
        writer.close()


async def _rest(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    while data := await reader.read(READ_BYTES):
        yield data


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    held, is_over = b"", False
    while not is_over:
        data = await reader.read(READ_BYTES)
        if not data:
            raise BrokenStream("the answer ended before its end")
        body, held, is_over = unchunked(held + data)
        if body:
            yield body


def unchunked(data: bytes) -> tuple[bytes, bytes, bool]:
    """Of an answer in chunks: the body, what is not whole yet, and whether the last chunk has come."""
    found: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        try:
            size = int(data[at:end].split(b";", 1)[0], 16)
        except ValueError:
            raise BrokenStream("the answer is not made of chunks") from None
        if size == 0:
            return b"".join(found), b"", True
        if len(data) < end + 4 + size:
            break
        found.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(found), data[at:], False


async def demultiplexed(parts: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, bytes]]:
    """Frames of a stream of output, joined by stream: one byte for the stream, three unused, four of length, then the bytes."""
    held = b""
    async for part in parts:
        held += part
        found: dict[str, list[bytes]] = {}
        at = 0
        while len(held) >= at + 8:
            size = int.from_bytes(held[at + 4 : at + 8], "big")
            if held[at] not in STREAMS or size > FRAME_BYTES_MAX:
                raise BrokenStream("the output of the container is not made of frames")
            if len(held) < at + 8 + size:
                break
            found.setdefault(STREAMS[held[at]], []).append(held[at + 8 : at + 8 + size])
            at += 8 + size
        held = held[at:]
        if found:
            yield {stream: b"".join(pieces) for stream, pieces in found.items()}
