"""Bytes to sealed bytes and back.

    c1 50 01 | flags | kind | id of the data key, 4 bytes | content

The first two bytes begin neither UTF-8 nor MessagePack, so data that was written without a codec is recognized and read as it is. Flags: 1
encrypted, 2 compressed, 4 the content is JSON (of a value that replaced a part of a JSON text). Encrypted content is the nonce, the
ciphertext and the tag of xaes.py; everything before it and what the value is bound to are authenticated. Compression comes first, because
ciphertext does not compress.

In a column of text a sealed value is the word `perdure:sealed:` and the bytes in URL-safe base64.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Awaitable, Callable, Iterable
from struct import Struct
from typing import Any, Final

from perdure.core.errors import PayloadCorrupt, PayloadKeyMissing
from perdure.core.packages import missing
from perdure.store.sealing.kinds import BY_NUMBER, Kind
from perdure.store.sealing.xaes import Xaes

MARK: Final = b"\xc1P"
FORMAT: Final = 1
_HEAD: Final = Struct(">2sBBBI")
ENCRYPTED, COMPRESSED, JSON = 1, 2, 4
_FLAGS: Final = ENCRYPTED | COMPRESSED | JSON

WORD: Final = "perdure:sealed:"
WORDS: Final = re.compile(WORD + "([A-Za-z0-9_-]+)")
QUOTED: Final = re.compile(f'"{WORD}([A-Za-z0-9_-]+)"')

ZSTD_LEVEL: Final = 3
COMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""What one compressed value may hold: more than any limit on what is stored in one row."""

Load = Callable[[Any, set[int]], Awaitable[None]]
"""Make data keys of these ids known, over this connection."""
Refresh = Callable[[Any], Awaitable[None]]


class _Zstd(threading.local):
    """Compressors are used by one thread at a time."""

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise missing("compressed payloads", "encryption") from error
        self.compress = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress
        self._decompress = zstandard.ZstdDecompressor().decompress
        self._sizes = zstandard.frame_content_size
        self.error = zstandard.ZstdError

    def decompress(self, data: bytes) -> bytes:
        try:
            size = self._sizes(data)
            if not 0 <= size <= COMPRESSED_BYTES_MAX:
                raise PayloadCorrupt(f"a compressed value in the database says that it holds {size:,} bytes")
            out: bytes = self._decompress(data)
        except self.error as error:
            raise PayloadCorrupt(f"a compressed value in the database was damaged: {error}") from None
        return out


async def _no_keys(_: Any, ids: set[int]) -> None:
    """Where no master key is set."""


async def _no_refresh(_: Any) -> None:
    """Nor then."""


