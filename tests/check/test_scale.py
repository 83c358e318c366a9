"""Many runs in flight on few paths: all are covered, in minutes.

PERDURE_CHECK_RUNS=100000 is the long form; CI has a short one.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from pathlib import Path

import pytest

from perdure.localpg.cluster import PrivateCluster
from perdure.sdk import registry
from tests.check.conftest import BASE, Runs
from tests.check.editing import checked
from tests.check.fleets import fill
from tests.cli.live import Cli
from tests.cli.processes import server

pytestmark = pytest.mark.usefixtures("processes")

RUNS = int(os.environ.get("PERDURE_CHECK_RUNS", "3000"))
PATHS = 40
LIMIT_S = 180.0


@pytest.mark.usefixtures("fresh")
def test_runs_by_the_thousand_are_covered_by_their_paths(
    cluster: PrivateCluster, migrated_template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = cluster.create_database("check_scale", template=migrated_template)
    monkeypatch.syspath_prepend(str(BASE))
    importlib.import_module("fleet")
    asyncio.run(fill(dsn, registry.workflows.get("fleet"), RUNS, PATHS))
    monkeypatch.setattr(registry, "tasks", registry.Registry("task"))
    monkeypatch.setattr(registry, "workflows", registry.Registry("workflow"))
    same, edited = tmp_path / "fleet_same.py", tmp_path / "fleet_edited.py"
    text = (BASE / "fleet.py").read_text()
    same.write_text(text)
    edited.write_text(text.replace("    if route & 32:\n", "    if route & 32 and amount < 900:\n"))
    with server(dsn, BASE, "--auth", "open") as one:
        runs = Runs(Cli(one.http, tmp_path))
        done, report = checked(runs, same)
        print(
            f"{report['runs']:,} runs, {len(report['paths'])} paths, {report['replayed']} replays: {report['seconds']} s"
        )
        assert (done.code, report["findings"]) == (0, [])
        assert report["runs"] == RUNS == sum(p["runs"] for p in report["paths"])
        assert len(report["paths"]) == PATHS
        assert report["seconds"] < LIMIT_S
        monkeypatch.setattr(registry, "tasks", registry.Registry("task"))
        monkeypatch.setattr(registry, "workflows", registry.Registry("workflow"))
        done, report = checked(runs, edited)
    # Of eight paths, runs with 3 of 25 amounts break: samples with different values are among those that were replayed.
    assert done.code == 6
    assert 1 <= len(report["findings"]) <= 8
    cluster.drop_database("check_scale")
