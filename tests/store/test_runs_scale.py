"""Pages of runs, histograms and counts of a database with very many runs: each costs what it shows, not what the tables hold.

    PERDURE_SCALE_RUNS=5000000 uv run pytest -s tests/store/test_runs_scale.py

prints the milliseconds of each page, the median of three: of the reads, and of the same at the API of a server that is another process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from statistics import median
from typing import Any
from urllib.parse import urlencode

import pytest

from perdure.core import ids
from perdure.core.run_counts import bins_of, days_until
from perdure.core.run_query import And, Node, Search, parse
from perdure.localpg.cluster import PrivateCluster
from perdure.store import partitions, run_lists
from perdure.store.connections import connect
from perdure.store.reads import PostgresReads
from perdure.store.run_counts import merge_counts
from tests.ui.site import Site, site

RUNS = int(os.environ.get("PERDURE_SCALE_RUNS", "20000"))
MS_MAX = 300.0
DAYS = 20
LIMIT = 50
ACTIVE_SHARE = 100
"""One run in so many is active."""

# Runs of the last days, evenly spread: 40 workflows of different weight, one in fifty failed, one in a hundred cancelled, some with attributes.
SEED = """
insert into perdure.run (run_id, ns, workflow, version, status, key, created_at, finished_at, epoch, events, error_code, error, attributes)
select (lpad(to_hex(a.ms), 12, '0') || '7000' || '8000' || lpad(to_hex(i), 12, '0'))::uuid, 1, 'flow_' || floor(40 * power(random(), 2))::int,
       'v' || i % 7, s.status, case when i % 10 = 0 then 'order-' || i end, a.at, a.at + random() * random() * interval '20 minutes', 1, 10,
       case when s.status = 'failed' then (array['task_failed', 'timeout', 'run_failed'])[1 + i % 3] end,
       case when s.status = 'failed' then 'card ' || i % 1000 || ' declined' end,
       case when i % 3 = 0 then jsonb_build_object('customer', 'c' || i % 5000, 'total', i % 1000, 'rare', case when i % 100003 = 7 then i end) end
  from generate_series($1::int, $2::int) i,
       lateral (select $3::bigint - (i::float8 / $4::int * $5::int * 86400000)::bigint as ms) m,
       lateral (select m.ms, to_timestamp(m.ms / 1000.0) as at) a,
       lateral (select case when i % 50 = 0 then 'failed' when i % 100 = 1 then 'cancelled' else 'success' end as status) s
"""
SEED_ACTIVE = """
insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, waiting_on)
select (lpad(to_hex(a.ms), 12, '0') || '7000' || '9000' || lpad(to_hex(i), 12, '0'))::uuid, 1, 'flow_' || i % 40, 'v1',
       case when i % 4 = 0 then 'pending' else 'running' end, to_timestamp(a.ms / 1000.0), now() + interval '1 day', case when i % 5 = 0 then 'timer' end
  from generate_series(1, $1::int) i, lateral (select $2::bigint - (i::float8 / $1::int * 2 * 86400000)::bigint as ms) a
"""
SEED_COUNTS = """
insert into perdure.run_count (ns, workflow, at, writer, success, failed, cancelled)
select r.ns, coalesce(r.workflow, ''), r.at, 1, count(*) filter (where r.status = 'success'), count(*) filter (where r.status = 'failed'),
       count(*) filter (where r.status = 'cancelled')
  from (select ns, workflow, status, date_bin('15 minutes', created_at, 'epoch') as at from perdure.run) r
 group by grouping sets ((r.ns, r.workflow, r.at), (r.ns, r.at))
"""
SEED_DURATIONS = """
insert into perdure.run_duration (ns, workflow, day, size, writer, n)
select ns, workflow, date_bin('1 day', created_at, 'epoch'), perdure.duration_size(created_at, finished_at), 1, count(*)
  from perdure.run where status = 'success' group by 1, 2, 3, 4
