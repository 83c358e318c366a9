"""Callers that wait for runs to end. Runs that end here answer at once; the others are polled together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from perdure.core import events as ev
from perdure.core.ids import no_run
from perdure.core.work import Outcome
from perdure.engine.context import EngineContext
from perdure.engine.events import RunEnd
from perdure.engine.ports import HistoryRow
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.starts import StartUnit
from perdure.engine.services.deferred_starts import DeferredStarts
from perdure.engine.services.service import Service
from perdure.wire.codec import decode_row

RUNS_PAGE: Final = 1_000
"""Runs that one query polls for."""
HISTORY_PAGE: Final = 1_000
FIRST_PAUSE_S: Final = 0.01
PAUSE_S_MAX: Final = 0.5
PAUSE_FACTOR: Final = 1.6

RunKey = tuple[int, bytes]
"""(namespace, run)"""
WaitingCallers = frozenset["asyncio.Future[Outcome]"]


def _by_namespace(places: Iterable[RunKey]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for ns, run_id in places:
        found.setdefault(ns, []).append(run_id)
    return found


class Waiters(Service):
    name = "waiting for the ends of other engines' runs"
    poll_s = 5.0
    failed_pause_s_max = 1.0  # callers wait

    def __init__(self, context: EngineContext, runs: OwnedRuns, deferred_starts: DeferredStarts) -> None:
        super().__init__()
        self._store, self._runs, self._deferred_starts = context.store, runs, deferred_starts
        self._futures: dict[RunKey, list[asyncio.Future[Outcome]]] = {}
        self._unknown: set[RunKey] = set()
        """Runs that callers wait for and that are not known to exist."""
        self._pause_s = FIRST_PAUSE_S

    async def wait(self, ns: int, run_id: bytes, *, known: bool) -> Outcome:
        """`known` says that the run exists for sure; otherwise a wrong id is answered with NotFound."""
        if not known:  # a run in this engine's memory answers by itself; the others have to be asked for
            self._unknown.add((ns, run_id))
            self.wake()
        return await self._wait((ns, run_id), asyncio.get_running_loop().create_future())

    def wait_from_start(self, unit: StartUnit) -> Coroutine[Any, Any, Outcome]:
        """As `wait`, from before the run exists, if `started` gets the answer. A start that comes to nothing ends the wait."""
        return self._wait((unit.ns, unit.run_id), asyncio.get_running_loop().create_future())

    def started(self, unit: StartUnit, created: bool, error: Exception | None) -> None:
        if error is not None:
            for future in self._futures.pop((unit.ns, unit.run_id), ()):
                if not future.done():
                    future.set_exception(error)
        elif not unit.own:
            self.wake()

    async def _wait(self, where: RunKey, future: asyncio.Future[Outcome]) -> Outcome:
        self._futures.setdefault(where, []).append(future)
        try:
            return await future
        finally:
            left = self._futures.get(where)
            if left and future in left:
                left.remove(future)
                if not left:
                    del self._futures[where]

    def ended(
        self, ns: int, run_id: bytes, outcome: Outcome, successor: bytes | None, asked: WaitingCallers | None = None
    ) -> None:
        """With `asked`, only those who were waiting when the database was asked: others may wait for what came of a retry since."""
        futures = self._futures.pop((ns, run_id), None)
        if not futures:
            return
        if asked is not None and (later := [f for f in futures if f not in asked]):
            self._futures[ns, run_id] = later
            futures = [f for f in futures if f in asked]
        if successor is not None:
            self._futures.setdefault((ns, successor), []).extend(futures)
            return
        for f in futures:
            if not f.done():
                f.set_result(outcome)

    def run_ended(self, end: RunEnd) -> None:
        self.ended(end.ns, end.run_id, end.outcome, end.successor)

    def wake(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        super().wake()

    async def poll_once(self) -> float:
        """Poll runs that other engines own: quickly at first, then slower; at once after a notification."""
        owned = self._runs.keys()  # a view: `in` on a subclass of dict is a call
        asked = [where for where in self._futures if where[1] not in owned]
        if len(asked) > RUNS_PAGE:  # a page at a time, and not always the same one
            asked = random.sample(asked, RUNS_PAGE)
        await self._refuse_unknown()
        if not asked:
            return 0.25 if self._futures else self.poll_s
        found = 0
        for ns, run_ids in _by_namespace(asked).items():
            waiting = {r: frozenset(self._futures.get((ns, r), ())) for r in run_ids}
            for run_id, outcome in (await self._store.ended(ns, run_ids)).items():
                found += 1
                await self._resolve(ns, run_id, outcome, waiting[run_id])
        self._pause_s = FIRST_PAUSE_S if found else min(self._pause_s * PAUSE_FACTOR, PAUSE_S_MAX)
        return self._pause_s

    async def _refuse_unknown(self) -> None:
        if self._unknown:
            unknown, self._unknown = self._unknown, set()
            try:
                missing = [
                    (ns, run_id)
                    for ns, run_ids in _by_namespace(unknown).items()
                    for run_id in set(run_ids) - await self._deferred_starts.expected(ns, run_ids)
                ]
            except BaseException:
                self._unknown |= unknown  # the database is unavailable: poll again later
                raise
            for where in missing:
                for future in self._futures.pop(where, ()):
                    if not future.done():
                        future.set_exception(no_run(where[1]))

    async def _resolve(self, ns: int, run_id: bytes, outcome: Outcome, asked: WaitingCallers) -> None:
        successor = await self._successor(ns, run_id) if outcome.is_handover else None
        self.ended(ns, run_id, outcome, successor, asked)

    async def _successor(self, ns: int, run_id: bytes) -> bytes | None:
        last: HistoryRow | None = None
        while rows := await self._store.history_after(run_id, ns, last.last if last else 0, HISTORY_PAGE):
            last = rows[-1]
        end = decode_row(last.seq, last.at_us, last.body)[-1].event if last else None
        return end.run_id if isinstance(end, ev.RunContinued) else None