class PayloadCodec:
    """Seals and opens for one database. Without a key and without compression it seals nothing, and opens what needs no key."""

    def __init__(self, compress_from: int = 0, load: Load = _no_keys, refresh: Refresh = _no_refresh) -> None:
        """`compress_from`: values of so many bytes are compressed; 0: none."""
        self.load = load
        self.refresh = refresh
        """Look for a newer data key; called with the heartbeat of an engine."""
        self.compress_from = compress_from
        self._zstd = _Zstd() if compress_from else None
        self._keys: dict[int, Xaes] = {}
        self._why_missing: dict[int, str] = {}
        self._newest = 0
        """The data key that seals; 0: none."""

    @property
    def writes(self) -> bool:
        """Whether it seals anything."""
        return bool(self._newest or self.compress_from)

    @property
    def encrypts(self) -> bool:
        return bool(self._newest)

    @property
    def newest(self) -> int:
        return self._newest

    def known(self) -> Iterable[int]:
        return self._keys.keys()

    def add(self, key_id: int, key: bytes) -> None:
        self._keys[key_id] = Xaes(key)
        self._why_missing.pop(key_id, None)

    def seal_with(self, key_id: int) -> None:
        """A key that was added."""
        assert key_id in self._keys
        self._newest = key_id

    def note_missing(self, key_id: int, why: str) -> None:
        self._why_missing[key_id] = why

    def forget(self, key_id: int) -> None:
        self._keys.pop(key_id, None)

    # out

    def seal(self, kind: Kind, bound_to: bytes, data: bytes, flags: int = 0) -> bytes:
        content = data
        if self._zstd is not None and len(data) >= self.compress_from:
            smaller = self._zstd.compress(data)
            if len(smaller) < len(data):
                content, flags = smaller, flags | COMPRESSED
        if self._newest:
            head = _HEAD.pack(MARK, FORMAT, flags | ENCRYPTED, kind.number, self._newest)
            return head + self._keys[self._newest].encrypt(content, head + bound_to)
        if flags or data.startswith(MARK):
            return _HEAD.pack(MARK, FORMAT, flags, kind.number, 0) + content
        return data

    def seal_text(self, kind: Kind, bound_to: bytes, text: str, flags: int = 0) -> str:
        """Text is sealed to hide it; to compress it alone is not worth a column that people cannot read."""
        if not self._newest:
            return text
        sealed = self.seal(kind, bound_to, text.encode(), flags)
        return WORD + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    # in

    def missing_keys(self, sealed: Iterable[bytes]) -> set[int]:
        """Ids of the keys that these need and that are not known."""
        return {key for data in sealed if (key := key_of(data)) and key not in self._keys}

    def open(self, data: bytes, bound_to: Callable[[Kind], bytes]) -> tuple[bytes, int]:
        """The content and its flags. `bound_to` says what a value of a kind is bound to where it was found, and raises PayloadCorrupt for a
        kind that does not belong there."""
        flags, kind, key_id = _head_of(data)
        content = data[_HEAD.size :]
        if flags & ENCRYPTED:
            key = self._keys.get(key_id)
            if key is None:
                raise self._missing(key_id, kind)
            content = _decrypted(key, content, data[: _HEAD.size] + bound_to(kind), kind)
        else:
            bound_to(kind)
        if flags & COMPRESSED:
            self._zstd = self._zstd or _Zstd()
            content = self._zstd.decompress(content)
        return content, flags

    def _missing(self, key_id: int, kind: Kind) -> PayloadKeyMissing:
        why = self._why_missing.get(key_id, "this process has no master key (PERDURE_PAYLOAD_KEYS)")
        return PayloadKeyMissing(
            f"this {kind.name.replace('_', ' ')} is encrypted with data key {key_id}, which cannot be used here: {why}. "
            "`perdure keys list` shows the data keys and the master keys that they need"
        )


def is_sealed(data: bytes) -> bool:
    return data[:2] == MARK


def from_word(word: str) -> bytes | None:
    """The bytes of a sealed text; None for text that only looks like it."""
    try:
        data = base64.urlsafe_b64decode(word + "=" * (-len(word) % 4))
    except (ValueError, binascii.Error):
        return None
    return data if len(data) >= _HEAD.size and is_sealed(data) else None


def word_prefixes(key_id: int) -> list[str]:
    """How the words begin that are sealed with a key: nine bytes are twelve characters, so it can be searched for."""
    heads = [
        _HEAD.pack(MARK, FORMAT, flags | ENCRYPTED, number, key_id)
        for flags in (0, COMPRESSED, JSON, COMPRESSED | JSON)
        for number, kind in BY_NUMBER.items()
        if kind.in_text
    ]
    return [base64.urlsafe_b64encode(head).decode() for head in heads]


def key_of(data: bytes) -> int:
    """The id of the data key; 0 for what is not encrypted."""
    if len(data) < _HEAD.size:
        return 0
    mark, version, flags, _, key_id = _HEAD.unpack_from(data)
    return key_id if mark == MARK and version == FORMAT and flags & ENCRYPTED else 0


def _head_of(data: bytes) -> tuple[int, Kind, int]:
    if len(data) < _HEAD.size:
        raise PayloadCorrupt("a sealed value in the database was cut short")
    _, version, flags, number, key_id = _HEAD.unpack_from(data)
    kind = BY_NUMBER.get(number)
    if version != FORMAT or flags & ~_FLAGS or kind is None or bool(key_id) != bool(flags & ENCRYPTED):
        raise PayloadCorrupt(
            f"a value in the database is sealed in format {version}.{flags}.{number}, which this version of Perdure does not know, or it was "
            "damaged; upgrade perdure if a newer version wrote it"
        )
    return flags, kind, key_id


def _decrypted(key: Xaes, content: bytes, bound_to: bytes, kind: Kind) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        return key.decrypt(content, bound_to)
    except (InvalidTag, ValueError):
        raise PayloadCorrupt(
            f"an encrypted {kind.name.replace('_', ' ')} was changed in the database, or moved there from another row"
        ) from None
