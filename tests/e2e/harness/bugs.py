"""Planted bugs. Each removes one law of the engine inside a harness process; the verifier must notice."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import Fenced
from perdure.engine.commits.committer import Committer
from perdure.engine.commits.rows import Batch
from perdure.engine.commits.store import Committed, NotCommitted
from perdure.engine.runs.run import RunUnit
from perdure.store.postgres import PostgresStore
from perdure.store.queries import queries
from tests.fakes.waiting import busy


def plant(name: str) -> None:
    {"": lambda: None, "no_fence": _no_fence, "applied_before_commit": _applied_before_commit}[name]()


def _no_fence() -> None:
    """Commits succeed whether the session exists or not, and a silent engine never learns that it was taken for dead."""
    renew = PostgresStore.renew
    fence = "from perdure.engine_session where id = $1 for key share"
    constant = "from (values ($1::bigint)) as gone(id)"
    for name in ("commit_batch", "commit_batch_rest"):
        query = queries()[name]
        assert fence in query.sql
        query.sql = query.sql.replace(fence, constant)

    async def late(self: PostgresStore, *args: Any) -> Any:
        # The commit in hand goes first, so that it is the fence that is tested and not the heartbeat.
        await busy(1.0)
        return await renew(self, *args)

    PostgresStore.renew = late  # type: ignore[method-assign]


def _applied_before_commit() -> None:
    """Results are believed before they are durable, and a commit that fails is forgotten."""

    async def write(self: Any, units: Any) -> None:
        batch = Batch()
        for unit in units:
            unit.fill(batch)
        session, number = self._session.id, self._session.next_commit()
        if any(not isinstance(u, RunUnit) or any(x.starts for x in u.extras) for u in units):
            result = await self._store.commit(session, number, batch)
            self._counters.commits += 1
            self._sink.committed(units, result, session)
            return
        self._sink.committed(units, Committed(self._now_us(), frozenset()), session)
        try:
            # Slow enough for a kill to fall between belief and fact.
            await busy(0.05)
            await self._store.commit(session, number, batch)
            self._counters.commits += 1
        except (Fenced, NotCommitted):
            pass

    Committer._write = write  # type: ignore[method-assign]
