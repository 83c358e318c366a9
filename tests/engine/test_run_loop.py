"""From durable facts to the decisions of a run's code, and back."""

from __future__ import annotations

import pytest

from perdure.core import commands as cm
from perdure.core import events as ev
from perdure.core import ids
from perdure.core.errors import Failure
from perdure.core.message_life import Ending
from perdure.core.messages import CancelMessage, Message, PromiseMessage, SignalMessage, UpdateMessage
from perdure.core.work import Decided
from perdure.engine.commits.rows import Batch, EndedRow
from perdure.engine.runs import loop as loop_module
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import DECIDING, IDLE, LOADING, READY, RELOADING, Closing, Leaving
from perdure.wire.codec import decode_message
from tests.engine.test_segments import world
from tests.fakes.engine_parts import CHILD, RUN, EngineParts, serving
from tests.fakes.waiting import turns

STARTED = ev.RunStarted("w", "v", b"{}")
TIMER = ev.TimerFired(0)
OTHER = ids.run_id(3_000, 0, 3)


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


# -- the end, and messages that came with it ----------------------------------------------------------------------------


def recorded(run: ActiveRun) -> list[ev.Event]:
    return [event for s in run.pending for event in s.events]


async def about_to_end() -> tuple[EngineParts, ActiveRun]:
    """A run that got a message, and whose code decides."""
    made = EngineParts()
    run = await begun(made)
    run.inbox_used = True
    return made, run


async def test_an_end_without_a_message_that_the_code_got_too_late_is_withdrawn() -> None:
    made, run = await about_to_end()
    made.loop.decided([Decided(RUN, [cm.CompleteRun(b"1", late=[2, 3])])])
    assert recorded(run) == [ev.EndWithdrawn(2)]
    assert run.phase.is_active


async def test_an_end_without_a_message_that_the_code_did_not_get_is_withdrawn() -> None:
    made, run = await about_to_end()
    made.loop.facts(run, [ev.Recorded(2, 4, TIMER), ev.Recorded(3, 4, ev.SignalReceived("s", b"1"))])
    made.loop.decided([Decided(RUN, [cm.CompleteRun(b"1")])])
    assert recorded(run) == [ev.EndWithdrawn(3)]


@pytest.mark.parametrize(
    "message", [SignalMessage("s", b"1"), PromiseMessage("p", b"1"), UpdateMessage("u", "u", b"1"), CancelMessage()]
)
async def test_an_end_without_a_message_that_is_not_durable_yet_is_withdrawn(message: Message) -> None:
    made, run = await about_to_end()
    run.pending.clear()
    run.seq = 1
    made.delivery.deliver(run, message)
    made.loop.decided([Decided(RUN, [cm.CompleteRun(b"1")])])
    assert recorded(run)[1:] == [ev.EndWithdrawn(2)]


async def test_facts_alone_do_not_withdraw_an_end() -> None:
    made, run = await about_to_end()
    made.loop.facts(run, [ev.Recorded(2, 4, TIMER)])
    made.loop.decided([Decided(RUN, [cm.CompleteRun(b"1")])])
    assert isinstance(run.phase, Closing)


async def test_an_end_is_withdrawn_once_until_the_code_goes_on() -> None:
    made, run = await about_to_end()
    run.end_stands = True
    made.loop.decided([Decided(RUN, [cm.RecordPatch("p")])])
    assert not run.end_stands, "it may read what comes from now on"
    run.end_stands = True
    made.loop.facts(run, [ev.Recorded(2, 4, ev.SignalReceived("s", b"1"))])
    await turns()
    made.loop.decided([Decided(RUN, [cm.CompleteRun(b"1", late=[2])])])
    assert isinstance(run.phase, Closing)


async def test_a_failure_is_never_withdrawn() -> None:
    made, run = await about_to_end()
    made.loop.facts(run, [ev.Recorded(2, 4, ev.SignalReceived("s", b"1"))])
    made.loop.decided([Decided(RUN, [cm.FailRun(Failure("x", "y"))])])
    assert isinstance(run.phase, Closing)


def test_what_was_decided_with_a_withdrawn_end_is_not_written() -> None:
    made, run, _ = world()
    run.pending.clear()
    run.record(ev.SignalReceived("s", b"1"))
    run.begin_end()
    run.record(ev.RunSucceeded(b"1"))
    unit = run.unit([*run.pending])
    assert unit.withdraw_end()
    assert unit.events == [ev.SignalReceived("s", b"1")]
    alone = run.unit([run.pending[-1]])
    assert [type(e) for e in alone.events] == [ev.RunSucceeded]
    assert not alone.withdraw_end(), "nothing else is to be written"
    assert alone.events == []


