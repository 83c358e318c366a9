"""Stops a private PostgreSQL that has no users left: `python cluster_watch.py DIRECTORY GRACE_S WATCH`.

Users of a server leave when they end; one that was killed cannot. Every start() makes sure that one process of this program watches the
directory: WATCH is a descriptor of its file `watch`, locked by the one who started it. Once a second it asks the kernel whether a process still holds `users`, and stops the server when that has not
been so for GRACE_S. It ends with the server.

Laws
 - It looks and acts under `lock`, as those do who start, join and stop the server. So a server is never stopped under a process that has just
   joined, and a process that comes while it is being stopped waits, and starts it again.
 - It gives up `watch` before `lock`: a start() that finds no server finds no watcher of the old one either.

A program of the standard library alone: it stays in memory as long as the server, and must start quickly.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

LOOK_EVERY_S = 1.0
STOP_S_MAX = 120.0


def main(directory: str, grace_s: float, watch: int) -> None:
    # Held open: what happens to the directory meanwhile, even its removal, leaves these files as they are.
    lock, users, server = (os.open(os.path.join(directory, name), os.O_RDWR) for name in ("lock", "users", "server"))
    unused_since: float | None = None
    while True:
        time.sleep(LOOK_EVERY_S)
        if not _try_lock(lock):
            continue  # the server is being started, joined or stopped
        if _try_lock(server):
            break
        if _try_lock(users):
            fcntl.flock(users, fcntl.LOCK_UN)
            now = time.monotonic()
            unused_since = now if unused_since is None else unused_since
            if now - unused_since >= grace_s:
                _stop(directory, server)
                break
        else:
            unused_since = None
        fcntl.flock(lock, fcntl.LOCK_UN)
    for descriptor in (watch, server, lock):
        os.close(descriptor)


def _stop(directory: str, server: int) -> None:
    """Ends open transactions and leaves nothing to recover. The server lives, as its lock is held, so the pid in its file is its own."""
    try:
        with open(os.path.join(directory, "data", "postmaster.pid")) as file:
            os.kill(int(file.readline()), signal.SIGINT)
    except (OSError, ValueError):
        return  # the directory is gone: then the server notices that itself
    deadline = time.monotonic() + STOP_S_MAX
    while not _try_lock(server) and time.monotonic() < deadline:
        time.sleep(0.05)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
