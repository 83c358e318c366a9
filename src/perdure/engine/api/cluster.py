"""Acts on what surrounds runs: workers that are connected, and the queues they serve."""

from __future__ import annotations

from perdure.core.api import cluster as acts
from perdure.core.api.cluster import ListQueues, ListWorkers, QueuePage, WorkerPage
from perdure.engine.api.api import NamespaceApi, handles, page_limit


@handles(acts.LIST_WORKERS)
async def list_workers(api: NamespaceApi, r: ListWorkers) -> WorkerPage:
    limit = page_limit(r.limit)
    found = await api.ports.reads.workers(api.ns, r.after, limit + 1)
    return WorkerPage(found[:limit], found[limit - 1].id if len(found) > limit else None)


@handles(acts.LIST_QUEUES)
async def list_queues(api: NamespaceApi, r: ListQueues) -> QueuePage:
    """Kinds of tasks that wait or have been running for a while, with how many workers serve them."""
    return QueuePage(await api.ports.reads.queues(api.ns))
