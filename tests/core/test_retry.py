"""Every end of an attempt, under every option, through the one function that decides what it means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import Failure
from perdure.core.retry import (
    Cancel,
    End,
    Fail,
    Requeue,
    Succeed,
    TaskOptions,
    backoff_us,
    is_final,
    settle,
)

TASK = bytes(16)
BOOM = Failure("task_failed", "boom", "ValueError")
LATE = Failure("task_timeout", "late", "TimeoutError")
FAILED_ENDS = [End.ERROR, End.TIMEOUT, End.HEARTBEAT]


def options(**given: object) -> TaskOptions:
    return TaskOptions(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("at_most_once", [False, True])
@pytest.mark.parametrize("attempt", [1, 3, 100])
def test_success_and_cancellation_are_final_under_any_option(at_most_once: bool, attempt: int) -> None:
    o = options(max_attempts=1 if at_most_once else 3, at_most_once=at_most_once)
    assert settle(o, TASK, attempt, 0, End.SUCCESS, None) == Succeed()
    assert settle(o, TASK, attempt, 0, End.CANCELLED, None) == Cancel()


@pytest.mark.parametrize("end", FAILED_ENDS)
@pytest.mark.parametrize("max_attempts", [1, 2, 5])
def test_max_attempts_counts_executions(end: End, max_attempts: int) -> None:
    o = options(max_attempts=max_attempts)
    executions, attempt = 1, 1
    while isinstance(verdict := settle(o, TASK, attempt, 0, end, BOOM), Requeue):
        assert verdict.attempt == attempt + 1
        assert verdict.lost == 0
        assert verdict.failure == BOOM
        attempt = verdict.attempt
        executions += 1
    assert verdict == Fail(BOOM)
    assert executions == max_attempts


@pytest.mark.parametrize("end", FAILED_ENDS)
def test_the_recorded_failure_is_the_last_one(end: End) -> None:
    assert settle(options(max_attempts=1), TASK, 1, 0, end, LATE) == Fail(LATE)


def test_a_final_error_fails_at_once_however_many_attempts_are_left() -> None:
    assert settle(options(max_attempts=1000), TASK, 1, 0, End.FINAL_ERROR, BOOM) == Fail(BOOM)


@pytest.mark.parametrize("end", [*FAILED_ENDS, End.FINAL_ERROR])
def test_an_at_most_once_task_never_runs_again_after_a_failure(end: End) -> None:
    assert settle(options(at_most_once=True, max_attempts=9), TASK, 1, 0, end, BOOM) == Fail(BOOM)


def test_an_at_most_once_task_that_lost_its_worker_fails_and_says_that_the_effect_is_unknown() -> None:
    verdict = settle(options(at_most_once=True), TASK, 1, 0, End.LOST, None)
    assert isinstance(verdict, Fail)
    assert verdict.failure.code == "task_lost"
    assert "unknown" in verdict.failure.message


@pytest.mark.parametrize("lost_max", [0, 1, 10])
def test_lost_workers_have_a_budget_of_their_own(lost_max: int) -> None:
    o = options(max_attempts=1, lost_max=lost_max)
    attempt, lost, losses = 1, 0, 1
    while isinstance(verdict := settle(o, TASK, attempt, lost, End.LOST, None), Requeue):
        assert verdict.delay_us == 0, "losing a worker is nobody's fault and does not wait"
        attempt, lost = verdict.attempt, verdict.lost
        losses += 1
    assert losses == lost_max + 1
    assert isinstance(verdict, Fail)
    assert f"lost_max={lost_max}" in verdict.failure.message


def test_a_lost_worker_does_not_use_up_an_attempt_the_user_asked_for() -> None:
    o = options(max_attempts=2)
    first = settle(o, TASK, 1, 0, End.LOST, None)
    assert isinstance(first, Requeue)
    second = settle(o, TASK, first.attempt, first.lost, End.ERROR, BOOM)
    assert isinstance(second, Requeue), "one real failure so far, two are allowed"
    third = settle(o, TASK, second.attempt, second.lost, End.LOST, None)
    assert isinstance(third, Requeue)
    assert settle(o, TASK, third.attempt, third.lost, End.ERROR, BOOM) == Fail(BOOM)
    assert third.attempt == 4, "attempt numbers are never used twice"


@given(
    st.lists(st.sampled_from(list(End)), min_size=1, max_size=40), st.integers(1, 6), st.integers(0, 6), st.booleans()
)
def test_every_sequence_of_ends_stops_within_the_two_budgets(
    ends: list[End], max_attempts: int, lost_max: int, at_most_once: bool
) -> None:
    o = options(max_attempts=max_attempts, lost_max=lost_max, at_most_once=at_most_once)
    attempt, lost, executions = 1, 0, 0
    for end in ends:
        executions += end is not End.RETURNED  # which never began
        verdict = settle(o, TASK, attempt, lost, end, BOOM)
        if not isinstance(verdict, Requeue):
            break
        assert verdict.attempt == attempt + (end is not End.RETURNED)
        assert verdict.lost in (lost, lost + 1)
        attempt, lost = verdict.attempt, verdict.lost
    assert executions <= max_attempts + lost_max
    assert not (at_most_once and executions > 1)


# -- backoff ------------------------------------------------------------------------------------------------------------


def test_backoff_doubles_up_to_its_cap_without_jitter() -> None:
    o = options(initial_us=1_000, factor=2.0, cap_us=10_000, jitter=False)
    assert [backoff_us(o, TASK, n) for n in range(1, 7)] == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(1, 5_000),
    st.integers(0, 10**9),
    st.floats(1, 10),
    st.integers(0, 10**10),
)
def test_jitter_spreads_over_the_upper_half_and_is_the_same_wherever_it_is_computed(
    task: bytes, failures: int, initial: int, factor: float, cap: int
) -> None:
    plain = backoff_us(options(initial_us=initial, factor=factor, cap_us=cap, jitter=False), task, failures)
    o = options(initial_us=initial, factor=factor, cap_us=cap)
    jittered = backoff_us(o, task, failures)
    assert plain * 0.5 - 1 <= jittered <= plain <= cap
    assert jittered == backoff_us(o, task, failures)


def test_neighbours_do_not_retry_in_step() -> None:
    delays = {backoff_us(options(), n.to_bytes(16, "big"), 1) for n in range(100)}
    assert len(delays) > 90


def test_a_huge_attempt_number_does_not_overflow() -> None:
    assert backoff_us(options(factor=10.0, jitter=False), TASK, 10**6) == 60_000_000


# -- which exceptions are final --------------------------------------------------------------------------------------------

MRO = ("app.NotFound", "builtins.LookupError", "builtins.Exception", "builtins.BaseException", "builtins.object")


@pytest.mark.parametrize(
    ("never", "on", "final"),
    [
        ((), (), False),
        (("app.NotFound",), (), True),
        (("builtins.LookupError",), (), True),
        (("builtins.OSError",), (), False),
        ((), ("builtins.LookupError",), False),
        ((), ("builtins.OSError",), True),
        (("app.NotFound",), ("builtins.LookupError",), True),
    ],
)
def test_never_and_on_match_a_class_and_its_bases_and_never_wins(
    never: tuple[str, ...], on: tuple[str, ...], final: bool
) -> None:
    assert is_final(options(never=never, on=on), MRO) is final


@pytest.mark.parametrize("executor", ["kubernetes", "ray", "objects"])
def test_a_lost_worker_is_no_lost_attempt_of_a_job_that_outlives_it(executor: str) -> None:
    for options in (TaskOptions(executor=executor), TaskOptions(executor=executor, at_most_once=True)):
        verdict = settle(options, TASK, 2, 1, End.LOST, None)
        assert isinstance(verdict, Requeue) and (verdict.attempt, verdict.lost) == (2, 1) and verdict.delay_us > 0


@pytest.mark.parametrize("executor", ["process", "container", "local-mine", ""])
def test_a_job_that_only_its_own_machine_finds_again_is_lost_with_the_worker(executor: str) -> None:
    verdict = settle(TaskOptions(executor=executor), TASK, 1, 0, End.LOST, None)
    assert isinstance(verdict, Requeue) and (verdict.attempt, verdict.lost) == (2, 1)
    assert isinstance(settle(TaskOptions(executor=executor, at_most_once=True), TASK, 1, 0, End.LOST, None), Fail)


def test_a_call_of_a_service_that_must_not_be_repeated_fails_with_its_worker() -> None:
    assert isinstance(settle(TaskOptions(executor="service"), TASK, 1, 0, End.LOST, None), Requeue)
    assert isinstance(settle(TaskOptions(executor="service", at_most_once=True), TASK, 1, 0, End.LOST, None), Fail)


def test_a_lost_job_has_a_budget_and_pauses_of_its_own() -> None:
    why = Failure("task_lost", "its node is gone")
    options = TaskOptions(executor="kubernetes", max_attempts=1, lost_max=2, jitter=False)
    first = settle(options, TASK, 1, 0, End.JOB_LOST, why)
    assert isinstance(first, Requeue) and (first.attempt, first.lost, first.delay_us) == (2, 1, options.initial_us)
    assert "its node is gone" in first.failure.message
    last = settle(options, TASK, 3, 2, End.JOB_LOST, why)
    assert (
        isinstance(last, Fail) and "lost_max=2" in last.failure.message and "its node is gone" in last.failure.message
    )
    assert isinstance(settle(TaskOptions(executor="ray", at_most_once=True), TASK, 1, 0, End.JOB_LOST, why), Fail)


def test_an_attempt_that_is_given_back_may_ask_for_a_pause() -> None:
    later = Failure("executor_unavailable", "it does not answer", retry_after_us=10_000_000)
    verdict = settle(TaskOptions(executor="ray"), TASK, 1, 0, End.RETURNED, later)
    assert isinstance(verdict, Requeue) and (verdict.attempt, verdict.delay_us) == (1, 10_000_000)
