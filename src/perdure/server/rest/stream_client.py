"""One client of the stream: where it is, and what waits to be sent to it."""

from __future__ import annotations

import asyncio
import base64
from collections import deque
from typing import Annotated, Any, Final

import msgspec

from perdure.core.api.runs import LogPosition
from perdure.core.errors import InvalidInput

QUEUE_MESSAGES_MAX: Final = 2_000
"""Messages that wait for one client; with more it is cut off."""
PAGE_ROWS: Final = 500
"""Rows that are read at a time, while the client has room for as many messages."""


class Cursor(msgspec.Struct, omit_defaults=True):
    """Where a client is, per topic. Positions in a run hold for that run alone."""

    runs_us: Annotated[int, msgspec.Meta(ge=0, lt=1 << 56)] | None = None
    run: str = ""
    history: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    logs_of: str = ""
    logs: LogPosition | None = None

    def about(self, run: bytes | None, logs: bytes | None) -> Cursor:
        """The same for what is asked for now."""
        if run is not None and self.run != run.hex():
            self.run, self.history = run.hex(), 0
        if logs is not None and self.logs_of != logs.hex():
            self.logs_of, self.logs = logs.hex(), None
        return self

    def begin(self, event: int, logs_us: int | None) -> None:
        """No earlier than these: what a client has read already, page by page."""
        self.history = max(self.history, event)
        if self.logs is None and logs_us is not None:
            self.logs = LogPosition(logs_us, -1, 0, 0, -1)


def write_cursor(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def read_cursor(text: str | None) -> Cursor:
    if not text:
        return Cursor()
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Cursor)
    except (ValueError, msgspec.MsgspecError):
        raise InvalidInput(
            "Last-Event-ID: this is no id of this stream; leave it out to begin with what happens now"
        ) from None


def message(event: str, cursor: Cursor, data: Any) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (
        write_cursor(cursor).encode(),
        event.encode(),
        msgspec.json.encode(data),
    )


class StreamClient:
    """What waits to be sent to one client."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.is_cut = False
        self.is_caught_up = False
        """With the runs list: from here on the poller moves its position."""
        self.shown: dict[bytes, tuple[int, int, int]] = {}
        """Runs that were sent lately: (epoch, status, when it happened)."""
        self._waiting: deque[bytes] = deque()
        self._fresh = asyncio.Event()
        self._taken = asyncio.Event()

    def put(self, event: str, data: Any) -> None:
        """The cursor already includes this message."""
        if len(self._waiting) >= QUEUE_MESSAGES_MAX:
            self.cut()
            return
        self._waiting.append(message(event, self.cursor, data))
        self._fresh.set()

    @property
    def room(self) -> int:
        return QUEUE_MESSAGES_MAX - len(self._waiting)

    async def wait_for_room(self) -> None:
        while self.room < PAGE_ROWS and not self.is_cut:
            self._taken.clear()
            await self._taken.wait()

    def forget(self, below_us: int) -> None:
        """What was shown so long ago will not be read again."""
        self.shown = {run_id: last for run_id, last in self.shown.items() if last[2] > below_us}

    def cut(self) -> None:
        self.is_cut = True
        self._fresh.set()
        self._taken.set()

    async def take(self, within_s: float) -> bytes:
        """All that waits, or nothing when that is how it stays."""
        try:
            async with asyncio.timeout(within_s):
                await self._fresh.wait()
        except TimeoutError:
            return b""
        self._fresh.clear()
        out = b"".join(self._waiting)
        self._waiting.clear()
        self._taken.set()
        return out
