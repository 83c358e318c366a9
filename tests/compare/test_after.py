"""The programs that replace those of other tools: the same result and effects, though the process that works is killed on the way."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import asyncpg
import pytest

from perdure.localpg.cluster import PrivateCluster
from tests.cli.processes import Program, Running, server, started
from tests.compare.programs import MIGRATE, PEERS, SOLD, call, effects, environment, fulfilled
from tests.fakes.waiting import until_sync

LEASE = {"PERDURE_ENGINE_LEASE_S": "5s", "PERDURE_ENGINE_HEARTBEAT_S": "1s"}


@pytest.fixture(scope="module")
def running(
    processes: None, cluster: PrivateCluster, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Running, str]]:
    dsn = cluster.create_database("compared", template=migrated_template)
    with server(dsn, tmp_path_factory.mktemp("server"), "--auth", "open", **LEASE) as one:
        yield one, dsn
    cluster.drop_database("compared")


def recorded(dsn: str) -> int:
    """How many tasks that ask for an approval have their result in the database: a kill before that would repeat one."""

    async def count() -> int:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval(
                "select count(*) from perdure.task where name = 'ask' and status = 'success'"
            )
        finally:
            await connection.close()

    return asyncio.run(count())


def check(
    folder: Path,
    number: str,
    variables: dict[str, str],
    start: Callable[[], AbstractContextManager[Program]],
    ready: str,
    dsn: str,
) -> None:
    """`start` starts the process that works. The one that asked for the approval is killed."""

    def command(*words: str) -> list[str]:
        return call([sys.executable, "after.py", *words], folder, variables)

    with start() as first:
        first.until(ready)
        before = recorded(dsn)
        command("order", number)
        first.until("asked: ")
        until_sync(lambda: recorded(dsn) > before)
        first.stop(signal.SIGKILL)
    with start() as second:
        second.until(ready)
        assert command("approve", number, "ada")[-1] == fulfilled(number)
        assert command("report") == [SOLD]
        assert sorted(Path(variables["SHOP_LEDGER"]).read_text().splitlines()) == effects(number)


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer != "dbos"])
def test_an_order_outlives_its_worker(peer: str, running: tuple[Running, str], tmp_path: Path) -> None:
    (one, dsn), folder, number = running, MIGRATE / peer, f"{peer}-1"
    variables = environment(tmp_path / "ledger.txt") | {"PERDURE_GRPC": one.grpc}

    def worker() -> AbstractContextManager[Program]:
        return started("worker", "after", "--apply-schedules", cwd=folder, **variables)

    check(folder, number, variables, worker, "connected", dsn)


@pytest.mark.usefixtures("processes")
def test_an_order_outlives_an_application(dsn: str, tmp_path: Path) -> None:
    folder = MIGRATE / "dbos"
    variables = environment(tmp_path / "ledger.txt") | {"SHOP_DSN": dsn}

    def application() -> AbstractContextManager[Program]:
        return started("after.py", "serve", program=[sys.executable], cwd=folder, **variables)

    check(folder, "dbos-1", variables, application, "ready", dsn)
