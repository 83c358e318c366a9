"""`perdure.Blob`: bytes of any size as an argument or result. A handle, whose content is read when it is needed.

A blob that a task makes is spooled to a file of its process and stored when the value that contains it leaves the process; its digest is
known from the beginning, so a blob is equal to its copy elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import mimetypes
import os
import tempfile
import weakref
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from perdure.core.errors import PerdureError
from perdure.core.limits import PAYLOAD_CHUNK_BYTES
from perdure.core.payloads import BINARY_TYPE, Reference
from perdure.payloads.content import BytesContent, Content, FileContent, unlink_quietly
from perdure.sdk.payloads import markers
from perdure.sdk.payloads.access import BlobAccess, blob_access

SPOOL_PREFIX: Final = "perdure-blob-"


class Blob:
    """Bytes of any size: an argument, a result, or a part of one.

        @task
        def render(page: str) -> Blob:
            with Blob.writer("page.pdf") as out:
                out.write(...)
            return out.blob

        @task
        def publish(page: Blob) -> None:
            with page.open() as file: ...

    Workflow code passes blobs on and sees `size`, `sha256`, `media_type` and `name`; only tasks and clients read them.
    """

    __slots__ = ("_access", "_content", "_reference")

    def __init__(self, reference: Reference, content: Content | None = None) -> None:
        self._reference, self._content = reference, content
        self._access: BlobAccess | None = blob_access.get(None)

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str = "", media_type: str = "") -> Blob:
        """A blob of these bytes."""
        _check_writable()
        content = BytesContent(bytes(data))
        return cls(_reference(content.sha256, content.size, name, media_type), content)

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], *, name: str | None = None, media_type: str = "") -> Blob:
        """A blob of a file's content, which is digested now and read again when it is stored: do not change the file in between.

        Raises FileNotFoundError and the like."""
        _check_writable()
        found = Path(path)
        digest, size = _digested(found)
        content = FileContent(found, digest, size, owned=False)
        return cls(_reference(digest, size, found.name if name is None else name, media_type), content)

    @staticmethod
    def writer(name: str = "", *, media_type: str = "") -> BlobWriter:
        """Write a blob piece by piece: `with Blob.writer("data.csv") as out: ...`, then `out.blob`. `async with` works too."""
        _check_writable()
        return BlobWriter(name, media_type)

    @property
    def size(self) -> int:
        """Bytes."""
        return self._reference.size

    @property
    def sha256(self) -> str:
        """The digest of the content, in hex."""
        return self._reference.hex

    @property
    def media_type(self) -> str:
        return self._reference.media_type

    @property
    def name(self) -> str:
        """The file name; empty for none."""
        return self._reference.name

    @property
    def content(self) -> Content | None:
        """Its bytes in this process, where it was made here."""
        return self._content

    def read_bytes(self) -> bytes:
        """All of the content, checked against its digest."""
        return b"".join(self._chunks())

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def open(self) -> IO[bytes]:
        """A binary file, opened for reading. It can be searched (`seek`), and only what is read is loaded."""
        return io.BufferedReader(_BlobFile(self), PAYLOAD_CHUNK_BYTES)

    def save_to(self, path: str | os.PathLike[str]) -> Path:
        """Write the content to a file, which is there only once it is complete."""
        target = Path(path)
        with _beside(target) as file:
            for chunk in self._chunks():
                file.write(chunk)
        return target

    async def aread_bytes(self) -> bytes:
        """As `read_bytes`, without blocking the event loop."""
        return b"".join([part async for part in self.astream()])

    async def aread_text(self, encoding: str = "utf-8") -> str:
        return (await self.aread_bytes()).decode(encoding)

    async def astream(self, offset: int = 0, size: int | None = None) -> AsyncGenerator[bytes]:
        """The content in pieces, from `offset` on, `size` bytes of it."""
        if self._content is not None:
            end = self.size if size is None else min(self.size, offset + size)
            at = 0
            for chunk in self._content.chunks():
                piece = chunk[max(offset - at, 0) : max(end - at, 0)]
                at += len(chunk)
                if piece:
                    yield piece
            return
        async with aclosing(self._readable().stream(self._reference, offset, size)) as parts:
            async for part in parts:
                yield part

    async def asave_to(self, path: str | os.PathLike[str]) -> Path:
        target = Path(path)
        with _beside(target) as file:
            async for part in self.astream():
                file.write(part)
        return target

    def _chunks(self) -> Iterator[bytes]:
        if self._content is not None:
            yield from self._content.chunks()
            return
        digest, offset, access = hashlib.sha256(), 0, self._readable()
        while offset < self.size:
            part = access.read_now(self._reference, offset, PAYLOAD_CHUNK_BYTES)
            offset += len(part)
            digest.update(part)
            if not part or (offset >= self.size and digest.digest() != self._reference.sha256):
                from perdure.payloads.transfer import corrupt

                raise corrupt(self._reference, f"its SHA-256 is {digest.hexdigest()} after {offset} bytes")
            yield part

    def _part(self, offset: int, size: int) -> bytes:
        if isinstance(self._content, BytesContent):
            return self._content.data[offset : offset + size]
        if isinstance(self._content, FileContent):
            with self._content.path.open("rb") as file:
                file.seek(offset)
                return file.read(size)
        return self._readable().read_now(self._reference, offset, min(size, self.size - offset))

    def _readable(self) -> BlobAccess:
        access = blob_access.get(None) or self._access
        if access is None:
            raise PerdureError(
                "this blob cannot be read here: no Perdure client is open around this code. Read it in a task, or inside `async with Perdure(...)` or `async with Client(...)`"
            )
        return access

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Blob({name}{self.size} bytes, {self.media_type}, sha256 {self.sha256[:8]})"

    def _key(self) -> tuple[bytes, int, str, str]:
        return self._reference.sha256, self.size, self.media_type, self.name

    def to_marker(self) -> dict[str, int]:
        """For codecs: what is written in its place."""
        return markers.place(self._reference, self._content)

    @classmethod
    def at_marker(cls, data: Any) -> Blob:
        """For codecs: the blob at this place of the payload that is being read."""
        return data if isinstance(data, Blob) else cls(markers.reference_at(data))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(Blob.to_marker, when_used="json")
        return core_schema.no_info_plain_validator_function(cls.at_marker, serialization=written)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return dict(JSON_SCHEMA)


JSON_SCHEMA: Final = {
    "type": "object",
    "title": "Blob",
    "description": "Stored content; only clients and tasks make one.",
}


class BlobWriter:
    """A blob that is being written, to a temporary file of this process. `blob` is there once it is closed."""

    def __init__(self, name: str, media_type: str) -> None:
        self._name, self._media_type = name, media_type
        handle, path = tempfile.mkstemp(prefix=SPOOL_PREFIX)
        self._path, self._file = Path(path), os.fdopen(handle, "wb")
        self._unlink = weakref.finalize(self, unlink_quietly, self._path)
        self._digest, self._size = hashlib.sha256(), 0
        self._blob: Blob | None = None

    @property
    def blob(self) -> Blob:
        if self._blob is None:
            raise PerdureError("the blob is not complete: leave the `with` block of its writer, or close() it, first")
        return self._blob

    def write(self, data: bytes) -> int:
        self._file.write(data)
        self._digest.update(data)
        self._size += len(data)
        return len(data)

    def flush(self) -> None:
        """For libraries that write to a file."""
        self._file.flush()

    def close(self) -> None:
        """Complete the blob."""
        if self._blob is not None:
            return
        self._file.close()
        self._unlink.detach()
        digest = self._digest.digest()
        content = FileContent(self._path, digest, self._size, owned=True)
        self._blob = Blob(_reference(digest, self._size, self._name, self._media_type), content)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def _leave(self, failed: bool) -> None:
        if failed:
            self._file.close()
            self._unlink()
        else:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind is not None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind is not None)


class _BlobFile(io.RawIOBase):
    """Loads what is read, and nothing else."""

    def __init__(self, blob: Blob) -> None:
        self._blob, self._at = blob, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._blob.size}[whence]
        self._at = max(base + offset, 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._blob.size - self._at)
        if wanted <= 0:
            return 0
        part = self._blob._part(self._at, wanted)
        buffer[: len(part)] = part
        self._at += len(part)
        return len(part)


def _check_writable() -> None:
    access = blob_access.get(None)
    if access is not None:
        access.check_writable()


def _reference(sha256: bytes, size: int, name: str, media_type: str) -> Reference:
    guessed = media_type or mimetypes.guess_type(name)[0] or BINARY_TYPE
    return Reference(sha256, size, "", True, guessed, name)


def _digested(path: Path) -> tuple[bytes, int]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(PAYLOAD_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.digest(), size


@contextlib.contextmanager
def _beside(target: Path) -> Generator[IO[bytes]]:
    """A file that takes the target's place when it is complete."""
    handle, path = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(path, target)
    except BaseException:
        unlink_quietly(Path(path))
        raise
