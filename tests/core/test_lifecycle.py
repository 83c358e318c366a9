"""The transition tables: terminal is absorbing, everything is reachable, anything else is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import pytest

from perdure.core.errors import IllegalTransition
from perdure.core.lifecycle import (
    RUN_TABLE,
    RUN_TERMINAL,
    TASK_TABLE,
    TASK_TERMINAL,
    RunStatus,
    TaskStatus,
    next_run_status,
    next_task_status,
)

Table = Mapping[tuple[Any, str], Any]
KINDS = [
    pytest.param(RunStatus, RUN_TABLE, RUN_TERMINAL, next_run_status, id="run"),
    pytest.param(TaskStatus, TASK_TABLE, TASK_TERMINAL, next_task_status, id="task"),
]
Next = Callable[[Any, str], Any]


@pytest.mark.parametrize(("statuses", "table", "terminal", "advance"), KINDS)
def test_terminal_is_absorbing_but_for_the_manual_retry_of_a_failed_run(
    statuses: type[IntEnum], table: Table, terminal: frozenset[Any], advance: Next
) -> None:
    leaving = {(status, act) for status, act in table if status in terminal}
    assert leaving == ({(RunStatus.FAILED, "retry")} if statuses is RunStatus else set())


@pytest.mark.parametrize(("statuses", "table", "terminal", "advance"), KINDS)
def test_every_status_can_be_reached_from_pending(
    statuses: type[IntEnum], table: Table, terminal: frozenset[Any], advance: Next
) -> None:
    reached = {statuses(0)}
    while fresh := {to for (at, _), to in table.items() if at in reached} - reached:
        reached |= fresh
    assert reached == set(statuses)


@pytest.mark.parametrize(("statuses", "table", "terminal", "advance"), KINDS)
def test_every_status_that_is_not_terminal_can_reach_an_end(
    statuses: type[IntEnum], table: Table, terminal: frozenset[Any], advance: Next
) -> None:
    ending = set(terminal)
    while fresh := {at for (at, _), to in table.items() if to in ending} - ending:
        ending |= fresh
    assert ending == set(statuses)


@pytest.mark.parametrize(("statuses", "table", "terminal", "advance"), KINDS)
def test_a_pair_that_is_listed_happens_and_any_other_raises_naming_both(
    statuses: type[IntEnum], table: Table, terminal: frozenset[Any], advance: Next
) -> None:
    acts = {act for _, act in table} | {"explode"}
    for status in statuses:
        for act in acts:
            if (status, act) in table:
                assert advance(status, act) is table[status, act]
                continue
            with pytest.raises(IllegalTransition) as error:
                advance(status, act)
            assert status.name.lower() in str(error.value)
            assert act in str(error.value)


def test_the_numbers_are_those_of_the_database() -> None:
    assert {s.word: int(s) for s in RunStatus} == {
        "pending": 0,
        "running": 1,
        "success": 2,
        "failed": 3,
        "cancelled": 4,
    }
    assert {s.word: int(s) for s in TaskStatus} == {
        "pending": 0,
        "dispatched": 1,
        "running": 2,
        "success": 3,
        "failed": 4,
        "skipped": 5,
        "cancelled": 6,
    }


def test_an_act_leads_to_the_status_that_it_is_named_after() -> None:
    """Whatever the status before: what the tables say can be read from the act alone."""
    leads_to = {
        "claim": "running",
        "retry": "running",
        "start": "running",
        "dispatch": "dispatched",
        "requeue": "pending",
        "succeed": "success",
        "fail": "failed",
        "cancel": "cancelled",
        "skip": "skipped",
    }
    tables: list[Table] = [RUN_TABLE, TASK_TABLE]
    for table in tables:
        assert {(act, to.word) for (_, act), to in table.items()} <= set(leads_to.items())
