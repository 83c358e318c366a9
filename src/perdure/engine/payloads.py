"""Stored content of an engine's namespaces: the payload store of the database, object stores where the engine was given some."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from perdure.core.errors import InvalidInput, PayloadCorrupt, PayloadTooLarge
from perdure.core.limits import PAYLOAD_ANNOUNCED_MAX, PAYLOAD_CHUNK_BYTES, PAYLOAD_OBJECT_BYTES_MAX
from perdure.core.payload_port import AnnouncedPayload, PayloadPlaces, Place
from perdure.core.payloads import DIGEST_BYTES, Reference, digest_of
from perdure.engine.settings import EngineSettings
from perdure.payloads.objects import ObjectStores, checked_url
from perdure.payloads.transfer import PayloadTransfer


class PayloadStore(Protocol):
    """The database's part of it."""

    async def announce(
        self, ns: int, folder: str, items: Sequence[AnnouncedPayload], grace_s: float
    ) -> list[tuple[str, bool]]: ...
    async def put_whole(self, ns: int, item: AnnouncedPayload, data: bytes, grace_s: float) -> None: ...
    async def put_chunk(self, ns: int, sha256: bytes, n: int, data: bytes) -> None: ...
    async def complete(self, ns: int, sha256: bytes, size: int) -> None: ...
    async def read(self, ns: int, sha256: bytes, offset: int, size: int) -> bytes: ...
    async def find(self, ns: int, sha256: bytes) -> Reference: ...
    async def hold(self, ns: int, places: Sequence[Place], grace_s: float, run_id: bytes | None = None) -> None: ...
    async def sweep(self, urls: Sequence[str], limit: int, grace_s: float, delete_objects: DeleteObjects) -> int: ...


class DeleteObjects(Protocol):
    async def __call__(self, places: list[Place], /) -> None: ...


class Payloads:
    """All namespaces of an engine."""

    def __init__(self, store: PayloadStore, settings: EngineSettings) -> None:
        self.store, self._settings = store, settings
        self.grace_s, self.bytes_max = settings.payload_grace_s, settings.payload_bytes_max
        self._by_ns: dict[int, NamespacePayloads] = {}

    @cached_property
    def objects(self) -> ObjectStores:
        return ObjectStores(self._settings.payload_stores)

    def of(self, ns: int) -> NamespacePayloads:
        found = self._by_ns.get(ns)
        if found is None:
            found = self._by_ns[ns] = NamespacePayloads(self, ns, self._settings.payload_inline_bytes)
        return found

    async def sweep(self, limit: int) -> int:
        """Delete content that nothing uses. Object stores that this engine does not know are left to engines that do."""
        return await self.store.sweep(self.objects.urls, limit, self.grace_s, self.objects.delete)


class NamespacePayloads:
    """One namespace: the port of its workers and clients, behind the checks of what they send."""

    def __init__(self, payloads: Payloads, ns: int, inline_bytes: int) -> None:
        self._payloads, self._store, self._ns = payloads, payloads.store, ns
        self._inline_bytes = inline_bytes

    @cached_property
    def transfer(self) -> PayloadTransfer:
        """How the engine itself reads and writes content."""
        return PayloadTransfer(self, self._payloads.objects, self._inline_bytes)

    async def announce(self, store: str, items: list[AnnouncedPayload]) -> PayloadPlaces:
        folder = f"{checked_url(store)}/ns-{self._ns}" if store else ""
        if len(items) > PAYLOAD_ANNOUNCED_MAX:
            raise InvalidInput(
                f"{len(items)} contents are announced at once, over the limit PAYLOAD_ANNOUNCED_MAX={PAYLOAD_ANNOUNCED_MAX}"
            )
        for item in items:
            self._check(item.sha256, item.size, in_database=not store)
        found = await self._store.announce(self._ns, folder, items, self._payloads.grace_s)
        return PayloadPlaces([store for store, _ in found], [is_complete for _, is_complete in found])

    async def put(self, sha256: bytes, size: int, offset: int, data: bytes, holds: list[Place]) -> bool:
        self._check(sha256, size, in_database=True)
        expected = min(PAYLOAD_CHUNK_BYTES, size - offset)
        if offset < 0 or offset % PAYLOAD_CHUNK_BYTES or len(data) != expected:
            raise InvalidInput(
                f"a part of {len(data)} bytes at {offset} of {size} does not fit: parts have PAYLOAD_CHUNK_BYTES={PAYLOAD_CHUNK_BYTES} "
                "bytes, but for the last"
            )
        if size <= PAYLOAD_CHUNK_BYTES:
            if digest_of(data) != sha256:
                raise PayloadCorrupt(
                    f"the content arrived damaged: it does not have SHA-256 {sha256.hex()}; upload it again"
                )
            await self._store.put_whole(self._ns, AnnouncedPayload(sha256, size, holds), data, self._payloads.grace_s)
            return True
        await self._store.put_chunk(self._ns, sha256, offset // PAYLOAD_CHUNK_BYTES, data)
        if offset + len(data) < size:
            return False
        await self._store.complete(self._ns, sha256, size)
        return True

    async def get(self, sha256: bytes, offset: int, size: int) -> bytes:
        self._check_digest(sha256)
        if offset < 0 or size < 0:
            raise InvalidInput(f"a part of {size} bytes at {offset} cannot be read: both must be 0 or more")
        return await self._store.read(self._ns, sha256, offset, min(size or PAYLOAD_CHUNK_BYTES, PAYLOAD_CHUNK_BYTES))

    async def find(self, sha256: bytes) -> Reference:
        self._check_digest(sha256)
        return await self._store.find(self._ns, sha256)

    async def hold(self, places: Sequence[Place], run_id: bytes | None = None) -> None:
        """Content that a request refers to stays until it is recorded. PayloadMissing when some is not there."""
        if places:
            await self._store.hold(self._ns, places, self._payloads.grace_s, run_id)

    def _check(self, sha256: bytes, size: int, *, in_database: bool) -> None:
        self._check_digest(sha256)
        bytes_max = self._payloads.bytes_max if in_database else PAYLOAD_OBJECT_BYTES_MAX
        if size < 0 or size > bytes_max:
            where = (
                "in the database: PAYLOAD_POSTGRES_BYTES_MAX"
                if in_database
                else "in an object store: PAYLOAD_OBJECT_BYTES_MAX"
            )
            raise PayloadTooLarge(
                f"{size:,} bytes are over the limit for one value or blob {where}={bytes_max:,}. Give workers and clients an object store "
                "(PERDURE_PAYLOADS=s3://bucket/prefix), or split the data"
            )

    def _check_digest(self, sha256: bytes) -> None:
        if len(sha256) != DIGEST_BYTES:
            raise InvalidInput(f"a SHA-256 has {DIGEST_BYTES} bytes; {len(sha256)} were given")
