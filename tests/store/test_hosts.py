"""A DSN with several hosts: the one that takes writes is found, whatever the others do, and again when another has taken over."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from perdure.core.errors import Unavailable
from perdure.localpg.cluster import PrivateCluster
from perdure.localpg.postmaster import children_of, free_port
from perdure.store import hosts, stalls
from perdure.store.connect import connect as administer
from perdure.store.connections import Connections, connect
from tests.shared_server import FAST


def several(dsn: str, *ports: int, before: bool = True) -> str:
    """The DSN with more hosts, which are not PostgreSQL."""
    user, _, host = urlsplit(dsn).netloc.rpartition("@")
    others = [f"127.0.0.1:{port}" for port in ports]
    return dsn.replace(host, ",".join([*others, host] if before else [host, *others]), 1)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_silent_and_a_closed_host_are_passed_over(dsn: str, silent: int) -> None:
    began = time.monotonic()
    connection = await connect(several(dsn, silent, free_port()))
    took = time.monotonic() - began
    assert await connection.fetchval("select 1") == 1
    await connection.close()
    assert took < 5, "not the ten seconds that one host may take"
    async with administer(several(dsn, silent)) as c:
        assert await c.fetchval("select 1") == 1


async def test_the_host_that_was_used_last_is_tried_first(dsn: str) -> None:
    given = several(dsn, free_port())
    await (await connect(given)).close()
    assert hosts.each(given)[0] == f"{dsn}?target_session_attrs=read-write"


async def test_an_error_names_every_host(dsn: str, silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.pooling.CONNECT_S", 0.5)
    closed = free_port()
    with pytest.raises(Unavailable) as raised:
        await connect(f"postgresql://me@127.0.0.1:{silent},127.0.0.1:{closed}/app")
    assert f"127.0.0.1:{silent}: no answer" in str(raised.value)
    assert f"127.0.0.1:{closed}: " in str(raised.value)


async def test_a_host_that_takes_no_writes_is_passed_over(dsn: str, bare_dsn: str) -> None:
    async with administer(bare_dsn) as c:
        await c.execute(f'alter database "{urlsplit(bare_dsn).path[1:]}" set default_transaction_read_only = on')
    with pytest.raises(Unavailable, match="takes no writes"):
        await connect(several(bare_dsn, free_port()))
    assert "target_session_attrs=any" in hosts.with_writes(f"{several(dsn, 1)}?target_session_attrs=any")


async def test_a_halted_server_is_left_when_another_takes_over(
    durable_cluster: Callable[..., PrivateCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers stand for one cluster: the second starts to answer after the first was halted, as a standby that is promoted does."""
    monkeypatch.setattr(stalls, "STALLED_S", 0.5)
    first, second = durable_cluster(settings=FAST), durable_cluster(settings=FAST)
    old, new = await asyncio.gather(asyncio.to_thread(first.start), asyncio.to_thread(second.start))
    ports = [urlsplit(one).port for one in (old, new)]
    for one in (old, new):
        async with administer(one) as c:
            await c.execute("create role app superuser login password 'x'")
    await asyncio.to_thread(second.stop)
    given = f"postgresql://app:x@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/perdure"
    pool = Connections(given)
    await pool.open()
    with ExitStack() as after:
        async with pool.take() as c:
            assert await c.fetchval("select inet_server_port()") == ports[0]
        pid = first.pid
        assert pid is not None
        family = [pid, *children_of(pid)]
        after.callback(lambda: [os.kill(one, signal.SIGCONT) for one in family])
        for one in family:
            os.kill(one, signal.SIGSTOP)
        began = time.monotonic()

        async def ask() -> int:
            while True:
                try:
                    async with pool.take() as c:
                        return int(await c.fetchval("select inet_server_port()"))
                except Unavailable as e:
                    assert time.monotonic() - began < 50, e

        asked = asyncio.create_task(ask())
        await asyncio.to_thread(second.start)
        assert await asyncio.wait_for(asked, 40) == ports[1], "long before a statement's time is over"
    await pool.close()


async def test_a_statement_that_is_only_slow_is_left_alone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "STALLED_S", 0.1)
    monkeypatch.setattr(stalls, "AGAIN_S", 0.1)
    pool = Connections(dsn)
    await pool.open()
    async with pool.take() as c:
        assert await c.fetchval("select 7 from pg_sleep(1)") == 7
    await pool.close()


async def test_a_statement_that_exceeds_its_time_ends_with_its_connection(dsn: str) -> None:
    """It is not cancelled: a COMMIT that waits for a standby would become visible by that."""
    connection, other = await connect(dsn), await connect(dsn)
    pid = await connection.fetchval("select pg_backend_pid()")
    with pytest.raises((TimeoutError, Exception)):
        await connection.fetch("select pg_sleep(60)", timeout=0.2)
    assert connection.is_closed()
    activity = "select state, query from pg_stat_activity where pid = $1"
    assert (await other.fetchrow(activity, pid))["state"] == "active", "the server goes on"
    await other.execute("select pg_terminate_backend($1)", pid)
    await other.close()
