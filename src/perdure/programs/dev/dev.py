"""`perdure dev`: database, server and worker in one command, with code that reloads.

    this process      PostgreSQL (or yours) -> migrate -> server, open to this machine only
    a child           imports the directory's code and serves it; replaced whenever a file changes

A signal ends it within STOP_S_MAX: tasks have a moment to end, then their worker is killed with all that it started. When this process
itself is killed, its child notices and goes, and the watcher of a private PostgreSQL stops that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.app.discovery import announced, dev_token, secret_key
from perdure.app.secret_box import parse_keys
from perdure.app.senders.settings import notify_settings
from perdure.core.egress import LOOPBACK
from perdure.core.errors import InvalidInput, NotFound, Unavailable
from perdure.engine.settings import EngineSettings
from perdure.localpg.cluster import PrivateCluster
from perdure.programs.dev.console import Say
from perdure.programs.dev.flows import DevFlows
from perdure.programs.dev.workers import Workers
from perdure.programs.flow_files import of_project
from perdure.programs.http_client import EXIT_FAILED, ApiError, HttpApi
from perdure.programs.modules import Defined, discover
from perdure.programs.server_process import ServerProcess
from perdure.programs.settings import GRPC_PORT, HTTP_PORT, Address, ServerSettings
from perdure.programs.signals import signals
from perdure.programs.starter import HELLO_FLOW, HELLO_WORKFLOW, HELLO_YAML, write_hello
from perdure.store.connect import without_password

PORTS_TRIED: Final = 50
STOP_S_MAX: Final = 4.0
"""Longest time from the signal to the end of the process. 5 s are documented; the rest allows for a busy machine."""
SERVER_DRAIN_S: Final = 1.0
"""Its only worker is gone by then."""
FIRST_RUN_S_MAX: Final = 120.0
ENGINE: Final = EngineSettings(lease_s=6.0, heartbeat_s=2.0)
"""Short, because after a kill -9 the developer waits for the run to continue."""
EXIT_OF: Final = {"success": 0, "failed": 1, "cancelled": 3}


class DevOptions(msgspec.Struct, frozen=True, kw_only=True):
    directory: Path
    dsn: str | None = None
    http: Address = Address("127.0.0.1", HTTP_PORT)
    grpc: Address = Address("127.0.0.1", GRPC_PORT)
    once: bool = False
    secret_keys: tuple[bytes, ...] = ()
    """Empty: a key of the project's own."""


async def dev(options: DevOptions, say: Say) -> int:
    """Everything, until Ctrl-C. Returns the exit code: with `once`, the outcome of the first run."""
    stop = asyncio.Event()
    abandon: list[Callable[[], None]] = []

    def asked() -> None:
        stop.set()
        hard_stop(STOP_S_MAX, abandon)

    async with signals(asked), contextlib.AsyncExitStack() as stack:
        seeded = _seed(options.directory, say)
        dsn = options.dsn
        if dsn is not None:
            say.step("database", without_password(dsn))
        else:
            dsn = await stack.enter_async_context(_private_database(options.directory, say))
        http, grpc = free_ports(options.http, options.grpc)
        token = dev_token(options.directory)
        notify = notify_settings(os.environ)
        settings = ServerSettings(
            dsn=dsn,
            http=http,
            grpc=grpc,
            auth="open",
            secret_keys=options.secret_keys or parse_keys(secret_key(_home(options.directory))),
            dev_token=token,
            notifications=notify.is_on,
            notify_allow=tuple(notify.allow) or LOOPBACK,
            smtp_url=notify.smtp_url,
            smtp_from=notify.smtp_from,
            drain_s=SERVER_DRAIN_S,
            not_ready_s=0,
            engine=ENGINE,
        )
        process = ServerProcess(settings)
        await process.start()
        stack.push_async_callback(process.stop)
        stack.enter_context(announced(options.directory, process.url, str(process.grpc), token))
        say.step("server", f"{http}, workers connect to {grpc}")
        flows = DevFlows(options.directory, process.url, token, say)
        await flows.deploy_all()
        # Workflows are registered before they are announced.
        workers = Workers(options.directory, str(grpc), say, process.server.engine.refresh, flows)
        stack.push_async_callback(workers.close)
        abandon.append(workers.kill)
        await workers.reload()
        if options.once and workers.defined is None:
            return EXIT_FAILED
        return await _until_stopped(options, process, workers, flows, say, stop, seeded)


