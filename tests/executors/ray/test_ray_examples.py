"""examples/on_ray: the program as a user starts it. Its directory is copied to the nodes of a real cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.test_snippets import environment
from tests.executors.ray.cluster import LOOPBACK, RayCluster

EXAMPLE = Path(__file__).parents[3] / "examples" / "on_ray" / "run.py"
RUN_S_MAX = 900
PRINTED = """\
paths.csv has 285,217 bytes
both paths begin at 101.288,102.338
path 1: {'lowest': 14.8, 'highest': 147.2}
"""


def test_the_workflow_and_the_flow(ray_cluster: RayCluster, dsn: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={**environment(dsn), **LOOPBACK, "PERDURE_EXECUTOR_RAY_ADDRESS": ray_cluster.address},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == PRINTED
