"""Code that ends its workers: which runs may be to blame, and when one of them is.

A worker that is lost while it runs the code of several runs does not say which of them it was. Each is counted, until its code answers.
From SUSPECT_CRASHES on a run is a suspect, and suspects run one at a time: an innocent one answers when its turn comes and is counted no
more, the other one reaches CODE_CRASHES_MAX.

Law: a run that has answered since the last loss of its worker is never to blame.
"""

from __future__ import annotations

from typing import Final

from perdure.core.errors import Failure
from perdure.core.limits import CODE_CRASHES_MAX
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import DECIDING

SUSPECT_CRASHES: Final = 2
"""Workers in a row that are lost while they run the code of a run, from which on it runs without other suspects."""
RUNS_KEPT: Final = 10_000
"""Runs whose lost workers are counted."""


class CrashLoops:
    def __init__(self) -> None:
        self._lost: dict[bytes, int] = {}
        """Runs -> workers in a row that were lost while they ran the code of the run. It outlives the run's stay in memory: without a
        worker it is released."""
        self._turn: ActiveRun | None = None
        """The suspect whose code runs."""
        self._waiting: dict[ActiveRun, None] = {}

    def worker_lost(self, run: ActiveRun) -> bool:
        """Whether the code of the run is to blame."""
        lost = self._lost.pop(run.id, 0) + 1
        if lost >= CODE_CRASHES_MAX:
            return True
        self._lost[run.id] = lost
        if len(self._lost) > RUNS_KEPT:
            del self._lost[next(iter(self._lost))]
        return False

    def answered(self, run: ActiveRun) -> None:
        if self._lost:
            self._lost.pop(run.id, None)

    def must_wait(self, run: ActiveRun) -> bool:
        """Whether another suspect has its turn; then `next_turn` answers the run later."""
        if self._lost.get(run.id, 0) < SUSPECT_CRASHES:
            return False
        if self._is_busy and self._turn is not run:
            self._waiting[run] = None
            return True
        self._turn = run
        return False

    def next_turn(self) -> ActiveRun | None:
        """The next suspect whose code may run, the one with the fewest lost workers first."""
        if not self._waiting or self._is_busy:
            return None
        run = min(self._waiting, key=lambda one: self._lost.get(one.id, 0))
        del self._waiting[run]
        return run

    @property
    def _is_busy(self) -> bool:
        return self._turn is not None and self._turn.phase is DECIDING

    def forget_all(self) -> None:
        """The runs are no longer here. Their counts stay."""
        self._turn = None
        self._waiting.clear()


def crash_loop() -> Failure:
    why = (
        f"CODE_CRASHES_MAX={CODE_CRASHES_MAX} workers in a row were lost while they ran its code, which may be what ends them: os._exit, a "
        "crash in C code, too much memory. Fix the code and resume the run, or terminate it"
    )
    return Failure("crash_loop", why)
