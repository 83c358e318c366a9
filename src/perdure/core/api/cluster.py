"""Workers that are connected, and the queues they serve."""

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


LIST_WORKERS: Act[ListWorkers, WorkerPage] = Act("worker.list", ListWorkers, WorkerPage, Permission.READ)
LIST_QUEUES: Act[ListQueues, QueuePage] = Act("queue.list", ListQueues, QueuePage, Permission.READ)

ACTS = (LIST_WORKERS, LIST_QUEUES)
