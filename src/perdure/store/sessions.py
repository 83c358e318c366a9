"""Engine sessions on PostgreSQL: register, renew, reap, leave."""

from __future__ import annotations

import logging
from typing import Any, Final

from perdure.core import ids
from perdure.core.limits import (
    SUSPECT_TAKEOVERS,
    TAKEOVERS_MAX,
)
from perdure.engine.ports import (
    LostTask,
    OpenedSession,
    Renewed,
    Settle,
)
from perdure.store import migrate
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch, fetch_row

log = logging.getLogger("perdure.store")

HALTED_S: Final = 10.0
"""How long a transaction may wait for the rest of a statement before another engine ends it; as idle_in_transaction_session_timeout."""

QUARANTINED: Final = (
    f"quarantined: TAKEOVERS_MAX={TAKEOVERS_MAX} times in a row an engine died or lost its lease while it worked on this run, without a new "
    "event in between. The run is not claimed again. Read the engines' logs (memory, a blocked event loop), repair the cause, then "
    "`perdure resume` the run"
)


@retried()
class PostgresSessions(PostgresPort):
    async def register(self, engine: str, lease_s: float, slots: int) -> OpenedSession:
        row = await self._row("register_session", engine=engine, lease_s=lease_s, slots=slots, knows=migrate.known())
        if row is None:
            raise migrate.too_old()
        return OpenedSession(row["id"], row["clock"])

    async def renew(self, session: int, lease_s: float, slots: int, slots_free: int) -> Renewed | None:
        async with self._pool.take() as c:
            row = await fetch_row(
                c, "renew_session", session=session, lease_s=lease_s, slots=slots, slots_free=slots_free
            )
            await self._pool.codec.refresh(c)
        return Renewed(row["clock"], row["others"], row["others_free"], row["expired"]) if row is not None else None

    async def reap(self, settle: Settle) -> int:
        """Remove expired sessions and free what they held, in one transaction."""
        reaped = await self._reap(settle)
        if not reaped:  # a transaction of the session holds it, or another engine reaps it
            for _ in await self._fetch("end_halted_transactions", halted_s=HALTED_S):
                log.warning("a transaction of an engine that was halted for HALTED_S=%g s was ended", HALTED_S)
        return reaped

    async def _reap(self, settle: Settle) -> int:
        async with self._pool.take() as c, c.transaction():
            gone = [r["id"] for r in await fetch(c, "delete_expired_sessions")]
            if gone:
                for r in await fetch(
                    c,
                    "free_runs_of_dead_sessions",
                    sessions=gone,
                    suspect_takeovers=SUSPECT_TAKEOVERS,
                    takeovers_max=TAKEOVERS_MAX,
                    quarantine_reason=QUARANTINED,
                ):
                    if r["stuck"] is not None:
                        log.error("run %s is stuck: %s", ids.text(r["run_id"]), r["stuck"])
                await self._free(c, gone, settle)
            return len(gone)

    async def leave(self, session: int, settle: Settle) -> None:
        """The same for this engine's own session, when it closes."""
        async with self._pool.take() as c, c.transaction():
            gone = [r["id"] for r in await fetch(c, "delete_session", session=session)]
            if gone:
                await fetch(c, "free_runs", sessions=gone)
                await self._free(c, gone, settle)

    async def _free(self, c: Any, sessions: list[int], settle: Settle) -> None:
        # Statements after the DELETE have snapshots of their own: they see what commits in flight wrote while we waited for them.
        rows = await fetch(c, "select_owned_tasks", sessions=sessions)
        again, failed = settle(
            [
                LostTask(
                    r["id"],
                    r["run_id"],
                    r["seq"],
                    r["attempt"],
                    r["lost"],
                    r["options"],
                    r["scheduled_at"],
                    r["started_at"],
                    r["clock"],
                    r["worker"] or "",
                )
                for r in rows
            ]
        )
        if again:
            await execute(c, "requeue_tasks", tasks=again)
        if failed:
            await execute(c, "fail_queued_tasks", tasks=failed)
        await execute(c, "delete_commit_log", sessions=sessions)
