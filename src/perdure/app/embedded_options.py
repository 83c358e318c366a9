"""Options of `Perdure(...)` and `SyncPerdure(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from perdure.core.durations import Duration
from perdure.engine.settings import EngineSettings
from perdure.executors.port import Executor
from perdure.sdk.schedules import Schedule


class PerdureOptions(TypedDict, total=False):
    worker: bool
    """False: start and watch runs only, execute nothing."""
    slots: int
    """Tasks at a time."""
    threads: int
    """Threads for tasks that are plain functions."""
    processes: int
    """Processes for tasks with `process=True`."""
    queues: list[str] | None
    """Queues to serve; those of all defined tasks unless given."""
    verbs: bool
    """False: do not serve the built-in tasks, such as `perdure.http`."""
    services: Mapping[str, str] | None
    """Services that `http:` calls by name; PERDURE_SERVICES unless given."""
    http_allow: Sequence[str] | None
    """Hosts and networks that `http:` may reach beside the public internet; PERDURE_HTTP_ALLOW unless given."""
    executors: Sequence[str | Executor]
    """They run tasks outside of this process, by name or as objects: `["process"]` runs any command of `perdure.run`."""
    settings: EngineSettings | None
    auto_migrate: bool
    """False: check the schema and refuse to change it."""
    tune_gc: bool
    """False: leave Python's garbage collector alone. While the client is open, it runs less often."""
    tracing: bool | None
    """Export spans; unless given, when OTEL_EXPORTER_OTLP_ENDPOINT is set."""
    schedules: Sequence[Schedule[Any]]
    """Applied when the client opens."""
    call_timeout: Duration | None
    """How long a call may take unless it says otherwise; 30 seconds unless given."""
    audit: bool
    """Record in the audit log what this program does, as a server does."""
    payloads: str | None
    """Object stores for large values and blobs; PERDURE_PAYLOADS unless given. Without one the database takes them."""
    build_id: str
    """With one, runs are pinned to the version that they began with, as on a worker."""
