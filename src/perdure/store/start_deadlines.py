"""The Expiries port on PostgreSQL, over the store's pool."""

from __future__ import annotations

from perdure.engine.services.start_deadlines import ExpiredTask, Failed, Fails, Upcoming
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.queries import queries


@retried()
class PostgresExpiries:
    def __init__(self, pool: Connections) -> None:
        self._pool = pool
        self._q = queries()

    async def upcoming(self) -> Upcoming:
        async with self._pool.take() as c:
            row = await c.fetchrow(self._q["next_expiry"])
        return Upcoming(row["clock"], row["at"])

    async def expire(self, session: int, limit: int, fails: Fails) -> list[Failed]:
        """One transaction: the rows go and the failures are with their runs, or nothing happened."""
        async with self._pool.take() as c, c.transaction():
            rows = await c.fetch(self._q["expired_tasks"], session, limit)
            if not rows:
                return []
            failed = fails([ExpiredTask(*row.values()) for row in rows])
            await c.execute(self._q["drop_tasks_into_inbox"], [f.id for f in failed], [f.body for f in failed])
            return failed
