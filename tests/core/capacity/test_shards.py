"""Many databases on paper: as few as fit, together as much as one large one, and the arithmetic of their failures."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.capacity.load import DatabaseSize, ExpectedLoad
from perdure.core.capacity.plan import plan
from perdure.core.capacity.shards import ShardChoices, ShardPlan, part_of, plan_shards, shards_needed
from perdure.core.errors import InvalidInput
from perdure.core.ids import SHARDS_MAX
from tests.core.capacity.test_plan import evaluated
from tests.core.capacity.worlds import ASSUMED, SIZE, loads, round_costs

COSTS = round_costs()
HUGE = DatabaseSize(postgres_cores=1e5, servers=1e5, wal_mb_s=1e6, disk_tb=1e5, connections=1e7, sleeping_runs=1e12)
BILLION = ExpectedLoad(runs_per_day=1e9)


def made(load: ExpectedLoad, **choices: float) -> ShardPlan:
    return plan_shards(load, COSTS, ASSUMED, SIZE, ShardChoices(**choices))  # type: ignore[arg-type]


@given(loads(), st.integers(1, 200))
def test_every_line_evaluates_to_its_value(load: ExpectedLoad, shards: int) -> None:
    for line in [*made(load, shards=shards, shared_key_share=0.1).lines, *made(load, shards=shards).breaks]:
        slack = max(1.01, line.value * 0.01) if "ceil" in line.numbers else abs(line.value) * 0.006
        if math.isfinite(line.value) and "inf" not in line.numbers:
            assert abs(evaluated(line) - line.value) <= slack, line


@given(loads())
def test_the_number_of_shards_is_the_smallest_with_which_everything_fits(load: ExpectedLoad) -> None:
    choices = ShardChoices()
    try:
        shards = shards_needed(load, COSTS, ASSUMED, SIZE, choices)
    except InvalidInput:
        return

    def fits(n: int) -> bool:
        needs = plan(part_of(load, n), COSTS, ASSUMED, SIZE).needs
        return all(n.fixed + n.growing <= n.of_one_database * choices.fill * (1 + 1e-9) for n in needs)

    assert fits(shards)
    assert shards == 1 or not fits(shards - 1)


@given(loads(), st.integers(1, 64))
def test_shards_together_carry_what_one_would(load: ExpectedLoad, shards: int) -> None:
    whole = plan(load, COSTS, ASSUMED, HUGE)
    many = plan_shards(load, COSTS, ASSUMED, HUGE, ShardChoices(shards=shards))
    assert many["WAL archive, all"] == pytest.approx(whole["WAL archive"], rel=1e-6)
    assert many["servers, all"] >= whole["servers"] - 1
    assert many.one["server cores"] * shards == pytest.approx(whole["server cores"], rel=1e-6, abs=1e-12)


def test_what_is_reached_at_a_break_is_the_limit() -> None:
    many = made(BILLION, shards=40)
    for line in many.breaks:
        load = msgspec.structs.replace(BILLION, runs_per_day=line.value)
        need = next(n for n in plan(part_of(load, 40), COSTS, ASSUMED, SIZE).needs if n.resource == line.name)
        assert need.fixed + need.growing == pytest.approx(need.of_one_database, rel=1e-6)
    values = [line.value for line in many.breaks]
    assert values == sorted(values)


def test_chances_by_hand() -> None:
    many = made(BILLION, shards=64, availability=0.999)
    assert many["chance that a key lives elsewhere"] == pytest.approx(63 / 64)
    assert many["rows read for a page of 50"] == 3_200
    assert many["answers that wait for a slow shard"] == pytest.approx(0.4744, abs=1e-4)
    assert many["quantile of one shard that is the median of all"] == pytest.approx(0.98923, abs=1e-5)
    assert many["runs that stand still"] == 1 / 64
    assert many["minutes a year that a given run stands"] == pytest.approx(525.6)
    assert many["minutes a year that some shard is away"] == pytest.approx(525_600 * (1 - 0.999**64))
    assert many["load of the others"] == pytest.approx(64 / 63)


def test_one_shard_has_nothing_to_cross() -> None:
    alone = made(ExpectedLoad(runs_per_day=1e6), shards=1)
    assert alone["chance that a key lives elsewhere"] == 0 and alone["effects on another shard, peak"] == 0
    assert "load of the others" not in [line.name for line in alone.lines]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InvalidInput, match="as many as an id can name"):
        ShardChoices(shards=SHARDS_MAX + 1)
    with pytest.raises(InvalidInput, match="4,096 databases that an id can name"):
        made(ExpectedLoad(runs_per_day=1e14))
    with pytest.raises(InvalidInput, match="availability"):
        ShardChoices(availability=0)
