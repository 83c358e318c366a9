"""Master keys in a file: 32 bytes in base64 per line, `#` for comments. The first wraps, all unwrap.

The file is read each time it is needed, which is once for each data key: a key that is added is used without a restart.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perdure.app.secret_box import parse_keys
from perdure.core.errors import InvalidInput, PayloadKeyMissing
from perdure.core.master_keys import WrappedKey
from perdure.core.packages import missing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

BOUND_TO: Final = b"perdure data key"
NONCE_BYTES: Final = 12
ID_CHARS: Final = 8
OTHERS: Final = stat.S_IRWXG & ~stat.S_IRGRP | stat.S_IRWXO
"""Rights that the file may not give: the group may read, as files of secrets in Kubernetes let it, and others nothing at all."""


class KeyFile:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    async def newest(self) -> str:
        return next(iter(await self._keys()))

    async def wrap(self, key: bytes) -> WrappedKey:
        master, wrapping = next(iter((await self._keys()).items()))
        nonce = os.urandom(
            NONCE_BYTES
        )  # at most one wrap per data key and rewrap: far below 2**32 under one master key
        return WrappedKey(master, nonce + _cipher(wrapping).encrypt(nonce, key, BOUND_TO))

    async def unwrap(self, wrapped: WrappedKey) -> bytes:
        from cryptography.exceptions import InvalidTag

        keys = await self._keys()
        found = keys.get(wrapped.master)
        if found is None:
            raise PayloadKeyMissing(
                f"it is wrapped by the master key {wrapped.master}, which is not in {self._path} (there: {', '.join(keys)}). Put the line of "
                "that key back into the file, below the others"
            )
        try:
            plain: bytes = _cipher(found).decrypt(wrapped.data[:NONCE_BYTES], wrapped.data[NONCE_BYTES:], BOUND_TO)
        except (InvalidTag, ValueError):
            raise PayloadKeyMissing(
                f"the master key {wrapped.master} does not unwrap it: the row of perdure.payload_key was changed"
            ) from None
        return plain

    async def _keys(self) -> dict[str, bytes]:
        return await asyncio.to_thread(self._read)

    def _read(self) -> dict[str, bytes]:
        try:
            mode = self._path.stat().st_mode
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise PayloadKeyMissing(f"the file of master keys {self._path} cannot be read: {why}") from None
        if os.name == "posix" and mode & OTHERS:
            raise PayloadKeyMissing(
                f"the file of master keys {self._path} has mode {stat.S_IMODE(mode):04o}: others could read or change it. "
                f"Run `chmod 600 {self._path}`"
            )
        lines = "\n".join(line.partition("#")[0] for line in text.splitlines())
        try:
            return {key_id(key): key for key in parse_keys(lines)}
        except InvalidInput as error:
            raise PayloadKeyMissing(f"the file of master keys {self._path} is not usable: {error}") from None


def key_id(key: bytes) -> str:
    """By which people and the database know a key; it tells nothing about the key."""
    return hashlib.sha256(b"perdure master key id" + key).hexdigest()[:ID_CHARS]


def _cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise missing("encryption of payloads", "encryption") from error
    return AESGCM(key)
