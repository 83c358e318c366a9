"""The UpdatePort on PostgreSQL, and reads of the states of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.limits import MESSAGES_PENDING_MAX
from perdure.core.message_limits import limit_error
from perdure.engine.services.updates import Place, SettledUpdate, UpdateSent, answer_of
from perdure.store.clashes import retried
from perdure.store.port import PostgresPort


@retried()
class PostgresUpdates(PostgresPort):
    async def ask(self, place: Place, name: str, body: bytes) -> UpdateSent:
        ns, run_id, id = place
        row = await self._row(
            "ask_update", run_id=run_id, ns=ns, id=id, name=name, body=body, pending_max=MESSAGES_PENDING_MAX
        )
        if (refusal := limit_error(row["outcome"], run_id, name)) is not None:
            raise refusal
        return _asked(row)

    async def find(self, place: Place) -> UpdateSent:
        ns, run_id, id = place
        return _asked(await self._row("find_update", run_id=run_id, ns=ns, id=id))

    async def settled(self, places: Sequence[Place]) -> list[SettledUpdate]:
        rows = await self._fetch("settled_updates", updates=places)
        return [SettledUpdate(places[r["n"] - 1], _answer(r), r["successor"]) for r in rows]

    async def states(self, ns: int, run_id: bytes, after: str, limit: int) -> list[tuple[str, bytes]]:
        """States of a run in the order of their names. Nothing about the run is touched."""
        rows = await self._fetch("list_state", run_id=run_id, ns=ns, after=after, limit=limit)
        return [(r["name"], r["value"]) for r in rows]

    async def query_states(self, ns: int, run_id: bytes, states_max: int, bytes_max: int) -> dict[str, bytes] | None:
        """All states of a run, from one snapshot; None: there are more of them, or more bytes."""
        rows = await self._fetch("query_states", run_id=run_id, ns=ns, limit=states_max + 1, bytes_max=bytes_max)
        if len(rows) > states_max or any(r["value"] is None for r in rows):
            return None
        return {r["name"]: r["value"] for r in rows}


def _asked(row: Any) -> UpdateSent:
    return UpdateSent(row["active"], row["known"], _answer(row))


def _answer(row: Any) -> Any:
    return None if row["value"] is None and row["failure"] is None else answer_of(row["value"], row["failure"])
