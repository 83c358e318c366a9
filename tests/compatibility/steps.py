"""What a person does in an upgrade, with the command line of some version."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from harness.servers import Release


def ended(release: Release, *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as empty:  # no perdure.toml, no .env
        return subprocess.run(
            [*release.perdure, *arguments],
            env=release.environment(),
            cwd=empty,
            capture_output=True,
            text=True,
            timeout=300,
        )


def run(release: Release, *arguments: str) -> str:
    done = ended(release, *arguments)
    assert done.returncode == 0, f"{release.name}: perdure {' '.join(arguments)}\n{done.stdout}{done.stderr}"
    return done.stdout


def migrate(release: Release, dsn: str) -> str:
    return run(release, "migrate", "--dsn", dsn)


def deploy_flows(release: Release, url: str, directory: Path, *documents: dict[str, Any]) -> None:
    files = [directory / f"{flow['flow']}.yaml" for flow in documents]
    for file, flow in zip(files, documents, strict=True):
        file.write_text(json.dumps(flow))  # JSON is YAML
    run(release, "deploy", *map(str, files), "--url", url)
