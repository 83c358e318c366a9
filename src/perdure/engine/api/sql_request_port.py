"""The port of requests in SQL: rows that perdure.start, perdure.signal and perdure.emit wrote."""

from __future__ import annotations

from typing import Protocol

import msgspec

from perdure.engine.services.new_runs import NewRun


class SqlRequest(msgspec.Struct, frozen=True):
    """A row that this engine has claimed."""

    id: int
    ns: int
    namespace: str
    act: str
    name: str
    run_id: bytes | None
    run_key: str | None
    payload: str
    key: str | None
    options: str
    by: str
    tries: int


class RequestedStart(msgspec.Struct, frozen=True):
    """A row of perdure.start that has not become a run."""

    id: int
    run_id: bytes
    error: str | None
    """Why it failed."""
    tries: int
    is_due: bool
    due_us: int


class StartLook(msgspec.Struct, frozen=True):
    has_run: bool
    start: RequestedStart | None


class SqlRequestStore(Protocol):
    async def take(self, limit: int) -> list[SqlRequest]: ...
    async def find_start(self, ns: int, run_id: bytes | None, key: str | None) -> StartLook:
        """The run of this id or key, and the start that was asked for under it: there is one of them, or neither."""
        ...

    async def claim_start(self, id: int) -> SqlRequest | None:
        """As `take`, this start alone. None: it is gone, failed, or claimed by another engine."""
        ...

    async def begin(self, id: int, run: NewRun) -> bool:
        """One transaction: the request goes, the run comes. False: its key has a run, or another engine has carried it out."""
        ...

    async def done(self, id: int) -> None: ...
    async def delay(self, id: int, delay_s: float) -> None:
        """Try it again later; this time does not count."""
        ...

    async def fail(self, id: int, error: str) -> None: ...
    async def has_start(self, ns: int, run_id: bytes | None, key: str | None) -> bool:
        """Whether a start of this run, by its id or its key, waits to be carried out."""
        ...

    async def trim(self, age_s: float, limit: int) -> None: ...
