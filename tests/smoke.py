"""`just wheel`, `just wheel-core`, `just smoke`: the wheels and sdists of perdure-core and perdure, each kind installed into empty environments, must run workflows.

Usage: `python tests/smoke.py [DIST [TAG]]`. Without DIST all are built into a temporary directory. With TAG the version must be the tag's.
`python tests/smoke.py --core` builds and installs only the wheel of perdure-core.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
CORE_PACKAGES_MAX: Final = 8
"""Installed for an application that embeds Perdure, with perdure-core itself."""
CORE_BYTES_MAX: Final = 25_000_000
"""Of their files, as they are installed."""

CORE: Final = """
import asyncio, sys
from importlib.metadata import version
from perdure import TestEnv, flow, task, workflow

@task
def double(n: int) -> int:
    return 2 * n

@workflow
async def smoke(n: int) -> int:
    return await double(n)

async def main() -> None:
    async with TestEnv() as env:  # with a PostgreSQL of its own
        assert await env.run(smoke, 4) == 8
        await env.deploy({"flow": "twice", "tasks": {"a": {"python": "double", "with": {"n": 3}}}})
        assert await env.run(flow("twice")) == {"a": 6}

asyncio.run(main())
try:
    from perdure import Client
except ImportError as error:
    assert "pip install 'perdure-core[client]'" in str(error), error
else:
    raise AssertionError("perdure-core brings gRPC")
print(version("perdure-core"))
"""

WHOLE: Final = """
from importlib.metadata import version
from importlib.resources import files
import perdure
import perdure.server.rest.app, perdure.programs.server_process, perdure.store.migrate
from perdure.server.rest.ui import built
assert "index.html" in built(), "no web UI"
assert list(files("perdure.store").joinpath("migrations").iterdir()), "no migrations"
assert [getattr(perdure, name) for name in perdure.__all__]
assert version("perdure") == version("perdure-core") == perdure.__version__
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


def installed(at: Path, *packages: Path) -> Path:
    """The directory of an environment with these packages and what they need."""
    run("uv", "venv", "--quiet", "--python", sys.executable, at)
    run("uv", "pip", "install", "--quiet", "--python", at / "bin" / "python", *packages)
    return at


def core_version(at: Path) -> str:
    """The version of perdure-core, alone in its environment, after a workflow ran."""
    python = at / "bin" / "python"
    names = run("uv", "pip", "freeze", "--python", python).splitlines()
    assert len(names) <= CORE_PACKAGES_MAX, f"{len(names)} packages, not {CORE_PACKAGES_MAX}: {names}"
    files = [f for f in at.glob("lib/python*/site-packages/**/*") if f.is_file() and f.suffix != ".pyc"]
    size = sum(f.stat().st_size for f in files)
    assert size <= CORE_BYTES_MAX, f"{size} bytes, not {CORE_BYTES_MAX}"
    print(f"  perdure-core alone: {len(names)} packages, {size / 1e6:.1f} MB")
    return run(python, "-W", "error", "-c", CORE)


def whole_version(at: Path) -> str:
    """The version of perdure, after its command line and all it can import were loaded."""
    run(at / "bin" / "perdure", "--help")
    run(at / "bin" / "perdure", "server", "--help")
    return run(at / "bin" / "python", "-W", "error", "-c", WHOLE)


def check_core_wheel() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        build = ["uv", "build", "--quiet", "--wheel", "--package", "perdure-core", "--out-dir", scratch]
        subprocess.run(build, cwd=ROOT, check=True)
        (wheel,) = Path(scratch).glob("perdure_core-*.whl")
        print(f"{wheel.name}: {core_version(installed(Path(scratch, 'core'), wheel))} installs and runs")


def main(args: list[str]) -> int:
    if args == ["--core"]:
        check_core_wheel()
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        dist = Path(args[0]).resolve() if args else Path(scratch, "dist")
        if not args:
            subprocess.run(["uv", "build", "--quiet", "--all-packages", "--out-dir", dist], cwd=ROOT, check=True)
        for suffix in (".whl", ".tar.gz"):
            core, whole = (
                next(iter(dist.glob(f"{name}-[0-9]*{suffix}")), None) for name in ("perdure_core", "perdure")
            )
            if core is None or whole is None:
                raise SystemExit(f"{dist} does not hold perdure_core and perdure as *{suffix}")
            found = {
                core_version(installed(Path(scratch, f"core{suffix}"), core)),
                whole_version(installed(Path(scratch, f"whole{suffix}"), core, whole)),
            }
            if args[1:] and found != {args[1].removeprefix("v")}:
                raise SystemExit(f"{dist} holds the versions {found}, not {args[1]}")
            print(f"{core.name}, {whole.name}: {', '.join(found)} installs and runs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
