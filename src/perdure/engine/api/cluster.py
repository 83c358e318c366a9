"""Acts on what surrounds runs: workers that are connected, the queues they serve, and the server."""

from __future__ import annotations

from perdure.core import ids
from perdure.core.api import cluster as acts
from perdure.core.api.cluster import (
    GetServer,
    ListQueues,
    ListWorkers,
    QueuePage,
    ServerView,
    WorkerDetail,
    WorkerPage,
    WorkerRef,
)
from perdure.core.errors import InvalidInput, NotFound
from perdure.core.limits import DECIDED_APPROVALS_KEPT_DAYS, RUN_COUNTS_KEPT_DAYS
from perdure.core.version import VERSION
from perdure.engine.api.api import NamespaceApi, handles, page_limit


@handles(acts.LIST_WORKERS)
async def list_workers(api: NamespaceApi, r: ListWorkers) -> WorkerPage:
    limit = page_limit(r.limit)
    found = await api.ports.reads.workers(api.ns, r.after, limit + 1)
    return WorkerPage(found[:limit], found[limit - 1].id if len(found) > limit else None)


@handles(acts.GET_WORKER)
async def get_worker(api: NamespaceApi, r: WorkerRef) -> WorkerDetail:
    """A worker and the attempts that it has had for a while."""
    try:
        found = await api.ports.reads.worker(api.ns, ids.parse(r.id))
    except InvalidInput:
        found = None
    if found is None:
        raise NotFound(f"no worker {r.id[:50]!r} is connected to this namespace; `perdure workers` lists them")
    return found


@handles(acts.LIST_QUEUES)
async def list_queues(api: NamespaceApi, r: ListQueues) -> QueuePage:
    """Kinds of tasks that wait or have been running for a while, with how many workers serve them."""
    return QueuePage(await api.ports.reads.queues(api.ns))


@handles(acts.GET_SERVER)
async def get_server(api: NamespaceApi, r: GetServer) -> ServerView:
    """How the process that answers is set up; another server of the same database may differ."""
    settings = api.engine.settings
    return ServerView(
        version=VERSION,
        engine=api.engine.name,
        public_url=api.api.public_url,
        started_us=api.api.started_us,
        runs_days=settings.retention_days,
        counts_days=RUN_COUNTS_KEPT_DAYS,
        decided_approvals_days=DECIDED_APPROVALS_KEPT_DAYS,
        payload_store=settings.payload_stores[0].partition(":")[0] if settings.payload_stores else "database",
        payload_bytes_max=settings.payload_bytes_max,
        payload_inline_bytes=settings.payload_inline_bytes,
        payload_grace_s=settings.payload_grace_s,
        lease_s=settings.lease_s,
        runs_max=settings.runs_max,
    )
