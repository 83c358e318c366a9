"""Claims: what is taken in, in which order, and what is in doubt."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core import events as ev
from perdure.core.errors import Fenced, Unavailable
from perdure.core.messages import SignalMessage
from perdure.engine.ports import ClaimedRun, Due, HistoryRow, InboxRow, Loaded
from perdure.engine.services.claims import ClaimInDoubt, Claims
from perdure.wire.codec import encode_events, encode_message
from tests.fakes.engine_parts import RUN, EngineParts, serving

STARTED = ev.RunStarted("w", "v", b"{}")


def claims(store: Any, **given: Any) -> tuple[Claims, EngineParts]:
    made = EngineParts(store, **given)
    made.runs.serve(serving("v"))
    return Claims(made.context, made.parts, made.loop, made.dispatcher), made


class Database:
    """One run that is due, with what its history and inbox hold."""

    def __init__(self, *events: ev.Event, messages: tuple[bytes, ...] = (), **due: Any) -> None:
        self.events, self.messages, self.asked = list(events), messages, list[str]()
        self.due = {"run_at_us": None, "task_at_us": None, "has_messages": False} | due
        self.on_load = lambda: None

    async def next_due(self, *_: Any, **__: Any) -> Due:
        self.asked.append("due")
        return Due(clock_us=100, **self.due)

    async def claim_runs(self, *_: Any, **__: Any) -> list[ClaimedRun]:
        self.asked.append("runs")
        return [ClaimedRun(RUN, 1, "w", "v", 2)]

    async def load(self, run_ids: list[bytes]) -> Loaded:
        self.on_load()
        row = HistoryRow(RUN, 1, len(self.events), 1, encode_events(self.events))
        return Loaded(set(), {RUN: [row]}, [InboxRow(i, RUN, body) for i, body in enumerate(self.messages, 1)])


async def test_nothing_is_claimed_while_nothing_is_due() -> None:
    database = Database()
    made, _ = claims(database)
    await made.poll_once()
    assert database.asked == ["due"]


async def test_a_due_run_is_claimed_and_taken_up() -> None:
    database = Database(STARTED, run_at_us=90)
    made, parts = claims(database)
    await made.poll_once()
    assert database.asked == ["due", "runs"]
    assert parts.runs[RUN].epoch == 2


async def test_a_draining_engine_claims_nothing() -> None:
    database = Database(STARTED, run_at_us=90)
    made, parts = claims(database)
    parts.runs.draining = True
    await made.poll_once()
    assert not parts.runs
    assert "runs" not in database.asked


async def test_messages_reach_a_loaded_run_before_its_timers_fire() -> None:
    """What came while it slept came before it woke."""
    database = Database(
        STARTED, ev.TimerStarted(0, 3), messages=(encode_message(SignalMessage("s", b"1")),), run_at_us=90
    )
    made, parts = claims(database)
    await made.poll_once()
    recorded = [e for s in parts.runs[RUN].pending for e in s.events]
    assert recorded == [ev.SignalReceived("s", b"1"), ev.TimerFired(0)]


async def test_a_run_whose_end_was_withdrawn_gets_its_messages_and_then_its_end_stands() -> None:
    signal = ev.SignalReceived("s", b"1")
    database = Database(STARTED, messages=(encode_message(SignalMessage("s", b"1")),))
    made, parts = claims(database)
    made.take_again(ClaimedRun(RUN, 1, "w", "v", 2, is_late=True))
    await made.poll_once()
    run = parts.runs[RUN]
    assert [e for s in run.pending for e in s.events] == [signal, ev.EndWithdrawn(2)]
    assert run.end_stands and run.inbox_used


async def test_a_claim_whose_answer_was_lost_is_in_doubt() -> None:
    """The session may own rows that this engine does not know of; treating it as an outage would leave them so."""

    class Away:
        async def claim_runs(self, *_: Any, **__: Any) -> None:
            raise Unavailable("the answer was lost")

    with pytest.raises(ClaimInDoubt):
        await claims(Away())[0]._claim_page([(1, "w")], with_messages=False)


async def test_runs_claimed_under_a_session_that_is_lost_are_not_taken_in() -> None:
    database = Database(STARTED, run_at_us=90)
    made, parts = claims(database)
    database.on_load = lambda: parts.context.session.begin(8)
    with pytest.raises(Fenced):
        await made.poll_once()
    assert not parts.runs
    assert not made._claimed


async def test_a_free_slot_wakes_claims_only_when_tasks_wait_for_one() -> None:
    database = Database(task_at_us=90)
    made, parts = claims(database)
    parts.dispatcher.served = frozenset({(1, "q", "t")})
    made.slot_freed()
    assert not made.is_woken
    parts.worker.slots = 0
    await made.poll_once()
    made.slot_freed()
    assert made.is_woken
