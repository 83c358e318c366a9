"""PostgreSQL, the server or the network is away: every call of every client ends within its timeout.

A call may be answered from memory; otherwise it raises Unavailable. Nothing hangs and nothing else is raised.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from perdure import Client, Perdure, SyncClient, SyncClientBase, SyncPerdure
from perdure.errors import NotFound, PerdureError, Unavailable
from perdure.localpg.cluster import PrivateCluster
from perdure.localpg.postmaster import children_of
from perdure.sdk.client.base import ClientBase
from perdure.store.migrate import migrate
from tests.cli import processes
from tests.fakes.client_calls import APPROVALS, BULK, CLIENT, HANDLE, SCHEDULES, VERSIONS, surface_flow
from tests.fakes.waiting import until
from tests.server.remote import worker
from tests.shared_server import FAST

CALL_S = 1.5
SLACK_S = 6.0
"""For a machine that is busy: seventy calls end at the same time, and half of them in threads."""
BACK_S = 60.0


class Relay:
    """A TCP relay in front of a server. While it is cut, nothing is forwarded and no connection is closed, as with a pulled cable."""

    def __init__(self, port: int) -> None:
        self._port, self._flows = port, asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def cut(self) -> None:
        self._flows.clear()

    def mend(self) -> None:
        self._flows.set()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for one in self._tasks:
            one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        for a, b in ((reader, far_writer), (far_reader, writer)):
            one = asyncio.create_task(self._carry(a, b))
            self._tasks.add(one)
            one.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


async def _ends(what: str, call: Callable[[], Any]) -> str:
    """How a call ended: `answered` or `unavailable`. `call` is made in a thread, or returns what is awaited."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(CALL_S + SLACK_S + 10):
            found = call()
            if isinstance(found, Awaitable):
                await found
    except Unavailable:
        outcome = "unavailable"
    except TimeoutError as error:
        assert "has not" in str(error), f"{what} hung"  # it waited for a run that goes on
        outcome = "waited"
    except NotFound:
        outcome = "answered"
    else:
        outcome = "answered"
    took_s = time.monotonic() - began
    assert took_s < CALL_S + SLACK_S, f"{what} took {took_s:.1f} s"
    return outcome


async def _threaded(call: Callable[[], Any], pool: ThreadPoolExecutor) -> Any:
    return await asyncio.get_running_loop().run_in_executor(pool, call)


def _calls(client: ClientBase | SyncClientBase, handle: Any, job: Any) -> dict[str, Callable[[], Any]]:
    tables = (
        (client, CLIENT),
        (handle, HANDLE),
        (job, BULK),
        (client.schedules, SCHEDULES),
        (client.versions, VERSIONS),
        (client.approvals, APPROVALS),
    )
    calls = {
        f"{type(target).__name__}.{name}": (lambda target=target, call=call: call(target, CALL_S))
        for target, table in tables
        for name, (_, call) in table.items()
    }
    calls["result"] = lambda: handle.result(CALL_S)
    calls["wait"] = lambda: job.wait(CALL_S)
    return calls


async def _every_call_ends(client: ClientBase | SyncClientBase, handle: Any, job: Any) -> dict[str, str]:
    calls = _calls(client, handle, job)
    with ThreadPoolExecutor(len(calls)) as pool:
        made = {
            what: call if isinstance(client, ClientBase) else partial(_threaded, call, pool)
            for what, call in calls.items()
        }
        ended = await asyncio.gather(*(_ends(what, call) for what, call in made.items()))
    return dict(zip(calls, ended, strict=True))


@asynccontextmanager
async def _doors(dsn: str, address: str, served: str) -> AsyncIterator[list[ClientBase | SyncClientBase]]:
    """The four clients, each with its own engine or connection."""
    sync_perdure = SyncPerdure(dsn, worker=False, tune_gc=False)
    sync_client = SyncClient(address)
    async with worker(served), Client(address) as client, Perdure(dsn, worker=False, tune_gc=False) as perdure:
        await asyncio.to_thread(sync_perdure.__enter__)
        await asyncio.to_thread(sync_client.__enter__)
        try:
            yield [client, perdure, sync_client, sync_perdure]
        finally:
            await asyncio.to_thread(sync_client.__exit__, None, None, None)
            await asyncio.to_thread(sync_perdure.__exit__, None, None, None)


