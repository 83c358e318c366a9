"""The JSON form of payloads that refer to stored content."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.core.payloads import Reference, opened, replaced


def shown(reference: Reference) -> dict[str, Any]:
    """A reference in the place of its content."""
    about: dict[str, Any] = {
        "sha256": reference.hex,
        "size": reference.size,
        "media_type": reference.media_type.partition(";")[0],
        "href": f"/api/v1/payloads/{reference.hex}",
    }
    if reference.is_blob:
        about["is_blob"] = True
    if reference.name:
        about["name"] = reference.name
    return {"$payload": about}


def plain(data: bytes) -> Any:
    """The JSON of a payload that refers to stored content."""
    envelope = opened(data)
    return replaced(msgspec.json.decode(envelope.body), envelope, shown)
