"""The programs of examples/migrate as processes: the same order in another tool, before, and in Perdure, after."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cli.live import clean_environment

ROOT = Path(__file__).parents[2]
MIGRATE = ROOT / "examples" / "migrate"
PEERS = ("celery", "airflow", "temporal", "prefect", "dbos")
COMMAND_S_MAX = 240.0
CRASHES = (-signal.SIGABRT, -signal.SIGSEGV)


def environment(ledger: Path) -> dict[str, str]:
    """What every program needs beside the address of its server."""
    return {"SHOP_LEDGER": str(ledger), "PYTHONPATH": str(MIGRATE), "PYTHONWARNINGS": "default"}


def call(
    command: Sequence[str | Path], cwd: Path, variables: dict[str, str], *, may_die_at_exit: bool = False
) -> list[str]:
    """The lines that a command of a program prints. `may_die_at_exit`: a thread of the other tool's library may crash when the interpreter
    ends, after its work; what it printed is compared all the same."""
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env=clean_environment() | variables,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    is_crash = may_die_at_exit and done.returncode in CRASHES and "Traceback" not in done.stderr
    ended = f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0 or is_crash, ended
    return done.stdout.splitlines()


def fulfilled(number: str) -> str:
    """The result of an order, in every program."""
    return f"order {number}: parcel-{number}, 430.00 paid, approved by ada"


def effects(number: str) -> list[str]:
    """What an order does, in every program: each once."""
    return [
        f"asked: {number} 430.00",
        f"charged: {number} 430.00",
        f"no answer: {number} desk",
        f"reserved: {number} book x 2",
        f"reserved: {number} desk x 1",
        f"shipped: {number}",
    ]


SOLD = "1 orders, 430.00"
"""The nightly report, after one order."""
