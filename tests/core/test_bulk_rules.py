"""Which runs a bulk job acts on, by action, status, pause and trouble."""

from __future__ import annotations

from itertools import product

import pytest

from perdure.core.api.bulk_jobs import ACTIONS, BulkAction
from perdure.core.api.runs import RunItem
from perdure.core.bulk_jobs import nothing_to_do
from perdure.core.lifecycle import RunStatus

ACTIVE = (RunStatus.PENDING, RunStatus.RUNNING)
ENDED = (RunStatus.SUCCESS, RunStatus.FAILED, RunStatus.CANCELLED)
NEITHER = "the run is neither paused nor stuck"


def run(status: RunStatus, *, paused_us: int | None = None, stuck: str | None = None) -> RunItem:
    return RunItem(
        run_id=bytes(16),
        workflow="order",
        version="1",
        key=None,
        status=int(status),
        created_us=1,
        finished_us=2 if status in ENDED else None,
        attributes=b"",
        error_code=None,
        error=None,
        stuck=stuck,
        paused_us=paused_us,
        wake_us=None,
        owned=False,
        epoch=1,
        events=1,
        parent_id=None,
        successor=None,
    )


@pytest.mark.parametrize("action", ["cancel", "terminate", "pause"])
@pytest.mark.parametrize("status", ENDED)
def test_an_ended_run_is_not_stopped(action: BulkAction, status: RunStatus) -> None:
    assert nothing_to_do(action, run(status)) == f"the run has ended ({status.word})"
    assert nothing_to_do(action, run(status, paused_us=0)) == f"the run has ended ({status.word})"


@pytest.mark.parametrize("action", ["cancel", "terminate"])
@pytest.mark.parametrize("status", ACTIVE)
def test_an_active_run_is_stopped_even_if_it_is_paused_or_stuck(action: BulkAction, status: RunStatus) -> None:
    assert nothing_to_do(action, run(status)) == ""
    assert nothing_to_do(action, run(status, paused_us=0, stuck="a reason")) == ""


@pytest.mark.parametrize("status", ACTIVE)
def test_a_run_is_paused_once(status: RunStatus) -> None:
    assert nothing_to_do("pause", run(status)) == ""
    assert nothing_to_do("pause", run(status, stuck="a reason")) == ""
    assert nothing_to_do("pause", run(status, paused_us=0)) == "the run is paused already"


@pytest.mark.parametrize("status", ACTIVE)
def test_a_paused_or_stuck_run_is_resumed(status: RunStatus) -> None:
    assert nothing_to_do("resume", run(status, paused_us=0)) == ""
    assert nothing_to_do("resume", run(status, stuck="")) == ""
    assert nothing_to_do("resume", run(status)) == NEITHER


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_run_is_not_resumed(status: RunStatus) -> None:
    assert nothing_to_do("resume", run(status, paused_us=0, stuck="a reason")) == NEITHER


@pytest.mark.parametrize("status", [*ACTIVE, RunStatus.SUCCESS, RunStatus.CANCELLED])
def test_only_a_failed_run_is_retried(status: RunStatus) -> None:
    assert nothing_to_do("retry", run(status)) == f"the run has not failed ({status.word})"
    assert nothing_to_do("retry", run(RunStatus.FAILED)) == ""


def test_only_an_ended_run_is_deleted() -> None:
    assert {s: nothing_to_do("delete", run(s)) for s in RunStatus} == {
        RunStatus.PENDING: "the run is active (pending)",
        RunStatus.RUNNING: "the run is active (running)",
        RunStatus.SUCCESS: "",
        RunStatus.FAILED: "",
        RunStatus.CANCELLED: "",
    }


def test_the_actions_that_apply_to_a_plain_run_follow_from_its_status() -> None:
    applies = {s: {a for a in ACTIONS if not nothing_to_do(a, run(s))} for s in RunStatus}
    active = {"cancel", "terminate", "pause", "signal"}
    assert applies == {
        RunStatus.PENDING: active,
        RunStatus.RUNNING: active,
        RunStatus.SUCCESS: {"delete"},
        RunStatus.FAILED: {"retry", "delete"},
        RunStatus.CANCELLED: {"delete"},
    }


def test_a_run_can_always_be_stopped_or_deleted() -> None:
    for status, paused_us, stuck in product(RunStatus, (None, 0), (None, "a reason")):
        item = run(status, paused_us=paused_us, stuck=stuck)
        assert (nothing_to_do("cancel", item) == "") != (nothing_to_do("delete", item) == "")
