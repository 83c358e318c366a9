"""Group commit: everything an engine writes passes here, one transaction at a time.

While one batch is on its way the next one gathers, so batches grow with load and an idle engine commits at once. The policy
(engine/commits/policy.py) is pure; this file is the I/O around it.

Crash between any two lines: a batch is one transaction, so it happened or it did not. A lost answer is settled by
the store (commit number); a fenced engine throws its memory away. A batch the database refuses is split until the unit at fault
stands alone; its neighbours go through.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import islice, takewhile
from time import monotonic
from typing import Protocol

from perdure.core.errors import Fenced, Unavailable
from perdure.core.limits import STORE_AWAY_S
from perdure.engine.commits.policy import CommitPolicy
from perdure.engine.commits.rows import Batch
from perdure.engine.counters import Counters
from perdure.engine.ports import Committed, NotCommitted, Poison, Store
from perdure.engine.runs.run import ActiveRun, Changes, RunUnit

log = logging.getLogger("perdure.engine")


class Unit(Protocol):
    """Something that is written whole."""

    def fill(self, batch: Batch) -> None: ...


class AwaitedUnit:
    """A unit with a caller that waits for it. One whose caller has given up is not written, unless it was handed to the database."""

    def __init__(self) -> None:
        self.is_settled = False
        """Its caller has an answer, or waits no more. Before it was written: it is given up."""
        self.sent = False
        """It is in a transaction whose answer is not here: nobody knows whether it was written."""

    def settle(self, created: bool, error: Exception | None = None) -> None:
        """`created`: it was written; its key was taken if not. With an error: whether it was, the error says. The first answer stands."""
        if not self.is_settled:
            self.is_settled = True
            self.answered(created, error)

    def answered(self, created: bool, error: Exception | None) -> None:
        """Answer the caller."""
        raise NotImplementedError

    def give_up(self) -> None:
        """The caller waits no more."""
        self.is_settled = True


class Committer:
    def __init__(
        self,
        store: Store,
        policy: CommitPolicy,
        counters: Counters,
        now_us: Callable[[], int],
        committed: Callable[[list[Unit], Committed, int], None],
        refused: Callable[[Unit, str], None],
        dropped: Callable[[AwaitedUnit], None] = lambda _: None,
    ) -> None:
        self._store, self._policy, self._counters, self._now_us = store, policy, counters, now_us
        self._committed, self._refused, self._dropped = committed, refused, dropped
        self._awaited: list[AwaitedUnit] = []
        """Those of the batch that is being written."""
        self._urgent: dict[ActiveRun, None] = {}
        """Runs whose changes somebody waits for."""
        self._lazy: dict[ActiveRun, int] = {}
        """Runs whose changes nobody waits for yet -> since when, oldest first."""
        self._units: deque[Unit] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.session = 0
        self.number = 0
        self._trying_s: float | None = None
        """Since when commits are tried and none has succeeded; None: the last one did."""

    # -- intake -----------------------------------------------------------------------------------------------------

    def mark(self, run: ActiveRun, *, urgent: bool) -> None:
        """The run has changes. Urgent when somebody waits for them to be durable."""
        if urgent:
            if run in self._urgent:
                return  # it waits already, and so does somebody to write it
            if run.dirty:
                self._lazy.pop(run, None)
            self._urgent[run] = None
        elif not run.dirty:
            self._lazy[run] = self._now_us()
        run.dirty = True
        self._want()

    def add(self, unit: Unit) -> None:
        self._units.append(unit)
        self._want()

    def refuse_if_away(self) -> None:
        """While the database cannot be reached, callers whose units are not on their way are answered instead of kept waiting."""
        away_s = self._store.away_s
        if away_s <= STORE_AWAY_S:
            return
        for unit in (*self._units, *self._awaited):
            if isinstance(unit, AwaitedUnit) and not unit.sent:
                why = f"the database has been away for {away_s:.0f} s; the run was not started and will not run. Try again later"
                unit.settle(False, Unavailable(why))

    def _is_given_up(self, unit: Unit) -> bool:
        """Its caller is gone, so it is not written. Whether it was written before, under a session that was lost, its caller does not
        know and was told so."""
        if not isinstance(unit, AwaitedUnit) or not unit.is_settled:
            return False
        self._dropped(unit)
        return True

    def _want(self) -> None:
        self._idle.clear()
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        return self._idle.is_set()

    @property
    def failing_s(self) -> float:
        """For how long no commit has succeeded although there was something to write; 0 when the last one did."""
        return monotonic() - self._trying_s if self._trying_s is not None else 0.0

    def writable(self) -> None:
        """Something else of this engine was written: the database takes writes."""
        if self.is_idle:
            self._trying_s = None

    async def drained(self) -> None:
        """Wait until nothing is left to write."""
        await self._idle.wait()

    def drop_runs(self) -> None:
        """The session is gone: what its runs wanted to write is void. Units that do not belong to a run stay."""
        for run in (*self._urgent, *self._lazy):
            run.dirty = False
        self._urgent.clear()
        self._lazy.clear()

    # -- writing ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write batches for ever. Raises Fenced when the session is gone."""
        while True:
            await self._wake.wait()
            oldest_lazy_us = next(iter(self._lazy.values()), None)
            urgent = bool(self._units or self._urgent)
            delay_us = self._policy.flush_in_us(self._now_us(), urgent, oldest_lazy_us)
            if delay_us is None:
                self._wake.clear()
                self._idle.set()
                continue
            if delay_us > 0:
                self._wake.clear()
                try:
                    async with asyncio.timeout(delay_us / 1e6):
                        await self._wake.wait()
                except TimeoutError:
                    pass
                self._wake.set()
                continue
            units = self._take()
            if units:
                await self._write(units)

    def _take(self) -> list[Unit]:
        """What goes into the next batch. A lazy run is left alone until its time: a short task ends before, and is written once."""
        rows_max, bytes_max = self._policy.rows_max, self._policy.bytes_max
        units: list[Unit] = []
        size = 0
        while self._units and len(units) < rows_max // 2:  # the other half is for runs, however many starts come in
            unit = self._units.popleft()
            if not self._is_given_up(unit):
                units.append(unit)
        rows = len(units)
        self._ripen()
        for run in list(islice(self._urgent, rows_max)):
            if rows >= rows_max or size >= bytes_max:
                break
            segments: list[Changes] = []
            while run.pending and (not segments or (rows < rows_max and size < bytes_max)):
                segment = run.pending.popleft()
                segments.append(segment)
                rows += segment.rows
                size += segment.bytes
            if not run.pending:
                run.dirty = False
                del self._urgent[run]
            if segments:
                units.append(RunUnit(run, segments))
        return units

    def _ripen(self) -> None:
        """Lazy runs whose time has come are as urgent as the others."""
        due_us = self._now_us() - self._policy.lazy_us
        for run in list(takewhile(lambda r: self._lazy[r] <= due_us, self._lazy)):
            del self._lazy[run]
            self._urgent[run] = None

    async def _write(self, units: list[Unit], session: int | None = None) -> None:
        """All parts of a batch that is split belong to the session it was taken under."""
        session = self.session if session is None else session
        if self._trying_s is None:
            self._trying_s = monotonic()
        try:
            result = await self._commit(units, session)
        except Poison as e:
            if len(units) == 1:
                self._counters.poisoned += 1
                self._trying_s = None  # the record is at fault, not the database
                log.error("the database refuses a record and it was set aside: %s", e)
                self._refused(units[0], str(e))
                return
            middle = len(units) // 2
            try:
                await self._write(units[:middle], session)
            except Fenced:
                self._put_back(units[middle:], behind=True)
                raise
            await self._write(units[middle:], session)
            return
        except Exception:  # fenced, or a fault of ours: whoever waits for a start is answered under the next session
            self._put_back(units)
            raise
        self._committed(units, *result)

    def _put_back(self, units: list[Unit], *, behind: bool = False) -> None:
        """Units that belong to no run outlive their session and are written under the next one."""
        kept = [unit for unit in units if not isinstance(unit, RunUnit)]
        if behind:
            self._units.extend(kept)
        else:
            self._units.extendleft(reversed(kept))

    async def _commit(self, units: list[Unit], session: int) -> tuple[Committed, int]:
        """The result, and the session it was written under: that one may be history by the time the answer is here."""
        batch = _filled(units)
        awaited = self._awaited = [unit for unit in units if isinstance(unit, AwaitedUnit)]
        while True:
            if session != self.session:
                raise Fenced(f"session {session} was lost on the way")
            self.number += 1
            before = self._now_us()
            for unit in awaited:
                unit.sent = True
            try:
                result = await self._store.commit(session, self.number, batch)
            except NotCommitted as e:
                log.warning("a commit was lost on the way and is written again: %s", e)
                for unit in awaited:
                    unit.sent = False
                self.refuse_if_away()
                if any(unit.is_settled for unit in awaited):
                    units[:] = [unit for unit in units if not self._is_given_up(unit)]
                    awaited = self._awaited = [unit for unit in awaited if not unit.is_settled]
                    batch = _filled(units)
                if not units:
                    return Committed(self._now_us(), frozenset(), doubtful=True), session
                continue
            self._trying_s = None
            self._counters.commits += 1
            self._counters.commit_rows += batch.rows
            took_us = max(self._now_us() - before, 0)
            self._counters.commit_us += took_us
            self._counters.measures.commit_us.add(took_us)
            self._counters.measures.commit_rows.add(batch.rows)
            self._counters.commits_doubtful += result.doubtful
            return result, session


def _filled(units: list[Unit]) -> Batch:
    batch = Batch()
    try:
        for unit in units:
            unit.fill(batch)
    except Exception as e:  # whatever cannot even be encoded must not take its neighbours along
        raise Poison(f"{type(e).__name__}: {e}") from e
    return batch
