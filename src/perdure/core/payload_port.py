"""The two ports of stored content: what the database offers, and what workers and engines do with payloads."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from perdure.core.payloads import Reference

T = TypeVar("T")

Place = tuple[str, bytes]
"""(store, SHA-256)"""


class AnnouncedPayload(msgspec.Struct, frozen=True, array_like=True):
    sha256: bytes
    size: int
    holds: list[Place] = []
    """What the content refers to, where it is a value with references of its own."""


class PayloadPlaces(msgspec.Struct, frozen=True):
    stores: list[str]
    """What the reference to each names as its store: empty, or its folder in the object store."""
    stored: list[bool]
    """Which of them the database has complete; of an object store only the store itself knows."""


class PayloadPort(Protocol):
    """Stored content of one namespace: in an engine the database's store, elsewhere a server in front of it."""

    async def announce(self, store: str, items: list[AnnouncedPayload]) -> PayloadPlaces:
        """Content that is about to be uploaded; see AnnouncePayloads."""
        ...

    async def put(self, sha256: bytes, size: int, offset: int, data: bytes, holds: list[Place]) -> bool:
        """A part of content for the database's own store. True: it is complete. Raises PayloadTooLarge or PayloadCorrupt."""
        ...

    async def get(self, sha256: bytes, offset: int, size: int) -> bytes:
        """A part of the database's own content; empty at the end. Raises PayloadMissing."""
        ...


class PayloadCarrier(Protocol):
    """Carries payloads into a store and back; payloads/transfer.py."""

    @property
    def inline_bytes(self) -> int:
        """Larger payloads are stored."""
        ...

    def is_heavy(self, payload: bytes) -> bool: ...
    def are_heavy(self, records: Sequence[Any]) -> bool: ...
    async def offload(self, payload: bytes, what: str = "the value") -> bytes: ...
    async def offload_record(self, record: T, what: str = "the value") -> T: ...
    async def resolve(self, payload: bytes) -> bytes: ...
    async def resolve_record(self, record: T) -> T: ...
    async def fetch(self, reference: Reference) -> bytes: ...
    def read(self, reference: Reference, offset: int = 0, size: int | None = None) -> AsyncGenerator[bytes]: ...
