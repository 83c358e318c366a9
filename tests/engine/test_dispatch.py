"""From a scheduled task to a worker, and from its report to a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import End, Requeue, TaskOptions
from perdure.core.secrets import SecretPlace
from perdure.core.work import Report
from perdure.engine.ports import ClaimedTask
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import RELEASED, Leaving
from perdure.engine.tasks.dispatch import _needs_row
from perdure.engine.tasks.flight import ReportUnit, RequeueUnit, is_about
from perdure.wire.codec import encode_options
from tests.engine.test_segments import world
from tests.fakes.engine_parts import RUN, EngineParts, FakeWorker

KIND = (1, "q", "t")


def scheduled(tasks: int = 1, worker: FakeWorker | None = None, **options: Any) -> tuple[EngineParts, ActiveRun]:
    """A run that has just scheduled some tasks of a kind that the worker serves."""
    made = EngineParts(worker=worker)
    made.dispatcher.served = frozenset({KIND})
    run = made.run()
    made.commands.carry_out(run, [cm.ScheduleTasks(0, "t", "q", [b"{}"] * tasks, TaskOptions(**options))])
    return made, run


def reported(seq: int = 0, end: End = End.SUCCESS, attempt: int = 1) -> Report:
    failure = None if end is End.SUCCESS else Failure("boom", "it failed")
    return Report(RUN, seq, attempt, end, b"5", failure, 1, 2)


def recorded(run: ActiveRun) -> list[ev.Event]:
    return [e for s in run.pending for e in s.events]


def test_a_task_goes_to_a_worker_without_a_row() -> None:
    made, run = scheduled()
    made.dispatcher.refill()
    assert [a.seq for a in made.worker.assigned] == [0]
    assert not run.queued


def test_no_more_tasks_are_assigned_than_there_are_slots() -> None:
    made, _ = scheduled(5, FakeWorker(slots=2))
    made.dispatcher.refill()
    assert [a.seq for a in made.worker.assigned] == [0, 1]
    assert made.dispatcher.backlog.size == 3


def test_a_task_that_no_worker_here_serves_gets_a_row() -> None:
    made = EngineParts()
    due = made.published("work_due")
    run = made.run()
    made.commands.carry_out(run, [cm.ScheduleTasks(0, "t", "q", [b"{}"], TaskOptions())])
    assert run.queued == {0}
    assert len(due) == 1


def test_a_start_deadline_is_published_with_the_row() -> None:
    made = EngineParts()
    deadlines = made.published("start_deadline_set")
    made.commands.carry_out(made.run(), [cm.ScheduleTasks(0, "t", "q", [b"{}"], TaskOptions(to_start_us=100))])
    assert deadlines == [(made.now + 100,)]


def test_a_success_is_recorded_and_frees_the_slot() -> None:
    made, run = scheduled()
    freed = made.published("slot_freed")
    made.dispatcher.refill()
    made.dispatcher.reported([reported()])
    assert recorded(run)[-1] == ev.TasksSucceeded([0], [b"5"])
    assert not made.attempts.flights
    assert freed == [()]


def test_a_failed_attempt_is_a_row_with_a_time() -> None:
    made, run = scheduled()
    made.dispatcher.refill()
    made.dispatcher.reported([reported(end=End.ERROR)])
    assert run.queued == {0}
    assert made.counters.tasks_retried == 1


def test_a_report_for_a_run_that_has_left_counts_for_nothing_without_a_row() -> None:
    made, run = scheduled()
    made.dispatcher.refill()
    flight = made.attempts.flights[RUN, 0]
    made.exits.release(run)
    assert made.worker.cancelled == [(RUN, 0, 1)]
    made.attempts.flights[RUN, 0] = flight  # its report was on its way
    made.dispatcher.reported([reported()])
    assert made.counters.late_reports == 1


def claimed_and_left() -> tuple[EngineParts, Leaving]:
    """A task that was claimed, in flight, whose run is leaving the engine."""
    made, run = scheduled()
    task_id = ids.derive(RUN, ids.TASK, 0)
    row = ClaimedTask(task_id, 1, RUN, 0, "t", "q", 1, 0, 1, encode_options(TaskOptions()), b"{}")
    made.dispatcher.launch_claimed([row], made.runs.get)
    run.phase = RELEASED[run.phase](0, None)
    made.dispatcher.abandon(run)
    return made, run.phase


def test_a_claimed_task_goes_on_when_its_run_leaves_and_ends_as_a_message() -> None:
    made, phase = claimed_and_left()
    assert made.attempts.flights[RUN, 0].run is None
    made.dispatcher.reported([reported()])
    assert not list(made.queue.units()), "the commit that gives the run back may be the one that writes the row"
    assert [type(unit) for unit in phase.ends.release()] == [ReportUnit]


def test_the_end_of_an_attempt_whose_run_has_left_is_written_at_once() -> None:
    made, phase = claimed_and_left()
    assert phase.ends.release() == []
    made.dispatcher.reported([reported()])
    assert [type(unit) for unit in made.queue.units()] == [ReportUnit]


def test_a_task_that_is_claimed_while_its_run_leaves_is_queued_again_when_its_worker_is_lost() -> None:
    """The run is still in memory, because the commit that releases it is on its way; the attempt is none of its business any more."""
    made, run = scheduled(worker=FakeWorker(()))
    run.phase = RELEASED[run.phase](None, None)
    task_id = ids.derive(RUN, ids.TASK, 0)
    row = ClaimedTask(task_id, 1, RUN, 0, "t", "q", 1, 0, 1, encode_options(TaskOptions()), b"{}")
    made.dispatcher.launch_claimed([row], made.runs.get)
    flight = made.attempts.get(RUN, 0)
    assert flight is not None
    made.attempts.ended_lost(flight)
    assert [type(unit) for unit in made.queue.units()] == [RequeueUnit]


def test_a_failed_attempt_of_another_engine_s_run_is_queued_again() -> None:
    made = EngineParts()
    task_id = ids.derive(RUN, ids.TASK, 0)
    row = ClaimedTask(task_id, 1, RUN, 0, "t", "q", 1, 0, 1, encode_options(TaskOptions()), b"{}")
    made.dispatcher.launch_claimed([row], made.runs.get)
    made.dispatcher.reported([reported(end=End.ERROR)])
    assert [type(unit) for unit in made.queue.units()] == [RequeueUnit]


def test_tasks_whose_workers_left_go_to_the_shared_queue() -> None:
    made, run = scheduled(3)
    made.dispatcher.served = frozenset()
    made.dispatcher.unserved()
    assert run.queued == {0, 1, 2}
    assert not made.dispatcher.backlog.size


def test_a_task_that_is_neither_queued_nor_in_flight_when_its_run_is_loaded_is_lost() -> None:
    made, run = scheduled(2)
    made.dispatcher.backlog.clear()
    run.queued = {1}
    made.dispatcher.take_over(run)
    assert made.counters.tasks_lost == 1
    assert run.queued == {0, 1}


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, False),
        ({"at_most_once": True}, True),
        ({"to_start_us": 1}, True),
        ({"to_close_us": 1}, True),
        ({"executor": "process"}, True),
    ],
)
def test_what_must_not_run_twice_or_has_to_begin_in_time_has_a_row(options: dict[str, Any], needed: bool) -> None:
    assert _needs_row(TaskOptions(**options)) is needed


@pytest.mark.parametrize(("mine", "its", "same"), [(2, 2, True), (2, 1, False), (2, 0, True), (0, 1, True)])
def test_a_report_is_about_an_attempt_of_the_same_epoch(mine: int, its: int, same: bool) -> None:
    report = Report(RUN, 0, 1, End.SUCCESS, b"", None, 1, 2, epoch=its)
    assert is_about(SimpleNamespace(attempt=1, epoch=mine), report) is same  # type: ignore[arg-type]
    assert not is_about(SimpleNamespace(attempt=2, epoch=mine), report)  # type: ignore[arg-type]


def test_the_success_of_an_orphaned_attempt_becomes_a_message() -> None:
    made, _, _ = world()
    sent = made.published("orphaned_task_ended")
    made.attempts.orphaned[RUN, 0, 1] = 7
    made.dispatcher.reported([Report(RUN, 0, 1, End.SUCCESS, b"5", None, 1, 2)])
    assert sent == [(RUN, 7, TaskEndedMessage(0, TaskStatus.SUCCESS, b"5", None, 1, 0, 1, 1, 2, orphaned=True))]
    made.dispatcher.reported([Report(RUN, 0, 1, End.SUCCESS, b"5", None, 1, 2)])
    assert len(sent) == 1


def test_a_retry_that_waits_has_to_begin_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made, run, _ = world()
    options = TaskOptions(to_start_us=1_000)
    wanted = ev.TasksScheduled(0, "t", "q", [b"{}"], options)
    rows: list[Any] = []
    monkeypatch.setattr(ActiveRun, "queue_row", lambda _, *row: rows.append(row))
    verdict = Requeue(2, 0, 500, Failure("task_failed", "again"))
    made.attempts._apply(run, 0, wanted, verdict, 1, 0, (1, 2, 3, "w", None), b"")
    assert rows[0][-1] == 5 + 500 + 1_000


def test_only_a_flow_says_where_secrets_stand() -> None:
    """A worker that runs workflow code could otherwise read the secrets of another worker."""
    places = (SecretPlace(("a",), ("TOKEN",)),)
    made, run = scheduled(secrets=places)
    made.dispatcher.refill()
    assert made.worker.assigned[0].options.secrets == ()
    assert [e.options.secrets for e in recorded(run) if isinstance(e, ev.TasksScheduled)] == [()]
    flow = made.run()
    flow.version = "flow-1"
    made.commands.carry_out(flow, [cm.ScheduleTasks(0, "t", "q", [b"{}"], TaskOptions(secrets=places))])
    assert [e.options.secrets for e in recorded(flow) if isinstance(e, ev.TasksScheduled)] == [places]
