"""Other tools, each in an environment of its own with what its file in locks/ names. They are kept from one run of the tests to the next.

A lock is written from the requirements of the example:

    uv pip compile --universal --python-version 3.11 --no-header --no-annotate examples/migrate/celery/requirements.txt \\
        -o tests/compare/locks/celery.txt
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.compare.programs import ROOT

ENVIRONMENTS = ROOT / ".venv-compare"
LOCKS = Path(__file__).parent / "locks"
INSTALL_S_MAX = 300.0


def installed(peer: str) -> Path:
    """The folder of its programs."""
    folder, lock = ENVIRONMENTS / peer, LOCKS / f"{peer}.txt"
    holds = folder / "installed.txt"
    if not holds.exists() or holds.read_text() != lock.read_text():
        _uv("venv", "--clear", "--python", sys.executable, folder)
        _uv("pip", "install", "--python", folder / "bin" / "python", "-r", lock)
        holds.write_text(lock.read_text())
    return folder / "bin"


def _uv(*words: str | Path) -> None:
    command = ["uv", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S_MAX, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