"""
CHUNK = 250_000

QUERIES = [
    "",
    "status = failed",
    "status = cancelled",
    "status = success",
    "status = running",
    "status in (failed, running)",
    "status != success",
    "workflow = flow_3",
    "workflow = flow_39 and status = failed",
    "workflow = flow_5 and status = success",
    "workflow = nothing_of_this_name",
    "error_code = timeout",
    "version = v3 and status = failed",
    "attr.customer = c77",
    "attr.rare = 100010",
    "attr.rare > 0",
    "attr.total > 990 and status = failed",
    "key = 'order-1000'",
    "key prefix order-99",
    "created > -2h",
    "created < -10d and created > -11d and status = failed",
    "created < -15d",
    "finished > -1h and status = success",
    "waiting_on = timer",
    "parent exists",
]
TEXTS = ["card 77 declined", "nothing has this text"]


@pytest.fixture(scope="module")
def filled(cluster: PrivateCluster, migrated_template: str) -> Iterator[str]:
    name = f"scale_{os.getpid()}"
    dsn = cluster.create_database(name, template=migrated_template)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, fill(dsn)).result()
    yield dsn
    cluster.drop_database(name)


async def fill(dsn: str) -> None:
    began = time.monotonic()
    c = await connect(dsn)
    await c.execute("set synchronous_commit = off; set work_mem = '128MB'; set statement_timeout = 0")
    now = datetime.now(UTC)
    now_ms = int(now.timestamp() * 1000)
    for back in range(DAYS + 2):
        day = partitions._day(datetime.fromtimestamp(now_ms / 1000 - back * 86_400, UTC))
        await partitions._create(c, "run", day)
    for first in range(1, RUNS + 1, CHUNK):
        await c.execute(SEED, first, min(first + CHUNK - 1, RUNS), now_ms, RUNS, DAYS)
    await c.execute(SEED_ACTIVE, max(RUNS // ACTIVE_SHARE, 1), now_ms)
    await c.execute(SEED_COUNTS)
    await c.execute(SEED_DURATIONS)
    await c.execute(
        "insert into perdure.workflow (ns, name, current) select 1, 'flow_' || i, 'v1' from generate_series(0, 39) i"
    )
    await c.execute("vacuum analyze")
    while await merge_counts(c):
        pass
    await c.close()
    print(f"\n{RUNS:,} runs in {time.monotonic() - began:.0f} s")


@pytest.fixture
async def reads(filled: str) -> AsyncIterator[PostgresReads]:
    one = PostgresReads(filled)
    await one.open()
    yield one
    await one.close()


async def ms_of(call: Callable[[], Awaitable[Any]]) -> float:
    """The median of three; the first may have to open a connection, and does not count."""
    await call()
    took: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return median(took) * 1000


@pytest.fixture(scope="module")
def api(processes: None, filled: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(filled, tmp_path_factory.mktemp("site"), worker=False) as one:
        yield one


def ms_at(api: Site, path: str, **query: Any) -> float:
    """As `ms_of`, through HTTP: sign-in, permission, the read, the answer's JSON."""
    path = f"{path}?{urlencode({name: value for name, value in query.items() if value})}"
    api.ask("GET", path)
    took: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        api.ask("GET", path)
        took.append(time.perf_counter() - began)
    return median(took) * 1000


def report(times: dict[str, float]) -> None:
    print("\n" + "\n".join(f"{ms:8.1f} ms  {name}" for name, ms in times.items()))
    assert {name: ms for name, ms in times.items() if ms > MS_MAX} == {}


