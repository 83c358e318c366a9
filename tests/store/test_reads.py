"""Lists on full tables: right, stable, by index, and never dearer than a page."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure.core import ids
from perdure.core.api.runs import RunFilter, RunItem
from perdure.core.run_query import And
from perdure.core.run_query.filters import query_of
from perdure.engine.api.ports import SCAN_ROWS_MAX
from perdure.store import partitions
from perdure.store.connections import SETTINGS, connect
from perdure.store.queries import queries
from perdure.store.reads import PostgresReads
from perdure.store.run_lists import READ_SETTINGS

T0_MS = 1_790_000_000_000
NOW_US = T0_MS * 1000
RUNS = 12_000
FILL = f"""
insert into perdure.run (run_id, ns, workflow, version, key, status, created_at, finished_at, epoch, events, error_code, error, attributes)
select (lpad(to_hex({T0_MS} + i * 60000), 12, '0') || '70008' || lpad(to_hex(i), 15, '0'))::uuid, case when i % 50 = 0 then 2 else 1 end, 'w' || i % 7,
       '1', case when i % 1000 = 0 then 'key-' || i end, case when i % 100 = 1 then 'failed' when i % 400 = 2 then 'cancelled' else 'success' end,
       to_timestamp({T0_MS} / 1000 + i * 60), to_timestamp({T0_MS} / 1000 + i * 60 + 5), 1, 3,
       case when i % 100 = 1 then 'run_failed' end, case when i % 100 = 1 then 'Disk ' || i || ' is full' end,
       case when i % 3000 = 7 then '{{"rare": true}}'::jsonb when i % 4 = 0 then '{{"env": "prod"}}'::jsonb end
  from generate_series(1, {RUNS}) i;
insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, attributes)
select (lpad(to_hex({T0_MS} + i * 60000 + 30000), 12, '0') || '70008' || lpad(to_hex(i), 15, '0'))::uuid, 1, 'w' || i % 7, '1', 'pending', now(), 'infinity',
       case when i % 500 = 0 then '{{"rare": true}}'::jsonb end
  from generate_series(1, 3000) i;
