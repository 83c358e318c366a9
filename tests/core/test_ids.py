"""Ids tell their shard and their age, and derived ones are the same wherever they are computed."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import ids
from perdure.core.errors import InvalidInput

MOMENTS = st.integers(0, (1 << 48) - 1)
SHARDS = st.integers(0, ids.SHARDS_MAX - 1)
RANDOM = st.integers(0, (1 << 64) - 1)


@given(MOMENTS, SHARDS, RANDOM)
def test_a_run_id_is_a_uuid7_that_tells_its_moment_and_its_shard(unix_ms: int, shard: int, randomness: int) -> None:
    ident = ids.run_id(unix_ms, shard, randomness)
    assert len(ident) == 16
    assert UUID(bytes=ident).version == 7
    assert UUID(bytes=ident).variant == "specified in RFC 4122"
    assert ids.unix_ms_of(ident) == unix_ms
    assert ids.shard_of(ident) == shard


@given(MOMENTS, MOMENTS, SHARDS, SHARDS, RANDOM, RANDOM)
def test_run_ids_sort_by_time_whatever_their_shard(a: int, b: int, s: int, t: int, r: int, q: int) -> None:
    if a < b:
        assert ids.run_id(a, s, r) < ids.run_id(b, t, q)


@given(MOMENTS, SHARDS, RANDOM, st.integers(0, 1 << 40))
def test_a_derived_id_lies_beside_its_run_and_names_the_same_shard(ms: int, shard: int, r: int, seq: int) -> None:
    run = ids.run_id(ms, shard, r)
    derived = ids.derive(run, ids.TASK, seq)
    assert derived[:8] == run[:8]
    assert ids.shard_of(derived) == shard
    assert ids.unix_ms_of(derived) == ms
    assert UUID(bytes=derived).variant == "specified in RFC 4122"
    assert derived == ids.derive(run, ids.TASK, seq)


def test_derived_ids_differ_by_kind_sequence_and_run() -> None:
    runs = [ids.run_id(1_700_000_000_000, 3, n) for n in range(10)]
    kinds = [ids.TASK, ids.TIMER, ids.CHILD, ids.PROMISE, ids.OPERATION]
    made = [ids.derive(r, k, s) for r in runs for k in kinds for s in range(200)]
    assert len(set(made)) == len(made)


def test_a_known_id_never_changes() -> None:
    run = ids.run_id(1_700_000_000_000, 7, 42)
    assert ids.text(run) == "018bcfe5-6800-7007-8000-00000000002a"
    assert ids.text(ids.derive(run, ids.TASK, 0)) == "018bcfe5-6800-7007-8f27-cee997a95edf"


@given(MOMENTS, SHARDS, RANDOM)
def test_the_text_of_an_id_reads_back(ms: int, shard: int, r: int) -> None:
    ident = ids.run_id(ms, shard, r)
    assert ids.parse(ids.text(ident)) == ident
    assert ids.text(ident) == str(UUID(bytes=ident))


@pytest.mark.parametrize("wrong", ["", "hello", "018bcfe5", "018bcfe5-6800-7007-8000-00000000002g"])
def test_text_that_is_no_id_is_refused_with_an_example(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="should look like"):
        ids.parse(wrong)


@given(st.integers(1, (1 << 48) - 1), SHARDS, RANDOM)
def test_the_lowest_id_of_a_millisecond_splits_the_ids_before_it_from_the_rest(ms: int, shard: int, r: int) -> None:
    bound = ids.lowest_at(ms).bytes
    assert ids.run_id(ms - 1, shard, r) < bound <= ids.run_id(ms, shard, r)
    assert (
        ids.derive(ids.run_id(ms - 1, shard, r), ids.TASK, 1)
        < bound
        <= ids.derive(ids.run_id(ms, shard, r), ids.TASK, 1)
    )
