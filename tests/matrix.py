"""`just matrix`: the unit tests on every supported Python that is here or can be installed; the last lines say what ran and what was skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
FOLDERS: Final = ("tests/core", "tests/flows", "tests/wire", "tests/engine", "tests/sdk")


def is_available(python: str) -> bool:
    """Whether uv finds this Python, after trying to install it."""
    find = ["uv", "python", "find", "--no-project", python]
    for attempt in (find, ["uv", "python", "install", python], find):
        done = subprocess.run(attempt, capture_output=True, text=True, check=False)
        if attempt is find and done.returncode == 0:
            return True
    return False


def passes(python: str, args: list[str]) -> bool:
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": f".venv-{python}"}
    command = ["uv", "run", "--frozen", "--quiet", "--all-extras", "--python", python, "pytest", "-q", *FOLDERS, *args]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def main(args: list[str]) -> int:
    results: dict[str, str] = {}
    for python in PYTHONS:
        if not is_available(python):
            results[python] = "skipped: it is not installed and cannot be downloaded"
            continue
        print(f"== Python {python}", flush=True)
        results[python] = "passed" if passes(python, args) else "FAILED"
    for python, result in results.items():
        print(f"Python {python}: {result}")
    return 1 if "FAILED" in results.values() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
