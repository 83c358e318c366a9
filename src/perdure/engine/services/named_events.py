"""Named events: from whoever tells of them to every run that waits for them.

    emit -> row in `event` --any engine, page by page--> promises of the runs whose waits fit -> their inboxes

Laws:

1. An event is answered for once it is durable. A key of the sender's own makes it the same event, however often it is sent.
2. It reaches every run whose wait was recorded before the event was, and none whose wait began later.
3. A wait gets one event at most: its promise is kept once.
4. Matching survives its engine: the place it has come to is written together with what was found there.

Idle it costs one look at an empty index about once a second, so that nothing depends on the engine that took the event.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from perdure.core.api.named_events import EventEmitted, EventItem, WebhookItem
from perdure.core.errors import InvalidInput, PayloadTooLarge
from perdure.core.limits import EVENTS_KEPT_S, MESSAGE_KEY_CHARS_MAX, PAYLOAD_BYTES_MAX
from perdure.core.named_events import check_name, fits
from perdure.core.names import checked_name
from perdure.engine.runs.turns import SLICE_S, within

log = logging.getLogger("perdure.engine")

POLL_S: Final = 1.0
HELD_PAUSE_S: Final = 0.02
"""Before runs are asked for again that were ending or being taken up."""
TRIM_EVERY_S: Final = 60.0
TRIM_ROWS: Final = 5_000


class Hook(msgspec.Struct, frozen=True):
    """What it takes to check a request and to make an event of it."""

    ns: int
    event: str
    secret: bytes


class OpenEvent(msgspec.Struct, frozen=True):
    id: int
    ns: int
    name: str
    body: bytes


class OpenWait(msgspec.Struct, frozen=True):
    run_id: bytes
    name: str
    """Of the promise."""
    spec: str


class Round(msgspec.Struct, frozen=True):
    """What one transaction of matching came to."""

    events: int
    """Looked at; 0: there are none that somebody else is not looking at."""
    reached: list[bytes]
    """Runs with an event in their inbox now."""
    held: int
    """Waits whose runs have to be asked for again."""
    unfinished: int
    """Events that have more waits to look at, those of `held` included."""


Find = Callable[[OpenEvent, Sequence[OpenWait]], Awaitable[list[OpenWait]]]
"""Which of the waits the event is for."""


class NamedEventPort(Protocol):
    async def emit(self, ns: int, name: str, key: str | None, body: bytes, source: str) -> EventEmitted: ...
    async def match(self, find: Find) -> Round: ...
    async def events(self, ns: int, name: str, before: int | None, limit: int) -> list[EventItem]: ...
    async def trim(self, older_s: float, limit: int) -> int: ...
    async def put_webhook(self, ns: int, name: str, event: str, secret: bytes, by: str) -> tuple[WebhookItem, bool]: ...
    async def rotate_webhook(self, ns: int, name: str, secret: bytes) -> WebhookItem | None: ...
    async def delete_webhook(self, ns: int, name: str) -> bool: ...
    async def webhooks(self, ns: int, after: str, limit: int) -> list[WebhookItem]: ...
    async def hook(self, namespace: str, name: str) -> Hook | None: ...


class NamedEvents:
    """Takes events and brings them to the runs that wait for them."""

    def __init__(self, port: NamedEventPort) -> None:
        self.port = port
        self.posted: Callable[[bytes], None] = lambda _: None
        """Told of every run that has mail now."""
        self.unreadable = 0
        """Waits that could not be told to fit or not, because their expression has no value for an event."""
        self._poked = asyncio.Event()

    async def emit(self, ns: int, name: str, body: bytes, *, key: str = "", source: str = "") -> EventEmitted:
        """Answered once the event is durable."""
        check_name(name)
        if key:
            checked_name("message key", key, MESSAGE_KEY_CHARS_MAX)
        if len(body) > PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(
                f"the payload of event {name!r} has {len(body)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
            )
        try:
            msgspec.json.decode(body)
        except msgspec.DecodeError as e:
            raise InvalidInput(f"the payload of event {name!r} is not JSON: {e}") from None
        emitted = await self.port.emit(ns, name, key or None, body, source)
        self.poke()
        return emitted

    def poke(self) -> None:
        self._poked.set()

    async def run(self) -> None:
        """Match for ever."""
        loop = asyncio.get_running_loop()
        trim_at = loop.time() + TRIM_EVERY_S * random.random()
        while True:
            try:
                async with asyncio.timeout(POLL_S * random.uniform(0.75, 1.25)):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()
            await self.look()
            if loop.time() >= trim_at:
                trim_at = loop.time() + TRIM_EVERY_S * random.uniform(0.75, 1.25)
                await self.port.trim(EVENTS_KEPT_S, TRIM_ROWS)

    async def look(self) -> None:
        """Until no event is left that is not somebody else's."""
        while True:
            done = await self.port.match(self._find)
            for run_id in done.reached:
                self.posted(run_id)
            if not done.events:
                return
            if done.held:
                await asyncio.sleep(HELD_PAUSE_S)

    async def _find(self, event: OpenEvent, waits: Sequence[OpenWait]) -> list[OpenWait]:
        payload = msgspec.json.decode(event.body)
        found: list[OpenWait] = []
        is_up = within(SLICE_S)
        for wait in waits:
            if is_up():
                await asyncio.sleep(SLICE_S)  # an expression of a wait may take long, and others are to have their turn
                is_up = within(SLICE_S)
            fit = fits(wait.spec, payload)
            if fit:
                found.append(wait)
            self.unreadable += fit is None
        return found
