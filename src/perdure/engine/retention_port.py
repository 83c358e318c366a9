"""What retention needs of the database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol

import msgspec

from perdure.core.retention import ExportPart
from perdure.exports.records import RunRows

JobAction = Literal["drop", "delete"]
JobStatus = Literal["exporting", "removing", "done", "abandoned"]


class Rules(msgspec.Struct, frozen=True):
    """The policies in force."""

    days: dict[str, float | None]
    """By `namespace number/workflow`, `namespace number/` and `/`; None: for ever."""
    clock_us: int
    changed_us: int


class DayRange(msgspec.Struct, frozen=True):
    """Ids of one day, or of all days before the first that has a partition."""

    name: str
    low: bytes
    high: bytes
    ended_us: int
    """When the day was over."""


class RetentionJob(msgspec.Struct, frozen=True, kw_only=True):
    id: bytes
    name: str
    action: JobAction
    status: JobStatus
    low: bytes
    high: bytes
    cutoff_us: int
    rules: str
    url: str | None
    format: str | None
    epoch: int
    exported_to: bytes
    expected: int
    runs: int
    events: int
    tasks: int
    bytes_: int
    removed: int
    kept: int
    error: str | None
    created_us: int
    updated_us: int
    finished_us: int | None


class NewJob(msgspec.Struct, frozen=True, kw_only=True):
    range: DayRange
    action: JobAction
    rules: Rules
    expected: int
    url: str
    format: str


class StoredPart(msgspec.Struct, frozen=True):
    n: int
    part: ExportPart


class RetentionStore(Protocol):
    async def rules(self, default_days: float | None) -> Rules: ...
    async def ranges(self) -> list[DayRange]:
        """Days with a partition, oldest first, after the range of everything older."""
        ...

    async def export_address(self) -> str:
        """Where the engine that was started last exports to; empty: nowhere."""
        ...

    async def set_export_address(self, url: str) -> None: ...
    async def looks(self) -> dict[str, int]:
        """When each range was last looked through."""
        ...

    async def looked(self, name: str, at_us: int) -> None: ...
    async def count(self, of: DayRange, rules: Rules) -> tuple[int, int]:
        """Ended runs of it that have expired, and others."""
        ...

    async def create(self, job: NewJob, default_days: float | None, lease_s: float) -> RetentionJob | None:
        """None: another job is open."""
        ...

    async def is_busy(self) -> bool:
        """Whether a job is open, here or elsewhere."""
        ...

    async def claim(self, lease_s: float) -> RetentionJob | None:
        """Take up the open job, unless an engine is at work on it."""
        ...

    async def keep(self, job: RetentionJob, lease_s: float, error: str | None = None) -> bool:
        """Renew the lease. False: another engine has the job."""
        ...

    async def give_back(self, job: RetentionJob) -> None:
        """Another engine may take it up at once."""
        ...

    def page(self, job: RetentionJob, after: bytes, limit: int) -> AsyncGenerator[list[RunRows]]:
        """The next expired runs, some at a time."""
        ...

    async def add_part(self, job: RetentionJob, part: StoredPart, lease_s: float) -> bool: ...
    async def parts(self, job: RetentionJob) -> list[StoredPart]: ...
    async def namespaces(self) -> dict[str, int]: ...
    async def find(self, id: bytes) -> RetentionJob: ...
    async def begin_removal(self, job: RetentionJob) -> str: ...
    async def drop(self, job: RetentionJob, table: str) -> str: ...
    async def delete(self, job: RetentionJob, batch: int) -> int: ...
    async def free_keys(self, job: RetentionJob, after: bytes) -> bytes | None:
        """Free a page of keys of runs that are gone; where it ended, None at the end."""
        ...

    async def end(self, job: RetentionJob, status: JobStatus, error: str | None = None) -> bool: ...
    async def delete_old_holds(self) -> None: ...
