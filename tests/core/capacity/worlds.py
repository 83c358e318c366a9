"""Loads and costs for tests of the capacity plan."""

from __future__ import annotations

from hypothesis import strategies as st

from perdure.core.capacity.costs import (
    UNITS,
    CostsAbout,
    IdleCosts,
    MeasuredCosts,
    MeasuredWorkload,
    UnitCost,
    WorkloadName,
)
from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad

ASSUMED = Assumptions()
SIZE = DatabaseSize()


def round_costs() -> MeasuredCosts:
    """Numbers that are easy to follow: an empty run costs 100 us of each, a task 10, everything else 20."""
    empty = UnitCost(100.0, 100.0, 100.0, 1_000.0, 0.1, {"history": 400.0, "run": 600.0, "run_queue": 5_000.0})
    found: dict[WorkloadName, MeasuredWorkload] = {"empty": workload(empty, 1), "single": workload(empty, 1)}
    for name, (of, _) in UNITS.items():
        if name == "run":
            continue
        each = 10.0 if name.startswith("task") else 20.0
        unit = UnitCost(each, each, each, each * 10, each / 1_000, {"history": each, "task": each})
        found[of] = workload(empty.plus(unit.times(5)), 5)
    found["quiet"] = workload(found["chain"].per_run.times(4), 5)
    return MeasuredCosts(
        CostsAbout("2026-01-01", "0", "3", "15", "a test", 2, "on", "on", 1, 20_000),
        found,
        {"run_queue": 300.0, "history": 300.0},
        IdleCosts(0.01, 0.01, 0.01, 100.0, 60.0),
    )


def workload(cost: UnitCost, units: float) -> MeasuredWorkload:
    cpu = cost.server_us + cost.worker_us + cost.postgres_us
    return MeasuredWorkload(100, units, cost, 10.0, {"cpu_us": (cpu, cpu * 1.2)})


def loads() -> st.SearchStrategy[ExpectedLoad]:
    return st.builds(
        ExpectedLoad,
        runs_per_day=st.floats(1_000, 1e9),
        peak_factor=st.floats(1, 10),
        tasks_per_run=st.floats(0, 100),
        shape=st.sampled_from(["chain", "fanout", "flow"]),
        task_s=st.floats(0, 100),
        task_cpu_s=st.floats(0, 1),
        payload_bytes=st.floats(0, 50_000),
        signals_per_run=st.floats(0, 20),
        timers_per_run=st.floats(0, 20),
        sleeping_share=st.floats(0, 1),
        sleep_s=st.floats(0, 1e6),
        scheduled_share=st.floats(0, 1),
        retention_days=st.floats(0, 400),
    )
