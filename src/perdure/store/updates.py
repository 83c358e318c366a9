"""The UpdatePort on PostgreSQL, and the states of a run for those who only look."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.engine.services.updates import Asked, Found, Place, answer_of
from perdure.store.clashes import retried
from perdure.store.connections import Connections
from perdure.store.queries import queries


@retried()
class PostgresUpdates:
    def __init__(self, pool: Connections) -> None:
        """A pool that somebody else opens and closes."""
        self._q, self._pool = queries(), pool

    async def ask(self, place: Place, body: bytes) -> Asked:
        ns, run_id, id = place
        async with self._pool.take() as c:
            return _asked(await c.fetchrow(self._q["ask_update"], run_id, ns, id, body))

    async def find(self, place: Place) -> Asked:
        ns, run_id, id = place
        async with self._pool.take() as c:
            return _asked(await c.fetchrow(self._q["find_update"], run_id, ns, id))

    async def settled(self, places: Sequence[Place]) -> list[Found]:
        async with self._pool.take() as c:
            rows = await c.fetch(
                self._q["settled_updates"], [p[0] for p in places], [p[1] for p in places], [p[2] for p in places]
            )
        return [Found(places[r["n"] - 1], _answer(r), r["successor"]) for r in rows]

    async def states(self, ns: int, run_id: bytes, after: str, limit: int) -> list[tuple[str, bytes]]:
        """States of a run in the order of their names. Nothing about the run is touched."""
        async with self._pool.take() as c:
            rows = await c.fetch(self._q["list_state"], run_id, ns, after, limit)
        return [(r["name"], r["value"]) for r in rows]


def _asked(row: Any) -> Asked:
    return Asked(row["active"], row["known"], _answer(row))


def _answer(row: Any) -> Any:
    return None if row["value"] is None and row["failure"] is None else answer_of(row["value"], row["failure"])
