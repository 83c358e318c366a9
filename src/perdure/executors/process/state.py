"""The directory of a job.

    STATE_DIR/AGENT/JOB/job            the job as it was assigned; written before its process is started. Its lock is held by the
                                       shim, the command and their children
                       /state          written by the shim: its line of /proc/PID/stat before it runs the command, then the exit code
                       /stdout, /stderr, /stdin, /input.json, /result.json, /work
                       /io             input.json and result.json are here when the command runs as another user

What a worker finds after a restart:

    state has an exit code              the command has ended
    state is empty, the lock is free    the worker crashed before the process began: it is started now
    the lock is held                    it runs
    the lock is free                    the process vanished: the machine was restarted, or the shim was killed

Few files: on many file systems, making and deleting them costs more than running a short command.
"""

from __future__ import annotations

import os
import re
import shutil
from functools import cached_property
from pathlib import Path
from typing import Final

from perdure.executors.job_dirs import lock_file, read_job, write_job
from perdure.executors.port import Job

SHIM: Final = """\
d=$1; shift
read -r s < /proc/self/stat && printf '%s\\n' "$s" > "$d/state" || exit 125
trap : TERM INT HUP
{limits}"$@"
printf 'exit %s\\n' $? >> "$d/state"
"""
"""Runs the command and writes down its exit code. It outlives the worker. A command whose beginning cannot be recorded is not run: the
next worker would start it again. Signals are trapped, not ignored, so that the command gets them."""


_EXIT: Final = re.compile(r"^exit (\d+)\n", re.M)


class JobDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.stdout, self.stderr, self.stdin = path / "stdout", path / "stderr", path / "stdin"
        self.work, self._state = path / "work", path / "state"

    @cached_property
    def _io(self) -> Path:
        io = self.path / "io"
        return io if io.is_dir() else self.path

    @property
    def input(self) -> Path:
        return self._io / "input.json"

    @property
    def result(self) -> Path:
        return self._io / "result.json"

    def create(self, job: Job, owner: tuple[int, int] | None) -> None:
        """The job is on disk last: a directory without it is of a job that never started."""
        self.path.mkdir(mode=0o711)
        self.work.mkdir(mode=0o700)
        if owner is not None:
            io = self.path / "io"
            io.mkdir(mode=0o700)
            os.close(os.open(self._state, os.O_CREAT | os.O_WRONLY, 0o600))
            for path in (self.work, io, self._state):
                os.chown(path, *owner)
        write_job(self.path, job)

    def job(self) -> Job | None:
        return read_job(self.path)

    def started(self) -> tuple[int, int] | None:
        """(pid, start time in clock ticks since boot) of the shim; None: it has not begun."""
        return _pid_and_start(_read(self._state).partition("\n")[0])

    def exit_code(self) -> int | None:
        found = _EXIT.search(_read(self._state))
        return int(found[1]) if found is not None else None

    def lock(self) -> int | None:
        """A descriptor that holds the lock, for the process that is to be started; None: a process holds it. It cannot be written to: the command
        inherits it."""
        return lock_file(self.path / "job", os.O_RDONLY)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with the pid, this names it for ever. None: there is none."""
    found = _pid_and_start(_read(Path(f"/proc/{pid}/stat")))
    return found[1] if found is not None else None


def _pid_and_start(line: str) -> tuple[int, int] | None:
    """Of a line of /proc/PID/stat. The name of the program is in brackets and may hold anything."""
    head, _, rest = line.rpartition(")")
    fields = rest.split()
    if len(fields) < 20:
        return None
    return int(head.split(" ", 1)[0]), int(fields[19])


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
