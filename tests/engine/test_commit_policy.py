"""When a batch is written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.engine.commits.policy import CommitPolicy

MOMENTS = st.integers(0, 1 << 50)


@given(MOMENTS, st.none() | MOMENTS)
def test_urgent_records_go_at_once(now: int, oldest: int | None) -> None:
    assert CommitPolicy().flush_in_us(now, True, oldest) == 0


@given(MOMENTS)
def test_nothing_waiting_is_nothing_to_do(now: int) -> None:
    assert CommitPolicy().flush_in_us(now, False, None) is None


@given(MOMENTS, MOMENTS, st.integers(0, 100_000))
def test_lazy_records_wait_for_company_but_never_longer_than_said(now: int, oldest: int, lazy: int) -> None:
    delay = CommitPolicy(lazy_us=lazy).flush_in_us(now, False, oldest)
    assert delay is not None
    assert delay >= 0
    if oldest <= now:
        assert delay <= lazy
    assert (delay == 0) == (now - oldest >= lazy)


def test_the_oldest_lazy_record_is_due_exactly_when_its_time_is_up() -> None:
    policy = CommitPolicy(lazy_us=4_000)
    assert policy.flush_in_us(10_000, False, 10_000) == 4_000
    assert policy.flush_in_us(13_999, False, 10_000) == 1
    assert policy.flush_in_us(14_000, False, 10_000) == 0
    assert policy.flush_in_us(99_000, False, 10_000) == 0
