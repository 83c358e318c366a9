"""When a batch is written. Pure: from the time and what waits follows when to flush.

Two kinds of records wait. Urgent ones (results, starts, ends, operations) are waited for and go as soon as the
connection is free; while it is busy they gather by themselves, which is what makes batches large under load and commits
immediate when idle. Lazy ones (schedules whose tasks were already dispatched) are not: a short task ends before
they are due and is then written once, in its final state.
"""

from __future__ import annotations

import msgspec


class CommitPolicy(msgspec.Struct, frozen=True):
    lazy_us: int = 100_000
    """How long a lazy record may wait for a larger batch."""
    rows_max: int = 600
    """Rows of one transaction; what is above waits for the next."""
    bytes_max: int = 8 * 1024 * 1024
    """Payload bytes of one transaction."""

    def flush_in_us(self, now_us: int, urgent: bool, oldest_lazy_us: int | None) -> int | None:
        """Microseconds to wait before flushing; 0 is now, None is nothing to do."""
        if urgent:
            return 0
        if oldest_lazy_us is None:
            return None
        return max(0, oldest_lazy_us + self.lazy_us - now_us)
