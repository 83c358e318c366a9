"""Which tasks stay, and which runs may leave memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.core.placement import Placement

COUNT = st.integers(0, 1_000_000)


@given(COUNT, st.floats(0, 1e6))
def test_nothing_is_given_away_when_nobody_has_a_free_slot(backlog: int, rate: float) -> None:
    assert Placement().spill(backlog, rate, 0) == 0
    assert Placement().spill(backlog, rate, -3) == 0


@given(COUNT, st.floats(0, 1e6), st.integers(1, 10_000))
def test_what_is_given_away_is_bounded_by_backlog_slots_and_the_limit(backlog: int, rate: float, free: int) -> None:
    spill = Placement().spill(backlog, rate, free)
    assert 0 <= spill <= min(backlog, Placement().spill_max, 4 * free)


@given(COUNT, st.floats(0, 1e6), st.integers(1, 10_000))
def test_what_will_be_done_here_soon_stays(backlog: int, rate: float, free: int) -> None:
    kept = backlog - Placement().spill(backlog, rate, free)
    assert kept >= min(backlog, int(rate * Placement().horizon_s))


def test_a_stalled_worker_gives_everything_away() -> None:
    assert Placement().spill(100, 0.0, 1_000) == 100


def test_a_run_leaves_memory_once_it_has_been_idle_long_enough() -> None:
    p = Placement()
    assert not p.may_evict(1.9, None, crowded=False)
    assert p.may_evict(2.0, None, crowded=False)
    assert p.may_evict(2.0, 3600.0, crowded=False)


def test_a_crowded_memory_lets_go_at_once() -> None:
    assert Placement().may_evict(0.0, None, crowded=True)


def test_a_run_that_wakes_soon_stays_even_when_crowded() -> None:
    assert not Placement().may_evict(100.0, 0.9, crowded=True)
    assert not Placement().may_evict(100.0, -5.0, crowded=True)
    assert Placement().may_evict(100.0, 1.0, crowded=True)
