"""Hot statements must be planned alike on empty and on full tables: from the given ids to rows by index, never by walking a table."""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest

from perdure.store.connections import SETTINGS
from perdure.store.queries import queries

HOT = [
    "commit_batch",
    "commit_batch_rest",
    "claim_runs",
    "claim_runs_with_messages",
    "claim_tasks",
    "next_due",
    "inbox_of_session",
    "load_runs",
    "requeue_tasks",
    "fail_queued_tasks",
    "read_commit",
    "send_message",
    "resolve_promise",
    "ended_runs",
    "last_rows",
    "due_schedules",
    "calendars_by_name",
    "active_of_schedules",
    "add_fires",
    "start_scheduled",
    "cancel_runs",
    "advance_schedules",
    "next_deadline",
    "lock_runs_to_end",
    "claim_runs_to_end",
    "set_undo_wait",
]
BY_TYPE = {
    "int8": "1",
    "int4": "100",
    "text": "'x'",
    "uuid": "'00000000-0000-0000-0000-000000000000'",
    "bytea": "''",
    "bool": "true",
}
WALKED_ON_PURPOSE = {"inbox_of_session": "inbox", "claim_runs_with_messages": "inbox", "next_due": "inbox"}
"""The inbox is empty or nearly so; looking at all of it is the design."""
HOLDS_ONLY_WHAT_IS_WANTED = {"run_queue_cancelled", "inbox_stop"}
"""Partial indexes whose every entry is looked for."""


async def plan(c: Any, name: str) -> list[str]:
    text = queries()[name].sql
    types = [p.name for p in (await c.prepare(text)).get_parameters()]
    arguments = ", ".join(BY_TYPE.get(t, "'{}'") for t in types)
    await c.execute(f"prepare {name}_plan as {text}")
    return [r[0] for r in await c.fetch(f"explain (costs off) execute {name}_plan{f'({arguments})' if types else ''}")]


FILL = """
insert into perdure.run_queue (run_id, ns, workflow, version, status, created_at, wake_at, owner, epoch)
select gen_random_uuid(), 1, 'w' || i % 5, '1', case when i % 2 = 0 then 'running' else 'pending' end, now(), now() + interval '1 day',
       case when i % 2 = 0 then i % 3 end, 1 from generate_series(1, 5000) i;
insert into perdure.task_queue (id, ns, run_id, seq, name, queue, status, attempt, lost, run_at, owner, scheduled_at, options, input)
select gen_random_uuid(), 1, gen_random_uuid(), i, 'n', 'q', case when i % 2 = 0 then 'dispatched' else 'pending' end, 1, 0, now(),
       case when i % 2 = 0 then i % 3 end, now(), '', '' from generate_series(1, 5000) i;
insert into perdure.inbox (ns, run_id, body, kind) select 1, gen_random_uuid(), '', 'signal' from generate_series(1, 2000);
analyze;
"""


@pytest.mark.parametrize("full", [False, True], ids=["empty", "full"])
async def test_hot_statements_reach_rows_by_index_whatever_the_tables_hold(dsn: str, full: bool) -> None:
    c = await asyncpg.connect(dsn, server_settings=dict(SETTINGS))
    try:
        if full:
            await c.execute(FILL)
        for name in HOT:
            lines = await plan(c, name)
            for i, line in enumerate(lines):
                assert "Seq Scan" not in line, (name, line)
                found = re.search(r"Index (?:Only )?Scan using (\w+) on (\w+)", line)
                if found is None or WALKED_ON_PURPOSE.get(name) == found[2]:
                    continue
                if found[1] in HOLDS_ONLY_WHAT_IS_WANTED:
                    continue
                below = lines[i + 1] if i + 1 < len(lines) else ""
                assert "Index Cond" in below, f"{name} walks over {found[2]}: {line.strip()}"
                assert not found[1].endswith("_owned"), f"{name} goes through all rows of an owner: {line.strip()}"
    finally:
        await c.close()