def ended_rows(run: ActiveRun) -> list[EndedRow]:
    batch = Batch()
    run.unit([*run.pending]).fill(batch)
    return batch.ended


@pytest.mark.parametrize(
    ("end", "end_stands", "ending", "gives_way"),
    [
        (cm.CompleteRun(b"1"), False, Ending.SUCCESS, True),
        (cm.CompleteRun(b"1"), True, Ending.SUCCESS, False),
        (cm.FailRun(Failure("x", "y")), False, Ending.FAILED, False),
        (cm.CancelRun(), False, Ending.CANCELLED, False),
    ],
)
async def test_success_gives_way_to_messages_once(
    end: cm.Command, end_stands: bool, ending: Ending, gives_way: bool
) -> None:
    made, run = await about_to_end()
    run.end_stands = end_stands
    made.loop.decided([Decided(RUN, [end])])
    assert ended_rows(run) == [EndedRow(RUN, 1, ending, gives_way, None, None, None)]


@pytest.mark.parametrize("first", [b"", OTHER])
async def test_a_run_that_continues_hands_on_its_key_its_chain_and_its_messages(first: bytes) -> None:
    made, run = await about_to_end()
    run.state.key, run.state.first = "k", first
    run.state.updates = {"u": ev.UpdateReceived("u", "change", b"5")}
    run.unseen = [SignalMessage("s", b"4")]
    handed = cm.ContinueAsNew(b"{}", [("s", b"1"), ("s", b"2")], [("p", b"3")], [("why", False)])
    made.loop._carry_out(run, Decided(RUN, [handed]))
    (start,) = [one for s in run.pending if s.has_extras for one in s.extras.starts]
    assert (start.key, start.input_hash, start.started.key, start.started.first) == ("k", b"", "k", first or RUN)
    sent = [m for s in run.pending if s.has_extras for m in s.extras.messages]
    assert {m.run_id for m in sent} == {CHILD}
    assert [decode_message(m.body) for m in sent] == [
        SignalMessage("s", b"1"),
        SignalMessage("s", b"2"),
        PromiseMessage("p", b"3"),
        CancelMessage("why"),
        SignalMessage("s", b"4"),
        UpdateMessage("u", "change", b"5"),
    ]
    assert ended_rows(run) == [EndedRow(RUN, 1, Ending.CONTINUED, False, CHILD, first or RUN, CHILD)]


async def test_signals_that_the_code_did_not_read_start_the_next_run_under_the_key() -> None:
    made, run = await about_to_end()
    run.state.key = "k"
    old = ev.RunStarted("w", "v", b"[1]", "k", attributes=b'{"a":1}')
    run.own_start = ev.Recorded(1, 3, old)
    run.unseen = [PromiseMessage("p", b"3"), SignalMessage("s", b"2")]
    made.loop.decided([Decided(RUN, [cm.CompleteRun(b"1", [("s", b"1")])])])
    (start,) = [one for s in run.pending if s.has_extras for one in s.extras.starts]
    assert (start.run_id, start.key, start.input_hash) == (CHILD, "k", b"")
    assert (start.started.input, start.started.key, start.started.attributes) == (b"[1]", "k", b'{"a":1}')
    assert ended_rows(run) == [EndedRow(RUN, 1, Ending.SUCCESS, True, None, RUN, CHILD)]
    sent = [m for s in run.pending if s.has_extras for m in s.extras.messages]
    assert [decode_message(m.body) for m in sent] == [SignalMessage("s", b"1", starts=True), SignalMessage("s", b"2")]
    assert {m.run_id for m in sent} == {run.heir} == {CHILD}


@pytest.mark.parametrize(
    ("key", "unread", "unseen", "wanted"),
    [("k", True, False, True), ("k", False, True, True), ("k", False, False, False), ("", True, True, False)],
)
def test_the_start_of_a_run_is_read_when_it_has_an_heir(key: str, unread: bool, unseen: bool, wanted: bool) -> None:
    made, run, _ = world()
    run.state.key = key
    run.unseen = [SignalMessage("s", b"1")] if unseen else []
    end = cm.CompleteRun(b"1", [("s", b"1")] if unread else [])
    assert made.commands.lacks_own_start(run, [end]) is wanted
    assert not made.commands.lacks_own_start(run, [cm.FailRun(Failure("x", "y"))])


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
