"""Timers and deadlines of the runs in memory: one heap, and one handle of the event loop for the earliest.

Laws:

1. A timer fires when the database's clock has reached it; our estimate of that clock never runs ahead.
2. An entry counts only if its run still has that timer at that time. Cancelled ones stay in the heap until their time, or until the heap
   has doubled.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from perdure.core import events as ev
from perdure.core.messages import CancelMessage
from perdure.core.undo import DEADLINE, TIMED_OUT
from perdure.engine.context import EngineContext
from perdure.engine.runs.exits import RunExits
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun

TIMERS_MIN: Final = 1_024
"""Size of the heap below which it is never cleaned."""
DEADLINE_SEQ: Final = -1
"""In place of a timer's number, for the deadline of the run itself."""


class Timers:
    def __init__(self, context: EngineContext, runs: OwnedRuns, exits: RunExits) -> None:
        self._runs, self._exits, self._queue, self._now_us = runs, exits, context.queue, context.now_us
        self._heap: list[tuple[int, bytes, int]] = []
        self._heap_max = TIMERS_MIN
        self._handle: asyncio.TimerHandle | None = None

    def push(self, run: ActiveRun, fire_at_us: int, seq: int) -> None:
        if len(self._heap) >= self._heap_max:
            self._compact()
        first = not self._heap or fire_at_us < self._heap[0][0]
        heapq.heappush(self._heap, (fire_at_us, run.id, seq))
        if first:
            self._arm()

    def push_deadline(self, run: ActiveRun) -> None:
        if run.state.deadline_us:
            self.push(run, run.state.deadline_us, DEADLINE_SEQ)

    def push_all(self, run: ActiveRun) -> bool:
        """Add the timers of a loaded run; returns whether one is due."""
        now, due = self._now_us(), False
        for seq, fire_at_us in run.state.timers.items():
            self.push(run, fire_at_us, seq)
            due |= fire_at_us <= now
        self.push_deadline(run)
        return due

    def fire(self) -> None:
        """Record every timer that is due."""
        now = self._now_us()
        while self._heap and self._heap[0][0] <= now:
            fire_at_us, run_id, seq = heapq.heappop(self._heap)
            run = self._runs.get(run_id)
            if run is None or not run.phase.is_active:
                continue
            if seq == DEADLINE_SEQ:
                if fire_at_us == run.state.deadline_us:
                    self._time_out(run)
            elif run.state.timers.get(seq) == fire_at_us:
                run.record(ev.TimerFired(seq))
                self._queue.mark(run, urgent=True)
        self._arm()

    def forget_all(self) -> None:
        self._heap.clear()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _compact(self) -> None:
        live = [
            t
            for t in self._heap
            if (r := self._runs.get(t[1])) and (t[2] == DEADLINE_SEQ or r.state.timers.get(t[2]) == t[0])
        ]
        heapq.heapify(live)
        self._heap = live
        self._heap_max = max(TIMERS_MIN, 2 * len(live))

    def _arm(self) -> None:
        self.close()
        if self._heap:
            delay_s = min((self._heap[0][0] - self._now_us()) / 1e6, 3600.0)
            self._handle = asyncio.get_running_loop().call_later(max(delay_s, 0.0) + 0.0005, self.fire)

    def _time_out(self, run: ActiveRun) -> None:
        """A run with undoable tasks is asked to undo them, within a grace period. It then fails with the same failure."""
        undoable = run.state.undoable or (run.decider is not None and run.decider.flow.compensates)
        if undoable and not run.state.timed_out:
            run.unseen.append(CancelMessage(DEADLINE, deadline=True))
            run.record(ev.CancelRequested(DEADLINE, deadline=True)).extras.stops = True
            self.push_deadline(run)
            self._queue.mark(run, urgent=True)
        else:
            self._exits.fail(run, TIMED_OUT)