def hard_stop(after_s: float, abandon: list[Callable[[], None]]) -> None:
    """End this process after a while even if something hangs: a database that does not answer, a step that cannot be interrupted. `abandon` is
    called first; a private PostgreSQL is stopped by its watcher."""

    def end() -> None:
        time.sleep(after_s)
        for act in abandon:
            act()
        os._exit(EXIT_FAILED)

    threading.Thread(target=end, name="perdure-hard-stop", daemon=True).start()


async def _until_stopped(
    options: DevOptions,
    process: ServerProcess,
    workers: Workers,
    flows: DevFlows,
    say: Say,
    stop: asyncio.Event,
    seeded: bool,
) -> int:
    stopped = asyncio.create_task(stop.wait())
    watching = asyncio.create_task(workers.watch())
    first = asyncio.create_task(
        _first_run(process.url, process.settings.dev_token, workers, flows, say, seeded, options.once)
    )
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


def _seed(directory: Path, say: Say) -> bool:
    """An empty directory gets a first workflow. One with other Python files is left as it is."""
    found = discover(directory)
    for path in found.programs:
        say.trouble(
            f"{path.name} runs a program when it is imported and was left out. "
            'Put its last lines under `if __name__ == "__main__":` and save.'
        )
    if found.modules or found.programs or of_project(directory):
        return False
    if (directory / "hello.py").exists():
        say.trouble(
            "hello.py defines no tasks and no workflows, and was left alone. Decorate functions with @task and @workflow."
        )
        return False
    write_hello(directory)
    say.step("wrote", "hello.py, a first workflow to change")
    if not (directory / HELLO_YAML).exists():
        write_hello(directory, HELLO_YAML)
        say.step("wrote", f"{HELLO_YAML}, the same as a flow: perdure run {HELLO_FLOW} --watch")
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


async def _first_run(
    url: str, token: str, workers: Workers, flows: DevFlows, say: Say, seeded: bool, once: bool
) -> int:
    """Start a run and show its result, but only where the directory was empty and the starter was written into it."""
    if not seeded and not once:
        say.link(with_token(url, token))
        return 0
    await workers.changed.wait()
    workflow = _workflow_to_start(workers.defined, flows.names)
    with HttpApi(url, key=token) as api:
        say.note(f"a first run of {workflow}:")
        run = await asyncio.to_thread(_start, api, workflow)
        while run["status"] not in EXIT_OF:
            await asyncio.to_thread(api.get, f"/runs/{run['id']}/result", [("wait", 30)])
            run = await asyncio.to_thread(api.get, f"/runs/{run['id']}")
    say.ended(run)
    say.link(with_token(run["url"], token))
    return EXIT_OF.get(run["status"], EXIT_FAILED)


def with_token(url: str, token: str) -> str:
    """A link that signs a browser in."""
    return f"{url}?token={token}"


def _workflow_to_start(defined: Defined | None, flows: list[str]) -> str:
    names = (defined.workflows if defined else []) or flows
    if HELLO_WORKFLOW in names:
        return HELLO_WORKFLOW
    if len(names) == 1:
        return names[0]
    raise InvalidInput(
        f"--once starts the only workflow there is, but there are {', '.join(names) or 'none'}. Start one with `perdure run`."
    )


def _start(api: HttpApi, workflow: str) -> dict[str, Any]:
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
