"""What a worker and a client make of a stream that ends under their hands."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from perdure.core.errors import Unavailable
from perdure.sdk.client.channel import Access
from perdure.sdk.client.session import ClientSession
from perdure.sdk.worker.stream import RemoteWorker
from perdure.sdk.worker.worker import Worker
from tests.fakes.waiting import until


class EndedCall:
    """A stream that the server has ended: writing finds out before reading does."""

    def __init__(self) -> None:
        self._read = asyncio.Event()

    async def write(self, data: bytes) -> None:
        raise asyncio.InvalidStateError("RPC already finished.")

    async def read(self) -> Any:
        await self._read.wait()
        return grpc.aio.EOF

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    async def details(self) -> str:
        return "gone"

    async def initial_metadata(self) -> None:
        return None

    async def trailing_metadata(self) -> None:
        return None

    def done(self) -> bool:
        return True

    def cancel(self) -> None:
        self._read.set()


async def test_a_worker_whose_stream_ended_while_it_was_writing_takes_it_for_a_broken_stream() -> None:
    remote = RemoteWorker(Worker(), Access())
    remote.drain()  # something to say
    with pytest.raises(grpc.aio.AioRpcError, match="gone"):
        async with asyncio.timeout(120):
            await remote._talk(EndedCall())


async def test_a_clients_stream_that_ends_tells_those_who_wait_and_leaves_nothing_running() -> None:
    call = EndedCall()

    class Channel:
        def stream_stream(self, method: str) -> Any:
            return lambda **_: call

    session = ClientSession(Channel(), (), "somewhere")
    waiting = asyncio.create_task(session.call("run.result", b"", 30.0, 0.0))
    await until(lambda: session.is_over and session._waiting)
    call.cancel()
    with pytest.raises(Unavailable, match="somewhere"):
        await waiting
    await until(lambda: all(task.done() for task in session._work))
