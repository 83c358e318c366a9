"""What follows from a commit: runs go on or leave, and other parts hear of it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import TaskOptions
from perdure.core.work import Assignment
from perdure.engine.after_commit import AfterCommit
from perdure.engine.commits.rows import Batch
from perdure.engine.commits.store import Committed
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import Closing, Leaving
from perdure.engine.services.claims import Claims
from perdure.engine.tasks.flight import ReportUnit
from perdure.wire.codec import decode_message
from tests.engine.test_segments import world
from tests.fakes.engine_parts import RUN, EngineParts


def after_commit(made: EngineParts) -> AfterCommit:
    made.context.clock.sync(0)
    return AfterCommit(made.parts, made.loop, Claims(made.context, made.parts, made.loop, made.dispatcher))


def commit(made: EngineParts, run: ActiveRun, session: int = 7) -> None:
    """All that the run wants to write."""
    unit = run.unit(list(run.pending))
    run.pending.clear()
    after_commit(made).committed([unit], Committed(9, frozenset()), session)


async def test_a_run_that_ended_leaves_memory_and_its_end_is_published() -> None:
    made, run, _ = world(0)
    ends = made.published("run_ended")
    made.commands.carry_out(run, [cm.CompleteRun(b"1")])
    commit(made, run)
    assert RUN not in made.runs
    ((end,),) = ends
    assert (end.run_id, end.outcome.status, end.outcome.value) == (RUN, RunStatus.SUCCESS, b"1")
    assert made.counters.runs_ended == 1


async def test_a_released_run_leaves_memory() -> None:
    made, run, _ = world(0)
    made.exits.release(run)
    assert isinstance(run.phase, Leaving)
    commit(made, run)
    assert RUN not in made.runs
    assert made.counters.runs_evicted == 1


async def test_a_commit_of_a_session_that_is_over_changes_nothing_here() -> None:
    made, run, _ = world(0)
    made.commands.carry_out(run, [cm.CompleteRun(b"1")])
    commit(made, run, session=6)
    assert run.writing
    assert made.runs[RUN] is run


async def test_a_run_whose_end_the_database_refuses_is_set_aside_with_the_reason() -> None:
    made, run, _ = world(0)
    made.commands.carry_out(run, [cm.CompleteRun(b"1")])
    assert isinstance(run.phase, Closing)
    unit = run.unit(list(run.pending))
    run.pending.clear()
    after_commit(made).refused(unit, "no such column")
    assert isinstance(run.phase, Leaving)
    assert "no such column" in (run.phase.stuck or "")
    assert not run.writing


@pytest.mark.parametrize("at_most_once", [False, True])
async def test_a_result_that_the_database_refuses_is_a_lost_attempt(at_most_once: bool) -> None:
    """Else the row of the task would belong to this engine, and nothing would execute it."""
    made, _, _ = world(0)
    options = TaskOptions(at_most_once=at_most_once)
    a = Assignment(b"r" * 16, 3, 1, 1, "t", b"{}", options)
    message = TaskEndedMessage(3, TaskStatus.SUCCESS, b"1", None, 1, 0, 0, 0, 0)
    after_commit(made).refused(ReportUnit(b"t" * 16, a, message), "payload_missing")
    (unit,) = made.context.queue.units()
    batch = Batch()
    unit.fill(batch)
    if at_most_once:
        (row,) = batch.reports
        ended = decode_message(row.body)
        assert isinstance(ended, TaskEndedMessage) and ended.status == TaskStatus.FAILED and ended.failure is not None
        after_commit(made).refused(unit, "again")
        assert list(made.context.queue.units()) == [unit], "a failure that is refused is not repeated"
    else:
        (again,) = batch.requeued
        assert (again.id, again.attempt, again.lost) == (b"t" * 16, 2, 1)


def test_a_place_that_was_kept_for_a_child_is_given_back() -> None:
    made, run, _ = world()
    after = after_commit(made)
    made.runs.reserved = 1
    made.loop.begin = lambda *_: None  # type: ignore[method-assign]
    started = ev.RunStarted("c", "v", b"{}")
    child = SimpleNamespace(run_id=b"c" * 16, seq=0, key="", own=True, started=started, version="v", head=b"")
    after._child_committed(run, child, 5, frozenset({b"c" * 16}), is_cancelled=False)  # type: ignore[arg-type]
    assert made.runs.reserved == 0