analyze;
"""


@pytest.fixture
async def reads(dsn: str) -> AsyncIterator[PostgresReads]:
    c = await asyncpg.connect(dsn)
    await c.execute(FILL)
    await c.close()
    one = PostgresReads(dsn)
    await one.open()
    yield one
    await one.close()


async def walk(reads: PostgresReads, wanted: RunFilter, limit: int = 400) -> tuple[list[RunItem], int]:
    """All pages of a list, and how many there were."""
    items: list[RunItem] = []
    below, pages = None, 0
    while True:
        page = await reads.runs(1, query_of(wanted, NOW_US), below, limit)
        pages += 1
        assert len(page.items) <= limit
        assert page.next is None or below is None or page.next < below
        items += page.items
        if page.next is None:
            return items, pages
        below = page.next


async def expected(dsn: str, where: str) -> int:
    c = await asyncpg.connect(dsn)
    try:
        count = await c.fetchval(
            "select count(*) from (select run_id, ns, workflow, status, key, error, attributes from perdure.run"
            f" union all select run_id, ns, workflow, status, key, null, attributes from perdure.run_queue) t where ns = 1 and {where}"
        )
    finally:
        await c.close()
    return int(count)


@pytest.mark.parametrize(
    ("wanted", "where"),
    [
        (RunFilter(), "true"),
        (RunFilter(workflow="w3"), "workflow = 'w3'"),
        (RunFilter(statuses=frozenset({3})), "status = 'failed'"),
        (RunFilter(statuses=frozenset({3, 4})), "status in ('failed', 'cancelled')"),
        (RunFilter(statuses=frozenset({0, 4})), "status in ('pending', 'cancelled')"),
        (RunFilter(statuses=frozenset({2}), workflow="w1"), "status = 'success' and workflow = 'w1'"),
        (RunFilter(statuses=frozenset({3}), workflow="w1"), "status = 'failed' and workflow = 'w1'"),
        (RunFilter(statuses=frozenset({0, 1}), workflow="w1"), "status in ('pending', 'running') and workflow = 'w1'"),
        (RunFilter(attributes=(b'{"rare":true}',)), "attributes @> '{\"rare\":true}'"),
        (RunFilter(attributes=(b'{"env":"prod"}',)), 'attributes @> \'{"env":"prod"}\''),
        (
            RunFilter(attributes=(b'{"rare":"true"}', b'{"rare":true}'), statuses=frozenset({2})),
            "attributes @> '{\"rare\":true}' and status = 'success'",
        ),
        (RunFilter(text="DISK 1"), "error ilike '%disk 1%'"),
        (RunFilter(text="key-1"), "key ilike '%key-1%'"),
        (RunFilter(text="nowhere to be found"), "false"),
        (RunFilter(workflow="no such"), "false"),
        (RunFilter(query="status = failed and workflow = w1"), "status = 'failed' and workflow = 'w1'"),
        (
            RunFilter(query="attr.rare = true and not status = success"),
            "attributes @> '{\"rare\":true}' and status <> 'success'",
        ),
        (
            RunFilter(query="attr.rare = true or key prefix key-"),
            "(attributes @> '{\"rare\":true}' or key like 'key-%')",
        ),
        (
            RunFilter(query="attr.env = prod", statuses=frozenset({3})),
            "attributes @> '{\"env\":\"prod\"}' and status = 'failed'",
        ),
    ],
    ids=str,
)
async def test_a_walk_over_all_pages_finds_every_match_once_newest_first(
    reads: PostgresReads, dsn: str, wanted: RunFilter, where: str
) -> None:
    items, _ = await walk(reads, wanted)
    found = [i.run_id for i in items]
    assert found == sorted(set(found), reverse=True)
    assert len(found) == await expected(dsn, where)


async def test_time_is_a_range_of_ids(reads: PostgresReads) -> None:
    since, until = (T0_MS + 100 * 60_000) * 1000, (T0_MS + 110 * 60_000) * 1000
    items, _ = await walk(reads, RunFilter(since_us=since, until_us=until, statuses=frozenset({2, 3, 4})))
    minutes = [(ids.unix_ms_of(i.run_id) - T0_MS) // 60_000 for i in items]
    assert minutes == [m for m in range(109, 99, -1) if m % 50]


async def test_a_page_that_finds_nothing_says_where_to_go_on(reads: PostgresReads) -> None:
    page = await reads.runs(1, query_of(RunFilter(text="disk 101 is"), NOW_US), None, 50)
    assert page.items == [] and page.next is not None
    items, pages = await walk(reads, RunFilter(text="disk 101 is"), 50)
    assert [i.error for i in items] == ["Disk 101 is full"]
    assert pages <= RUNS / SCAN_ROWS_MAX + 2


async def test_a_namespace_sees_its_own(reads: PostgresReads) -> None:
    page = await reads.runs(2, And(()), None, 500)
    assert len(page.items) == RUNS // 50
    assert await reads.find(2, *(b * 16 for b in (b"\x00", b"\xff")), 3) == [i.run_id for i in page.items[:3]]
    assert (await reads.runs(3, And(()), None, 500)).items == []


# -- cost --------------------------------------------------------------------------------------------------------------

LISTS = {
    "list_active": "run_queue_list",
    "list_ended": "ns_run_id_idx",
    "list_ended_of_workflow": "ns_workflow_run_id",
    "list_ended_badly": "ns_status_run_id",
}
ARGUMENTS = {
    "ns": "1",
    "low": f"'{'0' * 32}'",
    "high": f"'{'f' * 32}'",
    "scan_limit": "51",
    "limit": "51",
}


async def explained(c: Any, name: str, arguments: dict[str, str]) -> str:
    query = queries()[name]
    await c.execute(f"prepare {name}_plan as {query.sql}")
    given = ", ".join(str(value) for value in query.bind(arguments))
    lines = await c.fetch(f"explain (analyze, costs off, timing off, summary off) execute {name}_plan({given})")
    return "\n".join(line[0] for line in lines)


async def test_a_page_of_runs_walks_an_index_and_no_further_than_the_page(dsn: str, reads: PostgresReads) -> None:
    c = await asyncpg.connect(dsn, server_settings=SETTINGS | READ_SETTINGS)
    try:
        own = await connect(dsn)
        await partitions.create_ahead(own, 2)
        await own.close()
        for name, index in LISTS.items():
            more = {"list_ended_badly": {"status": "'failed'"}, "list_ended_of_workflow": {"workflow": "'w3'"}}
            plan = await explained(c, name, ARGUMENTS | more.get(name, {}))
            assert "Seq Scan" not in plan, plan
            assert re.search(rf"Index (Only )?Scan Backward using \w*{index}", plan), plan
            read = [int(n) for n in re.findall(r"Index (?:Only )?Scan.*?actual rows=(\d+)", plan)]
            assert max(read) <= 60, plan
            assert "Rows Removed by Filter" not in plan, plan
    finally:
        await c.close()


async def test_what_ended_lately_and_what_is_rare_is_found_by_its_index(dsn: str, reads: PostgresReads) -> None:
    c = await asyncpg.connect(dsn, server_settings=SETTINGS | READ_SETTINGS)
    try:
        rare = ARGUMENTS | {"attributes": "array['{\"rare\": true}']"}
        plan = await explained(c, "list_ended_by_attributes", rare)
        assert "Bitmap Index Scan on run_default_attributes_idx" in plan, plan
        since = f"to_timestamp({(T0_MS + RUNS * 60_000) // 1000 - 120})"
        lowest = ARGUMENTS["low"]
        plan = await explained(c, "ended_since", {"ns": "1", "after_at": since, "after_run_id": lowest, "limit": "100"})
        assert "Index Scan using run_default_ns_finished_at" in plan and "Seq Scan" not in plan, plan
        for name, arguments in {
            "find_runs": {"ns": "1", "low": lowest, "high": ARGUMENTS["high"], "limit": "6"},
            "newest_run": {"ns": "1"},
            "created_since": {"ns": "1", "after_run_id": lowest, "limit": "10"},
        }.items():
            plan = await explained(c, name, arguments)
            assert "Seq Scan" not in plan and "Sort Method: external" not in plan, plan
            read = [int(n) for n in re.findall(r"Index (?:Only )?Scan.*?actual rows=(\d+)", plan)]
            assert max(read) <= 10, plan
    finally:
        await c.close()


# -- tasks -------------------------------------------------------------------------------------------------------------


async def test_tasks_of_an_active_run_come_from_rows_and_from_its_history(dsn: str) -> None:
    from perdure.core import events as ev
    from perdure.core.retry import TaskOptions
    from perdure.wire.codec import encode_events

    run_id = ids.run_id(T0_MS, 0, 1)
    events: list[ev.Event] = [
        ev.RunStarted("w", "1", b"{}"),
        ev.TasksScheduled(0, "t", "q", [b"1"] * 6, TaskOptions()),
        ev.TasksSucceeded([0, 1], [b"1", b"2"]),
    ]
    c = await connect(dsn)
    await c.execute(
        "insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, owner) values ($1, 1, 'w', '1', 'running', now(), now(), 5)",
        run_id,
    )
    await c.execute(
        "insert into perdure.history (run_id, seq, last, ns, epoch, at, body, hash) values ($1, 1, 3, 1, 1, now(), $2, '')",
        run_id,
        encode_events(events),
    )
    for seq in (0, 1):
        await c.execute(
            "insert into perdure.task (id, ns, run_id, seq, name, queue, status, attempts, lost, epoch, scheduled_at, started_at, finished_at)"
            " values ($1, 1, $2, $3, 't', 'q', 'success', 1, 0, 1, now(), now(), now())",
            ids.derive(run_id, ids.TASK, seq),
            run_id,
            seq,
        )
    await c.execute(
        "insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, owner, scheduled_at, options, input, details)"
        " values ($1, 1, $2, 2, 't', 'q', 'running', 2, 1, now(), 5, now(), '', '', '{\"done\": 4}')",
        ids.derive(run_id, ids.TASK, 2),
        run_id,
    )
    await c.close()
    reads = PostgresReads(dsn)
    await reads.open()
    try:
        page = await reads.tasks(1, run_id, frozenset(), -1, 4)
        assert page is not None
        assert [(t.seq, t.status, t.attempts) for t in page.items] == [(0, 3, 1), (1, 3, 1), (2, 2, 2), (3, 1, 0)]
        rest = await reads.tasks(1, run_id, frozenset(), page.next or 0, 4)
        assert rest is not None and [t.seq for t in rest.items] == [4, 5] and rest.next is None
        only = await reads.tasks(1, run_id, frozenset({1}), -1, 2)
        assert only is not None and [t.seq for t in only.items] == [3, 4] and only.next == 4
        detail = await reads.detail(1, run_id)
        assert detail is not None and {s: n for s, n in detail.tasks.items() if n} == {3: 2, 2: 1, 1: 3}
        assert await reads.tasks(2, run_id, frozenset(), -1, 4) is None and await reads.detail(2, run_id) is None
        assert await reads.tasks_named(1, run_id, "t", 100) == [0, 1, 2, 3, 4, 5]
        assert [x.seq for x in await reads.history(1, run_id, 1, 1, 10**6)] == [2]
    finally:
        await reads.close()
