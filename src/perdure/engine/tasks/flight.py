"""An attempt that a worker of this engine has, and what is written when it ends elsewhere."""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import End, Fail, Requeue, settle, waits_until_us
from perdure.core.work import Assignment, Report
from perdure.engine.commits.rows import Batch, ReportRow, Spent
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import DeferredEnds, Leaving
from perdure.engine.tasks.records import requeued_row
from perdure.wire.codec import encode_message

LONG_RUNNING_US: Final = 1_000_000
"""A task that has been running for this long gets a row, so that every engine can see it."""
NEVER_US: Final = 1 << 62


class Flight(msgspec.Struct, gc=False):
    """An attempt that a worker of this engine has."""

    assignment: Assignment
    run: ActiveRun | None
    """None: the run is owned by another engine."""
    name: str
    queue: str
    lost: int
    scheduled_us: int
    sent_us: int
    beat_us: int
    row: bool
    """It has a row in task_queue."""
    worker: str = ""
    details: bytes = b""
    """The last progress details of the attempt."""
    blocked: str = ""
    """The stack that blocks its worker's event loop, if any."""
    is_recorded: bool = False
    """What is known of it is in its row. Set to False with every change."""
    check_us: int = 0
    """Nothing can be wrong with it before that moment."""
    deferred: DeferredEnds | None = None
    """Takes its end while its run is leaving this engine; None: the run did not leave it."""

    @property
    def has_written_row(self) -> bool:
        """Whether its row can be asked for. The commit that hands its run back may be the one that writes it."""
        return self.row and not self.may_be_writing_row and (self.deferred is None or not self.deferred.is_waiting)

    @property
    def may_be_writing_row(self) -> bool:
        """Whether its run, which this engine has, is writing something: perhaps the row."""
        return self.row and self.run is not None and (self.run.writing is not None or bool(self.run.pending))

    def run_leaves(self, phase: Leaving) -> None:
        """The end of the attempt is a message to its run from now on."""
        self.run, self.deferred = None, phase.ends

    def next_check_us(self) -> int:
        """The earliest moment at which its time can be over. A heartbeat only moves it on."""
        o = self.assignment.options
        due = NEVER_US if self.row else self.sent_us + LONG_RUNNING_US
        if o.timeout_us:
            due = min(due, self.sent_us + o.timeout_us)
        if o.to_close_us:
            due = min(due, self.scheduled_us + o.to_close_us)
        if o.heartbeat_us:
            due = min(due, self.beat_us + o.heartbeat_us)
        return due


def is_about(a: Assignment, r: Report) -> bool:
    """Whether a report is the end of this attempt. An epoch that one side does not know is ignored."""
    return a.attempt == r.attempt and (not r.epoch or not a.epoch or r.epoch == a.epoch)


class ReportUnit:
    """The end of a task whose run lives elsewhere: its row goes, and the run gets a message."""

    outlives_session: ClassVar[bool] = True

    def __init__(self, task_id: bytes, a: Assignment, message: TaskEndedMessage) -> None:
        self.task_id, self._assignment, self._message = task_id, a, message
        self._row = ReportRow(task_id, a.attempt, encode_message(message))

    def fill(self, batch: Batch) -> None:
        batch.reports.append(self._row)
        batch.use(self._assignment.run_id, self._assignment.ns, [self._message.value])

    def as_lost(self, now_us: int) -> ReportUnit | RequeueUnit | None:
        """In the place of a result that the database refuses, such as one whose content is gone: the attempt counts as lost. None: the task
        had failed anyway."""
        a, message = self._assignment, self._message
        if message.failure is not None:
            return None
        match settle(a.options, self.task_id, a.attempt, message.lost, End.LOST, None):
            case Requeue() as verdict:
                expires_us = waits_until_us(a.options, message.scheduled_us, now_us + verdict.delay_us)
                return RequeueUnit(self.task_id, a.run_id, verdict, a.attempt, expires_us, message.spent(now_us))
            case Fail(failure):
                ended = msgspec.structs.replace(message, status=int(TaskStatus.FAILED), value=b"", failure=failure)
                return ReportUnit(self.task_id, a, ended)
            case _:
                raise AssertionError("a lost attempt is queued again or fails")


class RequeueUnit:
    """Another attempt of a task whose run lives elsewhere."""

    outlives_session: ClassVar[bool] = True

    def __init__(
        self, task_id: bytes, run_id: bytes, verdict: Requeue, ended: int, expires_us: int | None, spent: Spent
    ) -> None:
        self.task_id = task_id
        self._row = requeued_row(task_id, run_id, verdict, ended, expires_us, spent)

    def fill(self, batch: Batch) -> None:
        batch.requeued.append(self._row)
