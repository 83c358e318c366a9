"""Sessions of browsers on PostgreSQL."""

from __future__ import annotations

from typing import Final

from perdure.core.access import Role
from perdure.core.limits import WEB_SESSIONS_MAX
from perdure.core.web_sessions import NewWebSession, WebSession
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort

TRIMMED: Final = 100
"""Expired sessions that one sign-in deletes."""


@retried()
class PostgresWebSessions(PostgresPort):
    async def create(self, new: NewWebSession) -> int:
        """Returns when it expires."""
        row = await self._row(
            "create_web_session",
            hash=new.hash,
            subject=new.subject,
            name=new.name,
            key_id=new.key_id,
            role=new.role.value if new.role is not None else None,
            namespace=new.namespace,
            lifetime_s=new.lifetime_s,
            most=WEB_SESSIONS_MAX,
            trimmed=TRIMMED,
        )
        expires_us: int = row["expires_at"]
        return expires_us

    async def find(self, hash: bytes, idle_s: float, touch_s: float) -> WebSession | None:
        r = await self._row("find_web_session", hash=hash, idle_s=idle_s, touch_s=touch_s)
        if r is None:
            return None
        return WebSession(
            subject=r["subject"],
            name=r["name"],
            key_id=r["key_id"],
            role=Role(r["role"]) if r["role"] is not None else None,
            namespace=r["namespace"],
            expires_us=r["expires_at"],
            has_ended=r["has_ended"],
            use_is_stale=r["use_is_stale"],
        )

    async def touch(self, hash: bytes, touch_s: float) -> None:
        await self._execute("touch_web_session", hash=hash, touch_s=touch_s)

    async def delete(self, hash: bytes) -> bool:
        return await self._row("delete_web_session", hash=hash) is not None
