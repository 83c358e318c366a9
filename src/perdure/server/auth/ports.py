"""What authentication needs of the database. The store has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from perdure.core.access import AuditLine, KeyCheck, KeyView, NewKey

Detail = dict[str, str | int | float | bool | None]
"""Ids and names about an act. Flat, so that no payload finds its way in."""


class KeyStore(Protocol):
    async def find(self, ident: str) -> KeyCheck | None: ...
    async def touch(self, ident: str) -> None:
        """It was used just now."""
        ...


class KeyAdmin(KeyStore, Protocol):
    async def create(self, new: NewKey) -> tuple[KeyView, str]:
        """The key as it is stored, and the text that its owner gets to see this once. NotFound for an unknown namespace."""
        ...

    async def list(self, namespace: str | None, after: str | None, limit: int) -> list[KeyView]:
        """By id. A namespace's own keys, or all of them for None; `after` is the last id of the page before."""
        ...

    async def revoke(self, ident: str, namespace: str | None) -> KeyView:
        """Idempotent. NotFound for a key that does not exist or is not that namespace's."""
        ...


Line = tuple[int | None, str, str, str, Detail | None]
"""(namespace, actor, action, target, detail)"""


class AuditStore(Protocol):
    async def append_all(self, lines: Sequence[Line]) -> None:
        """In their order, all or none."""
        ...

    async def page(self, namespace: str | None, before: int | None, limit: int) -> list[AuditLine]:
        """Newest first: those of a namespace, or all for None, that are older than `before`."""
        ...
