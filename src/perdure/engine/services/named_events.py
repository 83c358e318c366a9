"""Named events: from their sender to every run that waits for them, and to the workflows that they start.

    emit -> row in `named_event` --any engine, page by page--> promises of the runs whose waits fit -> their inboxes
            rows in `event_start` --any engine--> new runs (services/event_starts.py)

    wait -> row in `event_look` --any engine, page by page--> the oldest event that fits and was there before -> inbox of the run

Laws:

1. An event is acknowledged once it is durable. Events with the same key are one event.
2. It reaches every open wait that takes events of its time, recorded before it or after it. Why none falls between is said at
   event_waits in store/sql/named_events.sql.
3. A wait gets one event at most, the oldest one: its promise is kept once. Later waits of the run for the same get the events after that.
4. Matching and looking back survive their engine: the place they have come to is written together with what was found there.

Every engine polls an (empty) index about once a second, so that delivery does not depend on the engine that took the event.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Final, Protocol

import msgspec

from perdure.core.api.named_events import EventEmitted, EventItem, SignalTarget, WebhookItem
from perdure.core.errors import InvalidInput, PayloadTooLarge
from perdure.core.limits import EVENTS_KEPT_S, PAYLOAD_BYTES_MAX
from perdure.core.named_events import check_name, fits
from perdure.core.names import check_message_key
from perdure.core.payloads import refuse_reference
from perdure.core.webhooks import SignatureScheme
from perdure.engine.context import EngineContext
from perdure.engine.runs.turns import SLICE_S, within
from perdure.engine.services.event_starts import EventStarts
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

HELD_PAUSE_S: Final = 0.02
"""Pause before runs that were ending or being claimed are tried again."""
TRIM_EVERY_S: Final = 60.0
TRIM_ROWS: Final = 5_000


class HookSpec(msgspec.Struct, frozen=True):
    """A webhook: how requests are signed, and which events (core/webhook_events.py) or signals (core/webhook_signals.py) they become."""

    name: str
    event: str
    """Empty beside a signal."""
    key: str
    scheme: SignatureScheme
    signal: SignalTarget | None = None


class Hook(msgspec.Struct, frozen=True):
    """What a request is checked with."""

    ns: int
    spec: HookSpec
    sealed: Sequence[bytes]
    """Its secrets: the current one, and one that it replaced a short time ago."""


class PutHook(msgspec.Struct, frozen=True):
    webhook: WebhookItem
    is_new: bool
    is_held: bool
    """It has the secret that was given to the store."""


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
    """The result of one matching transaction."""

    events: int
    """Examined; 0 if every open event is claimed by another engine."""
    reached: list[bytes]
    """Runs with an event in their inbox now."""
    held: int
    """Waits whose runs were locked and must be tried again."""
    unfinished: int
    """Events that have more waits to look at, those of `held` included."""


class LookRound(msgspec.Struct, frozen=True):
    """The result of one transaction of waits that look back."""

    looks: int
    """Waits examined; 0 if every one is claimed by another engine."""
    reached: list[bytes]
    """Runs with an event in their inbox now."""
    held: int
    """Waits whose runs were locked and must be tried again."""


Find = Callable[[OpenEvent, Sequence[OpenWait]], Awaitable[list[OpenWait]]]
"""Which of the waits the event is for."""
FindPast = Callable[[OpenWait, Sequence[OpenEvent]], Awaitable[OpenEvent | None]]
"""The first of the events that is for the wait."""


class NamedEventStore(Protocol):
    async def emit(self, ns: int, name: str, key: str | None, body: bytes, source: str) -> EventEmitted: ...
    async def match(self, find: Find) -> Round: ...
    async def look_back(self, find: FindPast) -> LookRound: ...
    async def events(self, ns: int, name: str, before: int | None, limit: int) -> list[EventItem]: ...
    async def trim(self, older_s: float, limit: int) -> int: ...
    async def put_webhook(self, ns: int, hook: HookSpec, secret: bytes, given: bool, by: str) -> PutHook: ...
    async def change_webhook(self, ns: int, hook: HookSpec) -> WebhookItem | None: ...
    async def webhook_scheme(self, ns: int, name: str) -> SignatureScheme | None: ...
    async def rotate_webhook(self, ns: int, name: str, secret: bytes, keep_old_us: int) -> WebhookItem | None: ...
    async def delete_webhook(self, ns: int, name: str) -> bool: ...
    async def webhooks(self, ns: int, after: str, limit: int) -> list[WebhookItem]: ...
    async def hook(self, namespace: str, name: str) -> Hook | None: ...
    async def delivered_to(self, ns: int, key: str) -> bytes | None:
        """The run that has a message under this key of a delivery, also one that has ended."""
        ...


class NamedEvents(Service):
    """Accepts events, delivers them to the runs that wait for them, and has runs started by them."""

    name = "delivering named events"
    poll_s = 1.0

    def __init__(self, context: EngineContext, store: NamedEventStore, starts: EventStarts) -> None:
        super().__init__()
        self.store, self._starts, self._events = store, starts, context.events
        self.unreadable = 0
        """Waits that could not be judged, because their expression has no value for an event."""
        self._trim_at_s = monotonic() + TRIM_EVERY_S * random.random()

    async def emit(self, ns: int, name: str, body: bytes, *, key: str = "", source: str = "") -> EventEmitted:
        """Answered once the event is durable."""
        check_name(name)
        check_message_key(key)
        refuse_reference(body, f"the payload of event {name!r}")
        if len(body) > PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(
                f"the payload of event {name!r} has {len(body)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}"
            )
        try:
            msgspec.json.decode(body)
        except msgspec.DecodeError as e:
            raise InvalidInput(f"the payload of event {name!r} is not JSON: {e}") from None
        emitted = await self.store.emit(ns, name, key or None, body, source)
        self.wake()
        return emitted

    async def poll_once(self) -> None:
        await self.match_all()
        while await self._look_back():
            await self.match_all()  # new events are not held up by long looks
        while await self._starts.start_some():
            await self.match_all()  # runs that wait are not held up by many starts
        if monotonic() >= self._trim_at_s:
            self._trim_at_s = monotonic() + TRIM_EVERY_S * random.uniform(0.75, 1.25)
            await self.store.trim(EVENTS_KEPT_S, TRIM_ROWS)

    async def match_all(self) -> None:
        """Until every remaining event is claimed by another engine."""
        while True:
            done = await self.store.match(self._find)
            for run_id in done.reached:
                self._events.message_sent.publish(run_id)
            if not done.events:
                return
            if done.held:
                await asyncio.sleep(HELD_PAUSE_S)

    async def _look_back(self) -> bool:
        """One round; False when no wait looks back that another engine hasn't claimed."""
        done = await self.store.look_back(self._find_past)
        for run_id in done.reached:
            self._events.message_sent.publish(run_id)
        if done.held:
            await asyncio.sleep(HELD_PAUSE_S)
        return done.looks > 0

    async def _find_past(self, wait: OpenWait, events: Sequence[OpenEvent]) -> OpenEvent | None:
        is_up = within(SLICE_S)
        for event in events:
            if is_up():
                await asyncio.sleep(SLICE_S)
                is_up = within(SLICE_S)
            fit = fits(wait.spec, msgspec.json.decode(event.body))
            if fit:
                return event
            self.unreadable += fit is None
        return None

    async def _find(self, event: OpenEvent, waits: Sequence[OpenWait]) -> list[OpenWait]:
        payload = msgspec.json.decode(event.body)
        found: list[OpenWait] = []
        is_up = within(SLICE_S)
        for wait in waits:
            if is_up():
                await asyncio.sleep(SLICE_S)  # expressions may take long, so the event loop gets a turn
                is_up = within(SLICE_S)
            fit = fits(wait.spec, payload)
            if fit:
                found.append(wait)
            self.unreadable += fit is None
        return found
