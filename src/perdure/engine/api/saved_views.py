"""Acts on saved views."""

from __future__ import annotations

from perdure.core.api import saved_views as acts
from perdure.core.api.saved_views import ListViews, SavedView, SaveView, ViewPage, ViewRef
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.names import checked_name
from perdure.core.run_query import parse
from perdure.engine.api.api import NamespaceApi, handles, page_limit


@handles(acts.SAVE)
async def save(api: NamespaceApi, r: SaveView) -> SavedView:
    checked_name("view", r.name)
    if not r.query.strip():
        raise InvalidInput("a view needs a query, such as: status = failed")
    parse(r.query, api.engine.clock.now_us())
    view = await api.ports.views.save(api.ns, r.name, r.query, api.by)
    await api.record("view.save", r.name)
    return view


@handles(acts.LIST)
async def list_views(api: NamespaceApi, r: ListViews) -> ViewPage:
    limit = page_limit(r.limit)
    found = await api.ports.views.page(api.ns, r.after, limit + 1)
    return ViewPage(found[:limit], found[limit - 1].name if len(found) > limit else None)


@handles(acts.DELETE)
async def delete(api: NamespaceApi, r: ViewRef) -> None:
    if not await api.ports.views.delete(api.ns, r.name):
        raise no_view(r.name)
    await api.record("view.delete", r.name)


async def query_text(api: NamespaceApi, view: str, query: str) -> str:
    """A query together with that of a view; either may be empty."""
    if not view:
        return query
    found = await api.ports.views.get(api.ns, view)
    if found is None:
        raise no_view(view)
    return f"({found.query}) and ({query})" if query.strip() else found.query


def no_view(name: str) -> NotFound:
    return NotFound(f"there is no view {name[:200]!r} in this namespace; `perdure views` lists them")
