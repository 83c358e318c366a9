"""Partitions come ahead of time and go by age; a run that is still active loses nothing with its day."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from perdure import EngineSettings, Perdure, Promise, State, task, workflow
from perdure.core import ids
from perdure.engine.run_ids import RunIds
from perdure.engine.services import retention as service
from perdure.errors import Unavailable
from perdure.sdk import registry
from perdure.store import partitions
from perdure.store.connections import connect
from perdure.store.migrate import migrate
from tests.fakes.waiting import until

go_on = Promise("go_on", str)
seen = State("seen", "")
OLD_DAYS = 10


@task
def partition_step(text: str) -> str:
    return f"<{text}>"


@workflow
async def outlives_its_day(text: str) -> str:
    before = await partition_step(text)
    seen.set(before)
    word = await go_on.wait()
    return before + await partition_step(word) + seen.get()


@workflow
async def ends_on_its_day(text: str) -> str:
    return await partition_step(text)


@pytest.fixture
async def dsn(bare_dsn: str) -> str:
    """Without any partition yet."""
    await migrate(bare_dsn)
    return bare_dsn


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Any]:
    """Speaks like the store: ids are bytes."""
    connection = await connect(dsn)
    yield connection
    await connection.close()


def day_ago(days: int) -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days)


async def relations(sql: Any) -> set[str]:
    rows = await sql.fetch(
        "select c.relname as name from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'perdure' and c.relkind = 'r'"
    )
    return {r["name"] for r in rows}


async def test_today_and_the_days_ahead_are_there_and_asking_again_changes_nothing(sql: Any) -> None:
    assert await partitions.create_ahead(sql, 3) == 4 * len(partitions.TABLES)
    assert await partitions.create_ahead(sql, 3) == 0
    have = await relations(sql)
    for table in partitions.TABLES:
        for days in range(4):
            assert f"{table}_p{day_ago(-days):%Y%m%d}" in have


async def test_engines_that_create_partitions_at_once_do_not_disturb_each_other(dsn: str) -> None:
    connections = [await connect(dsn) for _ in range(4)]
    try:
        made = await asyncio.gather(*(partitions.create_ahead(c, 2) for c in connections))
    finally:
        for c in connections:
            await c.close()
    assert sum(made) == 3 * len(partitions.TABLES)


async def test_a_row_goes_to_the_partition_of_its_id(sql: Any) -> None:
    await partitions.create_ahead(sql, 1)
    run_id = ids.run_id(int(datetime.now(UTC).timestamp() * 1000), 0, 1)
    await sql.execute("insert into perdure.run_state (run_id, name, ns, value) values ($1, 'n', 1, 'v')", run_id)
    where = await sql.fetchval("select tableoid::regclass::text from perdure.run_state")
    assert where.removeprefix("perdure.") == f"run_state_p{datetime.now(UTC):%Y%m%d}"


async def test_a_day_whose_rows_are_in_the_default_partition_already_stays_there(
    sql: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = ids.run_id(int(datetime.now(UTC).timestamp() * 1000), 0, 1)
    await sql.execute("insert into perdure.run_state (run_id, name, ns, value) values ($1, 'n', 1, 'v')", run_id)
    assert await partitions.create_ahead(sql, 0) == len(partitions.TABLES) - 1
    assert await sql.fetchval("select count(*) from perdure.run_state") == 1
    assert f"run_state_p{datetime.now(UTC):%Y%m%d} was not created" in caplog.text


RETAINING = EngineSettings(retention_days=5.0, retention_share=1.0)


async def retained(dsn: str) -> None:
    """Retention has done all there is to do for runs that are older than five days."""
    async with Perdure(dsn, settings=RETAINING) as p:
        await retain(p)


async def retain(client: Perdure) -> None:
    while await client.engine.retention.work_once():
        pass


async def test_dropping_an_old_day_gives_its_disk_back_and_keeps_younger_days(dsn: str, sql: Any) -> None:
    await partitions.create_ahead(sql, 0)
    for table in partitions.TABLES:
        await partitions._create(sql, table, day_ago(OLD_DAYS))
        await partitions._create(sql, table, day_ago(2))
    ended = ids.run_id(int((day_ago(OLD_DAYS) + timedelta(hours=5)).timestamp() * 1000), 0, 1)
    await sql.execute("insert into perdure.run_key (ns, key, run_id, input_hash) values (1, 'old', $1, '')", ended)
    name = f"history_p{day_ago(OLD_DAYS):%Y%m%d}"
    await sql.execute(
        "insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash) select $1, n, n, 1, 1, now(), repeat('x', 500)::bytea, ''"
        " from generate_series(1, 2000) n",
        ended,
    )
    path = await sql.fetchval("select pg_relation_filepath($1::text::regclass)", f"perdure.{name}")
    assert await sql.fetchval("select (pg_stat_file($1::text)).size", path) > 500_000
    await retained(dsn)
    noted = {r["parent"]: r["below"] for r in await sql.fetch("select parent, below from perdure.retention")}
    assert noted == dict.fromkeys(partitions.TABLES, partitions._bound(day_ago(OLD_DAYS - 1))), (
        "verify knows what was dropped"
    )
    have = await relations(sql)
    assert not [r for r in have if f"{day_ago(OLD_DAYS):%Y%m%d}" in r]
    assert len([r for r in have if f"{day_ago(2):%Y%m%d}" in r]) == len(partitions.TABLES)
    assert await sql.fetchval("select count(*) from perdure.history where run_id = $1", ended) == 0
    assert await sql.fetchval("select count(*) from perdure.run_key") == 0, "its key is free again"
    await sql.execute("checkpoint")
    gone = await sql.fetchrow("select pg_stat_file($1::text, true) as file", path)
    assert gone["file"] is None or gone["file"][0] in (None, 0)


async def test_a_run_that_outlives_its_day_is_carried_forward_and_completes(
    dsn: str, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.tasks.adopt(partition_step)
    for table in partitions.TABLES:
        await partitions._create(sql, table, day_ago(OLD_DAYS))

    def old_id(self: RunIds) -> bytes:
        moment = day_ago(OLD_DAYS) + timedelta(hours=12)
        return ids.run_id(int(moment.timestamp() * 1000), 0, secrets.randbits(62))

    monkeypatch.setattr(RunIds, "new", old_id)
    async with Perdure(dsn):
        ended = await ends_on_its_day.options(key="ended").start("e")
        assert await ended.result("3m") == "<e>"
        active = await outlives_its_day.options(key="active").start("a")

        async def has_begun() -> bool:
            return await seen.read(active.id) == "<a>"

        await until(has_begun)
        assert await places(sql, active.id) == {
            f"history_p{day_ago(OLD_DAYS):%Y%m%d}",
            f"task_p{day_ago(OLD_DAYS):%Y%m%d}",
            f"run_state_p{day_ago(OLD_DAYS):%Y%m%d}",
        }
        events = len(await active.history())

        await sql.execute("update perdure.run set finished_at = finished_at - interval '8 days'")
        await retained(dsn)

        assert await places(sql, active.id) == {"history_default", "task_default", "run_state_default"}
        assert await places(sql, ended.id) == set()
        assert len(await active.history()) == events
        assert await seen.read(active.id) == "<a>"
        again = await outlives_its_day.options(key="active", on_conflict="attach").start("a")
        assert again.id == active.id, "the key of an active run stays"

    async with Perdure(dsn):
        handle = await outlives_its_day.options(key="active", on_conflict="attach").start("a")
        assert handle.id == active.id
        await go_on.resolve(active.id, "b")
        assert await handle.result("3m") == "<a><b><a>"
        assert await ends_on_its_day.options(key="ended").run("again") == "<again>", "the key of a dropped run is free"


async def places(sql: Any, run_id: str) -> set[str]:
    """The partitions that hold rows of a run."""
    found = set()
    for table in partitions.TABLES:
        rows = await sql.fetch(
            f"select distinct tableoid::regclass::text as name from perdure.{table} where run_id = $1",
            ids.parse(run_id),
        )
        found |= {r["name"].removeprefix("perdure.") for r in rows}
    return found


async def test_a_partition_that_another_session_locks_is_dropped_later(
    dsn: str, sql: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "DROP_TRIES", 1)
    for table in partitions.TABLES:
        await partitions._create(sql, table, day_ago(OLD_DAYS))
    holder = await asyncpg.connect(dsn)
    try:
        async with Perdure(dsn, settings=RETAINING) as client:  # which makes partitions when it opens
            async with holder.transaction():
                await holder.fetchval("select pg_advisory_xact_lock(hashtext('perdure.partitions'))")
                with pytest.raises(Unavailable, match="in use"):
                    await retain(client)
            async with holder.transaction():
                await holder.execute("lock table perdure.history in access share mode")
                with pytest.raises(Unavailable):
                    await retain(client)
    finally:
        await holder.close()
    monkeypatch.undo()
    await retained(dsn)
    assert not [r for r in await relations(sql) if f"{day_ago(OLD_DAYS):%Y%m%d}" in r]
