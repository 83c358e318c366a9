"""Workers that are connected, the queues they serve, and the server."""

from __future__ import annotations

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act


class ListWorkers(msgspec.Struct, frozen=True):
    after: bytes = bytes(16)
    limit: int = 50


class WorkerItem(msgspec.Struct, frozen=True, kw_only=True):
    id: bytes
    name: str
    host: str
    pid: int
    sdk: str
    queues: list[str]
    tasks: list[str]
    workflows: list[str]
    slots: int
    slots_used: int
    runs_held: int
    draining: bool
    connected_us: int
    seen_us: int
    blocked: str | None
    engine: str | None
    ended: int = 0
    """Attempts that ended within the last WORKER_WINDOW_S; `failed` and the percentiles of durations are of these."""
    failed: int = 0
    p50_us: int | None = None
    p95_us: int | None = None
    p99_us: int | None = None


class WorkerRef(msgspec.Struct, frozen=True):
    id: str


class WorkerTask(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that a worker has had for a while."""

    run_id: bytes
    workflow: str
    seq: int
    name: str
    node: str | None
    attempt: int
    started_us: int | None


class WorkerDetail(msgspec.Struct, frozen=True):
    item: WorkerItem
    tasks: list[WorkerTask]
    """The oldest first; attempts that began a moment ago are not among them."""


class WorkerPage(msgspec.Struct, frozen=True):
    items: list[WorkerItem]
    next: bytes | None


class ListQueues(msgspec.Struct, frozen=True):
    pass


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    task: str
    pending: int
    running: int
    oldest_age_s: float | None
    workers: int


class QueuePage(msgspec.Struct, frozen=True):
    items: list[QueueItem]


class GetServer(msgspec.Struct, frozen=True):
    pass


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """How the process that answers is set up."""

    version: str
    engine: str
    """Host and process id."""
    public_url: str
    started_us: int
    runs_days: float | None
    """Ended runs are dropped after so many days; None: they are kept."""
    counts_days: int
    decided_approvals_days: int
    payload_store: str
    """What keeps large values: `database`, or the scheme of an object store's URL."""
    payload_bytes_max: int
    payload_inline_bytes: int
    payload_grace_s: float
    lease_s: float
    runs_max: int


LIST_WORKERS: Act[ListWorkers, WorkerPage] = Act("worker.list", ListWorkers, WorkerPage, Permission.READ)
GET_WORKER: Act[WorkerRef, WorkerDetail] = Act("worker.get", WorkerRef, WorkerDetail, Permission.READ)
LIST_QUEUES: Act[ListQueues, QueuePage] = Act("queue.list", ListQueues, QueuePage, Permission.READ)

GET_SERVER: Act[GetServer, ServerView] = Act("server.get", GetServer, ServerView, Permission.READ)

ACTS = (LIST_WORKERS, GET_WORKER, LIST_QUEUES, GET_SERVER)
