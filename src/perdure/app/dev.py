"""`perdure dev`: database, server and worker in one command, with code that reloads.

    this process      PostgreSQL (or yours) -> migrate -> server, open to this machine only
    a child           imports the directory's code and serves it; replaced whenever a file changes

A child proves that it can import the code before it takes over, so a broken file leaves the last good one at work. A child that
dies is started again a few times, then the next change is waited for. When this process is killed, its child notices and goes; a
private PostgreSQL stays, and the next start finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from perdure.app.cli.starter import HELLO_WORKFLOW, write_hello
from perdure.app.dev_child import DRAIN, SERVE, Hello
from perdure.app.http import EXIT_FAILED, Api, ApiError
from perdure.app.modules import Defined, discover
from perdure.app.nearby import announced
from perdure.app.server import ServerProcess
from perdure.app.settings import GRPC_PORT, HTTP_PORT, Address, ServerSettings
from perdure.app.signals import signals
from perdure.core.errors import InvalidInput, NotFound, Unavailable
from perdure.engine.engine import EngineSettings
from perdure.store.cluster import PrivateCluster
from perdure.store.connect import without_password

PORTS_TRIED: Final = 50
IMPORT_S_MAX: Final = 60.0
CONNECT_S_MAX: Final = 10.0
DRAIN_S: Final = 5.0
"""A stopping worker may take so long for its tasks; then it is killed, and they are tried again."""
FIRST_RUN_S_MAX: Final = 120.0
DEATHS_MAX: Final = 3
DEATHS_WITHIN_S: Final = 20.0
DEBOUNCE_MS: Final = 150
IGNORED: Final = frozenset({".perdure", ".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache", ".tox"})
ENGINE: Final = EngineSettings(lease_s=6.0, heartbeat_s=2.0)
"""After a kill -9 somebody sits and waits for the run to go on."""
EXIT_OF: Final = {"success": 0, "failed": 1, "cancelled": 3}


class Say(Protocol):
    """How the command line shows what happens. Texts are plain; the form is the command line's business."""

    def step(self, name: str, text: str) -> None: ...
    def trouble(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def ended(self, run: dict[str, Any]) -> None: ...
    def link(self, url: str) -> None: ...


class DevOptions(msgspec.Struct, frozen=True, kw_only=True):
    directory: Path
    dsn: str | None = None
    http: Address = Address("127.0.0.1", HTTP_PORT)
    grpc: Address = Address("127.0.0.1", GRPC_PORT)
    once: bool = False


async def dev(options: DevOptions, say: Say) -> int:
    """Everything, until Ctrl-C. Returns the exit code: with `once`, the outcome of the first run."""
    stop = asyncio.Event()
    async with signals(stop.set), contextlib.AsyncExitStack() as stack:
        seeded = _seed(options.directory, say)
        dsn = options.dsn
        if dsn is not None:
            say.step("database", without_password(dsn))
        else:
            dsn = await stack.enter_async_context(_private_database(options.directory, say))
        http, grpc = free_ports(options.http, options.grpc)
        settings = ServerSettings(dsn=dsn, http=http, grpc=grpc, auth="open", drain_s=DRAIN_S, engine=ENGINE)
        process = ServerProcess(settings)
        await process.start()
        stack.push_async_callback(process.stop)
        stack.enter_context(announced(options.directory, process.url, str(process.grpc)))
        say.step("server", f"{http}, workers connect to {grpc}")
        # That its workflows are known must be on record before anybody is told that they are.
        workers = Workers(options.directory, str(grpc), say, process.server.engine.refresh)
        stack.push_async_callback(workers.close)
        await workers.reload()
        if options.once and workers.defined is None:
            return EXIT_FAILED
        return await _until_stopped(options, process, workers, say, stop, seeded)


async def _until_stopped(
    options: DevOptions, process: ServerProcess, workers: Workers, say: Say, stop: asyncio.Event, seeded: bool
) -> int:
    stopped = asyncio.create_task(stop.wait())
    watching = asyncio.create_task(workers.watch())
    first = asyncio.create_task(_first_run(process.url, workers, say, seeded, options.once))
    try:
        await asyncio.wait({stopped, first, watching}, return_when=asyncio.FIRST_COMPLETED)
        if first.done():
            code = first.result()
            if options.once:
                return code
            await asyncio.wait({stopped, watching}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        say.note("stopping")
        return 0
    finally:
        for task in (stopped, watching, first):
            task.cancel()
        await asyncio.gather(stopped, watching, first, return_exceptions=True)


# -- the pieces --------------------------------------------------------------------------------------------------------


def _seed(directory: Path, say: Say) -> bool:
    """An empty directory gets a first workflow. One with other Python files is left as it is."""
    found = discover(directory)
    for path in found.programs:
        say.trouble(
            f"{path.name} runs a program when it is imported and was left out. "
            'Put its last lines under `if __name__ == "__main__":` and save.'
        )
    if found.modules or found.programs:
        return False
    if (directory / "hello.py").exists():
        say.trouble(
            "hello.py defines no tasks and no workflows, and was left alone. Decorate functions with @task and @workflow."
        )
        return False
    write_hello(directory)
    say.step("wrote", "hello.py, a first workflow to change")
    return True


@asynccontextmanager
async def _private_database(directory: Path, say: Say) -> AsyncGenerator[str]:
    home = _home(directory)
    cluster = PrivateCluster(home / "pg")
    began = time.monotonic()
    dsn = await asyncio.to_thread(cluster.start)
    say.step("database", f"a private PostgreSQL in {_shown(home / 'pg', directory)} ({time.monotonic() - began:.1f}s)")
    try:
        yield dsn
    finally:
        await asyncio.to_thread(cluster.leave)


def _home(directory: Path) -> Path:
    return Path(os.environ.get("PERDURE_HOME") or directory / ".perdure").expanduser().absolute()


def _shown(path: Path, directory: Path) -> str:
    return str(path.relative_to(directory)) if path.is_relative_to(directory) else str(path)


def free_ports(http: Address, grpc: Address) -> tuple[Address, Address]:
    """The ports asked for, or the next two that are free: another project may be at work already."""
    for step in range(PORTS_TRIED):
        pair = Address(http.host, http.port + 2 * step), Address(grpc.host, grpc.port + 2 * step)
        if all(is_free(a) for a in pair):
            return pair
    raise Unavailable(f"no two free ports from {http.port} on; pass --http and --grpc")


def is_free(address: Address) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen(1)
        except OSError:
            return False
    return True


# -- the worker and its successors -------------------------------------------------------------------------------------


class Child:
    """A worker process, from the import of the code on."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, hello: Hello) -> None:
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

    async def stop(self) -> None:
        """Drain, then kill."""
        with contextlib.suppress(OSError):
            self._control.sendall(DRAIN)
        try:
            await asyncio.to_thread(self.process.wait, DRAIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
        self._control.close()


def _launch(directory: Path, server: str, files: list[Path]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "perdure.app.dev_child", str(theirs.fileno()), server, *map(str, files)]
    try:
        process = subprocess.Popen(command, cwd=directory, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours


def _read_hello(control: socket.socket) -> Hello:
    control.settimeout(IMPORT_S_MAX)
    data = bytearray()
    try:
        while not data.endswith(b"\n"):
            part = control.recv(65_536)
            if not part:
                return Hello(trouble="the worker ended while it imported the code")
            data += part
    except TimeoutError:
        return Hello(trouble=f"importing the code took longer than {IMPORT_S_MAX:g} seconds")
    finally:
        control.settimeout(None)
    return msgspec.json.decode(data, type=Hello)


class Workers:
    """The one child at work, and its replacement at every change."""

    def __init__(
        self, directory: Path, server: str, say: Say, connected: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._directory, self._server, self._say, self._connected = directory, server, say, connected
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
        if not files:
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
        self._say.step("reloaded" if old else "worker", f"{defined} of {', '.join(f.name for f in files)}")
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
                    await self._revive(self._current.process.returncode)
        finally:
            changes.cancel()
            await asyncio.gather(changes, return_exceptions=True)

    async def _watch_files(self) -> None:
        from watchfiles import Change, awatch

        def matters(_: Change, path: str) -> bool:
            file = Path(path)
            return file.suffix == ".py" and not IGNORED & set(file.relative_to(self._directory).parts)

        async for changes in awatch(self._directory, watch_filter=matters, step=50, debounce=DEBOUNCE_MS):
            names = sorted({Path(path).name for _, path in changes})
            self._say.note(f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''} changed")
            self._deaths.clear()
            await self.reload()

    async def _revive(self, code: int) -> None:
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
            await self._current.stop()


# -- the first run -----------------------------------------------------------------------------------------------------


async def _first_run(url: str, workers: Workers, say: Say, seeded: bool, once: bool) -> int:
    """Where the directory was empty a run is started and its end is shown; elsewhere people know what to start."""
    if not seeded and not once:
        say.link(url)
        return 0
    await workers.changed.wait()
    workflow = _workflow_to_start(workers.defined)
    with Api(url) as api:
        say.note(f"a first run of {workflow}:")
        run = await asyncio.to_thread(_start, api, workflow)
        while run["status"] not in EXIT_OF:
            await asyncio.to_thread(api.get, f"/runs/{run['id']}/result", [("wait", 30)])
            run = await asyncio.to_thread(api.get, f"/runs/{run['id']}")
    say.ended(run)
    say.link(run["url"])
    return EXIT_OF.get(run["status"], EXIT_FAILED)


def _workflow_to_start(defined: Defined | None) -> str:
    names = defined.workflows if defined else []
    if HELLO_WORKFLOW in names:
        return HELLO_WORKFLOW
    if len(names) == 1:
        return names[0]
    raise InvalidInput(
        f"--once starts the only workflow there is, but there are {', '.join(names) or 'none'}. Start one with `perdure run`."
    )


def _start(api: Api, workflow: str) -> dict[str, Any]:
    """A worker has just connected; that its workflows are registered takes a moment."""
    deadline = time.monotonic() + FIRST_RUN_S_MAX
    while True:
        try:
            started: dict[str, Any] = api.post(f"/workflows/{workflow}/runs", {})
            return started
        except ApiError as error:
            if error.status != 404:
                raise
            if time.monotonic() > deadline:
                raise NotFound(f"the worker did not register {workflow!r} within {FIRST_RUN_S_MAX:g} s") from error
        time.sleep(0.05)
