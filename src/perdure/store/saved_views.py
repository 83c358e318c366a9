"""The SavedViews port on PostgreSQL."""

from __future__ import annotations

from typing import Any

from perdure.core.api.saved_views import SavedView
from perdure.core.errors import InvalidInput
from perdure.core.limits import VIEWS_MAX
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort


@retried()
class PostgresSavedViews(PostgresPort):
    async def save(self, ns: int, name: str, query: str, by: str) -> SavedView:
        row = await self._row("save_view", ns=ns, name=name, query=query, updated_by=by, most=VIEWS_MAX)
        if row is None:
            raise InvalidInput(f"this namespace has VIEWS_MAX={VIEWS_MAX:,} views already; delete some")
        return _view(row)

    async def page(self, ns: int, after: str, limit: int) -> list[SavedView]:
        return [_view(r) for r in await self._fetch("list_views", ns=ns, after=after, limit=limit)]

    async def get(self, ns: int, name: str) -> SavedView | None:
        row = await self._row("get_view", ns=ns, name=name)
        return None if row is None else _view(row)

    async def delete(self, ns: int, name: str) -> bool:
        return await self._row("delete_view", ns=ns, name=name) is not None


def _view(r: Any) -> SavedView:
    return SavedView(name=r["name"], query=r["query"], updated_us=r["updated_at"], updated_by=r["updated_by"])
