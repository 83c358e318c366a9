"""The way of payloads into a store and back: large values and blobs out before a payload leaves a process, values in before it is used.

    encode -> UnsentPayload or a long JSON text --offload--> a short payload --wire, history--> --resolve--> JSON text -> decode

An upload is announced first, so that content which no run comes to use is found by upkeep. Content is named by its digest: an upload may
be repeated, by the same process or another one, and two at once do no harm.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from perdure.core import payload_fields, payloads
from perdure.core.errors import PayloadCorrupt, PayloadMismatch, PayloadTooLarge, Unavailable
from perdure.core.limits import (
    PAYLOAD_CHUNK_BYTES,
    PAYLOAD_INLINE_BYTES,
    PAYLOAD_OBJECT_BYTES_MAX,
    PAYLOAD_TRANSFERS_MAX,
)
from perdure.core.payload_port import AnnouncedPayload, PayloadPort, Place
from perdure.core.payloads import JSON_TYPE, OBJECT_TYPE, Reference
from perdure.payloads.content import BytesContent, Content, ContentChanged, UnsentPayload
from perdure.payloads.objects import ObjectStores

T = TypeVar("T")

TRIES: Final = 5
"""Times a transfer is tried while the store is away or an upload arrived damaged."""
PAUSE_S: Final = 0.2
"""Pause before the second try; it doubles."""
NESTING_MAX: Final = 32
"""Stored values within stored values."""
READ_BYTES: Final = 4 * PAYLOAD_CHUNK_BYTES
"""Bytes of one read from an object store."""


class PayloadTransfer:
    """Stored content of one namespace, as one process reaches it."""

    def __init__(
        self, port: PayloadPort, objects: ObjectStores | None = None, inline_bytes: int = PAYLOAD_INLINE_BYTES
    ) -> None:
        self._port, self._objects, self._inline_bytes = port, objects or ObjectStores(), inline_bytes
        self._transfers = asyncio.Semaphore(PAYLOAD_TRANSFERS_MAX)

    @property
    def inline_bytes(self) -> int:
        """Larger payloads are stored."""
        return self._inline_bytes

    # out

    def is_heavy(self, payload: bytes) -> bool:
        """Whether it must be offloaded before it leaves the process."""
        return len(payload) > self.inline_bytes or isinstance(payload, UnsentPayload)

    def are_heavy(self, records: Sequence[Any]) -> bool:
        """Whether a payload of these events, commands or requests must be offloaded."""
        return payload_fields.may_be_heavy(records, self._inline_bytes) and any(
            self.is_heavy(p) for record in records for p in payload_fields.payloads_of(record)
        )

    async def offload(self, payload: bytes, what: str = "the value") -> bytes:
        """The payload as it may leave the process: short, with everything stored that it refers to."""
        if isinstance(payload, UnsentPayload):
            contents = {content.sha256: content for content in payload.contents}.values()
            stores = await asyncio.gather(*(self.store(content, [], what) for content in contents))
            payload = payloads.stored_in(payload, {c.sha256: s for c, s in zip(contents, stores, strict=True)})
        if len(payload) <= self.inline_bytes:
            return payload
        large = payloads.large_members(payload, self.inline_bytes)
        if large is None:
            return payloads.whole(await self._stored_value(payload, what))
        # One by one: flow control and the checks of a start still see the other arguments of a call.
        stored = await asyncio.gather(*(self._stored_value(bytes(raw), what) for raw in large.values()))
        return payloads.with_stored(payload, dict(zip(large, stored, strict=True)))

    async def _stored_value(self, payload: bytes, what: str) -> Reference:
        content = BytesContent(payload)
        store = await self.store(content, list(payloads.held_by([payload])), what)
        is_object = payload.startswith(b"{")
        return Reference(content.sha256, content.size, store, media_type=OBJECT_TYPE if is_object else JSON_TYPE)

    async def offload_record(self, record: T, what: str = "the value") -> T:
        """An event, command or request whose payloads may leave the process."""
        heavy = [p for p in payload_fields.payloads_of(record) if self.is_heavy(p)]
        if not heavy:
            return record
        done = await asyncio.gather(*(self.offload(p, what) for p in heavy))
        by_identity = {id(p): light for p, light in zip(heavy, done, strict=True)}
        return payload_fields.replaced(record, lambda p: by_identity.get(id(p), p))

    async def store(self, content: Content, holds: list[Place], what: str) -> str:
        """Upload content, unless it is there. Returns the store that references name."""
        url = self._objects.first
        if content.size > PAYLOAD_OBJECT_BYTES_MAX:
            raise PayloadTooLarge(
                f"{what} has {content.size:,} bytes, over the limit PAYLOAD_OBJECT_BYTES_MAX={PAYLOAD_OBJECT_BYTES_MAX:,}; split it"
            )
        async with self._transfers:
            if url:
                return await _tried(lambda: self._to_objects(url, content, holds))
            return await _tried(lambda: self._to_database(content, holds))

    async def _to_objects(self, url: str, content: Content, holds: list[Place]) -> str:
        (folder,) = (await self._port.announce(url, [AnnouncedPayload(content.sha256, content.size, holds)])).stores
        if not await self._objects.has(folder, content):
            await self._objects.put(folder, content)
        return folder

    async def _to_database(self, content: Content, holds: list[Place]) -> str:
        if content.size > PAYLOAD_CHUNK_BYTES:
            places = await self._port.announce("", [AnnouncedPayload(content.sha256, content.size, holds)])
            if places.stored[0]:
                return ""
        offset, chunks, is_complete = 0, content.chunks(), False
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None or not offset:
            is_complete = await self._port.put(content.sha256, content.size, offset, chunk or b"", holds)
            offset += len(chunk or b"")
            if is_complete:
                break
        if not is_complete:
            raise ContentChanged(content)
        return ""

    # in

    async def resolve(self, payload: bytes) -> bytes:
        """The payload with its stored values in their places. Blobs stay references."""
        for _ in range(NESTING_MAX):
            wanted = payloads.values_of(payload)
            if not wanted:
                return payload
            contents = await asyncio.gather(*(self.fetch(reference) for reference in wanted))
            payload = payloads.spliced(payload, {r.sha256: c for r, c in zip(wanted, contents, strict=True)})
        raise PayloadMismatch(f"a stored value contains stored values more than NESTING_MAX={NESTING_MAX} deep")

    async def resolve_record(self, record: T) -> T:
        """An event whose payloads have their stored values in their places."""
        wanted = {p: p for p in payload_fields.payloads_of(record) if payloads.values_of(p)}
        if not wanted:
            return record
        done = await asyncio.gather(*(self.resolve(p) for p in wanted))
        by_payload = dict(zip(wanted, done, strict=True))
        return payload_fields.replaced(record, lambda p: by_payload.get(p, p))

    async def fetch(self, reference: Reference) -> bytes:
        """All of its content, checked."""
        parts: list[bytes] = []
        async with self._transfers, aclosing(self.read(reference)) as read:
            async for part in read:
                parts.append(part)
        return b"".join(parts)

    async def read(self, reference: Reference, offset: int = 0, size: int | None = None) -> AsyncGenerator[bytes]:
        """Content in parts. Read from its beginning to its end, it is checked against its digest: PayloadCorrupt comes last."""
        end = reference.size if size is None else min(reference.size, offset + size)
        is_all = offset == 0 and end == reference.size
        digest = hashlib.sha256()
        while offset < end:
            part = await self._part(reference, offset, end - offset)
            if not part:
                raise corrupt(reference, f"it ends after {offset} of {reference.size} bytes")
            offset += len(part)
            if is_all:
                digest.update(part)
                if offset == end and digest.digest() != reference.sha256:
                    raise corrupt(reference, f"its SHA-256 is {digest.hexdigest()}")
            yield part

    async def _part(self, reference: Reference, offset: int, size: int) -> bytes:
        if reference.store:
            return await _tried(lambda: self._objects.get(reference, offset, min(size, READ_BYTES)))
        return await _tried(lambda: self._port.get(reference.sha256, offset, min(size, PAYLOAD_CHUNK_BYTES)))


def corrupt(reference: Reference, why: str) -> PayloadCorrupt:
    where = reference.store or "the database"
    return PayloadCorrupt(
        f"content {reference.hex} in {where} is damaged: {why}. Restore it from a backup of the store"
    )


async def _tried(act: Callable[[], Awaitable[T]]) -> T:
    """A store that is away is asked again a few times; so is an upload that arrived damaged because another one interfered."""
    pause_s = PAUSE_S
    for _ in range(TRIES - 1):
        try:
            return await act()
        except ContentChanged:
            raise
        except (Unavailable, PayloadCorrupt):
            pass
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s *= 2
    return await act()
