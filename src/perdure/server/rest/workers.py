"""Workers that are connected and the queues they serve."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter

from perdure.core.api import cluster
from perdure.core.api.cluster import ListQueues, ListWorkers
from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, RestCaller, asks
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(tags=["workers"], route_class=GuardedRoute)


@router.get("/workers", responses=responses(401, 403, 422))
async def list_workers(
    caller: Annotated[RestCaller, asks(cluster.LIST_WORKERS)], limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> m.Page[m.ConnectedWorker]:
    """Workers of this namespace."""
    page = await caller.call(cluster.LIST_WORKERS, ListWorkers(views.read_id_cursor(cursor) or bytes(16), limit))
    return m.Page[m.ConnectedWorker](items=[views.worker(w) for w in page.items], next=views.next_cursor(page.next))


@router.get("/queues", responses=responses(401, 403))
async def list_queues(caller: Annotated[RestCaller, asks(cluster.LIST_QUEUES)]) -> m.Page[m.QueueDepth]:
    """Kinds of tasks that wait or have been running for a while, with how many workers serve them."""
    found = await caller.call(cluster.LIST_QUEUES, ListQueues())
    return m.Page[m.QueueDepth](items=[views.queue(q) for q in found.items], next=None)
