"""A client, and an embedded engine with a DSN, on a system without POSIX: simulated, by a Python that lacks what Windows lacks.

What is taken away: modules, functions of `os`, signals, and signal handlers of event loops. Paths and sockets stay those of this machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("interpreter")

WITHOUT_POSIX = """
import asyncio, os, signal, sys

MODULES = {"curses", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "uvloop"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in MODULES & set(sys.modules):
    del sys.modules[name]
sys.meta_path.insert(0, Absent())
for module, names in {
    os: "chown fork getegid geteuid getgid getloadavg getpgid getuid initgroups killpg mkfifo register_at_fork sched_getaffinity setgid "
        "setpgid setsid setuid statvfs uname wait4",
    signal: "ITIMER_REAL SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH pthread_kill "
        "pthread_sigmask setitimer",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

def refused(*_):
    raise NotImplementedError

asyncio.SelectorEventLoop.add_signal_handler = refused
asyncio.SelectorEventLoop.remove_signal_handler = refused
"""

EVERY_NAME = """
import perdure
for name in perdure.__all__:
    getattr(perdure, name)
"""

EMBEDDED = """
from perdure import Perdure, Signal, SyncPerdure, task, workflow

go = Signal("posix_go", int)

@task(name="posix_double")
async def double(n: int) -> int:
    return 2 * n

@task(name="posix_square")
def square(n: int) -> int:
    return n * n

@workflow(name="posix_sums")
async def sums() -> int:
    n = await go.next()
    return sum([await double(n), await square(n)])

async def main(dsn):
    async with Perdure(dsn):
        handle = await sums.start()
        await go.send(handle.id, 5)
        assert await handle.result("1m") == 35

asyncio.run(main(sys.argv[1]))
with SyncPerdure(sys.argv[1]) as client:
    handle = client.start(sums)
    handle.signal(go, 3)
    print(handle.result("1m"))
"""

OWN_POSTGRES = """
from perdure import Perdure

async def main():
    async with Perdure():
        pass

sys.modules["perdure.localpg.cluster"] = None  # it must not get there
os.name = "nt"
asyncio.run(main())
"""


def run(program: str, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_POSIX + program, *args]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


def test_every_public_name_can_be_imported(tmp_path: Path) -> None:
    done = run(EVERY_NAME, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_embedded_engine_runs_workflows_on_a_database_elsewhere(dsn: str, tmp_path: Path) -> None:
    done = run(EMBEDDED, dsn, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "15\n", "")


def test_a_postgres_of_its_own_is_refused_with_what_to_do(tmp_path: Path) -> None:
    done = run(OWN_POSTGRES, cwd=tmp_path)
    assert done.returncode == 1
    assert (
        "Perdure starts a PostgreSQL of its own on Linux and macOS only. Pass the DSN of one that runs" in done.stderr
    )
