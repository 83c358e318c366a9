"""What a running task may know about itself: `perdure.attempt()`."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from perdure.core import ids
from perdure.core.errors import PerdureError
from perdure.core.work import Assignment


class Attempt:
    """One execution of a task. `number` counts from 1; (task_id, number, epoch) is unique among executions."""

    __slots__ = ("_assignment", "_beat", "cancelled")

    def __init__(self, assignment: Assignment, beat: Callable[[Assignment], None]) -> None:
        self._assignment, self._beat = assignment, beat
        self.cancelled = False
        """Set when the engine no longer wants the result; sync tasks may look at it to stop early."""

    @property
    def run_id(self) -> str:
        return ids.text(self._assignment.run_id)

    @property
    def task_id(self) -> str:
        return ids.text(ids.derive(self._assignment.run_id, ids.TASK, self._assignment.seq))

    @property
    def seq(self) -> int:
        return self._assignment.seq

    @property
    def task(self) -> str:
        return self._assignment.name

    @property
    def number(self) -> int:
        return self._assignment.attempt

    @property
    def epoch(self) -> int:
        return self._assignment.epoch

    def heartbeat(self) -> None:
        """Say that this attempt is alive. Needed only for tasks declared with `heartbeat=`."""
        self._beat(self._assignment)


class Slot:
    """Where a runner keeps the attempt it is executing. The variable is set once per runner, not once per task."""

    __slots__ = ("attempt",)

    def __init__(self) -> None:
        self.attempt: Attempt | None = None


current_slot: ContextVar[Slot] = ContextVar("perdure_slot")


def attempt() -> Attempt:
    """The attempt that the calling task is."""
    slot: Any = current_slot.get(None)
    if slot is None or slot.attempt is None:
        raise PerdureError("perdure.attempt() works inside a running task only")
    found: Attempt = slot.attempt
    return found
