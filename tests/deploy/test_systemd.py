"""The systemd units: checked by systemd itself, and what they start, started with their restrictions. No systemd runs as PID 1 here."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import free_port, started
from tests.deploy.confined import directives, filtered

UNITS = Path(__file__).parents[2] / "deploy/systemd"
PERDURE = Path(sys.executable).parent / "perdure"
NAMES = ("perdure-server.service", "perdure-worker@.service", "perdure-migrate.service")
EXPOSURE_MAX = {"perdure-server.service": 1.5, "perdure-worker@.service": 3.5, "perdure-migrate.service": 1.5}
"""systemd's own score: 10 for a unit without restrictions."""

pytestmark = pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd is not installed: `just setup` does"
)


def as_installed(name: str, directory: Path) -> Path:
    """With the program where it is on this machine, and a template with an instance."""
    unit = directory / name.replace("@", "@shop")
    unit.write_text((UNITS / name).read_text().replace("/opt/perdure/bin/perdure", str(PERDURE)))
    return unit


def analyzed(*words: str | Path) -> str:
    done = subprocess.run(["systemd-analyze", *map(str, words)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_nothing_wrong(name: str, tmp_path: Path) -> None:
    said = analyzed("verify", as_installed(name, tmp_path))
    assert [line for line in said.splitlines() if name.partition(".")[0].partition("@")[0] in line] == []


def test_systemd_finds_a_directive_that_does_not_exist(tmp_path: Path) -> None:
    unit = as_installed(NAMES[0], tmp_path)
    unit.write_text(unit.read_text().replace("PrivateTmp=yes", "PrivatTmp=yes"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "PrivatTmp" in done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_units_are_little_exposed(name: str, tmp_path: Path) -> None:
    said = analyzed("security", "--offline=yes", as_installed(name, tmp_path))
    score = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert score is not None and float(score[1]) <= EXPOSURE_MAX[name], said


def test_only_the_migration_has_the_owners_login() -> None:
    for name in NAMES:
        given = dict(directives(UNITS / name))
        assert ("owner" in given["LoadCredential"]) == (name == "perdure-migrate.service")
        assert given["DynamicUser"] == "yes"
    assert "--no-migrate" in dict(directives(UNITS / NAMES[0]))["ExecStart"]


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(os.getuid() != 0, reason="takes on restrictions as root")
def test_a_server_runs_under_the_restrictions_of_its_unit(dsn: str, open_directory: Callable[[Path], Path]) -> None:
    """ExecStart as it stands there, with the directory of credentials that systemd would make. Not in /tmp, which is private."""
    place = open_directory(Path("/var/tmp"))
    unit = UNITS / NAMES[0]
    assert len(filtered(unit)) > 200 and "ptrace" not in filtered(unit) and "setrlimit" not in filtered(unit)
    credentials = place / "credentials"
    credentials.mkdir()
    (credentials / "perdure_dsn").write_text(dsn)
    config = place / "server.toml"
    config.write_text(f'[server]\nhttp = "127.0.0.1:{free_port()}"\ngrpc = "127.0.0.1:{free_port()}"\n')
    line = dict(directives(unit))["ExecStart"]
    line = line.replace("/opt/perdure/bin/perdure", str(PERDURE)).replace("%d", str(credentials))
    words = line.replace("/etc/perdure/server.toml", str(config)).split()
    program = [sys.executable, str(Path(__file__).with_name("confined.py")), str(unit)]
    with started(*words, cwd=place, program=program, HOME="/") as server:
        server.until("Perdure is ready")
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        for fact in ("Uid:\t65534", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
            assert fact in status, status
        assert server.stop(signal.SIGTERM) == 0
