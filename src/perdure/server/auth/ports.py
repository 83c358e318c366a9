"""What authentication needs of the database. The store has it."""

from __future__ import annotations

from typing import Protocol

from perdure.core.access import KeyCheck


class KeyStore(Protocol):
    async def find(self, ident: str) -> KeyCheck | None: ...
    async def touch(self, ident: str) -> None:
        """It was used just now."""
        ...
