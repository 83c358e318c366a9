"""Eviction: runs that wait for a timer or a message leave memory, and are claimed again when it comes."""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.core import wait_reasons
from perdure.engine.context import EngineContext
from perdure.engine.runs.exits import RunExits, waits_of
from perdure.engine.runs.owned import OwnedRuns
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.task_port import TaskPort

EXPLAIN_S: Final = 1.0
"""A run that has waited this long in memory gets a wait reason."""


class Eviction:
    def __init__(self, context: EngineContext, runs: OwnedRuns, tasks: TaskPort, exits: RunExits) -> None:
        self._runs, self._tasks, self._exits = runs, tasks, exits
        self._queue, self._now_us, self.placement = context.queue, context.now_us, context.settings.placement

    @property
    def is_crowded(self) -> bool:
        return len(self._runs) > self._runs.runs_max // 2

    def evict_idle(self) -> None:
        crowded = self.is_crowded
        now_s, now_us = asyncio.get_running_loop().time(), self._now_us()
        busy, flying = self._tasks.busy_runs(), self._tasks.flying_runs()
        for run in list(self._runs.values()):
            if not run.phase.is_active:
                continue
            if not run.is_idle:
                if run.wait_reason[0] is not None and not run.pending:
                    self._note(run, (None, None))  # it goes on
                continue
            # A child that ends here notifies its parent in memory, so the parent must stay.
            if run in busy or any(child in self._runs for child in run.state.children.values()):
                if now_s - run.idle_since >= EXPLAIN_S:
                    self._note_waits(run, backlog=run in busy and run not in flying)
                continue
            wake = run.state.next_wake_us()
            wake_in_s = (wake - now_us) / 1e6 if wake is not None else None
            if self.placement.may_evict(now_s - run.idle_since, wake_in_s, crowded):
                self._exits.release(run)

    def release_unserved(self) -> None:
        """Runs whose code no worker here has any more: another engine may have one."""
        for run in list(self._runs.values()):
            if run.phase.is_active and not self._runs.serves(run):
                self._exits.release(run)

    def release_all(self) -> None:
        for run in list(self._runs.values()):
            if run.phase.is_active:
                self._exits.release(run)

    def _note_waits(self, run: ActiveRun, backlog: bool) -> None:
        """A run that stays in memory and waits: for a child that lives here, for a slot, for running tasks."""
        waits = waits_of(run)
        if backlog:
            waits.append(wait_reasons.backlog(wait_reasons.task_names(run.state)))
        self._note(run, wait_reasons.encode(waits))

    def _note(self, run: ActiveRun, wait_reason: tuple[str | None, str | None]) -> None:
        if wait_reason != run.wait_reason:
            run.wait_reason = run.segment().extras.wait_reason = wait_reason
            self._queue.mark(run, urgent=False)
