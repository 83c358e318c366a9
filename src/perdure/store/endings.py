"""The EndingStore port on PostgreSQL, over the store's pool. sql/endings.sql explains the locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncpg import exceptions as pg

from perdure.core.errors import Fenced
from perdure.engine.commits.rows import Batch
from perdure.engine.ports import HistoryRow, InboxRow, Pin
from perdure.engine.services.endings import Decide, Decision, RecordedRun, Refused, Unendable
from perdure.store.clashes import CLASH
from perdure.store.commits import write_batch
from perdure.store.connections import TROUBLE
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch


class PostgresEndings(PostgresPort):
    async def next_deadline(self) -> tuple[int, int | None]:
        row = await self._row("next_deadline")
        return row["clock"], row["at"]

    async def end(
        self, session: int, number: int, served: Sequence[Pin], limit: int, leave_out: Sequence[bytes], decide: Decide
    ) -> tuple[list[bytes], Decision]:
        found: list[Unendable] = []
        async with self._pool.take() as c:
            try:
                async with c.transaction():
                    rows = await fetch(
                        c, "lock_runs_to_end", session=session, workflows=served, limit=limit, left_out=leave_out
                    )
                    if not rows:
                        return [], Decision(Batch(), [], {})
                    found = [_unendable(r) for r in rows]
                    decision = await self._write(c, session, number, found, decide)
            except TROUBLE:
                raise
            except CLASH:
                return [], Decision(Batch(), [], {})  # the next look tries again
            except (pg.PostgresError, ValueError, OverflowError, TypeError) as e:
                raise Refused([one.run_id for one in found], f"{type(e).__name__}: {e}") from e
        return [one.run_id for one in found], decision

    async def _write(self, c: Any, session: int, number: int, found: list[Unendable], decide: Decide) -> Decision:
        recorded = await self._load(c, [one.run_id for one in found])
        decision = decide([(one, recorded[one.run_id]) for one in found])
        if decision.ends:
            await execute(c, "claim_runs_to_end", session=session, run_ids=[run.id for run in decision.ends])
            row = await write_batch(c, session, number, decision.batch)
            if not row["held"]:
                raise Fenced(f"session {session} has expired; the write was refused")
            await execute(c, "commit_batch_rest", session=session, **decision.batch.rest())
        if decision.waits:
            await execute(c, "set_undo_wait", runs=decision.waits.items())
        if decision.resumed:
            await execute(c, "end_pauses", run_ids=decision.resumed)
        return decision

    async def _load(self, c: Any, run_ids: list[bytes]) -> dict[bytes, RecordedRun]:
        found = {run_id: RecordedRun([], [], set()) for run_id in run_ids}
        for part, run_id, n, last, at_us, body, hash in await fetch(c, "load_runs", run_ids=run_ids):
            if part == "history":
                found[run_id].history.append(HistoryRow(run_id, n, last, at_us, body, hash))
            elif part == "message":
                found[run_id].messages.append(InboxRow(n, run_id, body))
            else:
                found[run_id].queued.add(n)
        return found


def _unendable(r: Any) -> Unendable:
    return Unendable(
        run_id=r["run_id"],
        ns=r["ns"],
        workflow=r["workflow"],
        version=r["version"],
        epoch=r["epoch"],
        parent_id=r["parent_id"],
        parent_seq=r["parent_seq"],
        stuck=r["stuck"],
        outside=r["is_queued"],
        deadline_us=r["deadline_at"],
        asked_us=r["cancel_requested_at"],
        clock_us=r["clock"],
        keys=tuple(r["keys"] or ()),
        is_paused=r["is_paused"],
        is_delayed=r["is_delayed"],
        is_expired=r["is_expired"],
        is_terminated=r["is_terminated"],
        is_unserved=r["is_unserved"],
    )
