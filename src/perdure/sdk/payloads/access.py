"""How code reads stored content: on the event loop that holds the connection, from a thread beside it, and in workflow code not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import TimeoutError as NotYet
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from perdure.core.errors import PerdureError, WorkflowRuleBroken
from perdure.core.limits import PAYLOAD_CHUNK_BYTES
from perdure.core.payload_port import PayloadCarrier
from perdure.core.payloads import Reference

T = TypeVar("T")

INTERRUPTIBLE_S: Final = 0.25
"""How often a thread that waits for content can be interrupted."""


class BlobAccess(Protocol):
    def read_now(self, reference: Reference, offset: int, size: int) -> bytes:
        """Blocking. Fewer bytes than asked for at the end only."""
        ...

    def stream(self, reference: Reference, offset: int, size: int | None) -> AsyncGenerator[bytes]: ...
    def check_writable(self) -> None:
        """Raises where no blob may be made."""
        ...


class LoopAccess:
    """Through the carrier of a worker or client, whose event loop this was made on."""

    def __init__(self, carrier: PayloadCarrier) -> None:
        self._carrier, self._loop = carrier, asyncio.get_running_loop()

    def read_now(self, reference: Reference, offset: int, size: int) -> bytes:
        return self.wait(self._read(reference, offset, size))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """From a thread beside the loop. In short waits, so that a task that is cancelled is interrupted in between."""
        if _running_loop() is not None:
            work.close()
            raise PerdureError(
                "reading a blob here would block the event loop: await its asynchronous form (aread_bytes, aread_text, astream, asave_to)"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while True:
                try:
                    return future.result(INTERRUPTIBLE_S)
                except NotYet:
                    if future.done():
                        raise
        finally:
            future.cancel()

    async def stream(self, reference: Reference, offset: int, size: int | None) -> AsyncGenerator[bytes]:
        if _running_loop() is self._loop:
            async with aclosing(self._carrier.read(reference, offset, size)) as parts:
                async for part in parts:
                    yield part
            return
        end = reference.size if size is None else min(reference.size, offset + size)
        while offset < end:  # a loop of the user's own
            work = self._read(reference, offset, min(PAYLOAD_CHUNK_BYTES, end - offset))
            part = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
            offset += len(part)
            yield part

    async def _read(self, reference: Reference, offset: int, size: int) -> bytes:
        return b"".join([part async for part in self._carrier.read(reference, offset, size)])

    def check_writable(self) -> None:
        pass


class NoAccess:
    """Workflow code: the same run must take the same course when it is replayed, without waiting for a store."""

    def read_now(self, reference: Reference, offset: int, size: int) -> bytes:
        raise self._refusal("read")

    def stream(self, reference: Reference, offset: int, size: int | None) -> AsyncGenerator[bytes]:
        raise self._refusal("read")

    def check_writable(self) -> None:
        raise self._refusal("made")

    def _refusal(self, what: str) -> WorkflowRuleBroken:
        return WorkflowRuleBroken(
            f"a blob cannot be {what} in workflow code, because that is I/O, which a replay does not repeat. Pass the blob to a task and do it there"
        )


NO_ACCESS: Final = NoAccess()

blob_access: ContextVar[BlobAccess] = ContextVar("perdure_blob_access")
"""Of the code that runs: set for tasks, workflow code, and inside the `async with` of a client."""


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
