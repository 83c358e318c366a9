"""Attempts that a worker brings along from another engine end here as if they had begun here."""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core import ids
from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import End, TaskOptions
from perdure.core.work import Report
from perdure.engine.ports import ClaimedTask
from perdure.engine.runs.run import ActiveRun
from perdure.wire.codec import encode_options
from tests.fakes.engine_parts import RUN, EngineParts


def run_in_epoch(epoch: int) -> ActiveRun:
    run = ActiveRun(RUN, 1, "w", "v", epoch)
    run.state.apply(ev.RunStarted("w", "v", b"{}"))
    run.state.apply(ev.TasksScheduled(0, "t", "q", [b"{}"], TaskOptions()))
    run.queued = {0}
    return run


def row(attempt: int = 1) -> ClaimedTask:
    task_id = ids.derive(RUN, ids.TASK, 0)
    return ClaimedTask(task_id, 1, RUN, 0, "t", "q", attempt, 0, 1, encode_options(TaskOptions()), b"{}")


def test_the_result_counts_although_the_attempt_began_in_an_epoch_before_this_one() -> None:
    """The run came here earlier than the worker: it has been taken over since the attempt began."""
    run, d = run_in_epoch(2), EngineParts()
    d.dispatcher.adopt_running([row()], {RUN: run}.get)
    d.dispatcher.reported([Report(RUN, 0, 1, End.SUCCESS, b"5", None, 1, 2, epoch=1)])
    assert not d.attempts.flights
    (changes,) = run.pending
    assert changes.events == [ev.TasksSucceeded([0], [b"5"])]


def test_the_result_of_a_former_epoch_does_not_count_for_an_attempt_that_began_here() -> None:
    run, d = run_in_epoch(2), EngineParts()
    run.queued.clear()
    d.dispatcher._launch(run, 0, run.state.tasks[0], 1, 1)
    d.dispatcher.reported([Report(RUN, 0, 1, End.SUCCESS, b"5", None, 1, 2, epoch=1)])
    assert (RUN, 0) in d.attempts.flights
    assert not run.pending


def test_an_attempt_whose_end_came_by_mail_is_stopped() -> None:
    """Another engine's worker has ended the task: what runs here is its double."""
    run, d = run_in_epoch(1), EngineParts()
    d.dispatcher.adopt_running([row()], {RUN: run}.get)
    d.dispatcher.arrived(run, TaskEndedMessage(0, TaskStatus.SUCCESS, b"5", None, 1, 0, 1, 2, 3))
    assert d.worker.cancelled == [(RUN, 0, 1)]
    assert not d.attempts.flights
    (changes,) = run.pending
    assert changes.events == [ev.TasksSucceeded([0], [b"5"])]
