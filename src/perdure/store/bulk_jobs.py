"""The BulkJobs port on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.api.bulk_jobs import BulkJob, BulkOutcome, BulkRun, StartBulkJob
from perdure.core.errors import Conflict
from perdure.core.limits import BULK_JOBS_MAX
from perdure.engine.api.ports import ClaimedJob, TakenRun
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort
from perdure.store.run_query_sql import HIGHEST, LOWEST


@retried()
class PostgresBulkJobs(PostgresPort):
    async def start(self, ns: int, id: bytes, request: StartBulkJob, by: str) -> tuple[BulkJob, bool]:
        row = await self._row(
            "start_bulk_job",
            id=id,
            ns=ns,
            key=request.key or None,
            action=request.action,
            query=request.query,
            reason=request.reason,
            is_dry_run=request.is_dry_run,
            created_by=by,
            signal=request.signal or None,
            payload=request.payload or None,
            most=BULK_JOBS_MAX,
        )
        if row is not None:
            return _job(row), True
        row = await self._row("bulk_job_of_key", ns=ns, key=request.key) if request.key else None
        if row is None:
            raise Conflict(
                f"this namespace has BULK_JOBS_MAX={BULK_JOBS_MAX} unfinished bulk jobs; wait for some, or cancel them"
            )
        job = _job(row)
        same = (job.action, job.query, job.reason, job.is_dry_run, job.signal, job.payload)
        asked = (request.action, request.query, request.reason, request.is_dry_run, request.signal, request.payload)
        if same != asked:
            raise Conflict(f"the key {request.key!r} was used for another bulk job; give each job a key of its own")
        return job, False

    async def get(self, ns: int, id: bytes) -> BulkJob | None:
        row = await self._row("get_bulk_job", ns=ns, id=id)
        return None if row is None else _job(row)

    async def page(self, ns: int, below: bytes | None, limit: int) -> list[BulkJob]:
        return [_job(r) for r in await self._fetch("list_bulk_jobs", ns=ns, below=below or HIGHEST, limit=limit)]

    async def runs(
        self, ns: int, id: bytes, outcome: BulkOutcome | None, after: bytes | None, limit: int
    ) -> list[BulkRun]:
        given: dict[str, Any] = {"ns": ns, "id": id, "after": after or LOWEST, "limit": limit}
        rows = await (
            self._fetch("list_bulk_runs", **given)
            if outcome is None
            else self._fetch("list_bulk_runs_by_outcome", outcome=outcome, **given)
        )
        return [BulkRun(r["run_id"], r["outcome"], r["message"]) for r in rows]

    async def cancel(self, ns: int, id: bytes) -> BulkJob | None:
        row = await self._row("cancel_bulk_job", ns=ns, id=id)
        return None if row is None else _job(row)

    async def claim(self, session: int) -> ClaimedJob | None:
        row = await self._row("claim_bulk_job", session=session)
        return None if row is None else ClaimedJob(_job(row), row["ns"], row["below"])

    async def add(
        self, session: int, claimed: ClaimedJob, runs: Sequence[tuple[bytes, str]], below: bytes | None
    ) -> bool:
        given = {"session": session, "id": claimed.job.id, "place": claimed.below, "below": below}
        return await self._row("add_bulk_runs", runs=list(runs), **given) is not None

    async def take(self, session: int, id: bytes, limit: int) -> list[TakenRun]:
        rows = await self._fetch("take_bulk_runs", session=session, id=id, limit=limit)
        return [TakenRun(r["run_id"], r["tries"]) for r in rows]

    async def record(self, session: int, id: bytes, runs: Sequence[BulkRun]) -> bool:
        rows = [(r.run_id, r.outcome, r.message) for r in runs]
        return await self._row("record_bulk_runs", session=session, id=id, runs=rows) is not None

    async def end(self, session: int, id: bytes, error: str | None) -> None:
        await self._row("end_bulk_job", session=session, id=id, error=error)

    async def sent(self, run_ids: Sequence[bytes], key: str) -> set[bytes]:
        return {r["run_id"] for r in await self._fetch("sent_by_bulk_job", run_ids=list(run_ids), key=key)}

    async def trim(self, older_s: float, limit: int) -> None:
        await self._execute("delete_old_bulk_jobs", age_s=older_s, limit=limit)


def _job(r: Any) -> BulkJob:
    return BulkJob(
        id=r["id"],
        action=r["action"],
        query=r["query"],
        reason=r["reason"],
        is_dry_run=r["is_dry_run"],
        status=r["status"],
        error=r["error"],
        created_us=r["created_at"],
        created_by=r["created_by"],
        finished_us=r["finished_at"],
        matched=r["matched"],
        done=r["done"],
        skipped=r["skipped"],
        failed=r["failed"],
        signal=r["signal"] or "",
        payload=r["payload"] or b"",
    )
