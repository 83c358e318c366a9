"""Callers that wait for runs to end. Runs that end here answer at once; the others are asked for together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from perdure.core import events as ev
from perdure.core.errors import NotFound
from perdure.core.ids import text
from perdure.core.work import Outcome
from perdure.engine.ports import HistoryRow, Store
from perdure.engine.runs.starts import StartUnit
from perdure.wire.codec import decode_row

RUNS_PAGE: Final = 1_000
"""Runs that one question to the database is about."""
HISTORY_PAGE: Final = 1_000

Where = tuple[int, bytes]
"""(namespace, run)"""
Asked = frozenset["asyncio.Future[Outcome]"]


def _by_namespace(places: Iterable[Where]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for ns, run_id in places:
        found.setdefault(ns, []).append(run_id)
    return found


class Waiters:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.expected: Callable[[int, Sequence[bytes]], Awaitable[set[bytes]]] = store.existing
        """Which runs are there, or will come."""
        self._futures: dict[Where, list[asyncio.Future[Outcome]]] = {}
        self._unknown: set[Where] = set()
        """Runs somebody waits for that nobody has seen yet."""
        self._remote = asyncio.Event()

    async def wait(self, ns: int, run_id: bytes, *, known: bool) -> Outcome:
        """`known` says that the run exists for sure; otherwise a wrong id is answered with NotFound."""
        if not known:  # a run in this engine's memory answers by itself; the others have to be asked for
            self._unknown.add((ns, run_id))
            self._remote.set()
        return await self._wait((ns, run_id), asyncio.get_running_loop().create_future())

    async def wait_from_start(self, unit: StartUnit) -> Outcome:
        """As `wait`, from before the run exists, if `started` is told of the answer. A start that comes to nothing ends the wait."""
        return await self._wait((unit.ns, unit.run_id), asyncio.get_running_loop().create_future())

    def started(self, unit: StartUnit, created: bool, error: Exception | None) -> None:
        if error is not None:
            for future in self._futures.pop((unit.ns, unit.run_id), ()):
                if not future.done():
                    future.set_exception(error)
        elif not unit.own:
            self._remote.set()

    async def _wait(self, where: Where, future: asyncio.Future[Outcome]) -> Outcome:
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
        self, ns: int, run_id: bytes, outcome: Outcome, successor: bytes | None, asked: Asked | None = None
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

    def wake(self) -> None:
        self._remote.set()

    async def run(self, is_local: Callable[[bytes], bool]) -> None:
        """Ask for runs that other engines own. Quick at first, then slower; a notification asks at once."""
        pause_s = 0.01
        while True:
            asked = [where for where in self._futures if not is_local(where[1])]
            if len(asked) > RUNS_PAGE:  # a page at a time, and not always the same one
                asked = random.sample(asked, RUNS_PAGE)
            await self._refuse_unknown()
            if asked:
                found = 0
                for ns, run_ids in _by_namespace(asked).items():
                    waiting = {r: frozenset(self._futures.get((ns, r), ())) for r in run_ids}
                    for run_id, outcome in (await self._store.ended(ns, run_ids)).items():
                        found += 1
                        await self._resolve(ns, run_id, outcome, waiting[run_id])
                pause_s = 0.01 if found else min(pause_s * 1.6, 0.5)
            else:
                pause_s = 0.25 if self._futures else 5.0
            self._remote.clear()
            try:
                async with asyncio.timeout(pause_s):
                    await self._remote.wait()
                pause_s = 0.01
            except TimeoutError:
                pass

    async def _refuse_unknown(self) -> None:
        if self._unknown:
            unknown, self._unknown = self._unknown, set()
            try:
                missing = [
                    (ns, run_id)
                    for ns, run_ids in _by_namespace(unknown).items()
                    for run_id in set(run_ids) - await self.expected(ns, run_ids)
                ]
            except BaseException:
                self._unknown |= unknown  # the database is away: the question stands
                raise
            for where in missing:
                for future in self._futures.pop(where, ()):
                    if not future.done():
                        future.set_exception(NotFound(f"no run {text(where[1])} in this namespace"))

    async def _resolve(self, ns: int, run_id: bytes, outcome: Outcome, asked: Asked) -> None:
        successor = await self._successor(ns, run_id) if outcome.is_handover else None
        self.ended(ns, run_id, outcome, successor, asked)

    async def _successor(self, ns: int, run_id: bytes) -> bytes | None:
        last: HistoryRow | None = None
        while rows := await self._store.history_after(run_id, ns, last.last if last else 0, HISTORY_PAGE):
            last = rows[-1]
        end = decode_row(last.seq, last.at_us, last.body)[-1].event if last else None
        return end.run_id if isinstance(end, ev.RunContinued) else None
