"""The plan is right on paper: lines evaluate to what they say, and every need grows with what causes it."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core import limits
from perdure.core.capacity.costs import MeasuredCosts, UnitCost
from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad
from perdure.core.capacity.plan import CapacityPlan, plan
from perdure.core.capacity.sections import KEPT_TABLES, LOOK
from perdure.core.capacity.sheet import PlanLine, number
from perdure.core.errors import InvalidInput
from perdure.engine.settings import EngineSettings
from perdure.sdk.worker.capacity import SLOTS_DEFAULT
from perdure.store.partitions import TABLES
from tests.core.capacity.worlds import ASSUMED, SIZE, loads, round_costs

COSTS = round_costs()
STEPS = {"servers by CPU", "servers by runs in memory", "workers by slots", "workers by CPU", "PostgreSQL cores"}
"""Whole numbers, which jump."""


def made(load: ExpectedLoad, assumed: Assumptions = ASSUMED, costs: MeasuredCosts = COSTS) -> CapacityPlan:
    return plan(load, costs, assumed, SIZE)


def evaluated(line: PlanLine) -> float:
    assert re.fullmatch(r"(?:[-+*/()., 0-9e]|ceil|max)+", line.numbers), line.numbers
    numbers = re.sub(r"(?<=\d),(?=\d{3})", "", line.numbers)
    return float(eval(numbers, {"ceil": math.ceil, "max": max}))  # noqa: S307  numbers and operators alone, as just matched


@given(loads())
def test_every_line_evaluates_to_its_value(load: ExpectedLoad) -> None:
    for line in made(load).lines:
        # Numbers are shown with four digits, and a whole number may fall on the other side of its border.
        slack = 1.01 if "ceil" in line.numbers else abs(line.value) * 0.003
        assert abs(evaluated(line) - line.value) <= slack, line


def test_a_small_plan_by_hand() -> None:
    load = ExpectedLoad(runs_per_day=864_000, tasks_per_run=5, task_s=2.0, payload_bytes=0, retention_days=9)
    p = made(load)
    assert p["runs per second, mean"] == 10 and p["runs per second, peak"] == 30
    assert p["tasks per second, peak"] == 150
    assert p["server CPU of a run"] == pytest.approx(100 + 5 * 10)
    assert p["runs under way, peak"] == pytest.approx(30 * 5 * 2)
    assert p["server cores"] == pytest.approx(30 * 150 / 1e6)
    assert p["servers"] == 1 + 1
    assert p["tasks under way, peak"] == pytest.approx(300)
    assert p["workers by slots"] == 5 and p["workers"] == 6
    assert p["disk of a run"] == pytest.approx(400 + 600 + 5 * 20), "active work is not kept"
    assert p["ended runs, a day"] == pytest.approx(864_000 * 1_100 / 1e9)
    assert p["ended runs, kept"] == pytest.approx(10 * 864_000 * 1_100 / 1e9)
    assert p["WAL archive"] == pytest.approx(864_000 * 1_500 / 1e9)
    assert p["connections"] == 52


@given(loads(), st.floats(1.0, 50.0))
def test_needs_grow_in_proportion_to_the_runs(load: ExpectedLoad, times: float) -> None:
    more = msgspec.structs.replace(load, runs_per_day=load.runs_per_day * times)
    a, b = made(load), made(more)
    for name in (
        "server cores",
        "worker cores",
        "WAL, peak",
        "WAL archive",
        "ended runs, kept",
        "runs asleep",
    ):
        assert b[name] == pytest.approx(a[name] * times, rel=1e-6)
    for name in STEPS:
        assert a[name] <= b[name] <= math.ceil(a[name] * times) + 1


@given(
    loads(),
    st.sampled_from(
        [
            ("tasks_per_run", 1.0),
            ("peak_factor", 1.0),
            ("task_s", 1.0),
            ("task_cpu_s", 0.1),
            ("payload_bytes", 100.0),
            ("signals_per_run", 1.0),
            ("timers_per_run", 1.0),
            ("retention_days", 1.0),
            ("sleep_s", 10.0),
        ]
    ),
)
def test_more_of_anything_never_needs_less(load: ExpectedLoad, more: tuple[str, float]) -> None:
    name, by = more
    a, b = made(load), made(msgspec.structs.replace(load, **{name: getattr(load, name) + by}))
    for before, after in zip(a.lines, b.lines, strict=True):
        # Larger batches may look less busy, and more machines share the runs in memory.
        assert before.section == LOOK or before.name.startswith("memory of a ") or after.value >= before.value - 1e-9, (
            name,
            before,
            after,
        )


@given(loads())
def test_idler_machines_and_more_spares_never_need_fewer(load: ExpectedLoad) -> None:
    a = made(load)
    b = made(load, Assumptions(utilisation=0.3, spare_servers=2, spare_workers=2, slot_use=0.35, replicas=2))
    for name in ("servers", "workers", "PostgreSQL cores", "disk of all copies"):
        assert b[name] >= a[name]
    assert (
        b["servers"] > a["servers"]
        and b["workers"] > a["workers"]
        and b["disk of all copies"] > a["disk of all copies"]
    )


def test_what_limits_first_is_what_needs_most_of_a_database() -> None:
    long_kept = made(ExpectedLoad(runs_per_day=1e7, retention_days=365))
    assert long_kept.needs[0].resource == "disk of one copy"
    assert [n.times for n in long_kept.needs] == sorted(n.times for n in long_kept.needs)
    busy = made(ExpectedLoad(runs_per_day=5e8, retention_days=0.1, payload_bytes=0, task_s=0.01))
    assert busy.needs[0].resource in ("servers on one database", "connections")


def test_warnings_name_the_limit() -> None:
    def texts(**fields: float) -> str:
        return "\n".join(made(ExpectedLoad(runs_per_day=1_000, **fields)).warnings)  # type: ignore[arg-type]

    assert "HISTORY_EVENTS_MAX is 50,000" in texts(tasks_per_run=limits.HISTORY_EVENTS_MAX / 2)
    assert "PAYLOAD_INLINE_BYTES" in texts(payload_bytes=limits.PAYLOAD_INLINE_BYTES + 1)
    assert texts() == ""
    over = made(ExpectedLoad(runs_per_day=1e9)).warnings
    assert "One database is not enough" in over[0] and "perdure plan --shards" in over[0]
    alone = plan(ExpectedLoad(runs_per_day=1_000), COSTS, Assumptions(replicas=0), SIZE)
    assert "Without a standby" in alone.warnings[-1]
    fanout = made(ExpectedLoad(runs_per_day=10, shape="fanout", tasks_per_run=200_000)).warnings
    assert any("FANOUT_TASKS_MAX" in text for text in fanout)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"runs_per_day": 0}, "runs_per_day must be more than 0"),
        ({"runs_per_day": 1, "peak_factor": 0.5}, "peak factor"),
        ({"runs_per_day": 1, "sleeping_share": 2}, "sleeping_share is a share"),
        ({"runs_per_day": 1, "task_s": -1}, "task_s must not be negative"),
    ],
)
def test_a_load_that_cannot_be_is_refused(fields: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        ExpectedLoad(**fields)  # type: ignore[arg-type]


def test_shares_of_machines_are_checked() -> None:
    with pytest.raises(InvalidInput, match="utilisation is a share"):
        Assumptions(utilisation=0)
    with pytest.raises(InvalidInput, match="disk_tb must be more than 0"):
        DatabaseSize(disk_tb=0)


def test_assumptions_are_the_defaults_of_the_engine_and_the_worker() -> None:
    assert ASSUMED.runs_in_memory == EngineSettings().runs_max
    assert ASSUMED.slots == SLOTS_DEFAULT
    assert set(TABLES) <= set(KEPT_TABLES)


@given(st.floats(1e-9, 1e14))
def test_numbers_read_back_with_four_digits(value: float) -> None:
    assert float(number(value).replace(",", "")) == pytest.approx(value, rel=6e-4)


def test_a_unit_is_what_a_workload_costs_more_and_never_less_than_nothing() -> None:
    assert COSTS.unit("task_chain").server_us == pytest.approx(10)
    assert COSTS.unit("run").server_us == 100
    small, large = UnitCost(server_us=1.0, disk={"a": 1.0}), UnitCost(server_us=5.0, disk={"a": 2.0, "b": 3.0})
    assert small.less(large) == UnitCost(disk={"a": 0.0, "b": 0.0})
    assert large.less(small).disk == {"a": 1.0, "b": 3.0}
