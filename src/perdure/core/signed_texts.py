"""Bytes as a signed text: it can be passed on in a URL and cannot be changed or guessed.

The signature is HMAC-SHA256 over the purpose and the bytes, so that what was signed for one purpose is nothing for another.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from hashlib import sha256
from typing import Final

SECRET_BYTES: Final = 32
_MAC_BYTES: Final = sha256().digest_size


def sign(body: bytes, purpose: bytes, secret: bytes) -> str:
    return _text(body + _mac(body, purpose, secret))


def read(text: str, purpose: bytes, secret: bytes, chars_max: int) -> bytes | None:
    """The bytes, if the text is exactly as it was signed; otherwise None and no reason."""
    if len(text) > chars_max or not text.isascii():
        return None
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    body, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
    # One spelling of a text, not several.
    return body if hmac.compare_digest(_mac(body, purpose, secret), mac) and _text(data) == text else None


def _mac(body: bytes, purpose: bytes, secret: bytes) -> bytes:
    assert len(secret) == SECRET_BYTES, "the secret is made by the store"
    return hmac.digest(secret, purpose + body, "sha256")


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
