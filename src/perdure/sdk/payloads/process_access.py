"""How a task in a process of its own reads blobs: its parent downloads one to a file when it is first read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import IO

from perdure.core.limits import PAYLOAD_CHUNK_BYTES
from perdure.core.payloads import Reference


class ProcessAccess:
    """For one attempt. A file has no name any more once it is open, so nothing is left when the process ends."""

    def __init__(self, file_of: Callable[[Reference], Path]) -> None:
        self._file_of = file_of
        self._files: dict[bytes, IO[bytes]] = {}

    def read_now(self, reference: Reference, offset: int, size: int) -> bytes:
        file = self._files.get(reference.sha256)
        if file is None:
            path = self._file_of(reference)
            file = self._files[reference.sha256] = path.open("rb")
            path.unlink()
        file.seek(offset)
        return file.read(size)

    async def stream(self, reference: Reference, offset: int, size: int | None) -> AsyncGenerator[bytes]:
        end = reference.size if size is None else min(reference.size, offset + size)
        while offset < end:
            part = self.read_now(reference, offset, min(PAYLOAD_CHUNK_BYTES, end - offset))
            offset += len(part)
            yield part

    def check_writable(self) -> None:
        pass

    def close(self) -> None:
        """The attempt has ended."""
        for file in self._files.values():
            file.close()
        self._files.clear()
