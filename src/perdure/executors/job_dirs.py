"""The directory of a worker on its machine, which holds a directory for each of its jobs: the next worker there finds them.

STATE_DIR/AGENT/agent.lock         held while the worker lives; the name of AGENT begins with its process id
STATE_DIR/AGENT/JOB/job            the job as it was assigned; written before it is started

A process that a worker starts inherits the lock until it runs its program. One whose worker is killed in that moment holds it alone: the
next worker waits for that process, or it would not find the job that is about to begin.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Final

import msgspec

from perdure.executors.port import Job

AGENTS_MAX: Final = 1_000
"""Directories of earlier workers that are looked at when one starts."""
EXEC_S_MAX: Final = 2.0
"""For processes whose workers are gone to run their programs. Workers that cannot see each other's processes, as in containers that share a
volume, wait this long when they start."""
EXEC_POLL_S: Final = 0.01


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
        until_s = time.monotonic() + EXEC_S_MAX
        for agent in sorted(self._root.iterdir())[:AGENTS_MAX]:
            lock = _lock_of(agent, until_s) if agent.is_dir() else None
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


def _lock_of(agent: Path, until_s: float) -> int | None:
    """A descriptor that holds the lock of a worker that is gone; None: the worker lives."""
    lock = lock_file(agent / "agent.lock")
    while lock is None and _is_gone(agent.name.partition("-")[0]) and time.monotonic() < until_s:
        time.sleep(EXEC_POLL_S)
        lock = lock_file(agent / "agent.lock")
    return lock


def _is_gone(pid: str) -> bool:
    """Whether a process has ended, be it reaped or not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[:1] in ([], ["Z"], ["X"])


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
