"""XAES-256-GCM: AES-256-GCM under a key that is derived for each message from the first half of a nonce of 24 random bytes.

Random nonces of plain AES-GCM have 96 bits, and one key may encrypt 2**32 messages at most: engines that share a key would have to count
together. With 192 bits the chance that two of 2**64 messages under one key have the same nonce is 2**-65. So nothing is counted, and neither
a fork of the process nor a second engine matters. Specification: https://c2sp.org/XAES-256-GCM
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from perdure.core.packages import missing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 24
TAG_BYTES: Final = 16
_HALF: Final = 12
_BLOCK: Final = 16


class Xaes:
    """One key. Used from one thread at a time."""

    __slots__ = ("_blocks", "_gcm", "_mask")

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise missing("encryption of payloads", "encryption") from error
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes; this one has {len(key)}")
        self._gcm: type[AESGCM] = AESGCM
        # One block at a time, each by itself: the derivation below is CMAC written out, not a mode of encryption.
        self._blocks: Any = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
        first = int.from_bytes(self._blocks.update(bytes(_BLOCK)))
        doubled = (first << 1) & ((1 << 128) - 1)
        self._mask = doubled ^ 0x87 if first >> 127 else doubled

    def encrypt(self, data: bytes, bound_to: bytes) -> bytes:
        """The nonce, the ciphertext and the tag."""
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._derived(nonce).encrypt(nonce[_HALF:], data, bound_to)

    def decrypt(self, sealed: bytes, bound_to: bytes) -> bytes:
        """Raises InvalidTag, or ValueError for what is too short."""
        nonce = sealed[:NONCE_BYTES]
        if len(sealed) < NONCE_BYTES + TAG_BYTES:
            raise ValueError("too short")
        return self._derived(nonce).decrypt(nonce[_HALF:], sealed[NONCE_BYTES:], bound_to)

    def _derived(self, nonce: bytes) -> AESGCM:
        tail = int.from_bytes(nonce[:_HALF])
        one = ((0x0001_5800 << 96) | tail) ^ self._mask
        two = ((0x0002_5800 << 96) | tail) ^ self._mask
        return self._gcm(self._blocks.update(one.to_bytes(_BLOCK) + two.to_bytes(_BLOCK)))
