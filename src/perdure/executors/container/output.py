"""The output of a container: read now and then while it runs, and completed when it has exited.

Docker and Podman keep what a container writes and give it from the beginning each time they are asked. What was passed on before is skipped, by
counting bytes; so a connection that breaks loses nothing. How often it is read depends on what there is to read: a reading that takes long
is followed by a pause ten times as long. An engine that rotates its logs gives less than was counted: then lines are missing from the log.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from perdure.executors.command_output import JSON_BYTES_MAX, STDERR_BYTES, MaskedText, Written, without_secrets
from perdure.executors.container.engine_api import EngineApi
from perdure.executors.port import ExecutorHost

PAUSE_S: Final = 0.25
"""Between readings, at least."""
PAUSE_FACTOR: Final = 10
QUIET_S: Final = (1.0, 60.0)
"""After how long it is read although nothing was heard of it, at first and at most: news may be missed while listening begins."""


class _OutputStream:
    """One of stdout and stderr."""

    def __init__(self, text: MaskedText, keep: int) -> None:
        self._text, self._keep = text, keep
        self._held = 2 * keep + text.overlap
        self._passed = 0
        """Bytes that were passed on as log."""
        self._seen = 0
        """Bytes of the present reading."""
        self.tail = b""

    def begin(self) -> None:
        self._seen, self.tail = 0, b""

    def take(self, data: bytes) -> None:
        before = self._seen
        self._seen += len(data)
        self.tail = (self.tail + data)[-self._held :]
        if self._seen > self._passed:
            self._text.feed(data[max(0, self._passed - before) :])
            self._passed = self._seen

    def finish(self) -> None:
        self._text.feed(b"", final=True)

    def last(self, secrets: tuple[bytes, ...]) -> tuple[bytes, bool]:
        """The end of it without secrets, and whether it is all."""
        return without_secrets(self.tail, max(0, len(self.tail) - self._keep), secrets), self._seen <= self._keep


class ContainerOutput:
    def __init__(self, api: EngineApi, host: ExecutorHost, name: str, secrets: tuple[bytes, ...]) -> None:
        self._api, self._name, self._secrets = api, name, secrets
        self._streams = {
            "stdout": _OutputStream(MaskedText(secrets, lambda text: host.write(name, "stdout", text)), JSON_BYTES_MAX),
            "stderr": _OutputStream(MaskedText(secrets, lambda text: host.write(name, "stderr", text)), STDERR_BYTES),
        }

    async def follow(self) -> None:
        """Until the container has exited, or the connection broke."""
        news = asyncio.Event()
        listener = asyncio.create_task(self._listen(news))
        quiet_s = QUIET_S[0]
        try:
            while not listener.done():
                began = monotonic()
                await self._read()
                await asyncio.wait({listener}, timeout=max(PAUSE_S, PAUSE_FACTOR * (monotonic() - began)))
                quiet_s = QUIET_S[0] if await _heard(news, quiet_s) else min(2 * quiet_s, QUIET_S[1])
            await listener
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def _listen(self, news: asyncio.Event) -> None:
        try:
            async for _ in self._api.news(self._name):
                news.set()
        finally:
            news.set()

    async def finish(self) -> None:
        await self._read()
        for stream in self._streams.values():
            stream.finish()

    async def _read(self) -> None:
        for stream in self._streams.values():
            stream.begin()
        async for piece in self._api.output(self._name):
            for name, data in piece.items():
                self._streams[name].take(data)

    def written(self, result: bytes | None) -> Written:
        """After `finish`."""
        stdout, is_whole = self._streams["stdout"].last(self._secrets)
        stderr, _ = self._streams["stderr"].last(self._secrets)
        return Written(stdout=stdout, is_whole=is_whole, stderr=stderr, result=result)


async def _heard(news: asyncio.Event, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await news.wait()
    except TimeoutError:
        return False
    news.clear()
    return True
