"""The table of a run's phases: every pair that is listed works, every other one raises and names both."""

from __future__ import annotations

import pytest

from perdure.core import events as ev
from perdure.core.errors import IllegalTransition
from perdure.core.lifecycle import RunStatus
from perdure.core.messages import PauseMessage, TerminateMessage
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import (
    ACTIVE,
    DECIDED,
    DECIDING,
    ENDED,
    FACTS,
    IDLE,
    LOADING,
    READY,
    RELEASED,
    REPLAY_READY,
    SET_ASIDE,
    TABLES,
    Closing,
    Leaving,
    Phase,
    Transition,
)
from tests.engine.test_segments import world

CLOSING = Closing(RunStatus.SUCCESS, b"", None, None)
LEAVING = Leaving(None, None)
PHASES = (*ACTIVE, CLOSING, LEAVING)
LEGAL = {
    "LOADED": {"LOADING": "REPLAY_READY"},
    "FACTS": {
        "LOADING": "REPLAY_READY",
        "REPLAY_READY": "REPLAY_READY",
        "READY": "READY",
        "DECIDING": "DECIDING",
        "RELOADING": "RELOADING",
        "IDLE": "READY",
    },
    "ACTIVATED": {"REPLAY_READY": "DECIDING", "READY": "DECIDING"},
    "DECIDED": {
        "LOADING": "LOADING",
        "REPLAY_READY": "REPLAY_READY",
        "READY": "READY",
        "DECIDING": "IDLE",
        "RELOADING": "RELOADING",
        "IDLE": "IDLE",
    },
    "CODE_LOST": {p.name: "RELOADING" for p in ACTIVE},
    "RELOADED": {"RELOADING": "REPLAY_READY"},
    "ENDED": {p.name: "CLOSING" for p in ACTIVE},
    "RELEASED": {p.name: "LEAVING" for p in ACTIVE},
    "SET_ASIDE": {p.name: "LEAVING" for p in PHASES},
}
PAIRS = [pytest.param(table, phase, id=f"{table.event}-{phase}") for table in TABLES for phase in PHASES]


def after(table: Transition[object], phase: Phase) -> str:
    found = table[phase]
    return found.name if isinstance(found, Phase) else {Closing: "CLOSING", Leaving: "LEAVING"}[found]  # type: ignore[index]


@pytest.mark.parametrize(("table", "phase"), PAIRS)
def test_a_pair_works_if_it_is_legal_and_raises_if_not(table: Transition[object], phase: Phase) -> None:
    expected = LEGAL[table.event].get(phase.name)
    if expected is not None:
        assert after(table, phase) == expected
        return
    with pytest.raises(IllegalTransition) as error:
        table[phase]
    assert phase.name in str(error.value)
    assert table.event in str(error.value)


def test_every_event_is_in_the_table() -> None:
    assert {table.event for table in TABLES} == set(LEGAL)


def test_a_run_begins_to_load() -> None:
    run = ActiveRun(bytes(16), 1, "w", "v", 1)
    assert run.phase is LOADING
    assert not run.is_idle


def test_only_a_phase_that_leaves_memory_is_not_active() -> None:
    assert [p.name for p in PHASES if not p.is_active] == ["CLOSING", "LEAVING"]


def test_what_is_ready_is_activated_with_the_whole_history_once() -> None:
    assert [(p.name, p.replay) for p in PHASES if p.is_ready] == [("REPLAY_READY", True), ("READY", False)]


def test_facts_that_came_while_the_code_decided_follow_its_answer() -> None:
    assert FACTS[DECIDED[FACTS[DECIDING]]] is READY
    assert DECIDED[DECIDING] is IDLE
    assert FACTS[LOADING] is REPLAY_READY


def test_an_end_carries_its_outcome_and_a_release_its_reason() -> None:
    closing = ENDED[IDLE](RunStatus.FAILED, b"", None, None)
    assert closing.status is RunStatus.FAILED
    assert RELEASED[IDLE](5, None).wake_us == 5
    assert SET_ASIDE[closing](None, "refused").stuck == "refused"


@pytest.mark.parametrize("phase", ACTIVE, ids=lambda phase: phase.name)
def test_a_run_is_terminated_and_paused_in_every_active_phase(phase: Phase) -> None:
    made, run, _ = world()
    run.phase = phase
    made.exits.terminate(run, TerminateMessage("enough", "ada"))
    assert isinstance(run.phase, Closing)
    assert run.phase.status is RunStatus.CANCELLED
    assert run.pending[-1].events[-1] == ev.RunTerminated("enough", "ada")
    made, run, _ = world()
    run.phase = phase
    made.exits.pause(run, PauseMessage("ada"), 7)
    assert isinstance(run.phase, Leaving)
    last = run.pending[-1]
    assert last.release is not None
    assert (last.extras.paused, last.extras.consumed) == (PauseMessage("ada"), [7]), "in one segment"
