"""Group commit: everything an engine writes passes here, one transaction at a time.

While one batch is on its way the next one gathers (commits/write_queue.py), so batches grow with load and an idle engine commits at
once. The policy (commits/policy.py) is pure; this file is the I/O around it.

Laws:

1. A batch is one transaction: it happened or it did not. A lost answer is settled by the store, by the commit's number.
2. A fenced engine throws its memory away. Units that belong to no run are written under the next session.
3. A batch the database refuses is split until the unit at fault stands alone; its neighbours go through.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Protocol

from perdure.core.errors import Fenced, Unavailable
from perdure.core.limits import STORE_AWAY_S
from perdure.engine.commits.rows import Batch, Seal
from perdure.engine.commits.store import CommitStore, Committed, EndsRefused, NotCommitted, Poison
from perdure.engine.commits.write_queue import AwaitedUnit, EndingUnit, Unit, WriteQueue
from perdure.engine.counters import Counters
from perdure.engine.session import EngineSession

log = logging.getLogger("perdure.engine")


class CommitSink(Protocol):
    """What follows from a commit."""

    def committed(self, units: list[Unit], result: Committed, session: int) -> None:
        """`session` is the one the unit was written under; it may have ended since."""
        ...

    def refused(self, unit: Unit, why: str) -> None: ...
    def end_withdrawn(self, unit: EndingUnit, session: int) -> None:
        """The end of its run was not written; what came before it was."""
        ...

    def given_up(self, unit: AwaitedUnit) -> None:
        """The unit was not written, because its caller gave up."""
        ...


class Committer:
    def __init__(
        self,
        store: CommitStore,
        session: EngineSession,
        queue: WriteQueue,
        counters: Counters,
        sink: CommitSink,
    ) -> None:
        self._store, self._session, self._queue = store, session, queue
        self._counters, self._sink, self._now_us = counters, sink, queue.now_us
        self._awaited: list[AwaitedUnit] = []
        """Awaited units of the batch that is being written."""
        self._trying_s: float | None = None
        """When commits began to fail; None: the last one succeeded."""

    def refuse_if_away(self) -> None:
        """While the database cannot be reached, callers whose units are not on their way are answered instead of kept waiting."""
        away_s = self._store.away_s
        if away_s <= STORE_AWAY_S:
            return
        for unit in (*self._queue.units(), *self._awaited):
            if isinstance(unit, AwaitedUnit) and not unit.sent:
                why = f"the database has been away for {away_s:.0f} s; the run was not started and will not run. Try again later"
                unit.settle(False, Unavailable(why))

    def _is_given_up(self, unit: Unit) -> bool:
        """Its caller is gone, so it is not written. It may have been written before, under a session that was lost; the caller was
        answered that this is unknown."""
        if not isinstance(unit, AwaitedUnit) or not unit.is_settled:
            return False
        self._sink.given_up(unit)
        return True

    @property
    def failing_s(self) -> float:
        """For how long no commit has succeeded although there was something to write; 0 when the last one did."""
        return monotonic() - self._trying_s if self._trying_s is not None else 0.0

    def writable(self) -> None:
        """Another write of this engine succeeded: the database takes writes."""
        if self._queue.is_idle:
            self._trying_s = None

    async def run(self) -> None:
        """Write batches for ever. Raises Fenced when the session is gone."""
        while True:
            await self._queue.due()
            units = self._queue.take(self._is_given_up)
            if units:
                await self._write(units)

    async def _write(self, units: list[Unit], session: int | None = None) -> None:
        """All parts of a batch that is split belong to the session it was taken under."""
        session = self._session.id if session is None else session
        if self._trying_s is None:
            self._trying_s = monotonic()
        withdrawn: list[EndingUnit] = []
        try:
            result = await self._commit(units, session, withdrawn)
        except Poison as e:
            if len(units) == 1:
                self._counters.records_refused += 1
                self._trying_s = None  # the record is at fault, not the database
                log.error("the database refuses a record and it was set aside: %s", e)
                self._sink.refused(units[0], str(e))
                return
            middle = len(units) // 2
            try:
                await self._write(units[:middle], session)
            except Fenced:
                self._queue.put_back(units[middle:], behind=True)
                raise
            await self._write(units[middle:], session)
            return
        except (
            Exception
        ):  # fenced, or a fault of ours: callers that wait for a start are answered under the next session
            self._queue.put_back(units)
            raise
        if result is not None:
            self._sink.committed(units, result, session)
        for unit in withdrawn:
            self._sink.end_withdrawn(unit, session)

    async def _commit(self, units: list[Unit], session: int, withdrawn: list[EndingUnit]) -> Committed | None:
        """None: nothing is left to be written. `withdrawn` gets the units whose run does not end yet."""
        batch = _filled(units, self._store.seal_history)
        awaited = self._awaited = [unit for unit in units if isinstance(unit, AwaitedUnit)]
        while True:
            if session != self._session.id:
                raise Fenced(f"session {session} was lost on the way")
            number = self._session.next_commit()
            before = self._now_us()
            for unit in awaited:
                unit.sent = True
            try:
                result = await self._store.commit(session, number, batch)
            except EndsRefused as e:
                units[:] = _without_ends(units, e, withdrawn)
                if not units:
                    self._trying_s = None
                    return None
                batch = _filled(units, self._store.seal_history)
                continue
            except NotCommitted as e:
                log.warning("a commit was lost on the way and is written again: %s", e)
                for unit in awaited:
                    unit.sent = False
                self.refuse_if_away()
                if any(unit.is_settled for unit in awaited):
                    units[:] = [unit for unit in units if not self._is_given_up(unit)]
                    awaited = self._awaited = [unit for unit in awaited if not unit.is_settled]
                    batch = _filled(units, self._store.seal_history)
                if not units:
                    return Committed(self._now_us(), frozenset(), unconfirmed=True)
                continue
            self._trying_s = None
            self._count(batch, result, max(self._now_us() - before, 0))
            return result

    def _count(self, batch: Batch, result: Committed, took_us: int) -> None:
        counters, rows = self._counters, batch.count()
        counters.commits += 1
        counters.commit_rows += rows
        counters.commit_us += took_us
        counters.measures.commit_us.add(took_us)
        counters.measures.commit_rows.add(rows)
        counters.commits_unconfirmed += result.unconfirmed


def _without_ends(units: list[Unit], refused: EndsRefused, withdrawn: list[EndingUnit]) -> list[Unit]:
    """What is written now. A unit whose engine did not know of messages is written again as one that does."""
    left: list[Unit] = []
    for unit in units:
        if isinstance(unit, EndingUnit) and unit.run_id in refused.run_ids:
            if not refused.examined:
                unit.has_messages()
            else:
                withdrawn.append(unit)
                if not unit.withdraw_end():
                    continue
        left.append(unit)
    return left


def _filled(units: list[Unit], seal: Seal) -> Batch:
    batch = Batch(seal)
    try:
        for unit in units:
            unit.fill(batch)
    except Exception as e:  # a unit that cannot even be encoded must not take its neighbours along
        raise Poison(f"{type(e).__name__}: {e}") from e
    return batch
