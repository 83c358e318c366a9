"""The server process of a data directory: find it, launch it, wait for it, make sure it is gone.

PostgreSQL writes postmaster.pid itself: line 1 the pid, line 4 the port, line 8 `starting`, `ready` or `stopping`.
After kill -9 the file stays, and its pid may since belong to another process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from perdure.core.errors import Unavailable
from perdure.localpg.unprivileged import Account

POLL_S = 0.01
# psutil ships no types; what is used of it is typed by hand.
_system: Any = psutil


@dataclass(frozen=True)
class Postmaster:
    pid: int
    port: int
    status: str

    @classmethod
    def on(cls, data: Path) -> Postmaster | None:
        """The live server of a data directory, or None."""
        lines = _lines(data)
        if not lines or not serves(int(lines[0]), data):
            return None
        # The file grows line by line while the server starts.
        port = int(lines[3]) if len(lines) > 3 else 0
        return cls(int(lines[0]), port, lines[7].strip() if len(lines) > 7 else "starting")


def forget_stranger(data: Path) -> None:
    """Remove a postmaster.pid that PostgreSQL would wrongly take for a live server's.

    Its pid now belongs to an unrelated process, or to a zombie that was not reaped, as in a container without an
    init. Called when nothing works in the data directory any more.
    """
    lines = _lines(data)
    if lines and _system.pid_exists(int(lines[0])) and not serves(int(lines[0]), data):
        (data / "postmaster.pid").unlink()


def _lines(data: Path) -> list[str]:
    """None where there is no file, or an empty one: it is created first and written then."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []
    return lines if lines and lines[0].isdigit() else []


def serves(pid: int, data: Path) -> bool:
    """Whether this process is alive and works on this data directory: a pid may since be another's."""
    try:
        process = _system.Process(pid)
        # The arguments until it has gone there; the working directory also when a person started it by hand.
        return str(data) in process.cmdline() or bool(process.cwd() == str(data))
    except psutil.Error:
        return False


def launch(binaries: Path, data: Path, port: int, log: Path, account: Account, *, held: int) -> int:
    """Start the server and return its pid at once.

    A shell starts it in the background and exits, so it is not our child: nothing to reap, and it outlives us. Its own
    session keeps Ctrl-C in the terminal away from it. `held` is a locked descriptor that it inherits.
    """
    program: list[str | Path] = [binaries / "postgres", "-D", data, "-p", str(port)]
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        account.own(log)
        shell = subprocess.run(
            ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=descriptor,
            start_new_session=True,
            pass_fds=[held],
            check=True,
            **account.popen_options(),
        )
    finally:
        os.close(descriptor)
    return int(shell.stdout)


def await_ready(pid: int, data: Path, timeout_s: float) -> bool:
    """True once the server takes connections, False if it died instead."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        running = Postmaster.on(data)
        if running and running.pid == pid and running.status == "ready":
            return True
        if not alive(pid):
            return False
        time.sleep(POLL_S)
    raise Unavailable(
        f"PostgreSQL on {data} (pid {pid}) was not ready after {timeout_s:.0f} s. It still runs; see its log."
    )


def alive(pid: int) -> bool:
    """A zombie counts as dead: a container may have no process that reaps it."""
    try:
        return bool(_system.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_gone(pids: Iterable[int], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    left = list(pids)
    while left := [pid for pid in left if alive(pid)]:
        if time.monotonic() > deadline:
            raise Unavailable(f"PostgreSQL (pid {', '.join(map(str, left))}) has not ended after {timeout_s:.0f} s.")
        time.sleep(POLL_S)


def children_of(pid: int) -> list[int]:
    try:
        return [child.pid for child in _system.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def reap(pid: int) -> None:
    """Bury it where it became our child after all, as when we are process 1 of a container."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def kill_orphans(data: Path, timeout_s: float = 30.0) -> None:
    """End what a killed server left behind. Called only when no postmaster is alive, so nothing in use is hit.

    Its children notice and exit, but one in a long computation takes its time, and until then no new server can have
    the data.
    """
    deadline = time.monotonic() + timeout_s
    while orphans := _working_in(data):
        if time.monotonic() > deadline:
            raise Unavailable(f"processes of a crashed PostgreSQL on {data} cannot be ended: {orphans}.")
        for orphan in orphans:
            try:
                orphan.kill()
            except psutil.NoSuchProcess:
                pass
        time.sleep(POLL_S)


def _working_in(data: Path) -> list[Any]:
    """Every process of a server has the data directory as its working directory and `postgres` as its name."""
    found: list[Any] = []
    for process in _system.process_iter():
        try:
            ours = process.name().startswith("postgres") and process.cwd() == str(data)
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            # Gone since, or another user's, which cannot be a child of our server.
            continue
    return found


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As PostgreSQL does, so that the closing connections of the last server are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
