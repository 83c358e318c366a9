"""What docs/concepts/scale.md says of ids and lists, on four real databases; and what of today's schema still means one database."""

from __future__ import annotations

import heapq
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import islice

import asyncpg
import pytest

from perdure import EngineSettings, Perdure, task, wf, workflow
from perdure.core import ids
from perdure.core.api import runs
from perdure.core.api.runs import ListRuns, RunItem
from perdure.core.capacity.places import HOMES
from perdure.errors import NotFound
from perdure.localpg.cluster import PrivateCluster
from tests.docs.pages import ROOT

NUMBERS = (0, 1, 77, ids.SHARDS_MAX - 1)
PAGE = 3
NO_RUN = {("notification", "id"), ("flow_control_group", "id")}
"""Ids that name no run: they are looked up on one database alone."""


@task(name="sharded_double")
async def double(n: int) -> int:
    return 2 * n


@workflow(name="sharded_child")
async def child(n: int) -> int:
    return await double(n)


@workflow(name="sharded_parent")
async def parent(n: int, rounds: int) -> int:
    found = await child(n)
    return found if not rounds else await wf.continue_as_new(found, rounds - 1)


@pytest.fixture
async def shards(cluster: PrivateCluster, migrated_template: str) -> AsyncIterator[dict[int, Perdure]]:
    """Number of a shard -> a client and an engine on a database of its own."""
    names = {number: f"shard_{number}_{id(cluster):x}" for number in NUMBERS}
    async with AsyncExitStack() as stack:
        made: dict[int, Perdure] = {}
        for number, name in names.items():
            stack.callback(cluster.drop_database, name)
            dsn = cluster.create_database(name, template=migrated_template)
            made[number] = await stack.enter_async_context(Perdure(dsn, settings=EngineSettings(shard=number)))
            for one in (parent, child):
                made[number].serve(one)
        yield made


async def test_every_id_of_a_run_leads_to_its_database(shards: dict[int, Perdure]) -> None:
    """Children, tasks and successors too; so that an id is all that a router needs."""
    started = {number: await shard.start(parent, number, 2) for number, shard in shards.items()}
    for number, handle in started.items():
        found = shards[ids.shard_of(ids.parse(handle.id))]
        assert found is shards[number]
        assert await (await found.get(handle.id, workflow=parent)).result() == number * 8
        other = shards[NUMBERS[NUMBERS.index(number) - 1]]
        with pytest.raises(NotFound):
            await other.get(handle.id)
    for number, shard in shards.items():
        seen = await ids_in(shard)
        assert {table for table, _ in seen} >= {"run", "task", "history"}
        strangers = {place: found for place, found in seen.items() if {ids.shard_of(i) for i in found} != {number}}
        assert not strangers, f"shard {number} has ids of others"
        assert len(seen["run", "run_id"]) == 6, "three runs, each with a child"


async def ids_in(shard: Perdure) -> dict[tuple[str, str], set[bytes]]:
    """(table, column) -> the ids in it."""
    c = await asyncpg.connect(shard._dsn)
    try:
        columns = await c.fetch(
            "select c.table_name, c.column_name from information_schema.columns c join information_schema.tables t"
            " using (table_schema, table_name) where t.table_type = 'BASE TABLE' and c.table_schema = 'perdure'"
            " and c.data_type = 'uuid' and c.table_name !~ '_(p[0-9]{8}|default)$'"
        )
        found: dict[tuple[str, str], set[bytes]] = {}
        for table, column in columns:
            if (table, column) not in NO_RUN and HOMES[table] != "local":
                rows = await c.fetch(f"select distinct {column} as id from perdure.{table} where {column} is not null")
                if rows:
                    found[table, column] = {r["id"].bytes for r in rows}
        return found
    finally:
        await c.close()


async def test_pages_of_a_list_are_merged_by_id_over_all_databases(shards: dict[int, Perdure]) -> None:
    """Newest first, each page below the last id of the one before, on every shard: none is left out and none comes twice."""
    handles = [await shard.start(child, n) for n in range(5) for shard in shards.values()]
    for handle in handles:
        await handle.result()
    expected = sorted((ids.parse(h.id) for h in handles), reverse=True)
    below: bytes | None = None
    seen: list[bytes] = []
    while page := await page_of_all(shards, below):
        assert len(page) <= PAGE
        seen += [run.run_id for run in page]
        below = seen[-1]
    assert seen == expected
    assert {ids.shard_of(run) for run in seen} == set(NUMBERS)


async def page_of_all(shards: dict[int, Perdure], below: bytes | None) -> list[RunItem]:
    pages = [(await s._backend.call(runs.LIST, ListRuns(below=below, limit=PAGE), None)).items for s in shards.values()]
    return list(islice(heapq.merge(*pages, key=lambda run: run.run_id, reverse=True), PAGE))


async def test_a_key_is_unique_on_one_database_only(shards: dict[int, Perdure]) -> None:
    """What a router has to add: today each database answers for itself. Without a home for keys this would be two runs of one order."""
    one, other = shards[0], shards[77]
    first = await one.start(child.options(key="order-1"), 1)
    second = await other.start(child.options(key="order-1"), 1)
    assert first.id != second.id
    await first.result()
    await second.result()


def test_every_table_has_a_home() -> None:
    migrations = (ROOT / "src" / "perdure" / "store" / "migrations").glob("*.sql")
    tables = {t for m in migrations for t in re.findall(r"create table perdure\.(\w+) \(", m.read_text())}
    assert tables == set(HOMES), (
        "core/capacity/places.py says of each table where it lives; so does docs/concepts/scale.md"
    )


async def test_a_start_in_sql_names_shard_0_on_every_database(shards: dict[int, Perdure]) -> None:
    """As the page says: such a run cannot be routed from elsewhere until the database knows its own number."""
    c = await asyncpg.connect(shards[77]._dsn)
    try:
        await (await shards[77].start(child, 1)).result()  # the workflow is registered
        made = await c.fetchval("""select perdure.start('sharded_child', '{"n": 1}')""")
    finally:
        await c.close()
    assert ids.shard_of(made.bytes) == 0
