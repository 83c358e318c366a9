"""`just wheel`, `just smoke`: wheel and sdist, each installed into an empty environment, must start and run a workflow definition.

Usage: `python tests/smoke.py [DIST [TAG]]`. Without DIST both are built into a temporary directory. With TAG the version must be the tag's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PROGRAM: Final = """
from importlib.metadata import version
from importlib.resources import files
import perdure
from perdure import task, workflow

@task
def double(n: int) -> int:
    return 2 * n

@workflow
async def smoke(n: int) -> int:
    return await double(n)

import perdure.server.rest.app, perdure.programs.server_process, perdure.store.migrate
from perdure.server.rest.ui import built
assert "index.html" in built(), "no web UI"
assert list(files("perdure.store").joinpath("migrations").iterdir()), "no migrations"
print(version("perdure"))
"""


def run(*command: str | Path) -> str:
    # Nothing of the checkout may be importable: the environment is empty, and so is the directory.
    with tempfile.TemporaryDirectory() as empty:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "UV_PROJECT"))}
        done = subprocess.run([str(word) for word in command], cwd=empty, env=clean, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def version_in(package: Path, at: Path) -> str:
    """The version that a package has where it is installed alone."""
    run("uv", "venv", "--quiet", "--python", sys.executable, at)
    run("uv", "pip", "install", "--quiet", "--python", at, package)
    run(at / "bin" / "perdure", "--help")
    run(at / "bin" / "perdure", "server", "--help")
    return run(at / "bin" / "python", "-W", "error", "-c", PROGRAM)


def main(args: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        dist = Path(args[0]).resolve() if args else Path(scratch, "dist")
        if not args:
            subprocess.run(["uv", "build", "--quiet", "--out-dir", dist], cwd=ROOT, check=True)
        packages = [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]
        if {p.suffix for p in packages} != {".whl", ".gz"}:
            raise SystemExit(f"{dist} does not hold a wheel and an sdist")
        for number, package in enumerate(packages):
            found = version_in(package, Path(scratch, f"env-{number}"))
            if args[1:] and args[1] != f"v{found}":
                raise SystemExit(f"{package.name} holds version {found}, not {args[1]}")
            print(f"{package.name}: version {found} installs and starts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
