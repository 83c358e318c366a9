"""Which processes use a directory's server, kept by the kernel: its locks vanish with the process, even on kill -9."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from perdure.core.errors import Unavailable
from perdure.localpg import watcher
from perdure.localpg.unprivileged import Account

HELD_S_MAX = 5.0
"""How long the processes of a server that has just ended may take to be gone."""


class Sharing:
    def __init__(self, directory: Path, account: Account) -> None:
        self._directory = directory
        self._account = account
        self._membership: int | None = None

    @contextmanager
    def alone(self) -> Generator[None]:
        """For starting and stopping, which one process does at a time."""
        descriptor = self._open("lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def join(self) -> None:
        """Count as a user until we leave or die."""
        if self._membership is None:
            self._membership = self._open("users")
            fcntl.flock(self._membership, fcntl.LOCK_SH)

    def leave(self) -> None:
        if self._membership is not None:
            os.close(self._membership)
            self._membership = None

    def others(self) -> bool:
        """Whether there is another user. Asked under `alone` and after `leave`."""
        descriptor = self._open("users")
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    def watch(self, grace_s: float) -> None:
        """Make sure that a process watches over the server. Asked under `alone`, when the server runs."""
        descriptor = self._open("watch")
        try:
            if not _try_lock(descriptor):
                return
            words = [str(self._directory), str(grace_s), str(descriptor)]
            program = [sys.executable, "-I", "-S", watcher.__file__, *words]
            # A shell starts it in the background and exits, so it is not our child; its own session keeps Ctrl-C away.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh", *program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
                pass_fds=[descriptor],
                check=True,
            )
        finally:
            os.close(descriptor)

    def has_server(self) -> bool:
        """Whether processes of a server hold the data. Asked under `alone`."""
        descriptor = self._open("server")
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def held_for_server(self) -> Generator[int]:
        """A locked descriptor for the server to inherit. It and its children hold the lock until the last of them ends.

        So two servers never share the data, even where pids are not comparable, as in two containers with one volume.
        """
        descriptor = self._open("server")
        deadline = time.monotonic() + HELD_S_MAX
        try:
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"a server that cannot be seen from here (in another container?) uses {self._directory}. "
                        "Give each its own directory (set PERDURE_HOME), or pass the DSN of that server."
                    )
                time.sleep(0.02)
            yield descriptor
        finally:
            os.close(descriptor)

    def _open(self, name: str) -> int:
        try:
            descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CREAT, 0o600)
        except PermissionError as error:
            raise Unavailable(
                f"{self._directory} belongs to another user. Use a directory of your own (set PERDURE_HOME)."
            ) from error
        self._account.own(self._directory / name)
        return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
