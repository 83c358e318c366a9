"""Connected workers on PostgreSQL."""

from __future__ import annotations

from typing import Any, Final

from perdure.core.api.cluster import WorkerDetail, WorkerItem, WorkerTask
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort
from perdure.store.queries import fetch, fetch_row

WORKER_TASKS_MAX: Final = 200
"""Attempts of one worker in one answer."""


@retried()
class PostgresWorkers(PostgresPort):
    async def workers(self, ns: int, after: bytes, limit: int) -> list[WorkerItem]:
        return [_item(r) for r in await self._fetch("list_workers", ns=ns, after=after, limit=limit)]

    async def worker(self, ns: int, id: bytes) -> WorkerDetail | None:
        async with self._pool.take() as c:
            row = await fetch_row(c, "get_worker", ns=ns, id=id)
            if row is None:
                return None
            given = {"session": row["session_id"], "worker": row["name"]}
            tasks = await fetch(c, "tasks_of_worker", ns=ns, limit=WORKER_TASKS_MAX, **given)
        return WorkerDetail(_item(row), [_task(t) for t in tasks])


def _item(r: Any) -> WorkerItem:
    return WorkerItem(
        id=r["id"],
        name=r["name"],
        host=r["host"],
        pid=r["pid"],
        sdk=r["sdk"],
        queues=r["queues"],
        tasks=r["tasks"],
        workflows=r["workflows"],
        slots=r["slots"],
        slots_used=r["slots_used"],
        runs_held=r["runs_held"],
        draining=r["draining"],
        connected_us=r["connected_at"],
        seen_us=r["seen_at"],
        blocked=r["blocked"],
        engine=r["engine"],
        ended=r["ended"],
        failed=r["failed"],
        p50_us=r["p50_us"],
        p95_us=r["p95_us"],
        p99_us=r["p99_us"],
    )


def _task(r: Any) -> WorkerTask:
    return WorkerTask(
        run_id=r["run_id"],
        workflow=r["workflow"],
        seq=r["seq"],
        name=r["name"],
        node=r["node"],
        attempt=r["attempt"],
        started_us=r["started_at"],
    )
