"""Stored content: downloads, and values that are answered in place of their reference."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import StreamingResponse

from perdure.core.api import payloads as acts
from perdure.core.api.payloads import FindPayload
from perdure.core.limits import PAYLOAD_SHOWN_BYTES_MAX
from perdure.core.payloads import BINARY_TYPE, MARK, Reference, values_of
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.problems import responses

router = APIRouter(prefix="/payloads", tags=["payloads"], route_class=GuardedRoute)

Digest = Annotated[
    str,
    Path(
        pattern="^[0-9a-f]{64}$",
        description="The SHA-256 of the content, in hex.",
        examples=["2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"],
    ),
]


@router.get("/{sha256}", response_class=StreamingResponse, responses=responses(401, 403, 410, 422))
async def get_payload(caller: Annotated[RestCaller, asks(acts.FIND)], sha256: Digest) -> StreamingResponse:
    """Download the content of a blob, or a stored value."""
    found = (await caller.call(acts.FIND, FindPayload(bytes.fromhex(sha256)))).reference
    headers = {
        "Content-Length": str(found.size),
        "Content-Disposition": f'attachment; filename="{sha256}"',
        "ETag": f'"{sha256}"',
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(_parts(caller, found), media_type=BINARY_TYPE, headers=headers)


async def _parts(caller: RestCaller, reference: Reference) -> AsyncIterator[bytes]:
    """A damaged end breaks the connection, so that the client does not take it for complete."""
    async for part in caller.api.engine.payloads.of(caller.api.ns).transfer.read(reference):
        yield part


async def loaded(caller: RestCaller, data: bytes) -> bytes:
    """A payload with its stored values in their places, where those are small enough to be answered."""
    if data.startswith(MARK) and sum(r.size for r in values_of(data)) <= PAYLOAD_SHOWN_BYTES_MAX:
        return await caller.api.engine.payloads.of(caller.api.ns).transfer.resolve(data)
    return data
