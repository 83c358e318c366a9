"""The directory of a worker on its machine, which holds a directory for each of its jobs: the next worker there finds them.

STATE_DIR/AGENT/agent.lock         held while the worker lives
STATE_DIR/AGENT/JOB/job            the job as it was assigned; written before it is started
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from perdure.executors.port import Job

AGENTS_MAX: Final = 1_000
"""Directories of earlier workers that are looked at when one starts."""


def default_state_dir() -> Path:
    if os.getuid() == 0:
        return Path("/var/lib/perdure/jobs")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "perdure/jobs"


def write_job(directory: Path, job: Job) -> None:
    """At once or not at all."""
    (directory / "job.new").write_bytes(msgspec.msgpack.encode(job))
    os.rename(directory / "job.new", directory / "job")


def read_job(directory: Path) -> Job | None:
    """None: the job of this directory was never started."""
    try:
        return msgspec.msgpack.decode((directory / "job").read_bytes(), type=Job)
    except (OSError, msgspec.DecodeError):
        return None


class AgentDirs:
    """The directory of this worker, and those of workers that are gone."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = root, name
        self._locks: list[int] = []
        self.own = root / name

    def open(self) -> list[Path]:
        """Take over what workers that are gone left."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o711)
        starting = os.open(self._root, os.O_RDONLY)
        fcntl.flock(starting, fcntl.LOCK_EX)  # one worker at a time, so that none takes a directory that is being made
        try:
            return self._take_over()
        finally:
            os.close(starting)

    def _take_over(self) -> list[Path]:
        found: list[Path] = []
        for agent in sorted(self._root.iterdir())[:AGENTS_MAX]:
            lock = lock_file(agent / "agent.lock") if agent.is_dir() else None
            if lock is None:
                continue
            jobs = [path for path in sorted(agent.iterdir()) if path.is_dir()]
            if jobs:
                self._locks.append(lock)
                found += jobs
            else:
                shutil.rmtree(agent, ignore_errors=True)
                os.close(lock)
        self.own.mkdir(mode=0o711)
        lock = lock_file(self.own / "agent.lock")
        assert lock is not None, "the name of a worker's directory is random"
        self._locks.append(lock)
        return found

    def job(self, name: str) -> Path:
        return self.own / name

    def close(self) -> None:
        """Jobs that run stay for the next worker."""
        if not any(path.is_dir() for path in self.own.iterdir()):
            shutil.rmtree(self.own, ignore_errors=True)
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()


def lock_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int | None:
    """A descriptor that holds the lock; None: a process holds it."""
    try:
        fd = os.open(path, flags, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
