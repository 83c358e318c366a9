"""Workers that are connected, the queues they serve, and the server itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from perdure.core import ids
from perdure.core.api import cluster
from perdure.core.api.cluster import GetServer, ListQueues, ListWorkers, WorkerRef
from perdure.core.limits import NAME_CHARS_MAX
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


class TaskOfWorker(BaseModel):
    run_id: str = Field(examples=[m.ID])
    workflow: str
    seq: int
    name: str
    node: str | None
    attempt: int
    started_at: m.Moment | None


class WorkerAtWork(m.ConnectedWorker):
    running: list[TaskOfWorker] = Field(
        description="Attempts that it has had for a while, the oldest first; at most 200. `tasks` are the names that it serves."
    )


@router.get("/workers/{id}", responses=responses(401, 403, 404))
async def get_worker(
    caller: Annotated[RestCaller, asks(cluster.GET_WORKER)],
    id: Annotated[str, Path(min_length=1, max_length=NAME_CHARS_MAX, examples=[m.ID])],
) -> WorkerAtWork:
    """A worker, and the attempts that it has had for a while."""
    found = await caller.call(cluster.GET_WORKER, WorkerRef(id))
    running = [
        TaskOfWorker(
            run_id=ids.text(t.run_id),
            workflow=t.workflow,
            seq=t.seq,
            name=t.name,
            node=t.node,
            attempt=t.attempt,
            started_at=views.moment_or_none(t.started_us),
        )
        for t in found.tasks
    ]
    return WorkerAtWork(**views.worker(found.item).model_dump(), running=running)


@router.get("/queues", responses=responses(401, 403))
async def list_queues(caller: Annotated[RestCaller, asks(cluster.LIST_QUEUES)]) -> m.Page[m.QueueDepth]:
    """Kinds of tasks that wait or have been running for a while, with how many workers serve them."""
    found = await caller.call(cluster.LIST_QUEUES, ListQueues())
    return m.Page[m.QueueDepth](items=[views.queue(q) for q in found.items], next=None)


class KeptFor(BaseModel):
    """For how long things are kept. The audit log is kept for good."""

    runs_days: float | None = Field(description="Ended runs with their history and logs. Null: for good.")
    counts_days: int = Field(description="How many runs ended and how long they took.")
    decided_approvals_days: int
    unused_payloads_s: float = Field(description="Stored values that no run uses, in seconds.")


class ServerLimits(BaseModel):
    payload_bytes_max: int = Field(description="Bytes of one value in the database's payload store.")
    payload_inline_bytes: int = Field(description="Larger values go to the payload store.")
    runs_max: int = Field(description="Runs that one engine holds in memory; more wait in the database.")
    lease_s: float = Field(description="An engine that is silent for so many seconds loses its runs.")


class ServerInfo(BaseModel):
    """How the server that answers is set up."""

    version: str
    engine: str = Field(description="Host and process id.", examples=["host-1:4711"])
    public_url: str
    started_at: m.Moment
    keeps: KeptFor
    payload_store: str = Field(description="`database`, or the scheme of an object store.", examples=["database"])
    limits: ServerLimits


@router.get("/server", responses=responses(401, 403))
async def get_server(caller: Annotated[RestCaller, asks(cluster.GET_SERVER)]) -> ServerInfo:
    """The version of the server that answers, for how long it keeps what, and its limits. `GET /session` says how to sign in."""
    s = await caller.call(cluster.GET_SERVER, GetServer())
    return ServerInfo(
        version=s.version,
        engine=s.engine,
        public_url=s.public_url,
        started_at=views.moment(s.started_us),
        keeps=KeptFor(
            runs_days=s.runs_days,
            counts_days=s.counts_days,
            decided_approvals_days=s.decided_approvals_days,
            unused_payloads_s=s.payload_grace_s,
        ),
        payload_store=s.payload_store,
        limits=ServerLimits(
            payload_bytes_max=s.payload_bytes_max,
            payload_inline_bytes=s.payload_inline_bytes,
            runs_max=s.runs_max,
            lease_s=s.lease_s,
        ),
    )
