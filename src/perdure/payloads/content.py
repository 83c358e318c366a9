"""Content that is not stored yet, and payloads that refer to it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from perdure.core import payloads
from perdure.core.errors import PayloadCorrupt
from perdure.core.limits import PAYLOAD_BYTES_MAX, PAYLOAD_CHUNK_BYTES, PAYLOAD_INLINE_BYTES
from perdure.core.payloads import JSON_TYPE, OBJECT_TYPE, Reference, digest_of

SPOOL_PREFIX: Final = "perdure-result-"
"""Of temporary files that hold large results until they are stored."""


class Content(Protocol):
    """Bytes in this process or on its disk, which can be read any number of times."""

    @property
    def sha256(self) -> bytes: ...
    @property
    def size(self) -> int: ...
    def chunks(self) -> Iterator[bytes]:
        """PAYLOAD_CHUNK_BYTES each, but for the last. Blocking."""
        ...


class ContentChanged(PayloadCorrupt):
    """A file was written to after it was digested: trying again cannot help."""

    def __init__(self, content: Content) -> None:
        super().__init__(
            f"the content of a blob changed before it was stored: it no longer has SHA-256 {content.sha256.hex()}. Do not write to a "
            "file after Blob.from_path() has read it"
        )


class BytesContent:
    __slots__ = ("data", "sha256", "size")

    def __init__(self, data: bytes) -> None:
        self.data, self.sha256, self.size = data, digest_of(data), len(data)

    def chunks(self) -> Iterator[bytes]:
        for start in range(0, self.size, PAYLOAD_CHUNK_BYTES):
            yield self.data[start : start + PAYLOAD_CHUNK_BYTES]


class FileContent:
    """A file that holds the content of a blob or of a large value. An `owned` one is deleted with it."""

    __slots__ = ("__weakref__", "_finalizer", "path", "sha256", "size")

    def __init__(self, path: Path, sha256: bytes, size: int, *, owned: bool) -> None:
        self.path, self.sha256, self.size = path, sha256, size
        self._finalizer = weakref.finalize(self, unlink_quietly, path) if owned else None

    @property
    def owned(self) -> bool:
        return self._finalizer is not None

    def disown(self) -> None:
        """Another process deletes it."""
        if self._finalizer is not None:
            self._finalizer.detach()

    def chunks(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                while chunk := file.read(PAYLOAD_CHUNK_BYTES):
                    yield chunk
        except FileNotFoundError:
            raise ContentChanged(self) from None


def unlink_quietly(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


class UnsentPayload(bytes):
    """An envelope whose references have no store yet: `contents` must be stored before it leaves the process."""

    contents: tuple[Content, ...]

    @classmethod
    def of(cls, payload: bytes, contents: tuple[Content, ...]) -> UnsentPayload:
        made = cls(payload)
        made.contents = contents
        return made


def spooled(payload: bytes) -> bytes:
    """A payload of plain JSON. The large parts of one over PAYLOAD_BYTES_MAX wait in temporary files until they are stored, so that a process that
    collects the results of many jobs does not hold them in memory."""
    if len(payload) <= PAYLOAD_BYTES_MAX:
        return payload
    large = payloads.large_members(payload, PAYLOAD_INLINE_BYTES)
    parts = [payload] if large is None else [bytes(raw) for raw in large.values()]
    contents = tuple(_spooled_content(part) for part in parts)
    references = [
        Reference(c.sha256, c.size, media_type=OBJECT_TYPE if part.startswith(b"{") else JSON_TYPE)
        for c, part in zip(contents, parts, strict=True)
    ]
    if large is None:
        return UnsentPayload.of(payloads.whole(references[0]), contents)
    return UnsentPayload.of(payloads.with_stored(payload, dict(zip(large, references, strict=True))), contents)


def _spooled_content(data: bytes) -> FileContent:
    handle, path = tempfile.mkstemp(prefix=SPOOL_PREFIX)
    content = FileContent(Path(path), digest_of(data), len(data), owned=True)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return content
