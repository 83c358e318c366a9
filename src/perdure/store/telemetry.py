"""Telemetry on PostgreSQL, over the store's pool: the port of engine/services/telemetry.py, and the queries of /metrics and /readyz."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.engine.services.task_logs import LogRow
from perdure.engine.services.telemetry import BacklogRow, TaskNote, WorkerRow
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch

KINDS_MAX: Final = 2_000
"""Kinds of task (queue and name) that one reading of queue depths looks at."""
NAMESPACES_MAX: Final = 1_000
DEPTH_MAX: Final = 50_000
"""Waiting tasks that are counted in all, the same share of every kind; a longer queue shows as that long."""

WAITS_COUNTED: Final = 10_000
"""Largest count of runs, or of tasks of one group, with one wait reason."""


@retried()
class PostgresTelemetry(PostgresPort):
    async def write_logs(self, rows: list[LogRow]) -> None:
        chunks = [(r.run_id, r.seq, r.attempt, r.n, r.ns, r.lines, r.body) for r in rows]
        await self._execute("insert_logs", chunks=chunks)

    async def write_task_notes(self, session: int, notes: list[TaskNote]) -> set[bytes]:
        rows = [
            (n.id, n.attempt, _text(n.worker), n.started_us, n.beat_us, n.details or None, _text(n.blocked))
            for n in notes
        ]
        return {r["id"] for r in await self._fetch("update_attempts", session=session, attempts=rows)}

    async def write_workers(self, session: int, rows: list[WorkerRow]) -> None:
        values = [
            (
                w.id,
                w.ns,
                _text(w.name) or "",
                _text(w.host) or "",
                w.pid,
                _text(w.sdk) or "",
                _json(w.queues),
                _json(w.tasks),
                msgspec.json.encode({_text(k) or "": _text(v) or "" for k, v in w.versions.items()}).decode(),
                w.slots,
                w.slots_used,
                w.runs_held,
                w.draining,
                w.connected_us,
                w.seen_us,
                _text(w.blocked),
                _text(w.build_id) or "",
                w.load.ended,
                w.load.failed,
                w.load.p50_us,
                w.load.p95_us,
                w.load.p99_us,
            )
            for w in rows
        ]
        async with self._pool.take() as c, c.transaction():
            if rows:
                await execute(c, "upsert_workers", session=session, workers=values)
            await execute(c, "delete_workers", session=session, workers=[(w.ns, w.id) for w in rows])

    async def write_backlog(self, session: int, rows: list[BacklogRow]) -> None:
        values = [(r.ns, r.queue, r.name, r.waiting, r.running, r.oldest_us) for r in rows]
        async with self._pool.take() as c, c.transaction():
            await execute(c, "delete_backlog", session=session)
            if rows:
                await execute(c, "insert_backlog", session=session, kinds=values)

    async def ping(self) -> None:
        await self._execute("ping")

    async def live_sessions(self) -> int:
        live: int = await self._value("live_sessions")
        return live

    async def namespaces(self) -> dict[int, str]:
        return {r["id"]: r["name"] for r in await self._fetch("namespace_names", limit=NAMESPACES_MAX)}

    async def queue_depths(self) -> list[tuple[str, str, int, float]]:
        """(namespace, queue, tasks that are due, age of the oldest in seconds), with those in the memory of engines."""
        found: dict[tuple[str, str], tuple[int, float]] = {}
        async with self._pool.take() as c:
            rows = await fetch(c, "queue_depths", kinds_max=KINDS_MAX, rows_max=DEPTH_MAX)
            rows += await fetch(c, "backlog_depths", limit=KINDS_MAX)
        for r in rows:
            due, oldest_s = found.get((r["namespace"], r["queue"]), (0, 0.0))
            found[r["namespace"], r["queue"]] = due + r["due"], max(oldest_s, r["oldest_s"] or 0.0)
        return [(*key, *depth) for key, depth in sorted(found.items())]

    async def waits(self) -> list[tuple[int, str, str, int]]:
        """(namespace, runs or tasks, what they wait for, how many), each counted up to WAITS_COUNTED."""
        async with self._pool.take() as c:
            runs = await fetch(c, "count_waiting_runs", limit=WAITS_COUNTED)
            tasks = await fetch(c, "count_waiting_tasks", limit=WAITS_COUNTED)
        return [
            *((r["ns"], "run", r["waiting_on"], r["runs"]) for r in runs),
            *((r["ns"], "task", r["waiting_on"], r["tasks"]) for r in tasks),
        ]


def _text(value: str) -> str | None:
    """PostgreSQL's text takes no NUL and no half characters."""
    return value.replace("\x00", "").encode("utf-8", "replace").decode() or None


def _json(values: list[str]) -> str:
    return msgspec.json.encode([_text(v) or "" for v in values]).decode()
