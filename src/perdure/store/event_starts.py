"""The EventStartStore port on PostgreSQL: runs that named events start."""

from __future__ import annotations

from typing import Any, Final

from perdure.core import ids
from perdure.core.errors import Conflict
from perdure.core.event_starts import PlannedStart
from perdure.engine.services.event_starts import OpenStart
from perdure.engine.services.new_runs import NewRun
from perdure.store.clashes import retried
from perdure.store.deferred_starts import LEASE_S, TRIES, has_finished, insert_run, kept_changing, take_dedup
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch_row

STARTED: Final = "started"
ATTACHED: Final = "attached"
FAILED: Final = "failed"
"""Words of `event_start.outcome`."""


@retried()
class PostgresEventStarts(PostgresPort):
    async def take_starts(self, limit: int) -> list[OpenStart]:
        rows = await self._fetch("claim_event_starts", limit=limit, lease_s=LEASE_S)
        return [OpenStart(*r.values()) for r in rows]

    async def begin(self, start: OpenStart, run: NewRun, plan: PlannedStart) -> bytes | None:
        """One transaction: the row that is to be decided, the key, the run and the outcome."""
        for _ in range(TRIES):
            async with self._pool.take() as c, c.transaction():
                where = {"event_id": start.event_id, "workflow": start.workflow}
                if await fetch_row(c, "lock_event_start", **where) is None:
                    return None
                holder = await _holder(c, run, plan)
                if holder is None:
                    continue
                is_new = holder == run.run_id
                if is_new:
                    await insert_run(c, run)
                outcome = STARTED if is_new else ATTACHED
                await execute(c, "settle_event_start", **where, outcome=outcome, run_id=holder, error=None)
                return holder
        raise kept_changing(plan.key or (plan.dedup.key if plan.dedup is not None else ""))

    async def drop(self, start: OpenStart) -> None:
        await self._execute("delete_event_start", event_id=start.event_id, workflow=start.workflow)

    async def fail(self, start: OpenStart, error: str) -> None:
        await self._execute(
            "settle_event_start",
            event_id=start.event_id,
            workflow=start.workflow,
            outcome=FAILED,
            run_id=None,
            error=error,
        )


async def _holder(c: Any, run: NewRun, plan: PlannedStart) -> bytes | None:
    """The run that the event belongs to. None: a key changed hands; ask again in another transaction."""
    if plan.dedup is not None:
        return await take_dedup(c, run, plan.dedup)
    return await _take_key(c, run) if run.key else run.run_id


async def _take_key(c: Any, run: NewRun) -> bytes | None:
    """An active run under the key keeps it; one that has ended passes it on."""
    where = {"ns": run.ns, "key": run.key}
    row = await fetch_row(c, "key_holder", **where)
    if row is not None:
        holder: bytes = row["run_id"]
        if not await has_finished(c, holder):
            if row["workflow"] != run.workflow:
                raise Conflict(
                    f"the key {run.key!r} belongs to run {ids.text(holder)} of the workflow {row['workflow']!r}; choose another key"
                )
            return holder
        await execute(c, "release_run_key", **where, run_id=holder)
    taken = await fetch_row(c, "take_run_key", **where, run_id=run.run_id, input_hash=run.key_hash)
    return run.run_id if taken is not None else None
