"""Stored content as workers and clients reach it: through the acts of a server, or of the engine in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from perdure.core.api import payloads as acts
from perdure.core.api.payloads import AnnouncePayloads, GetPayload, PutPayload
from perdure.core.errors import InvalidInput
from perdure.core.limits import PAYLOAD_INLINE_BYTES
from perdure.core.payload_port import AnnouncedPayload, PayloadCarrier, PayloadPlaces, Place
from perdure.core.payloads import MARK
from perdure.payloads.objects import STORES_VARIABLE, ObjectStores, payload_urls
from perdure.payloads.transfer import PayloadTransfer
from perdure.sdk.client.backend import Backend
from perdure.sdk.payloads.access import LoopAccess, blob_access

INLINE_VARIABLE: Final = "PERDURE_PAYLOAD_INLINE_BYTES"


class PayloadOptions(msgspec.Struct, frozen=True):
    """Where a process keeps large values."""

    stores: tuple[str, ...] = ()
    """Object stores; the first takes new content. Without any, the database does."""
    inline_bytes: int = PAYLOAD_INLINE_BYTES


def payload_options(stores: str | None = None, environ: Mapping[str, str] = os.environ) -> PayloadOptions:
    """What was given, then the environment (PERDURE_PAYLOADS, PERDURE_PAYLOAD_INLINE_BYTES)."""
    given = stores if stores is not None else environ.get(STORES_VARIABLE, "")
    inline = environ.get(INLINE_VARIABLE) or str(PAYLOAD_INLINE_BYTES)
    if not inline.isdigit():
        raise InvalidInput(f"{INLINE_VARIABLE} is {inline!r}; write a number of bytes")
    return PayloadOptions(payload_urls(given), int(inline))


class ActPayloads:
    """The payload store of a server."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    async def announce(self, store: str, items: list[AnnouncedPayload]) -> PayloadPlaces:
        places: PayloadPlaces = await self._call(acts.ANNOUNCE, AnnouncePayloads(store, items))
        return places

    async def put(self, sha256: bytes, size: int, offset: int, data: bytes, holds: list[Place]) -> bool:
        return bool((await self._call(acts.PUT, PutPayload(sha256, size, offset, data, holds))).is_complete)

    async def get(self, sha256: bytes, offset: int, size: int) -> bytes:
        data: bytes = (await self._call(acts.GET, GetPayload(sha256, offset, size))).data
        return data


def transfer_of(call: Callable[..., Any], options: PayloadOptions) -> PayloadTransfer:
    return PayloadTransfer(ActPayloads(call), ObjectStores(options.stores), options.inline_bytes)


async def decoded(backend: Backend, decode: Callable[[bytes], Any], payload: bytes) -> Any:
    """A value that a run answered. Its blobs read through this backend, wherever they are read."""
    if not payload.startswith(MARK):
        return decode(payload)

    async def resolved() -> Any:
        carrier: PayloadCarrier = backend.payloads
        whole = await carrier.resolve(payload)
        token = blob_access.set(LoopAccess(carrier))
        try:
            return decode(whole)
        finally:
            blob_access.reset(token)

    return await backend.carry_out(resolved)
