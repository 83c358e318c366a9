"""A commit is acknowledged when the synchronous standby has it, also when its wait for the standby was cancelled or ended.

PostgreSQL ends such a wait with success and a warning, or with the connection; in both cases the transaction becomes visible though no
standby may have it. Here no standby exists at all, so nothing may be acknowledged until none is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, Signal, task, workflow
from perdure.errors import RunFinished, Unavailable
from perdure.localpg.cluster import PrivateCluster
from perdure.store.migrate import migrate
from perdure.store.verify import verify
from tests.fakes.waiting import holds, until
from tests.shared_server import FAST

WAITING = "select pid, query_start from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'perdure'"
UNACKNOWLEDGED_S = 0.5
LIMIT = "60s"
go = Signal("standby_go", int)


@task
async def standby_step(n: int) -> int:
    return n + 1


@workflow
async def standby_flow(n: int) -> int:
    return await standby_step(n) + await go.next()


class Server:
    def __init__(self, dsn: str, connection: Any) -> None:
        self._dsn, self._connection = dsn, connection

    @asynccontextmanager
    async def without_standby(self) -> AsyncIterator[None]:
        """Each commit waits for a standby that does not exist."""
        await self._ask_for_standby("nowhere")
        await self._commits_wait()
        try:
            yield
        finally:
            await self._ask_for_standby("")

    async def _ask_for_standby(self, name: str) -> None:
        # This session's own changes of the settings wait for no standby.
        await self._connection.execute("set synchronous_commit = local")
        await self._connection.execute(f"alter system set synchronous_standby_names = '{name}'")
        await self._connection.execute("select pg_reload_conf()")

    async def _commits_wait(self) -> None:
        """The setting counts when the checkpointer has read it: commits try until one waits."""
        probe = await asyncpg.connect(self._dsn, server_settings={"application_name": "probe"})

        async def waits() -> bool:
            return await self._connection.fetchval(
                "select exists (select from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'probe')"
            )

        async def commit_until_one_waits() -> None:
            while True:
                await probe.execute(
                    "create temporary table if not exists a (); drop table a; select pg_current_xact_id()"
                )

        trying = asyncio.create_task(commit_until_one_waits())
        try:
            await until(waits, "commits wait for the standby")
        finally:
            trying.cancel()
            probe.terminate()
            await asyncio.gather(trying, return_exceptions=True)

    async def waiting(self) -> list[tuple[int, Any]]:
        return [tuple(row) for row in await self._connection.fetch(WAITING)]

    async def end_waits(self, how: str) -> None:
        """Of all that wait now; returns when they are over."""
        first = await until(self.waiting, "a commit waits for the standby")
        for pid, _ in first:
            await self._connection.execute(f"select {how}($1)", pid)

        async def is_over() -> bool:
            return not set(first) & set(await self.waiting())

        await until(is_over, "the waits are over")


async def send_again(run_id: str) -> None:
    """It may have been written, and have ended the run."""
    with suppress(RunFinished):
        await go.send(run_id, 40, key="once")


@pytest.fixture
async def server(durable_cluster: Callable[..., PrivateCluster]) -> AsyncIterator[tuple[str, Server]]:
    settings = {**FAST, "synchronous_commit": "on"}
    dsn = await asyncio.to_thread(durable_cluster(settings=settings).start)
    await migrate(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        yield dsn, Server(dsn, connection)
    finally:
        await connection.close()


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
async def test_nothing_is_acknowledged_before_the_standby_has_it(server: tuple[str, Server], how: str) -> None:
    dsn, database = server
    async with Perdure(dsn) as client:
        first = await standby_flow.start(1)
        async with database.without_standby():
            starting = asyncio.create_task(standby_flow.start(2))
            sending = asyncio.create_task(go.send(first.id, 40, key="once"))
            for _ in range(3):
                await database.end_waits(how)
                await until(database.waiting, "what was ended waits again")
            await holds(lambda: not starting.done(), UNACKNOWLEDGED_S, "the start is not acknowledged")
            assert not sending.done() or isinstance(sending.exception(), Unavailable)
        second = await asyncio.wait_for(starting, 60)
        try:
            await asyncio.wait_for(sending, 60)
        except Unavailable:  # its connection was ended, and whether it was written is unknown
            await send_again(first.id)
        await go.send(second.id, 30)
        assert (await first.result(LIMIT), await second.result(LIMIT)) == (42, 33)
        assert client.engine.counters.records_refused == 0
    assert not any(tally.violations for tally in await verify(dsn, at_rest=True))


async def test_a_database_that_takes_no_writes_is_waited_for(server: tuple[str, Server]) -> None:
    """As a primary that was demoted and a proxy still leads to: records are kept, not refused."""
    dsn, database = server
    name = dsn.rpartition("/")[2]

    async def all_connections_anew(read_only: str) -> None:
        await database._connection.execute("set default_transaction_read_only = off")
        await database._connection.execute(f'alter database "{name}" set default_transaction_read_only = {read_only}')
        await database._connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure'"
        )

    async with Perdure(dsn) as client:
        first = await standby_flow.start(1)
        await all_connections_anew("on")
        pending = [asyncio.create_task(standby_flow.start(2)), asyncio.create_task(go.send(first.id, 40, key="once"))]
        await until(lambda: client.engine.committer.failing_s > UNACKNOWLEDGED_S, "a commit is refused", 30)
        await all_connections_anew("off")
        started, sent = await asyncio.wait_for(asyncio.gather(*pending, return_exceptions=True), 60)
        assert client.engine.counters.records_refused == 0
        if isinstance(sent, BaseException):  # the sender repeats it
            await send_again(first.id)
        assert not isinstance(started, BaseException), started
        await go.send(started.id, 30)
        assert (await first.result(LIMIT), await started.result(LIMIT)) == (42, 33)
