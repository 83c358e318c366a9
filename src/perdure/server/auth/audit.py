"""Who did what: lines that are added and never changed. Ids and names only, cut to size; a payload has no way in."""

from __future__ import annotations

from typing import Final

from perdure.core.access import AuditLine, Principal
from perdure.server.auth.ports import AuditStore, Detail

TEXT_CHARS_MAX: Final = 200
DETAIL_ENTRIES_MAX: Final = 16
PAGE_LINES_MAX: Final = 500


class Audit:
    def __init__(self, store: AuditStore) -> None:
        self._store = store

    async def record(
        self, principal: Principal, action: str, target: str, ns: int | None, detail: Detail | None = None
    ) -> None:
        """`action` is a word such as `key.create`, `target` the id or name of what it was done to."""
        await self._store.append(ns, principal.subject, _cut(action), _cut(target), _tidy(detail))

    async def page(self, namespace: str | None, before: int | None = None, limit: int = 50) -> list[AuditLine]:
        """Newest first: a namespace's lines, or all for None, that are older than `before`."""
        return await self._store.page(namespace, before, min(max(limit, 1), PAGE_LINES_MAX))


def _cut(text: str) -> str:
    return text.replace("\x00", "?").encode("utf-8", "replace").decode()[:TEXT_CHARS_MAX]


def _tidy(detail: Detail | None) -> Detail | None:
    if detail is None:
        return None
    kept = list(detail.items())[:DETAIL_ENTRIES_MAX]
    return {_cut(k): _cut(v) if isinstance(v, str) else v for k, v in kept}
