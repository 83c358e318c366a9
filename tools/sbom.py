"""`just sbom`: what perdure-core and perdure are installed with, as CycloneDX: of each a JSON document with the locked versions, beside the wheels.

Usage: `python tools/sbom.py [DIST]`. DIST holds the wheels; without any they are built there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
PROJECTS: Final = {"perdure-core": ROOT / "packages/core/pyproject.toml", "perdure": ROOT / "pyproject.toml"}


def run(*command: str | Path) -> str:
    clean = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=clean, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def described(name: str, dist: Path, scratch: Path) -> dict[str, Any]:
    """The document of one package, from an environment in which nothing else is installed."""
    environment, locked = scratch / name, scratch / "locked.txt"
    version = tomllib.loads(PROJECTS[name].read_text())["project"]["version"]
    run(
        "uv", "export", "--frozen", "--quiet", "--no-emit-workspace", "--no-hashes", "--no-dev", "--output-file", locked
    )
    run("uv", "venv", "--quiet", environment)
    python = environment / "bin" / "python"
    run(
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--constraints",
        locked,
        "--find-links",
        dist,
        f"{name}=={version}",
    )
    tool = ("uv", "run", "--frozen", "--quiet", "--isolated", "--only-group", "sbom", "cyclonedx-py")
    options = ("--pyproject", PROJECTS[name], "--mc-type", "library", "--output-reproducible", "--of", "JSON")
    document: dict[str, Any] = json.loads(run(*tool, "environment", python, *options))
    document["metadata"]["component"]["version"] = version
    return document


def main(args: list[str]) -> int:
    dist = Path(args[0] if args else "dist").resolve()
    if not list(dist.glob("perdure_core-*.whl")):
        run("uv", "build", "--quiet", "--wheel", "--all-packages", "--out-dir", dist)
    with tempfile.TemporaryDirectory() as scratch:
        for name in PROJECTS:
            document = described(name, dist, Path(scratch))
            file = dist / f"{name}-{document['metadata']['component']['version']}.cdx.json"
            file.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
            print(f"{file.name}: {len(document['components'])} components, CycloneDX {document['specVersion']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
