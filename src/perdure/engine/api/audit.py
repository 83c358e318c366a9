"""Who did what: lines that are added and never changed. Ids and names only, cut to size; a payload has no way in."""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.core.access import Principal
from perdure.core.api.admin import AuditFilter, AuditPage
from perdure.core.errors import Unavailable
from perdure.engine.api.ports import AuditDetail, AuditRow, AuditStore

TEXT_CHARS_MAX: Final = 200
DETAIL_ENTRIES_MAX: Final = 16
PAGE_LINES_MAX: Final = 500


class Audit:
    def __init__(self, store: AuditStore) -> None:
        self._store = store
        self._lines: list[tuple[AuditRow, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def record(
        self, principal: Principal, action: str, target: str, ns: int | None, detail: AuditDetail | None = None
    ) -> None:
        """`action` is a word such as `key.create`, `target` the id or name of what it was done to. Lines that come while others are
        being written are written together, so that many acts at once cost few transactions."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.append(((ns, principal.subject, _cut(action), _cut(target), _tidy(detail)), written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write(), name="perdure-audit")
        try:
            await written
        except Unavailable as e:
            raise Unavailable(f"{e}; {action} of {target} was done, but the audit log could not be written") from e

    async def _write(self) -> None:
        try:
            while self._lines:
                part, self._lines = self._lines[:PAGE_LINES_MAX], self._lines[PAGE_LINES_MAX:]
                try:
                    await self._store.append_all([line for line, _ in part])
                except Exception as e:
                    for _, written in part:
                        if not written.done():
                            written.set_exception(e)
                for _, written in part:
                    if not written.done():
                        written.set_result(None)
        finally:
            self._writing = None

    async def page(
        self,
        namespace: str | None,
        before: int | None = None,
        limit: int = 50,
        wanted: AuditFilter = AuditFilter(),  # noqa: B008
    ) -> AuditPage:
        """Newest first: a namespace's lines, or all for None, that are older than `before`."""
        return await self._store.page(namespace, before, min(max(limit, 1), PAGE_LINES_MAX), wanted)


def _cut(text: str) -> str:
    return text.replace("\x00", "?").encode("utf-8", "replace").decode()[:TEXT_CHARS_MAX]


def _tidy(detail: AuditDetail | None) -> AuditDetail | None:
    if detail is None:
        return None
    kept = list(detail.items())[:DETAIL_ENTRIES_MAX]
    return {_cut(k): _cut(v) if isinstance(v, str) else v for k, v in kept}
