"""Deferred starts: debounce, batch, dedup. core/deferred_starts.py defines them.

    deferred: start -> a row by key (replaced, or joined by more) -> closed when due -> one transaction: row away, run there
    dedup:    one transaction: key taken and run there, or the run that the key belongs to

Laws:

1. A deferred start is either a row or a run, never both and never neither, under the id that was answered.
2. Any engine creates the runs that are due. One that dies on the way leaves a closed row, which is due again for another.
3. Only the database's clock decides what is due.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from time import monotonic
from typing import Final, Protocol

import msgspec

from perdure.core import ids
from perdure.core.deferred_starts import BatchSpec, DedupSpec, Later, check_later, gathered
from perdure.core.errors import Unavailable
from perdure.core.work import StartRequest
from perdure.engine.context import EngineContext
from perdure.engine.services.new_runs import NewRun, NewRuns
from perdure.engine.services.service import Service

log = logging.getLogger("perdure.engine")

BEGIN_MAX: Final = 200
"""Deferred starts that become runs in one transaction."""
SWEEP_S: Final = 60.0


class DueStart(msgspec.Struct, frozen=True):
    """A deferred start whose time has come. `input` is the whole: the last one, or all of them joined."""

    run_id: bytes
    ns: int
    request: bytes
    input: bytes


class DeferredStart(msgspec.Struct, frozen=True):
    run_id: bytes
    due_us: int


class DeferralRequest(msgspec.Struct, frozen=True):
    """A start to be deferred. `argument` and `items` are those of a batch; `once` is the sender's own key of its items."""

    ns: int
    run_id: bytes
    workflow: str
    later: Later
    request: bytes
    input: bytes
    argument: str = ""
    items: int = 0
    once: str = ""


class Begun(msgspec.Struct, frozen=True):
    """The reply to a deferred or deduplicated start. `due_us` is when it begins; None: it has begun."""

    run_id: bytes
    created: bool
    due_us: int | None = None


class StartStore(Protocol):
    async def defer(self, asked: DeferralRequest) -> DeferredStart: ...
    async def next_due(self) -> tuple[int, int | None]:
        """The database's clock, and when the next start is due."""
        ...

    async def take_due(self, limit: int) -> list[DueStart]: ...
    async def begin_due(self, run: NewRun) -> bool:
        """False: another engine created it."""
        ...

    async def begin_once(self, run: NewRun, dedup: DedupSpec) -> bytes:
        """The run that the key belongs to: this one, or one that was there before."""
        ...

    async def expected(self, ns: int, run_ids: Sequence[bytes]) -> set[bytes]: ...
    async def sweep(self) -> None: ...


_requests: Final = msgspec.msgpack.Decoder(StartRequest)


class DeferredStarts(Service):
    name = "starting deferred runs"
    poll_s = 1.0

    def __init__(self, context: EngineContext, store: StartStore, new_runs: NewRuns) -> None:
        super().__init__()
        self._store, self._new_runs, self._events = store, new_runs, context.events
        self._now_us, self._new_run_id = context.now_us, context.new_run_id
        self._next_us: int | None = None
        self._sweep_at_s = monotonic() + SWEEP_S * random.random()
        self.is_busy = False
        """It is creating due runs."""

    async def start(self, ns: int, r: StartRequest) -> Begun:
        """`r` has been checked. Its version is chosen when the run is created."""
        check_later(r.later, r.dedup, r.key)
        return await (self._shared_reads(ns, r, r.dedup) if r.dedup is not None else self._defer(ns, r))

    async def _shared_reads(self, ns: int, r: StartRequest, dedup: DedupSpec) -> Begun:
        mine = self._new_run_id()
        new = await self._new_runs.make(mine, ns, r)
        found = await self._store.begin_once(new, dedup)
        if found == mine:
            self._events.runs_begun.publish(1)
        return Begun(found, found == mine)

    async def _defer(self, ns: int, r: StartRequest) -> Begun:
        assert r.later is not None
        argument, items = "", 0
        if isinstance(r.later, BatchSpec):
            part = gathered(r.input)
            argument, items = part.argument, len(part.items)
        bare = msgspec.msgpack.encode(msgspec.structs.replace(r, input=b"", later=None, idempotency_key=""))
        mine = self._new_run_id()
        put = await self._store.defer(
            DeferralRequest(ns, mine, r.workflow, r.later, bare, r.input, argument, items, r.idempotency_key)
        )
        if self._next_us is None or put.due_us < self._next_us:
            self.wake()
        return Begun(put.run_id, put.run_id == mine, put.due_us)

    async def expected(self, ns: int, run_ids: Sequence[bytes]) -> set[bytes]:
        """Which of these runs exist or are deferred."""
        return await self._store.expected(ns, run_ids)

    async def poll_once(self) -> float | None:
        await self.begin_due()
        if monotonic() >= self._sweep_at_s:
            self._sweep_at_s = monotonic() + SWEEP_S
            await self._store.sweep()
        return None if self._next_us is None else (self._next_us - self._now_us()) / 1e6 + 0.001

    async def begin_due(self) -> int:
        """Create the runs that are due; returns how many."""
        done = 0
        while True:
            clock_us, self._next_us = await self._store.next_due()
            if self._next_us is None or self._next_us > clock_us:
                return done
            self.is_busy = True
            try:
                found = await self._store.take_due(BEGIN_MAX)
                done += len(found)
                for due in found:
                    await self._begin(due)
            finally:
                self.is_busy = False

    async def next_due(self) -> tuple[int, int | None]:
        return await self._store.next_due()

    async def _begin(self, due: DueStart) -> None:
        try:
            request = msgspec.structs.replace(_requests.decode(due.request), input=due.input)
            if await self._store.begin_due(await self._new_runs.make(due.run_id, due.ns, request)):
                self._events.runs_begun.publish(1)
        except Unavailable:
            raise
        except Exception:  # its row stays, and is due again in a moment; the others must not wait for it
            log.exception("could not create run %s from its deferred start", ids.text(due.run_id))
