"""How one engine behaves."""

from __future__ import annotations

import msgspec

from perdure.core.limits import PAYLOAD_GRACE_S, PAYLOAD_INLINE_BYTES, PAYLOAD_POSTGRES_BYTES_MAX
from perdure.core.placement import Placement
from perdure.core.retention_limits import RETENTION_DAYS_DEFAULT
from perdure.engine.commits.policy import CommitPolicy


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str = "default"
    shard: int = 0
    lease_s: float = 15.0
    """A session that is silent for this long, by the database's clock, loses its runs."""
    heartbeat_s: float = 5.0
    tick_s: float = 0.1
    runs_max: int = 4_096
    """Runs held in memory; more wait in the database."""
    commit: CommitPolicy = CommitPolicy()
    placement: Placement = Placement()
    notify: bool = True
    """Use LISTEN/NOTIFY to wake other engines. Never needed for correctness."""
    retention_days: float | None = RETENTION_DAYS_DEFAULT
    """Ended runs are removed after so many days, where no policy of `perdure retention` says otherwise; None keeps everything."""
    retention_export: str = ""
    """Object store that ended runs are exported to before they are removed (`s3://bucket/prefix`). Empty: they are not."""
    retention_format: str = "jsonl"
    """Format of exports: `jsonl` (compressed by gzip) or `parquet`."""
    retention_share: float = 0.2
    """Part of its time that the engine spends on exporting and deleting ended runs, 0.01 to 1."""
    partitions_ahead_days: int = 3
    close_grace_s: float = 10.0
    service_ttl_s: float = 15.0
    """An instance of an HTTP service whose last heartbeat is older than this, by the database's clock, is offline."""
    payload_stores: tuple[str, ...] = ()
    """Object stores for payloads; the first takes new content. Without any, the database does."""
    payload_inline_bytes: int = PAYLOAD_INLINE_BYTES
    """Larger values of flows and of requests are kept in the payload store."""
    payload_bytes_max: int = PAYLOAD_POSTGRES_BYTES_MAX
    """Bytes of one value or blob in the database's payload store."""
    payload_grace_s: float = PAYLOAD_GRACE_S
    """Seconds for which stored content that no run uses is kept."""
