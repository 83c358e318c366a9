"""What a child writes: followed in its file.

A file, not a pipe: a child must not be stopped by a worker that has crashed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perdure.executors.command_output import MaskedText, without_secrets

TURN_BYTES: Final = 256 * 1024
"""Bytes read of one file in one turn."""
KEEP_BYTES: Final = 8 * 1024 * 1024
"""Output that is kept on disk. What was read before that is given back to the file system."""
_PUNCH: Final = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE"""


class Follower:
    """Reads one file as it grows."""

    def __init__(self, path: Path, secrets: tuple[bytes, ...], write: Callable[[str], None]) -> None:
        self._path = path
        self._text = MaskedText(secrets, write)
        self._at = self._freed = 0

    def turn(self) -> bool:
        """Read what is new, up to TURN_BYTES. Whether there may be more."""
        try:
            if os.stat(self._path).st_size <= self._at:
                return False
            with open(self._path, "r+b", buffering=0) as file:
                file.seek(self._at)
                data = file.read(TURN_BYTES)
                self._at += len(data)
                self._free(file.fileno())
        except OSError:
            return False
        self._text.feed(data)
        return len(data) == TURN_BYTES

    def finish(self) -> None:
        while self.turn():
            pass
        self._text.feed(b"", final=True)

    def _free(self, fd: int) -> None:
        """Give back what was read, but for the end of it."""
        upto = self._at - KEEP_BYTES
        if upto - self._freed > KEEP_BYTES and punch_hole(fd, self._freed, upto - self._freed):
            self._freed = upto


def punch_hole(fd: int, offset: int, length: int) -> bool:
    """Whether the file system took the bytes back; reading them gives zeros from then on."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.fallocate(fd, _PUNCH, ctypes.c_longlong(offset), ctypes.c_longlong(length)) == 0)
    except (OSError, AttributeError):
        return False


def tail(path: Path, secrets: tuple[bytes, ...], size: int) -> tuple[bytes, bool]:
    """The last bytes of a file without secrets, and whether they are all of it."""
    before = max((len(secret) for secret in secrets), default=1) - 1
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            start = max(0, length - size)
            begin = file.seek(max(0, start - before))
            return without_secrets(file.read(start - begin + size), start - begin, secrets), length <= size
    except OSError:
        return b"", True
