"""Stored content that payloads refer to: announce, write, read."""

from __future__ import annotations

import msgspec

from perdure.core.api.act import Act
from perdure.core.payload_port import AnnouncedPayload, PayloadPlaces, Place
from perdure.core.payloads import Reference


class AnnouncePayloads(msgspec.Struct, frozen=True):
    """Content that is about to be uploaded. Announced first, so that an upload that is never recorded is found and deleted."""

    store: str
    """URL of an object store; empty for the database."""
    items: list[AnnouncedPayload]


class PutPayload(msgspec.Struct, frozen=True):
    """A part of content for the database's store, PAYLOAD_CHUNK_BYTES each but for the last."""

    sha256: bytes
    size: int
    offset: int
    data: bytes
    holds: list[Place] = []
    """As announced. Content of one part need not be announced."""


class PayloadStored(msgspec.Struct, frozen=True):
    is_complete: bool


class GetPayload(msgspec.Struct, frozen=True):
    """A part of what the database's store has."""

    sha256: bytes
    offset: int = 0
    size: int = 0
    """Bytes wanted; 0: up to PAYLOAD_CHUNK_BYTES."""


class PayloadPart(msgspec.Struct, frozen=True):
    data: bytes
    """Empty at the end."""


class FindPayload(msgspec.Struct, frozen=True):
    sha256: bytes


class FoundPayload(msgspec.Struct, frozen=True):
    reference: Reference


# Workers and clients both write and read payloads, with different permissions: the handlers check them.
ANNOUNCE: Act[AnnouncePayloads, PayloadPlaces] = Act("payload.announce", AnnouncePayloads, PayloadPlaces, None)
PUT: Act[PutPayload, PayloadStored] = Act("payload.put", PutPayload, PayloadStored, None)
GET: Act[GetPayload, PayloadPart] = Act("payload.get", GetPayload, PayloadPart, None)
FIND: Act[FindPayload, FoundPayload] = Act("payload.find", FindPayload, FoundPayload, None)

ACTS = (ANNOUNCE, PUT, GET, FIND)
