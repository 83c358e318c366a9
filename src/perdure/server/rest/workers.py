"""Workers that are connected and the queues they serve."""

from __future__ import annotations

from fastapi import APIRouter

from perdure.server.rest import models as m
from perdure.server.rest import views
from perdure.server.rest.guard import GuardedRoute, Reader
from perdure.server.rest.paging import LIMIT_DEFAULT, Cursor, Limit
from perdure.server.rest.problems import responses

router = APIRouter(tags=["workers"], route_class=GuardedRoute)


@router.get("/workers", responses=responses(401, 403, 422))
async def list_workers(caller: Reader, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None) -> m.Page[m.Worker]:
    """Workers of this namespace."""
    after = views.read_id_cursor(cursor) or bytes(16)
    found = await caller.server.reads.workers(caller.ns, after, limit + 1)
    page = found[:limit]
    return m.Page[m.Worker](
        items=[views.worker(w) for w in page], next=views.cursor_of(page[-1].id) if len(found) > limit else None
    )


@router.get("/queues", responses=responses(401, 403))
async def list_queues(caller: Reader) -> m.Page[m.Queue]:
    """Kinds of tasks that wait or have been running for a while, with how many workers serve them."""
    found = await caller.server.reads.queues(caller.ns)
    items = [
        m.Queue(
            queue=q.queue, task=q.task, pending=q.pending, running=q.running, oldest_age_s=q.oldest_age_s, workers=q.workers
        )
        for q in found
    ]  # fmt: skip
    return m.Page[m.Queue](items=items, next=None)
