"""The form of an API key: `pd_<id>_<secret>`.

The id is public: it is in lists, in logs and in the audit, and finds the key's row. The secret is 256 random bits and is
kept nowhere; the database has its SHA-256. A fast hash is right here: 2^256 secrets cannot be tried one by one.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final, NamedTuple

PREFIX: Final = "pd_"
ID_CHARS: Final = 12
ID_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""No `-` and no `_`: an id is copied by a double click and never taken for an option."""
SECRET_BYTES: Final = 32
_SECRET_CHARS: Final = 43
"""Of 32 bytes in URL-safe base64 without padding."""
_FORM = re.compile(rf"pd_([A-Za-z0-9]{{{ID_CHARS}}})_([A-Za-z0-9_-]{{{_SECRET_CHARS}}})")


class Presented(NamedTuple):
    """A key that a caller presented: its id, and the hash of the secret that came with it."""

    id: str
    hash: bytes


def compose(ident: str, secret: str) -> str:
    key = f"{PREFIX}{ident}_{secret}"
    assert _FORM.fullmatch(key), "an id of 12 letters and digits and a secret of 32 bytes in URL-safe base64"
    return key


def present(key: str) -> Presented | None:
    """None: this is not a Perdure key."""
    match = _FORM.fullmatch(key)
    return Presented(match[1], sha256(match[2].encode()).digest()) if match else None
