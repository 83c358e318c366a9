"""The port of authentication on the database, implemented by the store."""

from __future__ import annotations

from typing import Protocol

from perdure.core.access import KeyCheck
from perdure.core.web_sessions import NewWebSession, WebSession


class KeyStore(Protocol):
    async def find(self, ident: str) -> KeyCheck | None: ...
    async def touch(self, ident: str) -> None:
        """Record that the key was used."""
        ...


class WebSessionStore(Protocol):
    async def create(self, new: NewWebSession) -> int:
        """When it expires, in microseconds. Sessions of the same subject beyond WEB_SESSIONS_MAX end, the oldest first."""
        ...

    async def find(self, hash: bytes, idle_s: float, touch_s: float) -> WebSession | None:
        """`idle_s`: unused for so long it has ended. `touch_s`: a use is written down when the last one is older."""
        ...

    async def touch(self, hash: bytes, touch_s: float) -> None: ...
    async def delete(self, hash: bytes) -> bool:
        """Whether there was one."""
        ...
