"""While PostgreSQL is stopped or frozen every call ends with Unavailable in its time, and a start that was given up does not run later."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Client, Perdure, Signal, State, SyncPerdure, Update, workflow
from perdure.core.api import messages
from perdure.core.api.messages import ReadState
from perdure.errors import NotFound, Unavailable
from perdure.localpg.cluster import PrivateCluster
from perdure.localpg.postmaster import children_of
from perdure.sdk.client.backend import ambient
from perdure.sdk.client.handles import Handle
from perdure.store.migrate import migrate
from tests.cli import processes
from tests.fakes.waiting import until
from tests.server.remote import worker
from tests.shared_server import FAST

CALL_S = 2.0
SLACK_S = 8.0
"""For a machine that is busy."""
BACK_S = 60.0

go = Signal("away_go", str)
mood = State("away_mood", "calm")
ask = Update("away_ask", str, str)


@workflow(name="away_waits")
async def waits() -> str:
    mood.set("waiting")
    return await go.next()


@workflow(name="away_short")
async def short(n: int) -> int:
    return n + 1


class Outage:
    def __init__(self, cluster: PrivateCluster, frozen: bool) -> None:
        self._cluster, self._frozen = cluster, frozen
        self._family: list[int] = []

    async def begin(self) -> None:
        if not self._frozen:
            await asyncio.to_thread(self._cluster.stop, "fast")
            return
        pid = self._cluster.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # first, so that it starts no more
        self._family = [pid, *children_of(pid)]
        for one in self._family[1:]:
            os.kill(one, signal.SIGSTOP)

    async def end(self) -> None:
        for one in self._family:
            os.kill(one, signal.SIGCONT)
        self._family = []
        await asyncio.to_thread(self._cluster.start)


async def _refused(what: str, call: Awaitable[Any]) -> str:
    """The text of the Unavailable that a call ends with, in time."""
    began = time.monotonic()
    with pytest.raises(Unavailable) as raised:
        async with asyncio.timeout(CALL_S + SLACK_S):
            await call
    print(f"{what}: {time.monotonic() - began:.2f} s: {raised.value}")
    return str(raised.value)


async def _every_call_ends(client: Client | Perdure, handle: Handle[str], door: str) -> None:
    """Of those that change something, the handle's run may show the effect later: that is what "unknown" means."""

    async def in_context(call: Callable[[], Awaitable[Any]]) -> Any:
        ambient.set(client._backend)
        return await call()

    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "status": handle.status,
        "history": handle.history,
        "read": lambda: mood.read(handle.id),
        "get": lambda: client.get(key="away-first"),
        "signal": lambda: go.send(handle.id, "lost", key="k"),
        "cancel": handle.cancel,
        "update": lambda: ask.ask(handle.id, "how", timeout="1s"),
        "retry": handle.retry,
        "run": lambda: short.options(key=f"{door}-run").run(1),
    }
    await asyncio.gather(
        *(asyncio.create_task(_refused(f"{door} {name}", in_context(call))) for name, call in calls.items())
    )


async def _given_up(client: Client | Perdure, door: str) -> list[str]:
    """Ids of starts that are known not to have been handed to the database."""
    first = await _refused(f"{door} start", client.start(short.options(key=f"{door}-0"), 1))
    # From here on the first one's commit, if there is one, is under way; nothing else can be.
    later = await _refused(f"{door} start", client.start(short.options(key=f"{door}-1"), 1))
    with pytest.raises((TimeoutError, Unavailable)):
        async with asyncio.timeout(0.5):
            await client.start(short.options(key=f"{door}-2"), 1)
    assert "will not run" in later, later
    assert "will not run" in first or ("unknown" in first and 'on_conflict="attach"' in first), first
    return [f"{door}-1", f"{door}-2", *([f"{door}-0"] if "will not run" in first else [])]


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_calls_end_in_time_and_starts_that_were_given_up_do_not_run(
    how: str, durable_cluster: Callable[..., PrivateCluster], tmp_path: Path
) -> None:
    cluster = durable_cluster(settings=FAST)
    dsn = await asyncio.to_thread(cluster.start)
    await migrate(dsn)
    outage = Outage(cluster, how == "frozen")
    with processes.server(dsn, tmp_path, "--auth", "open") as running:
        async with (
            worker(running.grpc),
            Client(running.grpc, call_timeout=CALL_S) as remote,
            Perdure(dsn, worker=False, tune_gc=False, call_timeout=CALL_S) as embedded,
        ):
            doors: dict[str, Client | Perdure] = {"remote": remote, "embedded": embedded}
            handle = await remote.start(waits.options(key="away-first"))
            victim = await remote.start(waits)

            async def is_waiting() -> bool:
                state = await embedded._backend.call(messages.STATE, ReadState(handle.id, mood.name))
                return state.value is not None

            await until(is_waiting)
            results = [asyncio.create_task((await d.get(handle.id, workflow=waits)).result()) for d in doors.values()]
            victims = {door: await client.get(victim.id, workflow=waits) for door, client in doors.items()}
            await outage.begin()
            try:
                given_up = await asyncio.gather(*(_given_up(client, door) for door, client in doors.items()))
                await asyncio.gather(*(_every_call_ends(c, victims[door], door) for door, c in doors.items()))
                assert not any(r.done() for r in results)
            finally:
                await outage.end()
            await _back(remote, embedded, handle)
            assert await asyncio.wait_for(asyncio.gather(*results), BACK_S) == ["home", "home"]
            # A start that comes after them has run: what was going to be written is.
            assert await (await remote.start(short, 1)).result(timeout=BACK_S) == 2
            assert await (await embedded.start(short, 2)).result(timeout=BACK_S) == 3
            for key in [key for keys in given_up for key in keys]:
                with pytest.raises(NotFound):
                    await embedded.get(key=key)


async def _back(remote: Client, embedded: Perdure, handle: Handle[str]) -> None:
    """Both doors work again."""

    async def is_running(client: Client | Perdure) -> None:
        assert await (await client.get(handle.id)).status() == "running"

    async with asyncio.timeout(BACK_S):
        await until(lambda: _answered(is_running(remote)))
        await until(lambda: _answered(is_running(embedded)))
        await until(lambda: _answered(go.send(handle.id, "home", key="k2")))


async def _answered(call: Awaitable[object]) -> bool:
    try:
        await call
    except Unavailable:
        return False
    return True


async def test_the_sync_client_ends_its_calls_too(durable_cluster: Callable[..., PrivateCluster]) -> None:
    cluster = durable_cluster(settings=FAST)
    dsn = await asyncio.to_thread(cluster.start)

    def use() -> None:
        with SyncPerdure(dsn, tune_gc=False, call_timeout=CALL_S) as client:
            handle = client.start(waits)
            cluster.stop("fast")
            began = time.monotonic()
            for call in (
                handle.status,
                handle.cancel,
                lambda: client.query(mood, handle.id),
                lambda: client.start(waits),
            ):
                with pytest.raises(Unavailable):
                    call()
            assert time.monotonic() - began < 4 * CALL_S + SLACK_S
            with pytest.raises(TimeoutError):
                handle.result(timeout=0.2)
            cluster.start()

    await asyncio.to_thread(use)
