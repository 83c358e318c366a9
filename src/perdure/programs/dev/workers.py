"""The worker of `perdure dev` and its replacement at every change.

A child proves that it can import the code before it takes over, so a broken file leaves the last good one at work. A child that
dies is started again a few times, then the next change is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.programs.dev.child import DRAIN, SERVE, ChildHello
from perdure.programs.dev.console import Say
from perdure.programs.dev.flows import DevFlows
from perdure.programs.flow_files import IGNORED
from perdure.programs.modules import Defined, discover
from perdure.programs.process_family import kill_family

IMPORT_S_MAX: Final = 60.0
CONNECT_S_MAX: Final = 10.0
DEATHS_MAX: Final = 3
DEATHS_WITHIN_S: Final = 20.0
DEBOUNCE_MS: Final = 150
DRAIN_S: Final = 5.0
"""A stopping worker may take so long for its tasks; then it is killed, and they are tried again."""

CLOSE_S: Final = 1.5
"""The same when `perdure dev` itself stops, which must be quick."""


class Child:
    """A worker process, from the import of the code on."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, hello: ChildHello) -> None:
        self.process, self._control, self.hello = process, control, hello

    @staticmethod
    async def start(directory: Path, server: str, files: list[Path]) -> Child:
        """Returns when the child has imported the files, or could not."""
        process, ours = _launch(directory, server, files)
        try:
            hello = await asyncio.to_thread(_read_hello, ours)
        except BaseException:
            process.kill()
            ours.close()
            raise
        return Child(process, ours, hello)

    async def serve(self) -> None:
        """Let it connect; returns when it has, or when it takes too long to wait for."""
        self._control.sendall(SERVE)
        self._control.settimeout(CONNECT_S_MAX)
        with contextlib.suppress(TimeoutError):
            await asyncio.to_thread(self._control.recv, 1)
        self._control.settimeout(None)

    async def stop(self, within_s: float = DRAIN_S) -> None:
        """Drain, then kill it with all that it has started."""
        with contextlib.suppress(OSError):
            self._control.sendall(DRAIN)
        try:
            await asyncio.to_thread(self.process.wait, within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            await asyncio.to_thread(self.process.wait)
        self._control.close()

    def kill(self) -> None:
        kill_family(self.process.pid, itself=True)


def _launch(directory: Path, server: str, files: list[Path]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "perdure.programs.dev.child", str(theirs.fileno()), server, *map(str, files)]
    try:
        process = subprocess.Popen(command, cwd=directory, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _read_hello(control: socket.socket) -> ChildHello:
    control.settimeout(IMPORT_S_MAX)
    data = bytearray()
    try:
        while not data.endswith(b"\n"):
            part = control.recv(65_536)
            if not part:
                return ChildHello(trouble="the worker ended while it imported the code")
            data += part
    except TimeoutError:
        return ChildHello(trouble=f"importing the code took longer than {IMPORT_S_MAX:g} seconds")
    finally:
        control.settimeout(None)
    return msgspec.json.decode(data, type=ChildHello)


class Workers:
    """The one child at work, and its replacement at every change."""

    def __init__(
        self,
        directory: Path,
        server: str,
        say: Say,
        connected: Callable[[], Coroutine[Any, Any, None]],
        flows: DevFlows,
    ) -> None:
        self._directory, self._server, self._say, self._connected = directory, server, say, connected
        self._flows = flows
        self._current: Child | None = None
        self._deaths: list[float] = []
        self.changed = asyncio.Event()
        """Set whenever a child takes over."""

    @property
    def defined(self) -> Defined | None:
        return Defined(self._current.hello.tasks, self._current.hello.workflows) if self._current else None

    async def reload(self) -> None:
        """Let a new child take over, if it can import the code."""
        files = discover(self._directory).modules
        if not files and not self._flows.names:
            self._say.note("no file here defines tasks or workflows; waiting for one")
            return
        fresh = await Child.start(self._directory, self._server, [f.relative_to(self._directory) for f in files])
        if fresh.hello.trouble:
            await fresh.stop()
            self._say.trouble(fresh.hello.trouble)
            self._say.note(
                f"{'still serving the last good version; ' if self._current else ''}waiting for the next change"
            )
            return
        await fresh.serve()
        await self._connected()
        old, self._current = self._current, fresh
        defined = Defined(fresh.hello.tasks, fresh.hello.workflows)
        served = f"{defined} of {', '.join(f.name for f in files)}" if defined else "http: and run: of flows"
        self._say.step("reloaded" if old else "worker", served)
        self.changed.set()
        if old is not None:
            await old.stop()

    async def watch(self) -> None:
        """Reload at every change, and when the child dies."""
        changes = asyncio.create_task(self._watch_files())
        try:
            while True:
                await asyncio.sleep(0.2)
                if changes.done():
                    changes.result()
                if self._current is not None and self._current.process.poll() is not None:
                    await self._restart(self._current.process.returncode)
        finally:
            changes.cancel()
            await asyncio.gather(changes, return_exceptions=True)

    async def _watch_files(self) -> None:
        from watchfiles import Change, awatch

        def matters(_: Change, path: str) -> bool:
            file = Path(path)
            if IGNORED & set(file.relative_to(self._directory).parts):
                return False
            return file.suffix == ".py" or self._flows.matters(file)

        async for changes in awatch(self._directory, watch_filter=matters, step=50, debounce=DEBOUNCE_MS):
            names = sorted({Path(path).name for _, path in changes})
            self._say.note(f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''} changed")
            await self._changed({Path(path) for _, path in changes})

    async def _changed(self, paths: set[Path]) -> None:
        documents = {path for path in paths if path.suffix != ".py"}
        if documents:
            await self._flows.deploy(documents)
        if paths - documents or (self._current is None and self._flows.names):
            self._deaths.clear()
            await self.reload()

    async def _restart(self, code: int) -> None:
        self._current = None
        now = time.monotonic()
        self._deaths = [at for at in self._deaths if now - at < DEATHS_WITHIN_S] + [now]
        self._say.trouble(f"the worker ended with exit code {code}")
        if len(self._deaths) >= DEATHS_MAX:
            self._say.note(f"it ended {len(self._deaths)} times in a row; waiting for the next change")
        else:
            await self.reload()

    async def close(self) -> None:
        if self._current is not None:
            await self._current.stop(CLOSE_S)

    def kill(self) -> None:
        if self._current is not None:
            self._current.kill()
