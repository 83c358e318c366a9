"""The port to what keeps master keys: a file, a program, or a key management service.

Data in the database is encrypted with data keys, which the database keeps wrapped by a master key (docs/adr/0023). An implementation wraps
with its newest master key and unwraps with every master key that it has. It is asked once for each data key and process, never for data.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class WrappedKey(msgspec.Struct, frozen=True):
    """A data key, encrypted with a master key."""

    master: str
    """The master key, as people know it: an id or a version, never the key itself."""
    data: bytes


class MasterKeys(Protocol):
    async def newest(self) -> str:
        """The master key that wraps now. PayloadKeyMissing when there is none or it cannot be reached."""
        ...

    async def wrap(self, key: bytes) -> WrappedKey:
        """With the newest master key. PayloadKeyMissing when that cannot be done."""
        ...

    async def unwrap(self, wrapped: WrappedKey) -> bytes:
        """PayloadKeyMissing when the master key is not there, does not fit or cannot be reached; its message says which one and what to do."""
        ...
