"""Attempts whose engine or worker is gone.

a worker does not come back   -> `worker_lost`: attempts that it did not take to another engine end as lost
a worker comes from elsewhere -> `presented`: rows of its attempts become this session's; one without a row is orphaned
a row was reassigned          -> `check_reassigned`: the attempt is stopped here
an engine is silent           -> `settle_lost`, for the reaper
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from perdure.core import ids
from perdure.core.errors import Fenced, PayloadMissing, Unavailable
from perdure.core.messages import TaskEndedMessage
from perdure.core.payloads import held_by
from perdure.core.retry import End, Fail, Requeue, TaskOptions, settle
from perdure.engine.context import EngineContext
from perdure.engine.payloads import Payloads
from perdure.engine.ports import Again, LostTask
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.tasks.attempts import FAILED, Attempt, Attempts
from perdure.engine.tasks.dispatch import Dispatcher
from perdure.engine.tasks.flight import Flight
from perdure.wire.codec import decode_options, encode_message

log = logging.getLogger("perdure.engine")

ORPHANED_MAX: Final = 10_000
"""Attempts without a row that workers brought along; of what is over that, a success is not recorded."""

ROW_WAIT_S: Final = 10.0
ROW_POLL_S: Final = 0.02


class LostWorkers:
    def __init__(
        self,
        context: EngineContext,
        payloads: Payloads,
        runs: OwnedRuns,
        attempts: Attempts,
        dispatcher: Dispatcher,
    ) -> None:
        self._payloads = payloads
        self._store, self._session, self._now_us = context.store, context.session, context.now_us
        self._events, self._runs, self._attempts, self._dispatcher = context.events, runs, attempts, dispatcher

    async def worker_lost(self, attempts: list[Attempt], worker: str = "") -> None:
        """A worker that had these attempts has not come back in time. Its name, where that is known."""
        try:
            elsewhere = await self._elsewhere(attempts)
        except Unavailable:
            elsewhere = set()  # a recorded end of such an attempt would still be the first, and only, one
        for run_id, seq, attempt in attempts:
            flight = self._attempts.get(run_id, seq)
            if flight is None or flight.assignment.attempt != attempt:
                continue
            if (run_id, seq) in elsewhere:
                del self._attempts.flights[run_id, seq]
            else:
                self._attempts.ended_lost(flight, worker)
        self._dispatcher.refill()

    async def _elsewhere(self, attempts: list[Attempt]) -> set[tuple[bytes, int]]:
        """Which of these attempts now belong to another engine: the worker that was here took them along."""
        await self._wait_for_rows(attempts)
        rows = {
            ids.derive(run_id, ids.TASK, seq): (run_id, seq)
            for run_id, seq, attempt in attempts
            if (f := self._attempts.get(run_id, seq)) and f.has_written_row and f.assignment.attempt == attempt
        }
        if not rows:
            return set()
        mine = await self._store.still_mine(self._session.id, list(rows))
        return {key for task_id, key in rows.items() if task_id not in mine}

    async def _wait_for_rows(self, attempts: list[Attempt]) -> None:
        """A row that is still being written would look like one that another engine has."""
        try:
            async with asyncio.timeout(ROW_WAIT_S):
                while any(  # noqa: ASYNC110 - a lost worker is rare, and a commit has no event
                    f.may_be_writing_row for run_id, seq, _ in attempts if (f := self._attempts.get(run_id, seq))
                ):
                    await asyncio.sleep(ROW_POLL_S)
        except TimeoutError:
            log.warning(
                "rows of a lost worker's attempts were not written within %g s; these attempts count as lost",
                ROW_WAIT_S,
            )

    async def presented(self, ns: int, attempts: list[Attempt]) -> list[Attempt]:
        """A worker came with running attempts. Returns those that nothing waits for any more."""
        unknown = [
            t
            for t in attempts
            if (f := self._attempts.get(t[0], t[1])) is None or f.assignment.attempt != t[2] or f.assignment.ns != ns
        ]
        if not unknown:
            return []
        by_id = {ids.derive(run_id, ids.TASK, seq): (run_id, seq, attempt) for run_id, seq, attempt in unknown}
        session = self._session.id
        found = await self._store.adopt_tasks(session, ns, [(task_id, t[2]) for task_id, t in by_id.items()])
        if session != self._session.id:
            raise Fenced(f"session {session} was lost on the way")
        adopted = {(a.run_id, a.seq) for a in self._dispatcher.adopt_running(found.tasks, self._runs.get)}
        void: list[Attempt] = []
        for task_id, attempt in by_id.items():
            if attempt[:2] in adopted:
                continue
            if task_id in found.known:
                void.append(attempt)  # another attempt is waiting or running already
            elif len(self._attempts.orphaned) < ORPHANED_MAX:
                self._attempts.orphaned[attempt] = ns
        return void

    async def orphaned_ended(self, run_id: bytes, ns: int, end: TaskEndedMessage) -> None:
        """An orphaned attempt succeeded: its run gets the result as a message, and keeps content that it refers to."""
        try:
            await self._payloads.of(ns).hold(list(held_by([end.value])), run_id)
            if await self._store.send(run_id, ns, end) is not None:
                self._events.message_sent.publish(run_id)
        except (Unavailable, PayloadMissing) as e:
            log.warning("the result of a task that outlived its engine is lost, it will run again: %s", e)

    async def check_reassigned(self) -> None:
        """Stop executing tasks of other engines' runs that were cancelled there."""
        asked = {
            ids.derive(f.assignment.run_id, ids.TASK, f.assignment.seq): f
            for f in self._attempts.flights.values()
            if f.run is None and f.has_written_row
        }
        if asked:
            mine = await self._store.still_mine(self._session.id, list(asked))
            self._drop([f for task_id, f in asked.items() if task_id not in mine])

    def runs_ended(self, run_ids: set[bytes]) -> None:
        """Runs were ended without their code; their attempts here are void."""
        self._drop([f for (run_id, _), f in self._attempts.flights.items() if run_id in run_ids])

    def _drop(self, reassigned: Iterable[Flight]) -> None:
        """An attempt that began since the question was asked is another flight."""
        for f in reassigned:
            if self._attempts.get(f.assignment.run_id, f.assignment.seq) is f and f.run is None:
                self._attempts.stop(f)


def settle_lost(tasks: list[LostTask]) -> tuple[list[Again], list[tuple[bytes, bytes]]]:
    """For the reaper: what becomes of tasks whose engine is gone. One whose time is over by now fails by its start deadline."""
    again: list[Again] = []
    failed: list[tuple[bytes, bytes]] = []
    for t in tasks:
        options: TaskOptions = decode_options(t.options)
        match settle(options, t.id, t.attempt, t.lost, End.LOST, None):
            case Requeue(attempt, lost, _, failure):
                waits = (options.to_start_us or None, options.to_close_us or None)
                again.append((t.id, attempt, lost, *waits, failure.code, failure.message))
            case Fail(failure):
                times = (t.scheduled_us, t.started_us or t.clock_us, t.clock_us)
                message = TaskEndedMessage(t.seq, FAILED, b"", failure, t.attempt, t.lost + 1, *times, t.worker)
                failed.append((t.id, encode_message(message)))
            case _:
                raise AssertionError("a lost attempt is queued again or fails")
    return again, failed
