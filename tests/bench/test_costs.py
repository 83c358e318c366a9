"""What `perdure bench costs` measures adds up: the plan of a mix that was not used to find the costs, against what that mix took."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import msgspec
import pytest

from perdure.bench import workloads
from perdure.bench.cost_workloads import MIXED_UNITS, NAMES
from perdure.bench.shipped_costs import read_costs, shipped_costs
from perdure.core.capacity.costs import STEADY_PER_S, UNITS, MeasuredCosts, UnitCost
from perdure.core.capacity.sections import audit_bytes, kept_bytes
from perdure.core.errors import InvalidInput
from tests.bench.test_bench import perdure

TOLERANCE = 1.5
"""By which factor the model may be off where rounds are medians and as large as those that are shipped."""
TOLERANCE_STEADY = 2.0
"""The same for few runs at a time. A machine that is busy with other things lets runs gather that would have been alone."""
TOLERANCE_CPU_SMALL = 4.0
"""One small round on a machine that does other things too."""


def predicted_mix(costs: MeasuredCosts) -> UnitCost:
    total = UnitCost()
    for unit, n in MIXED_UNITS.items():
        total = total.plus(costs.unit(unit).times(n))
    return total


def off_by(predicted: float, measured: float) -> float:
    return math.exp(abs(math.log(predicted / measured)))


def kept(cost: UnitCost) -> float:
    return kept_bytes(cost) + audit_bytes(cost)


def test_the_shipped_costs_predict_a_mix_that_they_were_not_derived_from() -> None:
    costs = shipped_costs()
    predicted, measured = predicted_mix(costs), costs.workloads["mix"].per_run
    figures = {
        "server": (predicted.server_us, measured.server_us),
        "worker": (predicted.worker_us, measured.worker_us),
        "postgres": (predicted.postgres_us, measured.postgres_us),
        "wal": (predicted.wal_bytes, measured.wal_bytes),
        "disk": (kept(predicted), kept(measured)),
    }
    wrong = {name: pair for name, pair in figures.items() if off_by(*pair) > TOLERANCE}
    assert not wrong, f"predicted and measured: {wrong}"


def test_the_shipped_costs_predict_how_busy_a_server_looks_that_gets_few_runs() -> None:
    """Between a run alone and many at once: the fewer runs share a commit, the more each costs."""
    costs = shipped_costs()
    measured = costs.workloads["steady"].per_run
    predicted = costs.at_rate(STEADY_PER_S)
    assert off_by(predicted.server_us, measured.server_us) < TOLERANCE_STEADY
    assert off_by(predicted.postgres_us, measured.postgres_us) < TOLERANCE_STEADY
    chain, quiet = costs.workloads["chain"].per_run, costs.workloads["quiet"].per_run
    assert chain.server_us < min(measured.server_us, quiet.server_us), (
        "on a fast machine steady runs do not overlap either"
    )


def test_every_unit_costs_something() -> None:
    costs = shipped_costs()
    for name in UNITS:
        unit = costs.unit(name)
        assert unit.server_us > 0 and unit.postgres_us > 0 and unit.wal_bytes > 0 and unit.disk_bytes > 0, name
        assert 1 <= costs.spread_of(name) < 3
    assert set(costs.workloads) == set(NAMES)
    assert costs.about.fsync == costs.about.synchronous_commit == "on"


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif("PERDURE_MEASURE_COSTS" not in os.environ, reason="takes a minute or more: PERDURE_MEASURE_COSTS=1")
def test_costs_are_measured_on_this_machine_and_make_a_plan(tmp_path: Path) -> None:
    done = perdure("bench", "costs", "--runs", "60", "--rounds", "1", "--json", tmp=tmp_path)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "costs.json"
    file.write_text(done.stdout)
    costs = read_costs(file)
    assert set(costs.workloads) == set(NAMES) and costs.about.rounds == 1
    chain = costs.workloads["chain"]
    assert chain.per_run.rows["task"] == workloads.CHAIN_TASKS and chain.per_run.rows["run"] == 1
    predicted, measured = predicted_mix(costs), costs.workloads["mix"].per_run
    assert off_by(predicted.wal_bytes, measured.wal_bytes) < TOLERANCE
    cpu = [sum((c.server_us, c.worker_us, c.postgres_us)) for c in (predicted, measured)]
    assert off_by(cpu[0], cpu[1]) < TOLERANCE_CPU_SMALL
    planned = perdure("plan", "--runs-per-day", "2M", "--costs", str(file), "-o", "json", tmp=tmp_path)
    assert planned.returncode == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert plan["costs"] == json.loads(msgspec.json.encode(costs.about))
    assert next(line["value"] for line in plan["lines"] if line["name"] == "servers") >= 2
    assert list(tmp_path.glob("perdure-bench-*")) == []


def test_a_file_that_holds_no_costs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text('{"about": 1}')
    with pytest.raises(InvalidInput, match="write it by `perdure bench costs --json"):
        read_costs(file)
