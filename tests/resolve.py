"""`just resolves`: perdure of this tree and packages that pin gRPC, protobuf or HTTP clients of their own can be installed together, in their newest versions.

Usage: `python tests/resolve.py [DIST]`. Nothing is installed: uv resolves for an empty environment. Prints the versions.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BESIDE: Final = ("dbt-core", "snowflake-connector-python", "langgraph-api")
SHOWN: Final = ("perdure", "perdure-core", *BESIDE, "grpcio", "protobuf", "structlog", "jsonschema-rs")


def uv(*words: str | Path) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "UV_PROJECT"))}
    done = subprocess.run(["uv", *map(str, words)], cwd=ROOT, env=clean, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"uv {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def main(args: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        dist = Path(args[0]).resolve() if args else Path(scratch, "dist")
        if not args:
            uv("build", "--quiet", "--wheel", "--all-packages", "--out-dir", dist)
        environment = Path(scratch, "empty")
        uv("venv", "--quiet", "--python", sys.executable, environment)
        python = environment / "bin" / "python"
        wheels = sorted(dist.glob("perdure*.whl"))
        found = versions(python, *wheels, *BESIDE)
        newest = {name: versions(python, name)[name] for name in BESIDE}
    print(f"{len(found)} packages: " + ", ".join(f"{name} {found[name]}" for name in SHOWN))
    old = [f"{name} {found[name]}, not {version}" for name, version in newest.items() if found[name] != version]
    if old:
        raise SystemExit(f"beside perdure only older versions fit: {'; '.join(old)}")
    return 0


def versions(python: Path, *wanted: str | Path) -> dict[str, str]:
    """What would be installed for these."""
    said = uv("pip", "install", "--dry-run", "--python", python, *wanted)
    return dict(re.findall(r"^ \+ ([\w.-]+)(?:==| @ \S*-)([\d.]\S*?)(?:-py3\S*)?(?: |$)", said, re.MULTILINE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
