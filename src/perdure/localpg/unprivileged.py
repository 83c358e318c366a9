"""PostgreSQL refuses to run as root. Where we are root, its programs run as an unprivileged user instead."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.core.errors import Unavailable

ROOT_STATE = Path("/var/lib/perdure")
"""Where root keeps what the unprivileged user must reach. Not under /var/tmp: that is swept by age, and any local user
can take a name there before us."""

PROJECT = "project"
"""A file beside data that was moved there: the directory that was asked for."""


@dataclass(frozen=True)
class Account:
    """Whom the server runs as. `uid is None` means as ourselves."""

    uid: int | None
    gid: int | None

    @classmethod
    def for_server(cls, directory: Path) -> Account:
        if os.geteuid() != 0:
            return cls(None, None)
        # A cluster keeps its owner, also under sudo; and so the choice is kept from start to start.
        owner = [directory.stat().st_uid] if directory.exists() else []
        candidates: list[int | str] = [*owner, "postgres", "nobody"]
        for user in candidates:
            try:
                entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
            except KeyError:
                # PostgreSQL refuses a user that has no entry.
                continue
            if entry.pw_uid != 0:
                return cls(entry.pw_uid, entry.pw_gid)
        raise Unavailable(
            "PostgreSQL refuses to run as root, and this machine has neither a user `postgres` nor `nobody` to run it. "
            "Run as an ordinary user, or pass the DSN of a PostgreSQL that runs elsewhere."
        )

    def popen_options(self) -> dict[str, Any]:
        """Arguments for subprocess. PG* is taken out of the environment: the person's own settings stay out of it."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))} | {"LC_ALL": "C"}
        options: dict[str, Any] = {"env": environment, "cwd": "/"}
        if self.uid is not None:
            options |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return options

    def own(self, path: Path) -> None:
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def can(self, test: str, path: Path) -> bool:
        """Whether this user passes `test -x` on a path. Asked of the system: modes alone miss ACLs and mounts."""
        if self.uid is None:
            return True
        answer = subprocess.run(["/bin/sh", "-c", f'[ {test} "$1" ]', "sh", path], check=False, **self.popen_options())
        return answer.returncode == 0


def reachable_directory(requested: Path, account: Account) -> Path:
    """The directory itself, or, where the account cannot enter it, one under /var/lib that a pointer file remembers.

    The pointer makes the choice stick: a later chmod must not make the data seem lost.
    """
    requested.mkdir(parents=True, exist_ok=True, mode=0o700)
    pointer = requested / "moved-to"
    if account.uid is None:
        return requested
    if not pointer.exists():
        account.own(requested)
        if account.can("-x", requested):
            return requested
        pointer.write_text(f"{_root_state() / f'pg-{_digest(str(requested))}'}\n")
    elsewhere = Path(pointer.read_text().strip())
    elsewhere.mkdir(exist_ok=True, mode=0o700)
    account.own(elsewhere)
    if not (elsewhere / PROJECT).exists():
        (elsewhere / PROJECT).write_text(f"{requested}\n")  # so that leftovers.py can tell when it is gone
    return elsewhere


def reachable_binaries(binaries: Path, account: Account) -> Path:
    """The programs' directory, or a copy where the account cannot reach it, as with a wheel installed under /root."""
    if account.can("-x", binaries / "postgres"):
        return binaries
    install = binaries.parent
    made_at_ns = (binaries / "postgres").stat().st_mtime_ns
    copy = _root_state() / f"programs-{_digest(f'{install}:{made_at_ns}')}"
    if not copy.exists():
        _copy_install(install, copy)
    programs = copy / install.parent.name / install.name / "bin"
    if not account.can("-x", programs / "postgres"):
        raise Unavailable(
            f"the unprivileged user that must run PostgreSQL cannot execute {binaries / 'postgres'}. "
            "Install PostgreSQL system-wide, or run as an ordinary user."
        )
    return programs


def _copy_install(install: Path, copy: Path) -> None:
    """Copied aside and renamed, so that a half-made copy is never used and two processes may do it at once."""
    aside = Path(tempfile.mkdtemp(dir=copy.parent, prefix="copying-"))
    shutil.copytree(install, aside / install.parent.name / install.name, symlinks=True)
    # A repaired wheel keeps the shared libraries beside the package, found by a path relative to the program.
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, aside / libraries.name)
    for directory, _, _ in os.walk(aside):
        Path(directory).chmod(0o755)
    try:
        aside.rename(copy)
    except OSError:
        # Another process was faster. Its copy is as good as this one.
        shutil.rmtree(aside)


def _root_state() -> Path:
    ROOT_STATE.mkdir(parents=True, exist_ok=True)
    entry = ROOT_STATE.lstat()
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != 0:
        raise Unavailable(
            f"{ROOT_STATE} is not a directory of root's, so nothing is put there. Remove it and try again."
        )
    # Set apart from mkdir, whose mode passes through the umask.
    ROOT_STATE.chmod(0o755)
    return ROOT_STATE


def _digest(of: str) -> str:
    return hashlib.sha256(os.fsencode(of)).hexdigest()[:16]
