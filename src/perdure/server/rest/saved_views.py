"""Saved views: queries with a name."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from perdure.core.api import saved_views as acts
from perdure.core.api.saved_views import ListViews, SavedView, SaveView, ViewRef
from perdure.core.limits import NAME_CHARS_MAX, QUERY_CHARS_MAX
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(tags=["runs"], route_class=GuardedRoute)

ViewName = Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=["failed-today"])]


class SaveViewRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, max_length=QUERY_CHARS_MAX, examples=["status = failed and created > -1d"])


class ViewDetail(BaseModel):
    name: str
    query: str
    updated_at: m.Moment
    updated_by: str


@router.get("/views", responses=responses(401, 403, 422))
async def list_views(
    caller: Annotated[RestCaller, asks(acts.LIST)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[ViewDetail]:
    """Views by name."""
    page = await caller.call(acts.LIST, ListViews(views.read_text_cursor(cursor), limit))
    return m.Page[ViewDetail](items=[_shown(v) for v in page.items], next=views.next_cursor(page.next))


@router.put("/views/{name:path}", responses=responses(401, 403, 413, 422))
async def save_view(
    caller: Annotated[RestCaller, asks(acts.SAVE)], name: ViewName, body: SaveViewRequest
) -> ViewDetail:
    """Save a query under a name, for everyone in the namespace. `GET /runs?view=NAME` lists its runs."""
    return _shown(await caller.call(acts.SAVE, SaveView(name, body.query)))


@router.delete("/views/{name:path}", status_code=204, responses=responses(401, 403, 404, 422))
async def delete_view(caller: Annotated[RestCaller, asks(acts.DELETE)], name: ViewName) -> None:
    """Runs are not touched."""
    await caller.call(acts.DELETE, ViewRef(name))


def _shown(v: SavedView) -> ViewDetail:
    return ViewDetail(name=v.name, query=v.query, updated_at=views.moment(v.updated_us), updated_by=v.updated_by)
