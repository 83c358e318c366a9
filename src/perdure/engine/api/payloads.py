"""Acts on stored content, and the check of requests that refer to some.

Workers (WORK) and clients that start runs or send messages write content; they and readers read it.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.access import Permission
from perdure.core.api import payloads as acts
from perdure.core.api.payloads import (
    AnnouncePayloads,
    FindPayload,
    FoundPayload,
    GetPayload,
    PayloadPart,
    PayloadStored,
    PutPayload,
)
from perdure.core.errors import Forbidden, PayloadTooLarge
from perdure.core.limits import PAYLOAD_BYTES_MAX
from perdure.core.payload_port import PayloadPlaces
from perdure.core.payloads import MARK, held_by
from perdure.engine.api.api import NamespaceApi, handles
from perdure.engine.payloads import NamespacePayloads

_WRITERS = (Permission.WORK, Permission.START, Permission.OPERATE)
_READERS = (Permission.WORK, Permission.READ)


@handles(acts.ANNOUNCE)
async def announce(api: NamespaceApi, r: AnnouncePayloads) -> PayloadPlaces:
    return await _of(api, _WRITERS).announce(r.store, r.items)


@handles(acts.PUT)
async def put(api: NamespaceApi, r: PutPayload) -> PayloadStored:
    return PayloadStored(await _of(api, _WRITERS).put(r.sha256, r.size, r.offset, r.data, r.holds))


@handles(acts.GET)
async def get(api: NamespaceApi, r: GetPayload) -> PayloadPart:
    return PayloadPart(await _of(api, _READERS).get(r.sha256, r.offset, r.size))


@handles(acts.FIND)
async def find(api: NamespaceApi, r: FindPayload) -> FoundPayload:
    return FoundPayload(await _of(api, _READERS).find(r.sha256))


def _of(api: NamespaceApi, permissions: Iterable[Permission]) -> NamespacePayloads:
    principal = api.caller.principal
    if not any(principal.may(permission) for permission in permissions):
        words = ", ".join(repr(p.value) for p in permissions)
        raise Forbidden(f"{principal.subject} has none of the permissions {words}, one of which this needs")
    return api.engine.payloads.of(api.ns)


async def taken(api: NamespaceApi, value: bytes, what: str, run_id: bytes | None = None) -> bytes:
    """A payload of a request, ready to be recorded: content that it refers to is held for it, and a long one is stored."""
    if not value.startswith(MARK) and len(value) <= api.engine.settings.payload_inline_bytes:
        return value
    payloads = api.engine.payloads.of(api.ns)
    value = await payloads.transfer.offload(value, what)
    if len(value) > PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(f"{what} has {len(value)} bytes, over the limit PAYLOAD_BYTES_MAX={PAYLOAD_BYTES_MAX}")
    await payloads.hold(list(held_by([value])), run_id)
    return value
