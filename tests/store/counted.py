"""Counters of ended runs held against the runs themselves."""

from __future__ import annotations

from typing import Any

import asyncpg

_STEP = "(select coalesce(max(merged_s), 0) from perdure.run_count)"
DIFFERENCES = f"""
with step as (select greatest(900, {_STEP}) * interval '1 second' as s),
runs as (
  select r.ns, w.name as workflow, date_bin(s, r.created_at, 'epoch') as at, count(*) filter (where r.status = 'success') as success,
         count(*) filter (where r.status = 'failed') as failed, count(*) filter (where r.status = 'cancelled') as cancelled
    from step, perdure.run r, lateral (values (r.workflow), ('')) as w(name) group by 1, 2, 3
),
counters as (
  select c.ns, c.workflow, date_bin(s, c.at, 'epoch') as at, sum(c.success) as success, sum(c.failed) as failed, sum(c.cancelled) as cancelled
    from step, perdure.run_count c group by 1, 2, 3
),
run_sizes as (
  select ns, workflow, date_bin('1 day', created_at, 'epoch') as at, perdure.duration_size(created_at, finished_at) as size, count(*) as n
    from perdure.run where status = 'success' group by 1, 2, 3, 4
),
counter_sizes as (
  select ns, workflow, day as at, size, sum(n) as n from perdure.run_duration group by 1, 2, 3, 4
)
select 'count' as kind, workflow, at, format('runs %s/%s/%s counters %s/%s/%s', r.success, r.failed, r.cancelled, c.success, c.failed, c.cancelled) as text
  from runs r full join counters c using (ns, workflow, at)
 where (coalesce(r.success, 0), coalesce(r.failed, 0), coalesce(r.cancelled, 0)) <> (coalesce(c.success, 0), coalesce(c.failed, 0), coalesce(c.cancelled, 0))
union all
select 'duration', workflow, at, format('size %s: runs %s counters %s', size, r.n, c.n)
  from run_sizes r full join counter_sizes c using (ns, workflow, at, size) where coalesce(r.n, 0) <> coalesce(c.n, 0)
"""


async def differences(dsn: str) -> list[dict[str, Any]]:
    """Where counters and runs disagree; nothing, unless retention has dropped runs."""
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return [dict(row) for row in await connection.fetch(DIFFERENCES)]
    finally:
        await connection.close()
