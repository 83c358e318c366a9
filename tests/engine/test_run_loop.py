"""From durable facts to the decisions of a run's code, and back."""

from __future__ import annotations

import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core.errors import Failure
from perdure.core.work import Decided
from perdure.engine.runs import loop as loop_module
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import DECIDING, IDLE, LOADING, READY, RELOADING, Closing, Leaving
from tests.engine.test_segments import world
from tests.fakes.engine_parts import RUN, EngineParts, serving
from tests.fakes.waiting import turns

STARTED = ev.RunStarted("w", "v", b"{}")


async def begun(made: EngineParts) -> ActiveRun:
    """A run that began here and whose code was activated."""
    made.runs.serve(serving("v"))
    run = ActiveRun(RUN, 1, "w", "v", 1)
    made.loop.begin(run, STARTED, 3)
    await turns()  # activations are a callback of the event loop
    return run


async def test_a_run_that_begins_is_activated_with_its_history() -> None:
    made = EngineParts()
    run = await begun(made)
    assert run.phase is DECIDING
    (activation,) = made.worker.activated
    assert (activation.run_id, activation.replay) == (RUN, True)
    assert [r.event for r in activation.events] == [STARTED]


async def test_facts_that_become_durable_while_the_code_decides_are_given_to_it_afterwards() -> None:
    made = EngineParts()
    run = await begun(made)
    fact = ev.Recorded(2, 4, ev.SignalReceived("s", b"1"))
    made.loop.facts(run, [fact])
    assert run.phase is DECIDING
    made.loop.decided([Decided(RUN, [])])
    assert run.phase is READY
    await turns()
    assert run.phase is DECIDING
    assert made.worker.activated[-1].events == [fact]
    assert not made.worker.activated[-1].replay
    made.loop.decided([Decided(RUN, [])])
    assert run.phase is IDLE


async def test_code_that_its_worker_lost_gets_the_whole_history_again() -> None:
    made = EngineParts()
    run = await begun(made)
    due = made.published("work_due")
    made.loop.decided([Decided(RUN, [], Failure("cache_miss", "gone"))])
    assert run.phase is RELOADING
    assert made.loop.to_reload == {RUN: run}
    assert due == [(0,)]


async def test_a_run_whose_code_no_worker_has_is_released() -> None:
    made = EngineParts()
    run = await begun(made)
    made.loop.decided([Decided(RUN, [], Failure("no_worker", "gone"))])
    assert isinstance(run.phase, Leaving)
    assert run.phase.stuck is None
    assert made.worker.forgotten == [RUN]


async def test_a_run_whose_code_ends_is_closing_and_takes_no_more_decisions() -> None:
    made = EngineParts()
    run = await begun(made)
    made.loop.decided([Decided(RUN, [cm.CompleteRun(b"1"), cm.RecordPatch("never")])])
    assert isinstance(run.phase, Closing)
    assert run.phase.value == b"1"
    made.loop.decided([Decided(RUN, [cm.RecordPatch("late")])])
    assert [type(e) for s in run.pending for e in s.events] == [ev.RunSucceeded]


async def test_a_fault_in_one_run_sets_that_run_aside_and_no_other() -> None:
    made = EngineParts()
    run = await begun(made)
    unknown: list[cm.Command] = [object()]  # type: ignore[list-item]
    made.loop.decided([Decided(RUN, unknown)])
    assert isinstance(run.phase, Leaving)
    assert run.phase.stuck is not None
    assert run.phase.stuck.startswith("internal: KeyError")


async def test_a_run_that_waits_for_a_record_before_it_begins_is_loading() -> None:
    made = EngineParts()
    made.runs.serve(serving("another version"))
    run = ActiveRun(RUN, 1, "w", "v", 1)
    made.loop.begin(run, STARTED, 3)
    assert run.phase is LOADING
    assert run.version == "another version"


def test_a_history_that_is_too_long_ends_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made, run, _ = world()
    failed: list[str] = []
    monkeypatch.setattr(made.exits, "fail", lambda _, failure: failed.append(failure.code))
    monkeypatch.setattr(loop_module, "HISTORY_EVENTS_MAX", run.state.events)
    made.loop._carry_out(run, Decided(RUN, []))
    assert failed == []
    monkeypatch.setattr(loop_module, "HISTORY_EVENTS_MAX", run.state.events - 1)
    made.loop._carry_out(run, Decided(RUN, []))
    assert failed == ["history_too_large"]


@pytest.mark.parametrize(
    ("writing", "pending", "now"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_history_is_read_again_when_all_of_it_is_written(writing: bool, pending: bool, now: bool) -> None:
    made, run, _ = world()
    run.pending.clear()
    if pending:
        run.segment()
    run.writing = writing
    made.loop.reload_when_written(run)
    assert (run.id in made.loop.to_reload) is now
