"""Secrets that a server must be able to read again, sealed for the database: AES-256-GCM under a key that is not in it.

    0x01 | key id, 4 bytes | nonce, 12 bytes | ciphertext and tag

The key id says which key sealed it, so keys can be replaced: the first of the list seals, all of them open. What a secret belongs to is bound into
the seal: moved to another row, it does not open.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from perdure.core.errors import CannotOpenSecret, InvalidInput, NoSecretKey
from perdure.core.packages import missing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
ID_BYTES: Final = 4
SEALED: Final = b"\x01"

HOW: Final = (
    "Make a key with `openssl rand -base64 32`, keep it in a file that only the server's user can read, and name the file in "
    "PERDURE_SECRET_KEY_FILE on every server of this database."
)


class SecretBox:
    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = {_id_of(key): _cipher(key) for key in keys}
        self._first = _id_of(keys[0]) if keys else b""

    def seal(self, secret: bytes, owner: str) -> bytes:
        """`owner`: what the secret belongs to; it is needed again to open it."""
        if not self._first:
            raise NoSecretKey(f"this server has no key to keep a secret with, so it keeps none. {HOW}")
        nonce = os.urandom(NONCE_BYTES)
        return SEALED + self._first + nonce + self._keys[self._first].encrypt(nonce, secret, owner.encode())

    def open(self, sealed: bytes, owner: str) -> bytes:
        """A secret that was stored before there was a key is stored in the clear, and is returned as it is."""
        if not sealed.startswith(SEALED):
            return sealed
        ident, nonce, body = sealed[1 : 1 + ID_BYTES], sealed[1 + ID_BYTES : 17], sealed[17:]
        key = self._keys.get(ident)
        if key is None:
            raise CannotOpenSecret(
                f"the secret of {owner} was sealed with another key than those of this server ({ident.hex()})"
            )
        from cryptography.exceptions import InvalidTag

        try:
            return key.decrypt(nonce, body, owner.encode())
        except (InvalidTag, ValueError):  # a nonce that is cut short is a ValueError
            raise CannotOpenSecret(
                f"the secret of {owner} was changed in the database, or belongs to something else"
            ) from None


def parse_keys(text: str) -> tuple[bytes, ...]:
    """Keys in base64, one per line or separated by commas. The first seals, all open."""
    found: list[bytes] = []
    for word in text.replace(",", "\n").split():
        try:
            key = base64.b64decode(word.replace("-", "+").replace("_", "/") + "=" * (-len(word) % 4), validate=True)
        except (ValueError, binascii.Error):
            key = b""
        if len(key) != KEY_BYTES:
            raise InvalidInput(
                f"key {len(found) + 1} is not {KEY_BYTES} bytes in base64. `openssl rand -base64 {KEY_BYTES}` makes one"
            )
        found.append(key)
    if not found:
        raise InvalidInput(f"there is no key. `openssl rand -base64 {KEY_BYTES}` makes one")
    return tuple(found)


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise missing("a key for secrets", "webhooks") from error
    return AESGCM(key)


def _id_of(key: bytes) -> bytes:
    return hashlib.sha256(b"perdure secret key id" + key).digest()[:ID_BYTES]
