"""An event and the rows that belong to it are written in one transaction, however full the segment was when they came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.messages import CancelMessage
from perdure.core.retry import Fail, Succeed, TaskOptions
from perdure.engine.runs.changes import Changes
from perdure.engine.runs.run import SEGMENT_ROWS, ActiveRun
from perdure.wire.codec import encode_message
from tests.fakes.engine_parts import RUN, EngineParts


def world(tasks: int = 1) -> tuple[EngineParts, ActiveRun, ev.TasksScheduled]:
    """A run with queued tasks, a child, and a segment that has room for one more row."""
    made = EngineParts()
    run = made.run()
    run.state.apply(ev.RunStarted("w", "v", b"{}"))
    scheduled = ev.TasksScheduled(0, "t", "q", [b"{}"] * tasks, TaskOptions())
    run.state.apply(scheduled)
    run.state.apply(ev.ChildStarted(0, bytes(16), "c", b"{}"))
    run.queued = set(range(tasks))
    run.segment().rows = SEGMENT_ROWS - 1
    return made, run, scheduled


def holding(run: ActiveRun, wanted: Callable[[Changes], bool]) -> int:
    (found,) = [i for i, s in enumerate(run.pending) if wanted(s)]
    return found


def has_event(kind: type) -> Callable[[Changes], bool]:
    return lambda s: any(isinstance(e, kind) for e in s.events)


def unqueues(seq: int) -> Callable[[Changes], bool]:
    return lambda s: s.has_extras and ids.derive(RUN, ids.TASK, seq) in s.extras.queue_ops


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [(Succeed(), ev.TasksSucceeded), (Fail(Failure("x", "y")), ev.TaskFailed)],
    ids=["success", "failure"],
)
def test_the_end_of_a_task_and_the_end_of_its_row(verdict: Any, kind: type) -> None:
    made, run, scheduled = world()
    made.attempts._apply(run, 0, scheduled, verdict, 1, 0, (1, 2, 3), b"1")
    assert holding(run, has_event(kind)) == holding(run, unqueues(0))


def test_tasks_that_are_cancelled_and_their_rows() -> None:
    made, run, _ = world(3)
    made.dispatcher.cancel(run, [0, 1, 2])
    assert {holding(run, unqueues(s)) for s in range(3)} == {holding(run, has_event(ev.TasksCancelled))}


def posts(s: Changes) -> bool:
    return s.has_extras and any(
        body == encode_message(CancelMessage(why)) for _, body, *_ in s.extras.messages for why in REASONS
    )


REASONS = ("its parent no longer waits for it", "its parent has ended")


def test_a_child_that_is_to_stop_and_the_mail_that_says_so() -> None:
    made, run, _ = world()
    made.commands.carry_out(run, [cm.CancelChild(0)])
    assert holding(run, has_event(ev.ChildCancelRequested)) == holding(run, posts)


def test_a_run_that_ends_tells_its_children_in_one_transaction() -> None:
    made, run, _ = world(0)
    made.commands.carry_out(run, [cm.CompleteRun(b"1")])
    assert holding(run, has_event(ev.ChildCancelRequested)) == holding(run, posts)


def test_a_run_that_continues_ends_with_the_start_of_its_successor() -> None:
    made, run, _ = world(SEGMENT_ROWS)
    made.commands.carry_out(run, [cm.ContinueAsNew(b"{}", [("s", b"1")])])
    start = holding(run, lambda s: s.has_extras and bool(s.extras.starts))
    assert start == holding(run, has_event(ev.RunContinued))
    assert start == holding(run, lambda s: _hands_over(s) or has_event(ev.RunContinued)(s))


def _hands_over(s: Changes) -> bool:
    return s.has_extras and len(s.extras.messages) > 0 and not has_event(ev.ChildCancelRequested)(s)
