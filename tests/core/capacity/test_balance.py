"""Placement: fair by weight, the same for the same seed, and an added database takes its part from all others and nothing more."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.capacity.balance import SLOTS, homes, slot_of, try_out
from perdure.core.errors import InvalidInput

WEIGHTS = st.lists(st.floats(0.5, 4), min_size=1, max_size=6)


@settings(max_examples=3)
@given(WEIGHTS, st.integers(0, 1000))
def test_an_added_shard_takes_slots_and_moves_none_between_others(weights: list[float], seed: int) -> None:
    before, after = homes(weights, seed), homes([*weights, 1.0], seed)
    new = len(weights)
    assert all(b in (a, new) for a, b in zip(before, after, strict=True))
    fair = SLOTS / (sum(weights) + 1)
    assert abs(after.count(new) - fair) < 6 * fair**0.5


@settings(max_examples=3)
@given(WEIGHTS, st.data())
def test_a_drained_shard_gives_its_slots_to_the_others_and_keeps_none(
    weights: list[float], data: st.DataObject
) -> None:
    weights = [*weights, 1.0]
    drained = data.draw(st.integers(0, len(weights) - 1))
    before = homes(weights)
    after = homes([0.0 if n == drained else w for n, w in enumerate(weights)])
    assert drained not in after
    assert all(a == b for a, b in zip(before, after, strict=True) if a != drained)


def test_the_same_seed_gives_the_same_trial() -> None:
    one, again = try_out([1, 1, 2], runs=5_000, seed=7), try_out([1, 1, 2], runs=5_000, seed=7)
    assert one == again
    assert one != try_out([1, 1, 2], runs=5_000, seed=8)


def test_runs_and_keys_lie_evenly_and_tenants_do_not() -> None:
    trial = try_out([1.0] * 8, runs=20_000)
    runs, keys, tenants = trial.spreads
    assert 0.9 < runs.lowest <= 1 <= runs.highest < 1.1
    assert 0.85 < keys.lowest <= 1 <= keys.highest < 1.15
    assert tenants.highest > 1.2, "the largest tenant alone is more than one shard's part"
    assert trial.added.between_old == 0
    assert trial.added.share == pytest.approx(1 / 9, abs=0.02)
    assert trial.added.share_by_modulo > 0.8


def test_the_slot_of_a_key_never_changes() -> None:
    """It is written into no id, so a change of the hash would lose every key: these numbers stay."""
    assert [slot_of("default", key) for key in ("order-1", "order-2", "")] == [3550, 6228, 473]
    assert slot_of("a", "b") != slot_of("ab", "")


@pytest.mark.parametrize("weights", [[], [0.0], [1.0, -1.0]])
def test_weights_that_cannot_be_are_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidInput, match="weights are numbers from 0 on"):
        homes(weights)
