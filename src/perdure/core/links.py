"""Signed links: one question to one person, as a text that can be passed on and cannot be changed.

Laws:

1. A token says everything about what it is good for: which promise of which run in which namespace, who answers, and until when.
2. It is signed with HMAC-SHA256 over all of it. What does not verify, byte for byte, says nothing: `read` answers None and no reason.
3. That a link works once is not in the token; the store remembers the ids of those that were used.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from hashlib import sha256
from typing import Final, Literal

import msgspec

from perdure.core.limits import LINK_CHARS_MAX

PURPOSE: Final = b"perdure link 1\n"
"""Signed along, so that no signature made for anything else is one of a link."""
SECRET_BYTES: Final = 32
ID_BYTES: Final = 16
_MAC_BYTES: Final = sha256().digest_size

Kind = Literal["approval", "promise"]


class Link(msgspec.Struct, frozen=True, array_like=True):
    kind: Kind
    namespace: str
    run_id: bytes
    name: str
    """Of the promise."""
    who: str
    """Who answers with it; may be empty for a plain promise."""
    expires_us: int
    id: bytes
    """Drawn at random; what is remembered of a link that was used."""


_decoder = msgspec.msgpack.Decoder(Link)


def sign(link: Link, secret: bytes) -> str:
    body = msgspec.msgpack.encode(link)
    return _text(body + _mac(body, secret))


def read(token: str, secret: bytes) -> Link | None:
    """The link, if it is exactly as it was signed."""
    if len(token) > LINK_CHARS_MAX or not token.isascii():
        return None
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        return None
    body, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    if not hmac.compare_digest(_mac(body, secret), mac) or _text(data) != token:  # one spelling of a token, not several
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None


def _mac(body: bytes, secret: bytes) -> bytes:
    assert len(secret) == SECRET_BYTES, "the secret of links is made by the store"
    return hmac.digest(secret, PURPOSE + body, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
