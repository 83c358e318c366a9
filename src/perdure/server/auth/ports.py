"""The port of authentication on the database, implemented by the store."""

from __future__ import annotations

from typing import Protocol

from perdure.core.access import KeyCheck


class KeyStore(Protocol):
    async def find(self, ident: str) -> KeyCheck | None: ...
    async def touch(self, ident: str) -> None:
        """Record that the key was used."""
        ...
