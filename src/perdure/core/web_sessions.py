"""Sessions of browsers: the form of an id, and what follows from it. Pure.

An id is 256 random bits. The browser's cookie has it and no other place: the database has its SHA-256, so that what leaks from there signs no
one in. A fast hash is right here, as for API keys: 2^256 ids cannot be tried one by one.
"""

from __future__ import annotations

import base64
import hmac
import re
from hashlib import sha256
from typing import Final

import msgspec

from perdure.core.access import Role

ID_BYTES: Final = 32
_ID_CHARS: Final = 43
"""Of 32 bytes in URL-safe base64 without padding."""
_FORM: Final = re.compile(rf"[A-Za-z0-9_-]{{{_ID_CHARS}}}")
_CSRF: Final = b"perdure csrf token"


class NewWebSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is about to be stored: of an API key, by its id, or of a user of an identity provider, with its rights."""

    hash: bytes
    subject: str
    name: str
    """Shown to people: the name of the key, or of the user."""
    key_id: str | None = None
    role: Role | None = None
    namespace: str | None = None
    lifetime_s: float


class WebSession(msgspec.Struct, frozen=True, kw_only=True):
    """A stored session. The database's clock says whether it has ended."""

    subject: str
    name: str
    key_id: str | None
    """The API key that it stands for; its rights are the key's. None: the rights stand here."""
    role: Role | None
    namespace: str | None
    expires_us: int
    has_ended: bool
    """It has expired, or was not used for too long."""
    use_is_stale: bool
    """Its last use is old enough to be written again."""


def is_id(text: str) -> bool:
    return _FORM.fullmatch(text) is not None


def hash_of(ident: str) -> bytes:
    return sha256(ident.encode()).digest()


def csrf_of(ident: str) -> str:
    """What requests that change something have to repeat in a header. A page of another site can read neither it nor the id."""
    return base64.urlsafe_b64encode(hmac.digest(ident.encode(), _CSRF, "sha256")).rstrip(b"=").decode()


def handle_of(ident: str) -> str:
    """Names a session in the audit log; opens nothing."""
    return hash_of(ident).hex()[:12]
