"""Crashing workers for executors whose clients have threads, which do not survive a fork of the test's own process.

A process without threads forks them: it imports once what they need, so that a crash takes milliseconds and hundreds of them can be tried.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from perdure.core.work import Assignment
from perdure.executors.port import Executor
from tests.fakes.waiting import busy_thread

ROOT = Path(__file__).parents[2]
SIZE = struct.Struct("!I")
CLIENTS = {
    "kubernetes": ("kubernetes_asyncio.client", "kubernetes_asyncio.config"),
    "cloud-run": ("google.cloud.run_v2", "google.auth.credentials", "obstore.store"),
    "objects": ("obstore.store",),
}
"""Modules that an executor imports when it is opened."""


def crash(make: Callable[[], Executor], a: Assignment, *, after_s: float | None, point: str = "") -> bool:
    """As agents.crash. `make` is pickled."""
    forks = start_forks()
    assert forks.stdin is not None and forks.stdout is not None
    request = pickle.dumps((dict(os.environ), make, a, after_s, point))
    forks.stdin.write(SIZE.pack(len(request)) + request)
    forks.stdin.flush()
    code = int(forks.stdout.readline())
    assert code in (0, -signal.SIGKILL), code
    return bool(code)


@cache
def start_forks() -> subprocess.Popen[bytes]:
    """The process that forks, the same for all tests."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.executors.crashes"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def end_forks() -> None:
    start_forks().communicate(timeout=120)
    start_forks.cache_clear()


def main() -> None:
    from tests.executors import agents

    while head := sys.stdin.buffer.read(SIZE.size):
        environment, make, a, after_s, point = pickle.loads(sys.stdin.buffer.read(*SIZE.unpack(head)))  # noqa: S301
        for name in CLIENTS.get(a.options.executor, ()):
            importlib.import_module(name)
        pid = os.fork()
        if not pid:
            os.dup2(2, 1)  # stdout carries answers
            os.environ.clear()
            os.environ.update(environment)
            agents._die_as_agent(make, a, point)
        if after_s is not None:
            busy_thread(after_s)
            os.kill(pid, signal.SIGKILL)  # one that has ended is still there until it is waited for
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
