"""A migration of the busiest tables under load: nothing that servers do waits long for it, and it gets through."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from perdure import Perdure, task, workflow
from perdure.store import migrate as migrating
from perdure.store.migrate import load, migrate
from tests.fakes.waiting import until

NEXT = Path(__file__).parents[1] / "compatibility" / "next.sql"
SLOWEST_S_MAX = 5.0
"""Of a run with two tasks, on a machine that is busy with other tests."""
READS_S_MAX = 30.0
STARTING = 8


@task
async def migrating_step(n: int) -> int:
    return n + 1


@workflow
async def migrating_chain(n: int) -> int:
    return await migrating_step(await migrating_step(n))


class Runs:
    """Started one after the other by each of STARTING clients."""

    def __init__(self) -> None:
        self.took: list[float] = []
        self._numbers = itertools.count()

    async def go_on(self, client: Perdure) -> None:
        while True:
            n, began = next(self._numbers), time.monotonic()
            handle = await client.start(migrating_chain, n)
            assert await handle.result("60s") == n + 2
            self.took.append(time.monotonic() - began)


@asynccontextmanager
async def load_on(dsn: str) -> AsyncIterator[Runs]:
    """An engine whose runs are started as fast as it takes them. What fails there fails the test."""
    runs = Runs()
    async with Perdure(dsn, auto_migrate=False) as client:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(runs.go_on(client)) for _ in range(STARTING)]
            await until(lambda: len(runs.took) > 50, "runs end")
            yield runs
            more = len(runs.took) + 50
            await until(lambda: len(runs.took) > more, "runs end afterwards")
            for one in tasks:
                one.cancel()


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    directory = tmp_path / "migrations"
    shutil.copytree(Path(migrating.__file__).parent / "migrations", directory)
    shutil.copy(NEXT, directory / f"{len(load()) + 1:04}_next.sql")
    return directory


async def test_a_migration_of_hot_tables_gets_through_under_load(dsn: str, next_version: Path) -> None:
    async with load_on(dsn) as runs:
        began = time.monotonic()
        (applied,) = await migrate(dsn, directory=next_version)
        print(f"\napplied under load in {time.monotonic() - began:.2f} s")
    _report(runs)
    assert applied.name == "next"
    assert max(runs.took) < SLOWEST_S_MAX


async def test_a_migration_gives_way_while_a_long_transaction_reads(
    dsn: str, next_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pg_dump does, or a report: it holds up the migration, which may not hold up the servers behind it."""
    tries = 0
    lock_tables = migrating._lock_tables

    async def counted(*args: object) -> None:
        nonlocal tries
        tries += 1
        await lock_tables(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(migrating, "_lock_tables", counted)
    report = await asyncpg.connect(dsn)
    try:
        async with load_on(dsn) as runs:
            async with report.transaction(isolation="repeatable_read"):
                await report.execute("lock table perdure.run_queue in access share mode")
                before, began = len(runs.took), time.monotonic()
                applying = asyncio.create_task(migrate(dsn, directory=next_version))
                await until(lambda: tries >= 5, "it has given way several times")
                assert not applying.done()
                assert len(runs.took) > before + STARTING, "runs go on meanwhile"
                assert time.monotonic() - began < READS_S_MAX
            assert len(await applying) == 1
    finally:
        await report.close()
    _report(runs)
    assert max(runs.took) < SLOWEST_S_MAX


def _report(runs: Runs) -> None:
    print(f"{len(runs.took)} runs, the slowest took {max(runs.took):.2f} s, none failed")
