"""One stream of calls and replies to a server."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import grpc

from perdure.core.errors import PerdureError, Unavailable
from perdure.sdk.client.channel import end_of, error_of
from perdure.wire import acts

SERVER_SHARE: Final = 0.8
"""Of the time of a call: the server is to answer in that. The rest is for its answer to arrive, so that what it says of the outcome holds."""
PART_CALLS: Final = 1_000
"""Calls in one message."""


class ClientSession:
    """When it ends, every call that waits for a reply fails."""

    def __init__(self, channel: Any, metadata: tuple[tuple[str, str], ...], address: str) -> None:
        self._address = address
        self._stream = channel.stream_stream(f"/{acts.SERVICE}/Session")(metadata=metadata)
        self._waiting: dict[int, asyncio.Future[acts.Reply]] = {}
        self._calls: list[acts.Call] = []
        self._give_up_at: dict[int, float] = {}
        """When the caller of each gives up, by the monotonic clock."""
        self._given_up: list[int] = []
        """Calls that were sent and whose answer is not waited for any more."""
        self._number = 0
        self._news = asyncio.Event()
        self.is_over = False
        self.was_open = False
        """A server has accepted it: a call that fails from here on may have arrived."""
        self._work = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]

    async def call(self, act: str, request: bytes, within_s: float, waits_s: float) -> acts.Reply:
        """Unavailable when the stream breaks, TimeoutError when there is no answer in time. What is given up is dropped by the server where
        it can be."""
        self._number += 1
        number = self._number
        future: asyncio.Future[acts.Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        call = acts.Call(number, act, request, max(int(SERVER_SHARE * within_s * 1000), 1))
        self._give_up_at[number] = time.monotonic() + within_s + waits_s
        self._calls.append(call)
        self._news.set()
        try:
            async with asyncio.timeout(within_s + waits_s):
                return await future
        finally:
            del self._waiting[number], self._give_up_at[number]
            if future.cancelled():
                self._give_up(call)

    def _give_up(self, call: acts.Call) -> None:
        if call in self._calls:
            self._calls.remove(call)
        elif not self.is_over:
            self._given_up.append(call.id)
            self._news.set()

    async def close(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        self._stream.cancel()

    async def _send(self) -> None:
        try:
            offset_us = _clock_offset_us(await self._stream.initial_metadata())
            self.was_open = not self._stream.done()
            while self.was_open:
                await self._news.wait()
                self._news.clear()
                while self._calls or self._given_up:
                    part, self._calls = self._calls[:PART_CALLS], self._calls[PART_CALLS:]
                    given_up, self._given_up = self._given_up, []
                    for call in part:
                        call.until_us = int(self._give_up_at.get(call.id, 0.0) * 1e6) + offset_us if offset_us else 0
                    await self._stream.write(acts.encode_calls(part, given_up))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reading side knows why
        except Exception:
            self._stream.cancel()  # no call waits for a stream that sends no more
            raise
        finally:
            self.is_over = True

    async def _receive(self) -> None:
        error: PerdureError | None = None
        try:
            while (data := await self._stream.read()) is not grpc.aio.EOF:
                for r in acts.decode_replies(data):
                    future = self._waiting.get(r.id)
                    if future is None or future.done():
                        continue
                    future.set_result(r)
            error = error_of(await end_of(self._stream), self._address)
        except grpc.aio.AioRpcError as e:
            error = error_of(e, self._address)
        finally:
            self.is_over = True
            self._work[0].cancel()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(error or Unavailable(f"the connection to {self._address} was closed"))


def _clock_offset_us(metadata: Any) -> int:
    """From the monotonic clock here to the server's clock. It is never too large: the server read its clock before this arrived, so no call
    is carried out after its caller has given up."""
    found = next((value for key, value in metadata or () if key == acts.CLOCK_KEY), None)
    return int(found) - int(time.monotonic() * 1e6) if found is not None else 0
