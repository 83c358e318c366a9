"""The start-deadline port on PostgreSQL, over the store's pool."""

from __future__ import annotations

from perdure.engine.services.start_deadlines import ExpiredTask, Failed, Fails, Upcoming
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch


@retried()
class PostgresStartDeadlines(PostgresPort):
    async def upcoming(self) -> Upcoming:
        row = await self._row("next_start_deadline")
        return Upcoming(row["clock"], row["at"])

    async def expire(self, session: int, limit: int, fails: Fails) -> list[Failed]:
        """One transaction deletes the rows and sends the failures to their runs."""
        async with self._pool.take() as c, c.transaction():
            rows = await fetch(c, "lock_tasks_past_start_deadline", session=session, limit=limit)
            if not rows:
                return []
            failed = fails([ExpiredTask(*row.values()) for row in rows])
            await execute(c, "fail_queued_tasks", tasks=[(f.id, f.body) for f in failed])
            return failed