async def test_any_page_of_any_filter_is_fast(reads: PostgresReads) -> None:
    now_us = await reads.clock_us()
    nodes: dict[str, Node] = {query or "(all)": parse(query, now_us) for query in QUERIES}
    nodes |= {f"text {text!r}": And((Search(text),)) for text in TEXTS}
    deep = ids.lowest_at(now_us // 1000 - (DAYS - 2) * 86_400_000).bytes
    times: dict[str, float] = {}
    for name, node in nodes.items():
        for where, below in (("", None), (", from far back", deep)):
            times[f"{name}{where}"] = await ms_of(lambda n=node, b=below: reads.runs(1, n, b, LIMIT))
        times[f"{name}, counted"] = await ms_of(lambda n=node: reads.count_runs(1, n))
    report(times)


@pytest.mark.parametrize("days", [None, 2], ids=["as it is", "short pages"])
@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("workflow = flow_39 and status = failed", "workflow = 'flow_39' and status = 'failed'"),
        ("attr.total = 999 and status = success", """attributes @> '{"total": 999}' and status = 'success'"""),
        ("status = cancelled and created < -3d", "status = 'cancelled' and created_at < now() - interval '3 days'"),
    ],
)
async def test_the_pages_together_are_all_matches(
    filled: str, reads: PostgresReads, query: str, where: str, days: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though each of them looks at windows of days that grow, and may end short."""
    if days is not None:
        monkeypatch.setattr(run_lists, "WINDOW_DAYS", 1)
        monkeypatch.setattr(run_lists, "WINDOW_DAYS_MAX", days)
    node, found, below = parse(query, await reads.clock_us()), list[bytes](), None
    while True:
        page = await reads.runs(1, node, below, 500)
        found += [item.run_id for item in page.items]
        below = page.next
        if below is None or len(found) >= 20_000:
            break
    c = await connect(filled)
    rows = await c.fetch(f"select run_id from perdure.run where {where} order by run_id desc limit 20000")
    await c.close()
    assert abs(len(found) - len(rows)) <= 1, "the border of the range moves with the clock"
    assert found[: len(rows)] == [r["run_id"] for r in rows][: len(found)]
    count = await reads.count_runs(1, node)
    assert count.count <= len(found) and (not count.exact or count.count == len(found))


async def test_numbers_of_runs_are_fast(reads: PostgresReads) -> None:
    now_us = await reads.clock_us()
    day_us = 86_400_000_000
    times: dict[str, float] = {}
    for days in (1, 7, 30, 400):
        bins = bins_of(now_us - days * day_us, now_us, 96, now_us)
        for workflow in ("", "flow_3"):
            times[f"histogram of {days} days {workflow}"] = await ms_of(
                lambda b=bins, w=workflow: reads.histogram(1, w, b)
            )
    days = days_until(now_us, 366)
    times["statistics of a workflow"] = await ms_of(lambda: reads.workflow_stats(1, "flow_0", days))
    times["usual durations"] = await ms_of(lambda: reads.durations(1, now_us - 7 * day_us))
    times["counts"] = await ms_of(lambda: reads.counts(1))
    report(times)
    found = await reads.histogram(1, "", bins_of(now_us - 30 * day_us, now_us, 96, now_us))
    assert found.totals.success + found.totals.failed + found.totals.cancelled == RUNS


def test_any_page_of_any_filter_is_fast_at_the_api(api: Site) -> None:
    times: dict[str, float] = {}
    filters = [(query or "(all)", {"query": query}) for query in QUERIES] + [(f"text {t!r}", {"q": t}) for t in TEXTS]
    for name, query in filters:
        times[name] = ms_at(api, "/runs", limit=LIMIT, waits="true", **query)
        times[f"{name}, counted"] = ms_at(api, "/runs/count", **query)
    report(times)


def test_numbers_of_runs_are_fast_at_the_api(api: Site) -> None:
    times: dict[str, float] = {}
    for days in (1, 7, 30, 400):
        times[f"histogram of {days} days"] = ms_at(api, "/runs/histogram", since=f"{days}d")
    times["statistics of a workflow"] = ms_at(api, "/workflows/flow_0/stats", days=365)
    times["usual durations"] = ms_at(api, "/workflow-durations")
    times["counts"] = ms_at(api, "/counts")
    report(times)
