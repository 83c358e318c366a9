"""`perdure bench` as people and CI call it: a process of its own, its stdout, its exit code.

The floors are an order of magnitude below what a slow, busy machine does: they catch a bench that is broken, or an engine that
fell off a cliff, and nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("processes")

PERDURE = [sys.executable, "-W", "error", "-c", "from perdure.cli.main import main; main()"]


def perdure(*arguments: str, tmp: Path, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """With a temporary directory of its own, to see what is left in it."""
    tmp.chmod(0o755)
    return subprocess.run(
        [*PERDURE, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp), "HOME": str(tmp)},
    )


def test_quick_bench_prints_one_json_object_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = perdure("bench", "--quick", "--tasks", "2000", "--json", tmp=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    settings = report["settings"]
    assert (settings["fsync"], settings["synchronous_commit"], settings["shared_buffers"]) == ("on", "on", "1GB")
    assert settings["tasks"] == 2000 and settings["cores"] >= 1
    assert all(settings[program] for program in ("perdure", "python", "postgresql", "asyncpg"))
    for pattern in ("life3", "life2", "append"):
        low, high = report["bare"]["spread"][pattern]
        assert 100 < low <= report["bare"][pattern] <= high
    for name, tasks in (("fanout", 2000), ("chain", 1000), ("many", 2000)):
        check_workload(report[name], tasks)
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"] < 5_000
    assert 10 < report["rss_mb"] < 2_000
    assert "many 3 of 3" in done.stderr
    assert "Warning" not in done.stderr
    assert list(tmp_path.glob("perdure-bench-*")) == []


def test_remote_bench_measures_processes_of_their_own_and_idle_workers(tmp_path: Path) -> None:
    done = perdure(
        "bench", "--remote", "--tasks", "1000", "--idle-workers", "50", "--idle", "2", "--json", tmp=tmp_path
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for name, tasks in (("fanout", 1000), ("chain", 500)):
        workload = report[name]
        assert workload["tasks"] == tasks
        low, high = workload["spread"]
        assert 0.01 < low <= workload["ratio_to_life3"] <= high
        assert all(workload["cpu_us_per_task"][who] >= 0 for who in ("server", "worker", "client", "postgres"))
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"] < 5_000
    idle = report["idle"]
    assert idle["workers"] == 50 and 0 <= idle["cpu_percent"] < 50 and 30 < idle["rss_mb"] < 300
    assert list(tmp_path.glob("perdure-bench-*")) == []


def check_workload(workload: dict[str, Any], tasks: int) -> None:
    assert workload["tasks"] == tasks
    low, high = workload["spread"]["tasks_per_s"]
    assert low <= workload["tasks_per_s"] <= high
    low, high = workload["spread"]["ratio_to_life3"]
    assert 0.02 < low <= workload["ratio_to_life3"] <= high
    assert workload["cpu_us_per_task"]["engine"] > 0
    assert workload["cpu_us_per_task"]["postgres"] > 0


def test_bench_prints_a_table_for_people_and_can_measure_a_given_server(tmp_path: Path, dsn: str) -> None:
    done = perdure("bench", "--tasks", "500", "--dsn", dsn, tmp=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("bare life3", "fanout", "chain", "many", "idle latency", "fsync off"):
        assert word in done.stdout


def test_scale_in_small_reports_each_target(tmp_path: Path) -> None:
    sizes = (
        "--fanout",
        "2000",
        "--sleeping",
        "1000",
        "--herd",
        "500",
        "--retained",
        "20000",
        "--history",
        "1000",
        "--idle",
        "3",
    )
    done = perdure("bench", "scale", "--json", *sizes, tmp=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["fanout100k"]["workload"]["tasks"] == 2000
    assert report["fanout100k"]["peak_rss_mb"]["passed"] is True
    sleeping = report["sleeping"]
    assert sleeping["runs"] == 1000 and sleeping["created_per_s"] > 50
    for figure in (sleeping["engine_cpu_percent"], sleeping["postgres_cpu_percent"]):
        assert figure["limit"] == 2.0 and figure["figure"] < 20
    assert 10 < sleeping["starter_rss_mb"][0] < 2_000 and 10 < sleeping["starter_rss_mb"][1] < 2_000
    assert 0 < sleeping["run_queue_mb"] < sleeping["database_mb"] < 2_000
    check_herd(report["herd"], runs=500, engines=1)
    assert report["retained"]["tasks"] >= 20_000
    assert report["retained"]["slowdown"]["limit"] == 0.15 and report["retained"]["slowdown"]["figure"] < 0.9
    check_history(report["history"], events=1000)
    assert "Warning" not in done.stderr


def check_history(history: dict[str, Any], events: int) -> None:
    assert [row["step"] for row in history["rows"]] == ["task", "timer"]
    for row in history["rows"]:
        assert row["events"] == events and row["parts"][0]["engine_us"] > 0
        assert row["parts"][-1]["until"] > events * 0.8
    # A cost that grows with the length would show as a multiple of it; the rest is the machine's noise.
    assert all(row["growth"]["figure"] < 5 for row in history["rows"])
    assert [events // load["events"] for load in history["reloads"]] == [20, 5, 1]


def check_herd(herd: dict[str, Any], runs: int, engines: int) -> None:
    assert (herd["runs"], herd["engines"]) == (runs, engines)
    assert herd["early"] == {"figure": 0, "limit": 1, "passed": True, "want": "below"}
    assert herd["ratio_to_life3"]["limit"] == 0.3 and herd["ratio_to_life3"]["figure"] > 0.01
    late = herd["late_ms"]
    assert 0 <= late["first"] <= late["median"] <= late["last"] < 60_000
    assert herd["cpu_us_per_run"]["engine"] > 0


def test_a_herd_is_drained_by_several_engines(tmp_path: Path) -> None:
    arguments = ("--only", "herd", "--herd", "2000", "--engines", "2")
    done = perdure("bench", "scale", "--json", *arguments, tmp=tmp_path)
    assert done.returncode == 0, done.stderr
    check_herd(json.loads(done.stdout)["herd"], runs=2000, engines=2)
    assert "0 early" in done.stderr
    assert list(tmp_path.glob("perdure-bench-*")) == []


def test_scale_refuses_a_part_it_does_not_know(tmp_path: Path) -> None:
    done = perdure("bench", "scale", "--only", "fanout100k,tea", tmp=tmp_path)
    assert done.returncode == 2
    assert "fanout100k,sleeping,herd,retained,history" in done.stderr
