"""End every process that a test run started, however the run itself ends.

Theory. A process that runs tests puts a token into its environment. Each process below it inherits the token, a daemon in a session of its own
too. The temporary directory of the run is named after the token, so a program that takes a clean environment and is told a directory, as Podman's
monitor is, carries the token as well. A sidecar reads from a pipe that only the tests' process can write to. The kernel closes the pipe when that
process ends, by SIGKILL too. The sidecar then kills all that carries the token, with the processes below it, and removes the directories.

Run as a program, this file is the sidecar. It imports nothing of Perdure and of pytest. Linux only: /proc tells environments nowhere else.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VARIABLE: Final = "TESTS_STARTED_BY"
"""The tokens of all test processes above, the nearest last: a worker of pytest-xdist adds its own to that of the controller."""
TOKEN: Final = re.compile("perdure-[0-9a-f]{10}")
TEMPORARY: Final = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest puts tmp_path. It stays where it was: people look there after a failure."""
MEMORY: Final = Path("/dev/shm")
BASES: Final = (MEMORY, Path("/var/tmp"))
"""Beside the temporary directory, where tests make directories named after the token."""
END_S_MAX: Final = 30.0
POSTGRES_S_MAX: Final = 3.0
"""PostgreSQL that is told to quit removes its shared memory. Killed, it leaves that behind."""
POLL_S: Final = 0.02
PYTHONS_OWN: Final = "from multiprocessing.resource_tracker"
"""A helper that Python starts once for a process and ends with it."""


@dataclass(frozen=True)
class Found:
    """A live process that a test run started."""

    pid: int
    parent: int
    began: str
    name: str
    command: str
    test: str
    """PYTEST_CURRENT_TEST when it was started; empty where its environment does not say."""

    def __str__(self) -> str:
        return f"pid {self.pid}: {self.command or self.name}\n    started by {self.test or 'a process without PYTEST_CURRENT_TEST'}"

    @property
    def is_pythons_own(self) -> bool:
        return PYTHONS_OWN in self.command

    def send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)


def find_carriers(token: str | None, known: Iterable[Found] = ()) -> list[Found]:
    """Every live process whose environment or command line has the token, those in `known`, and all below them."""
    assert token is None or TOKEN.fullmatch(token), (
        f"{token!r} is no token of a test run: it would be found in processes of others"
    )
    everything = {one[0]: one for one in _processes()}
    mine = {one.pid for one in known if everything.get(one.pid, ("", "", ""))[2] == one.began}
    texts = {pid: (_read(pid, "environ"), _read(pid, "cmdline")) for pid in everything}
    if token is not None:
        mine |= {pid for pid, both in texts.items() if any(token.encode() in text for text in both)}
    while below := {pid for pid, one in everything.items() if one[1] in mine} - mine:
        mine |= below
    mine.discard(os.getpid())
    return [Found(*everything[pid], command=_show(texts[pid][1]), test=_test_of(texts[pid][0])) for pid in sorted(mine)]


def _processes() -> Iterator[tuple[int, int, str, str]]:
    """(pid, parent, start time, name) of each process but zombies."""
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (text := _read(int(entry), "stat")):
            name, _, rest = text.partition(b"(")[2].rpartition(b")")
            fields = rest.split() if _ else []
            if fields and fields[0] not in (b"Z", b"X"):
                yield int(entry), int(fields[1]), fields[19].decode(), name.decode(errors="replace")


