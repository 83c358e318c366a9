"""What docs/concepts/scale.md and its decision record say in words agrees with the model; the tables are generated from it."""

from __future__ import annotations

from perdure.bench.shipped_costs import shipped_costs
from perdure.core.capacity.balance import SLOTS
from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad
from perdure.core.capacity.plan import CapacityPlan, plan
from perdure.core.capacity.shards import ShardChoices, plan_shards
from perdure.core.ids import SHARDS_MAX
from tests.docs.pages import DOCS

PAGE = (DOCS / "concepts" / "scale.md").read_text()
SIZE = DatabaseSize()


def planned(runs_per_day: float, **assumed: float) -> CapacityPlan:
    return plan(ExpectedLoad(runs_per_day=runs_per_day), shipped_costs(), Assumptions(**assumed), SIZE)  # type: ignore[arg-type]


def test_disk_limits_first_and_cpu_carries_hundreds_of_millions() -> None:
    one = planned(1e6)
    assert one.needs[0].resource == "disk of one copy"
    assert 2e6 < 1e6 * one.needs[0].times < 2e7, "some millions a day"
    others = [n for n in one.needs if n.resource in ("servers on one database", "connections", "PostgreSQL cores")]
    assert all(1e6 * n.times > 2e8 for n in others)


def test_the_audit_log_of_a_year_is_more_than_a_hundred_gigabytes_and_a_week_of_history() -> None:
    one = planned(1e6)
    assert 100 < one["audit log, kept"] < 200
    assert one["audit log, kept"] > 7 * one["ended runs, a day"]


def test_sizes_in_words() -> None:
    assert SIZE.disk_tb * 1e6 / Assumptions().restore_mb_s / 3_600 == 5.555555555555555  # "5.6 hours"
    assert (SIZE.postgres_cores, SIZE.servers, SIZE.wal_mb_s, SIZE.connections, SIZE.sleeping_runs) == (
        32,
        16,
        100,
        500,
        1e7,
    )
    many = plan_shards(ExpectedLoad(runs_per_day=1e9), shipped_costs(), Assumptions(), SIZE, ShardChoices())
    assert round(many["minutes a year that a given run stands"]) == 263
    assert f"{SLOTS:,} slots" in PAGE and f"There are {SHARDS_MAX:,} numbers" in PAGE
    assert Assumptions().utilisation == 0.6 and ShardChoices().fill == 0.8 and ShardChoices().availability == 0.9995
