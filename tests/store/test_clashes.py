"""Requests that meet other transactions: the store repeats them, the caller hears nothing of it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest
from asyncpg import exceptions as pg

from perdure.core.work import ServedCode
from perdure.store import migrate as migrating
from perdure.store.clashes import TRIES, Clashed, retried
from perdure.store.migrate import load, migrate
from perdure.store.postgres import PostgresStore
from tests.fakes.waiting import until
from tests.store.blocking import until_blocked


async def test_a_call_that_the_database_undoes_to_end_a_deadlock_is_repeated(dsn: str) -> None:
    """Two tables, locked crosswise. A session looks for a deadlock once, after its deadlock_timeout; that of the call is over first, so it is the call
    that is undone."""
    store = PostgresStore(f"{dsn}?options=-c%20deadlock_timeout%3D3s")
    await store.open()
    ns = await store.namespace("default")
    other, watch = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = await watch.fetchval(deadlocks)
    try:
        await other.execute("set deadlock_timeout = '60s'")
        transaction = other.transaction()
        await transaction.start()
        await other.execute("lock table perdure.workflow in access exclusive mode")
        registering = asyncio.ensure_future(store.register_versions(ns, [("w", ServedCode(version="v1"))]))
        await until_blocked(watch)
        await other.execute(
            "lock table perdure.workflow_version in access exclusive mode"
        )  # over once the call is undone
        await transaction.commit()
        await registering
        await until(lambda: watch.fetchval(f"select ({deadlocks}) > $1", before))
        assert await watch.fetchval("select version from perdure.workflow_version where workflow = 'w'") == "v1"
    finally:
        await other.close()
        await watch.close()
        await store.close()


async def test_a_call_is_repeated_a_bounded_number_of_times() -> None:
    calls: list[type[BaseException]] = []

    @retried("own")
    class Store:
        async def asked(self, error: type[pg.PostgresError]) -> None:
            calls.append(error)
            raise Clashed(error("met others"))

        async def own(self) -> None:
            calls.append(Clashed)
            raise Clashed(pg.DeadlockDetectedError("met others"))

    for error in (pg.DeadlockDetectedError, pg.SerializationError, pg.InvalidCachedStatementError):
        calls.clear()
        with pytest.raises(Clashed, match="nothing was written"):
            await Store().asked(error)
        assert len(calls) == TRIES
    calls.clear()
    with pytest.raises(Clashed):
        await Store().asked(pg.LockNotAvailableError)
    assert len(calls) == 1, "it has waited long enough"
    with pytest.raises(Clashed):
        await Store().own()
    assert len(calls) == 2


# -- migrations under a live server ------------------------------------------------------------------------------------


def with_one_more(tmp_path: Path, sql: str) -> Path:
    source = Path(migrating.__file__).parent / "migrations"
    directory = tmp_path / "migrations"
    shutil.copytree(source, directory)
    (directory / f"{len(load()) + 1:04}_more.sql").write_text(sql)
    return directory


CROSSWISE = """
alter table perdure.inbox add column more int;
alter table perdure.run_queue add column more int;
"""


async def test_a_migration_gives_way_to_a_server_that_it_waits_for_crosswise(dsn: str, tmp_path: Path) -> None:
    """A server's transaction has the inbox and then needs the runs, as no transaction of ours should; the migration has the runs."""
    directory = with_one_more(tmp_path, CROSSWISE)
    server, watch = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        # On a slow machine it would look for the deadlock before the migration has given way.
        await server.execute("set deadlock_timeout = '1min'")
        transaction = server.transaction()
        await transaction.start()
        await server.execute("lock table perdure.inbox in row exclusive mode")
        applying = asyncio.ensure_future(migrate(dsn, directory=directory))
        await until_blocked(watch)
        await server.execute("select count(*) from perdure.run_queue")  # waits for the migration, until that gives way
        await transaction.commit()
        async with asyncio.timeout(120):
            assert [m.name for m in await applying] == ["more"]
    finally:
        await server.close()
        await watch.close()


async def test_a_migration_locks_tables_in_the_order_of_the_servers(dsn: str, tmp_path: Path) -> None:
    """It names the inbox first, and yet waits for the runs before it has the inbox."""
    directory = with_one_more(tmp_path, CROSSWISE)
    server, watch = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        transaction = server.transaction()
        await transaction.start()
        await server.execute("lock table perdure.run_queue in row exclusive mode")
        applying = asyncio.ensure_future(migrate(dsn, directory=directory))
        await until_blocked(watch)
        held = "select from pg_locks where relation = 'perdure.inbox'::regclass and mode = 'AccessExclusiveLock'"
        assert not await watch.fetch(held)
        await server.execute(
            "insert into perdure.inbox (ns, run_id, body, kind) values (1, gen_random_uuid(), '', 'signal')"
        )
        await transaction.commit()
        async with asyncio.timeout(120):
            assert len(await applying) == 1
    finally:
        await server.close()
        await watch.close()


async def test_a_migration_that_finds_no_gap_says_so_and_changes_nothing(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "LOCK_TRIES", 2)
    monkeypatch.setattr(migrating, "LOCK_WAIT", "50ms")
    directory = with_one_more(tmp_path, CROSSWISE)
    server = await asyncpg.connect(dsn)
    try:
        async with server.transaction():
            await server.execute("lock table perdure.inbox in row exclusive mode")
            with pytest.raises(migrating.MigrationError, match=r"in use for 2 tries.*Nothing was changed"):
                await migrate(dsn, directory=directory)
        assert len(await migrate(dsn, directory=directory)) == 1
    finally:
        await server.close()