def _read(pid: int, what: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{what}", "rb") as file:
            return file.read()
    except OSError:  # it has ended, or it is another user's
        return b""


def _show(command: bytes) -> str:
    return command.replace(b"\0", b" ").decode(errors="replace").strip()[:300]


def _test_of(environment: bytes) -> str:
    for pair in environment.split(b"\0"):
        if pair.startswith(b"PYTEST_CURRENT_TEST="):
            return pair.partition(b"=")[2].decode(errors="replace")
    return ""


def end(token: str | None, found: Iterable[Found] = (), within_s: float = END_S_MAX) -> list[Found]:
    """Kill what carries the token, the processes found, and all below them. Return what is left after `within_s`."""
    known = list(found)
    began = time.monotonic()
    asked: set[int] = set()
    while found := _freeze(token, known):
        known = found
        is_gentle = time.monotonic() < began + POSTGRES_S_MAX
        for one in found:
            if not (is_gentle and one.name == "postgres"):
                one.send(signal.SIGKILL)
        servers = {one.pid for one in found if one.name == "postgres"}
        for one in found:
            if is_gentle and one.pid in servers and one.parent not in servers and one.pid not in asked:
                asked.add(one.pid)
                one.send(signal.SIGQUIT)
        if time.monotonic() > began + within_s:
            return find_carriers(token, known)
        select.select([], [], [], POLL_S)
    return []


def _freeze(token: str | None, known: list[Found]) -> list[Found]:
    """Stop them before the first is killed: none can start another that is orphaned unseen. PostgreSQL has to act on what it is told."""
    stopped: set[int] = set()
    while True:
        found = find_carriers(token, known)
        fresh = [one for one in found if one.pid not in stopped and one.name != "postgres"]
        if not fresh:
            return found
        for one in fresh:
            one.send(signal.SIGSTOP)
            stopped.add(one.pid)
        known = found


class Supervisor:
    """The token and the temporary directory of this process, and the sidecar that clears both."""

    def __init__(self) -> None:
        self.token = f"perdure-{secrets.token_hex(5)}"
        self.pid = os.getpid()
        self.base = Path(os.environ.setdefault(TEMPORARY, tempfile.gettempdir()))
        self.directory = self.base / self.token
        os.environ[VARIABLE] = ":".join(filter(None, (os.environ.get(VARIABLE), self.token)))
        reader, self._writer = os.pipe()
        os.register_at_fork(after_in_child=self._forget)
        # A clean environment and a parent that ends: it belongs to no test run, so none ends it.
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve())]
        launcher = subprocess.Popen(command, stdin=reader, env={}, cwd="/", start_new_session=True)
        os.close(reader)
        os.write(self._writer, json.dumps([self.token, [str(self.base), *map(str, BASES)]]).encode() + b"\n")
        launcher.wait()

    def _forget(self) -> None:
        """A fork has this end of the pipe too. Kept open there, the sidecar would wait for the fork as well."""
        with suppress(OSError):
            os.close(self._writer)

    def open_directory(self) -> None:
        """Everyone may enter and write, as in /tmp: PostgreSQL's unprivileged user too."""
        self.directory.mkdir(exist_ok=True)
        self.directory.chmod(0o1777)
        os.environ["TMPDIR"] = str(self.directory)
        tempfile.tempdir = None

    def close_directory(self) -> None:
        os.environ["TMPDIR"] = str(self.base)
        tempfile.tempdir = None
        remove_directories(self.token, [self.base, *BASES])


_mine: Supervisor | None = None


def start() -> Supervisor | None:
    """The supervisor of this process, from now to its end. None where the system has no /proc."""
    global _mine
    if not os.path.exists("/proc/self/environ"):
        return None
    if _mine is None or _mine.pid != os.getpid():
        _mine = Supervisor()
    _mine.open_directory()
    return _mine


def directory_in(base: Path) -> Path:
    """A directory elsewhere than the temporary ones, which goes with this process too."""
    mine = start()
    if mine is None:
        return base
    made = base / mine.token
    made.mkdir(exist_ok=True)
    made.chmod(0o1777)
    return made


def remove_directories(token: str, bases: Iterable[Path]) -> None:
    places = [base / token for base in bases if (base / token).is_dir()]
    if not places:
        return
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        if f"/{token}/" in (point := line.split()[1]):
            subprocess.run(
                ["umount", "-l", point], check=False, stderr=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin:/sbin"}
            )
    for place in places:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """The sidecar."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Who waits for the end of the tests' output does not wait for the sidecar.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    with open(0, "rb") as tests:
        line = tests.readline()
        tests.read()
    if not line.endswith(b"\n"):
        return
    token, bases = json.loads(line)
    end(token)
    remove_directories(token, map(Path, bases))


if __name__ == "__main__":
    main()
