"""The SqlRequestStore port on PostgreSQL."""

from __future__ import annotations

from perdure.engine.api.sql_request_port import RequestedStart, SqlRequest, StartLook
from perdure.engine.services.new_runs import NewRun
from perdure.store.clashes import retried
from perdure.store.deferred_starts import LEASE_S, insert_run
from perdure.store.port import PostgresPort
from perdure.store.queries import fetch_row


@retried()
class PostgresSqlRequests(PostgresPort):
    async def take(self, limit: int) -> list[SqlRequest]:
        rows = await self._fetch("claim_sql_requests", limit=limit, lease_s=LEASE_S)
        return [SqlRequest(*r.values()) for r in rows]

    async def find_start(self, ns: int, run_id: bytes | None, key: str | None) -> StartLook:
        row = await self._row("find_sql_start", ns=ns, run_id=run_id, key=key)
        has_run, *start = row.values()
        return StartLook(has_run, RequestedStart(*start) if start[0] is not None else None)

    async def claim_start(self, id: int) -> SqlRequest | None:
        row = await self._row("claim_sql_start", id=id, lease_s=LEASE_S)
        return None if row is None else SqlRequest(*row.values())

    async def begin(self, id: int, run: NewRun) -> bool:
        """One transaction: the request goes, the key and the run come. False: the key has a run, or another engine has carried it out."""
        async with self._pool.take() as c, c.transaction():
            if await fetch_row(c, "delete_sql_request", id=id) is None:
                return False
            if run.key:
                taken = await fetch_row(
                    c, "take_run_key", ns=run.ns, key=run.key, run_id=run.run_id, input_hash=run.key_hash
                )
                if taken is None:
                    return False
            await insert_run(c, run)
            return True

    async def done(self, id: int) -> None:
        await self._execute("delete_sql_request", id=id)

    async def delay(self, id: int, delay_s: float) -> None:
        await self._execute("delay_sql_request", id=id, delay_s=delay_s)

    async def fail(self, id: int, error: str) -> None:
        await self._execute("fail_sql_request", id=id, error=error)

    async def has_start(self, ns: int, run_id: bytes | None, key: str | None) -> bool:
        return await self._row("pending_sql_start", ns=ns, run_id=run_id, key=key) is not None

    async def trim(self, age_s: float, limit: int) -> None:
        """Requests that failed long ago, and effects of tasks whose run is gone."""
        await self._execute("delete_failed_sql_requests", age_s=age_s, limit=limit)
        await self._execute("delete_orphaned_effects", limit=limit)
