"""Servers that a test kills at exact steps: forks of one process that has imported everything, so that each is there in milliseconds.

    test ---- control ----> nursery: imports once, has one thread and no event loop, listens on a port
      |                        | fork
      +---- steps ---------> server process: serve(listener, arguments, steps)

`serve` is a function of a module of the test. It installs the hooks of the test, which call `steps.at("before commit")`, and serves on the listener.
A step that the test has named stops there: the thread, and with it an event loop, tells the test and waits to be killed or to be let go on. Other
threads stop at their next step.

    with Nursery("tests.e2e.shop_server:serve") as nursery:
        with nursery.fork({"dsn": dsn}, pause_at="before commit") as server:
            server.wait_for("ready")
            ...                           # a request to nursery.port
            server.wait_for("before commit")
            server.kill()                 # SIGKILL, and it is gone when this returns

The nursery holds the listener, so that a connection which comes between two servers waits for the next one.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
MESSAGE_BYTES_MAX = 1 << 16
BACKLOG = 128
WITHIN_S = 180.0
"""Nothing takes so long, but for a machine that is far too busy."""

Serve = Callable[[socket.socket, dict[str, Any], "Steps"], None]


class Steps:
    """Where a server is, in the server. May be used from every thread of it."""

    def __init__(self, link: socket.socket, pause_at: str, nth: int) -> None:
        self._link, self._pause_at, self._left = link, pause_at, nth
        self._lock = threading.Lock()

    def at(self, step: str) -> None:
        """Stops here for good, or until the test lets it go on, if this is the step that the test named, for the nth time."""
        with self._lock:
            if step != self._pause_at or self._left == 0:
                return
            self._left -= 1
            if self._left == 0:
                self.tell(step)
                if not self._link.recv(1):
                    os._exit(1)  # the test is gone

    def tell(self, news: str) -> None:
        """Say something to the test, and go on."""
        self._link.send(news.encode())


class KilledFork:
    """A server process, in the test. Leaving the `with` kills it if it lives."""

    def __init__(self, nursery: Nursery, pid: int, link: socket.socket) -> None:
        self._nursery, self.pid, self._link = nursery, pid, link
        self._is_reaped = False

    def wait_for(self, step: str, within_s: float = WITHIN_S) -> None:
        """Until it says that it is there."""
        found = self.news(within_s)
        assert found == step, f"the server said {found!r} instead of {step!r}"

    def news(self, within_s: float = WITHIN_S) -> str | None:
        """What it says next; None if it says nothing in that time. Raises EOFError if it has died."""
        self._link.settimeout(within_s)
        try:
            found = self._link.recv(MESSAGE_BYTES_MAX)
        except TimeoutError:
            return None
        except ConnectionResetError:
            found = b""
        if not found:
            raise EOFError(f"the server process {self.pid} has ended by itself")
        return found.decode()

    def proceed(self) -> None:
        """Go on from the step at which it stopped."""
        self._link.send(b".")

    def ended(self, within_s: float) -> int | None:
        """Wait for its end. Returns the exit status as `os.waitpid` gives it; None if it still lives."""
        assert not self._is_reaped, "it was killed before"
        try:
            while self.news(within_s) is not None:
                pass
        except EOFError:
            return self._reap()
        return None

    def _reap(self) -> int:
        status = self._nursery.reap(self.pid)
        self._is_reaped = True
        self._link.close()
        return status

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal and wait for the end. Returns the exit status as `os.waitpid` gives it."""
        assert not self._is_reaped, "it was killed before"
        os.kill(self.pid, number)  # the nursery has not reaped it, so the number is still its own
        return self._reap()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._is_reaped:
            self.kill()


class Nursery:
    """The process that imports once and forks. `target`: `module:function` of a `Serve`; `environment`: added to that of the test."""

    def __init__(self, target: str, environment: Mapping[str, str] | None = None) -> None:
        self._target, self._environment = target, dict(environment or {})
        self._asking = threading.Lock()
        self.port = 0

    def __enter__(self) -> Self:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = str(theirs.fileno())
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fakes.killed_forks", self._target, number],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
                env=os.environ | self._environment,
            )
        self._control.settimeout(WITHIN_S)
        self.port = self._answer()["port"]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._control.close()  # it kills what it has forked, and ends
        self._process.wait(WITHIN_S)

    def fork(self, arguments: Mapping[str, Any], *, pause_at: str = "", nth: int = 1) -> KilledFork:
        """A server. `pause_at`: the step at which it stops, when it comes there for the nth time."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"arguments": dict(arguments), "pause_at": pause_at, "nth": nth}
        with theirs, self._asking:
            socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
            pid = self._answer()["pid"]
        return KilledFork(self, pid, ours)

    def reap(self, pid: int) -> int:
        with self._asking:
            self._control.send(json.dumps({"reap": pid}).encode())
            return int(self._answer()["status"])

    def _answer(self) -> dict[str, Any]:
        data = self._control.recv(MESSAGE_BYTES_MAX)
        assert data, f"the nursery of {self._target} has ended; see its output"
        answer: dict[str, Any] = json.loads(data)
        return answer


def _nursery(serve: Serve, control: socket.socket, listener: socket.socket) -> None:
    alive: set[int] = set()
    try:
        while True:
            data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES_MAX, 1)
            if not data:
                return
            request = json.loads(data)
            if "reap" in request:
                _, status = os.waitpid(request["reap"], 0)
                alive.discard(request["reap"])
                answer = {"status": status}
            else:
                pid = os.fork()
                if pid == 0:
                    control.close()
                    _child(serve, listener, request, descriptors[0])
                os.close(descriptors[0])
                alive.add(pid)
                answer = {"pid": pid}
            control.send(json.dumps(answer).encode())
    finally:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _child(serve: Serve, listener: socket.socket, request: dict[str, Any], descriptor: int) -> None:
    status = 1
    try:
        steps = Steps(socket.socket(fileno=descriptor), request["pause_at"], request["nth"])
        serve(listener, request["arguments"], steps)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # the code behind the fork belongs to the nursery


def main() -> None:
    target, number = sys.argv[1:]
    module, _, name = target.partition(":")
    control = socket.socket(fileno=int(number))
    serve: Serve = getattr(import_module(module), name)
    assert threading.active_count() == 1, f"a fork copies one thread; {module} has started {threading.enumerate()}"
    gc.collect()
    gc.freeze()  # else the collector of each fork copies the pages of all that was imported
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as listener:
        control.send(json.dumps({"port": listener.getsockname()[1]}).encode())
        _nursery(serve, control, listener)


if __name__ == "__main__":
    main()
