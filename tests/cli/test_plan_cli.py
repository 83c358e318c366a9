"""`perdure plan`: for people, for pipes and for programs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from perdure.bench.shipped_costs import shipped_costs
from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad
from perdure.core.capacity.plan import plan

pytestmark = pytest.mark.usefixtures("interpreter")

PERDURE = [sys.executable, "-W", "error", "-c", "from perdure.cli.main import main; main()"]


def perdure(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "COLUMNS": "100", "NO_COLOR": "1", "HOME": "/nonexistent"}
    done = subprocess.run(
        [*PERDURE, "plan", *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == code, done.stderr
    return done


def test_people_see_the_arithmetic_the_limits_and_the_answer() -> None:
    shown = perdure("--runs-per-day", "10M", "--days", "60", "-o", "table").stdout
    for text in (
        "= 10,000,000 / 86400",
        "runs per day / seconds of a day",
        "What limits first",
        "2 servers, ",
        "PostgreSQL with 1 core,",
        "! One database is not enough for disk of one copy",
        "Keep fewer days",
        "Costs are medians of",
    ):
        assert text in shown, shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_pipe_gets_one_line_each() -> None:
    lines = [line.split("\t") for line in perdure("--runs-per-day", "250k").stdout.splitlines()]
    assert {len(line) for line in lines} == {5}
    assert ["Load", "runs per second, mean", "2.894 per s"] in [line[:3] for line in lines]


def test_programs_get_the_same_figures_as_the_model() -> None:
    arguments = ("--runs-per-day", "5M", "--tasks", "2", "--task-time", "3s", "--shape", "flow", "--spare", "2")
    found = json.loads(perdure(*arguments, "-o", "json").stdout)
    load = ExpectedLoad(runs_per_day=5e6, tasks_per_run=2, task_s=3, shape="flow")
    made = plan(load, shipped_costs(), Assumptions(spare_servers=2, spare_workers=2), DatabaseSize())
    assert {line["name"]: line["value"] for line in found["lines"]} == {line.name: line.value for line in made.lines}
    assert found["costs"]["rounds"] == shipped_costs().about.rounds


def test_shards_are_planned_and_tried_out() -> None:
    shown = perdure("--runs-per-day", "1B", "--days", "3", "--shards", "4", "--try", "-o", "table").stdout
    for text in ("How many databases", "What breaks first", "keys, by the home of their slot", "Each of them: "):
        assert text in shown
    found = json.loads(perdure("--runs-per-day", "1B", "--shards", "auto", "-o", "json").stdout)
    assert found["shards"] > 10 and found["trial"] is None
    tried = json.loads(perdure("--runs-per-day", "1M", "--try", "--weights", "1x2,2", "-o", "json").stdout)
    assert tried["shards"] == 3 and tried["trial"]["weights"] == [1, 1, 2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--runs-per-day", "lots"], "'lots' is not a number: write 250000, 250k, 10M, 1B or 1e9"),
        (["--runs-per-day", "1M", "--shards", "few"], "--shards takes a number, or auto"),
        (["--runs-per-day", "1M", "--shards", "5000"], "1 to 4,096"),
        (["--runs-per-day", "1M", "--shards", "2", "--weights", "1,1,1", "--try"], "--weights names 3 databases"),
        (["--runs-per-day", "1M", "--weights", "1,1,1"], "add --try"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_a_reason(arguments: list[str], said: str) -> None:
    done = perdure(*arguments, code=2)
    assert said in done.stderr and "Traceback" not in done.stderr
