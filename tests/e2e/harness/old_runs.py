"""Millions of ended runs with valid histories: copies of real ones under ids and times of their own, with hash chains and derived ids."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from perdure.core import ids
from perdure.core.chain import BEGINNING, link
from perdure.store import partitions
from perdure.store.connections import connect

COPIED = 5_000
"""Runs that one COPY of each table writes."""
RUN = ["run_id", "ns", "workflow", "version", "kind", "status", "created_at", "finished_at", "epoch", "events", "head"]
HISTORY = ["run_id", "seq", "last", "ns", "epoch", "at", "body", "hash"]
TASK = [
    "id",
    "ns",
    "run_id",
    "seq",
    "name",
    "queue",
    "status",
    "attempts",
    "lost",
    "epoch",
    "scheduled_at",
    "started_at",
    "finished_at",
    "worker",
    "cpu_us",
    "copied",
]
MINUTE_MS = 60_000
DAY_MS = 86_400_000


class Template:
    """A real run: its rows, with times from the time in its id."""

    def __init__(self, run: Any, history: list[Any], tasks: list[Any]) -> None:
        base = ids.unix_ms_of(run["run_id"]) * 1000
        self.run = dict(run)
        self.history = [dict(h) for h in history]
        self.tasks = [dict(t) for t in tasks]
        for row in (self.run, *self.history, *self.tasks):
            for name in row:
                if name == "at" or name.endswith("_at"):
                    row[name] -= base

    def copy(self, run_id: bytes, into: dict[str, list[Any]]) -> None:
        base = ids.unix_ms_of(run_id) * 1000
        before, before_us, ns = BEGINNING, 0, self.run["ns"]
        for h in self.history:
            at = base + h["at"]
            hashed = link(before, before_us, run_id, ns, h["seq"], h["last"], h["epoch"], h["body"])
            into["history"].append((run_id, h["seq"], h["last"], ns, h["epoch"], at, h["body"], hashed))
            before, before_us = hashed, at
        r = self.run
        into["run"].append(
            (
                run_id,
                ns,
                r["workflow"],
                r["version"],
                r["kind"],
                r["status"],
                base + r["created_at"],
                base + r["finished_at"],
            )
            + (r["epoch"], r["events"], before)
        )
        for t in self.tasks:
            shifted = {name: base + t[name] for name in ("scheduled_at", "started_at", "finished_at")}
            row = {**t, **shifted, "run_id": run_id, "id": ids.derive(run_id, ids.TASK, t["seq"])}
            into["task"].append(tuple(row[name] for name in TASK))


async def templates(c: Any, workflow: str) -> list[Template]:
    out = []
    for run in await c.fetch("select * from perdure.run where workflow = $1 and status = 'success'", workflow):
        history = await c.fetch("select * from perdure.history where run_id = $1 order by seq", run["run_id"])
        low, high = ids.task_range(run["run_id"])
        tasks = await c.fetch(
            "select * from perdure.task where id between $1 and $2 and run_id = $3 order by seq",
            low,
            high,
            run["run_id"],
        )
        out.append(Template(run, history, tasks))
    return out


async def fill(dsn: str, workflow: str, runs: int, first_day: int, days: int) -> None:
    """So many runs on `days` days, the oldest `first_day` days ago, spread evenly over each day."""
    from tests.e2e.harness.aged import day_ago

    c = await connect(dsn)
    try:
        await c.execute("set synchronous_commit = off")
        known = await templates(c, workflow)
        assert known
        of_day = -(-runs // days)
        for n in range(days):
            day = day_ago(first_day - n)
            for table in partitions.TABLES:
                await partitions._create(c, table, day)
            await _fill_day(c, known, int(day.timestamp()) * 1000, min(of_day, runs - n * of_day))
        await c.execute("analyze perdure.run, perdure.history, perdure.task")
    finally:
        await c.close()


async def _fill_day(c: Any, known: list[Template], begin_ms: int, runs: int) -> None:
    step = (DAY_MS - 10 * MINUTE_MS) / max(runs, 1)
    for first in range(0, runs, COPIED):
        rows: dict[str, list[Any]] = defaultdict(list)
        for i in range(first, min(first + COPIED, runs)):
            run_id = ids.run_id(begin_ms + int(i * step), 0, (i * 0x9E3779B97F4A7C15) & ((1 << 62) - 1))
            known[i % len(known)].copy(run_id, rows)
        for table, columns in (("run", RUN), ("history", HISTORY), ("task", TASK)):
            await c.copy_records_to_table(table, schema_name="perdure", records=rows[table], columns=columns)