async def _answer(found: Any) -> Any:
    return await found if isinstance(found, Awaitable) else found


async def _begun(client: ClientBase | SyncClientBase) -> tuple[Any, Any]:
    """A handle of a run that has ended, and a bulk job."""
    if isinstance(client, ClientBase):
        handle = await client.start(surface_flow, 1)
        await handle.result("3m")
        return handle, await client.bulk("cancel", "status = running", dry_run=True)
    handle_ = await asyncio.to_thread(lambda: client.start(surface_flow, 1))
    await asyncio.to_thread(handle_.result, "20s")
    return handle_, await asyncio.to_thread(lambda: client.bulk("cancel", "status = running", dry_run=True))


def _signal_all(pids: list[int], what: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # a connection's process ends when the connection does
            os.kill(pid, what)


@pytest.mark.parametrize(
    "fault", ["database stopped", "database frozen", "server frozen", "network cut", "server killed"]
)
async def test_every_call_of_every_client_ends_within_its_timeout(
    fault: str, durable_cluster: Callable[..., PrivateCluster], tmp_path: Path
) -> None:
    cluster = durable_cluster(settings=FAST)
    dsn = await asyncio.to_thread(cluster.start)
    await migrate(dsn)
    with processes.server(dsn, tmp_path, "--auth", "open") as running:
        async with (
            Relay(int(running.grpc.rpartition(":")[2])) as relay,
            _doors(dsn, relay.address, running.grpc) as clients,
        ):
            begun = [await _begun(client) for client in clients]
            is_down: list[bool] = [True] * 4
            family: list[int] = []
            match fault:
                case "database stopped":
                    await asyncio.to_thread(cluster.stop, "fast")
                case "database frozen":
                    assert cluster.pid is not None
                    os.kill(cluster.pid, signal.SIGSTOP)  # first, so that it starts no more
                    family = [cluster.pid, *children_of(cluster.pid)]
                    _signal_all(family, signal.SIGSTOP)
                case "server frozen":
                    os.kill(running.program.process.pid, signal.SIGSTOP)
                    family, is_down = [running.program.process.pid], [True, False, True, False]
                case "network cut":
                    relay.cut()
                    is_down = [True, False, True, False]
                case _:
                    os.kill(running.program.process.pid, signal.SIGKILL)
                    is_down = [True, False, True, False]
            try:
                for client, (handle, job), down in zip(clients, begun, is_down, strict=True):
                    if down:
                        ended = await _every_call_ends(client, handle, job)
                        print(
                            fault,
                            type(client).__name__,
                            {o: list(ended.values()).count(o) for o in set(ended.values())},
                        )
                        answered = {what for what, outcome in ended.items() if outcome != "unavailable"}
                        # Memory answers these: an embedded engine that knows how its run ended.
                        assert answered <= {"result"}, answered
            finally:
                _signal_all(family, signal.SIGCONT)
                relay.mend()
                if fault == "database stopped":
                    await asyncio.to_thread(cluster.start)
            if fault != "server killed":
                await _back(clients)


async def _back(clients: list[ClientBase | SyncClientBase]) -> None:
    """All of them work again, and no start that was given up runs."""

    async def is_back(client: ClientBase | SyncClientBase) -> bool:
        try:
            runs = await (
                client.list(limit=100) if isinstance(client, ClientBase) else asyncio.to_thread(client.list, limit=100)
            )
        except PerdureError:
            return False
        assert len(runs) == len(clients), runs
        return True

    async with asyncio.timeout(BACK_S):
        for client in clients:
            await until(lambda client=client: is_back(client))  # type: ignore[misc]
