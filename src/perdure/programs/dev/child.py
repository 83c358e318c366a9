"""The worker of `perdure dev`: a process of its own, so that new code always starts in a fresh interpreter.

It talks with its parent over one socket: it reports what it found, waits for SERVE, reports CONNECTED, and exits when the parent
sends DRAIN or dies.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from typing import Final

import msgspec

from perdure.core.egress import LOOPBACK
from perdure.core.errors import PerdureError
from perdure.executors.http.services import HTTP_ALLOW_ENV
from perdure.programs.modules import BrokenModule, load
from perdure.programs.process_family import kill_family
from perdure.programs.worker_process import worker_of
from perdure.programs.worker_settings import WorkerSettings

SERVE: Final = b"s"
DRAIN: Final = b"d"
CONNECTED: Final = b"c"
DRAIN_S: Final = 4.0
"""A worker that makes way for newer code gives its tasks this long."""


class ChildHello(msgspec.Struct, kw_only=True):
    """The child's first and only message."""

    tasks: list[str] = []
    workflows: list[str] = []
    trouble: str = ""
    """Why it cannot serve: a traceback, or a sentence."""


def main() -> None:
    descriptor, server, *files = sys.argv[1:]
    # Ctrl-C reaches every process of the terminal; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = socket.socket(fileno=int(descriptor))
    hello = _load(files)
    parent.sendall(msgspec.json.encode(hello) + b"\n")
    if hello.trouble or parent.recv(1) != SERVE:
        sys.exit(1 if hello.trouble else 0)
    asyncio.run(_serve(server, parent))


def _load(files: list[str]) -> ChildHello:
    try:
        defined = load(files)
    except BrokenModule as broken:
        return ChildHello(trouble=broken.trace)
    except PerdureError as error:
        return ChildHello(trouble=str(error))
    return ChildHello(tasks=defined.tasks, workflows=defined.workflows)


def _options(server: str) -> WorkerSettings:
    """Commands and services of this machine are allowed: it runs the user's own code on the user's own machine anyway."""
    http_allow = None if HTTP_ALLOW_ENV in os.environ else LOOPBACK
    return WorkerSettings(server=server, drain_s=DRAIN_S, executors=("process",), http_allow=http_allow, is_dev=True)


async def _serve(server: str, parent: socket.socket) -> None:
    async with worker_of(_options(server)) as worker:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, worker.drain)

        def listen() -> None:
            if parent.recv(1):
                loop.call_soon_threadsafe(worker.drain)
                parent.recv(1)
            # The parent has died. Commands of `run:` would outlive this process.
            kill_family(os.getpid(), itself=False)
            os._exit(1)

        async def tell() -> None:
            await worker.connected()
            parent.sendall(CONNECTED)

        threading.Thread(target=listen, name="perdure-parent", daemon=True).start()
        telling = asyncio.create_task(tell())
        await worker.run()
        telling.cancel()


if __name__ == "__main__":
    main()
