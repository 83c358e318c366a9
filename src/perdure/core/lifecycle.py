"""What a run and a task may become, as tables. docs/concepts/lifecycles.md is drawn from them.

Laws: a pair that is not listed does not happen (`IllegalTransition` names it); terminal is absorbing, except that a manual retry
opens a new epoch of a failed run.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from perdure.core.errors import IllegalTransition


class RunStatus(IntEnum):
    PENDING = 0
    RUNNING = 1
    SUCCESS = 2
    FAILED = 3
    CANCELLED = 4

    @property
    def word(self) -> str:
        return self.name.lower()


class TaskStatus(IntEnum):
    PENDING = 0
    DISPATCHED = 1
    RUNNING = 2
    SUCCESS = 3
    FAILED = 4
    SKIPPED = 5
    CANCELLED = 6

    @property
    def word(self) -> str:
        return self.name.lower()


RUN_TERMINAL: Final = frozenset({RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELLED})
TASK_TERMINAL: Final = frozenset({TaskStatus.SUCCESS, TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.CANCELLED})

RUN_TABLE: Final[dict[tuple[RunStatus, str], RunStatus]] = {
    (RunStatus.PENDING, "claim"): RunStatus.RUNNING,
    (RunStatus.PENDING, "cancel"): RunStatus.CANCELLED,
    (RunStatus.RUNNING, "succeed"): RunStatus.SUCCESS,
    (RunStatus.RUNNING, "fail"): RunStatus.FAILED,
    (RunStatus.RUNNING, "cancel"): RunStatus.CANCELLED,
    (RunStatus.FAILED, "retry"): RunStatus.RUNNING,
}

TASK_TABLE: Final[dict[tuple[TaskStatus, str], TaskStatus]] = {
    (TaskStatus.PENDING, "dispatch"): TaskStatus.DISPATCHED,
    (TaskStatus.PENDING, "skip"): TaskStatus.SKIPPED,
    (TaskStatus.PENDING, "cancel"): TaskStatus.CANCELLED,
    (TaskStatus.PENDING, "fail"): TaskStatus.FAILED,
    (TaskStatus.DISPATCHED, "start"): TaskStatus.RUNNING,
    (TaskStatus.DISPATCHED, "requeue"): TaskStatus.PENDING,
    (TaskStatus.DISPATCHED, "succeed"): TaskStatus.SUCCESS,
    (TaskStatus.DISPATCHED, "fail"): TaskStatus.FAILED,
    (TaskStatus.DISPATCHED, "cancel"): TaskStatus.CANCELLED,
    (TaskStatus.RUNNING, "requeue"): TaskStatus.PENDING,
    (TaskStatus.RUNNING, "succeed"): TaskStatus.SUCCESS,
    (TaskStatus.RUNNING, "fail"): TaskStatus.FAILED,
    (TaskStatus.RUNNING, "cancel"): TaskStatus.CANCELLED,
}


def next_run_status(status: RunStatus, act: str) -> RunStatus:
    try:
        return RUN_TABLE[status, act]
    except KeyError:
        raise IllegalTransition(f"a run that is {status.word} cannot {act}") from None


def next_task_status(status: TaskStatus, act: str) -> TaskStatus:
    try:
        return TASK_TABLE[status, act]
    except KeyError:
        raise IllegalTransition(f"a task that is {status.word} cannot {act}") from None
