"""Commits of an engine on PostgreSQL, over a connection of their own."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Final
from uuid import UUID

from asyncpg import exceptions as pg

from perdure.core.errors import Fenced, PayloadMissing, Unavailable
from perdure.engine.commits.node_counts import node_counts
from perdure.engine.commits.rows import Batch
from perdure.engine.commits.store import Committed, EndsRefused, NotCommitted, Poison
from perdure.store.clashes import CLASH, retried
from perdure.store.connections import TROUBLE
from perdure.store.dedicated import DedicatedConnection
from perdure.store.payloads import check_stored
from perdure.store.port import PostgresPort
from perdure.store.queries import execute, fetch_row
from perdure.store.sealing.kinds import HISTORY, binding

DOUBT_PAUSE_S: Final = 0.2
UNREAD: Final = "PD001"
"""SQLSTATE of perdure.refuse_ends."""


def _run_ids(detail: str) -> frozenset[bytes]:
    return frozenset(UUID(one).bytes for one in detail.split(","))


@retried("commit")
class PostgresCommits(PostgresPort):
    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self._committing = DedicatedConnection(dsn, self._pool)

    def seal_history(self, run_id: bytes, body: bytes) -> bytes:
        return self._pool.codec.seal(HISTORY, binding([run_id]), body) if self._pool.codec.writes else body

    async def commit(self, session: int, number: int, batch: Batch) -> Committed:
        """Write a batch, all or nothing. Raises Fenced, Poison, or NotCommitted (write it again)."""
        try:
            connection = await self._committing.get()
        except Unavailable as e:
            await asyncio.sleep(DOUBT_PAUSE_S * random.uniform(0.5, 1.5))
            raise NotCommitted(str(e)) from e
        try:
            with self._pool.stalls.watched():
                row = await self._write(connection, session, number, batch)
                await self._committing.await_standby()
        except TROUBLE as e:
            self._committing.drop()
            return await self._settle_doubt(session, number, batch, e)
        except asyncio.CancelledError:
            self._committing.drop()
            raise
        except CLASH as e:
            raise NotCommitted(str(e)) from e
        except PayloadMissing as e:
            raise Poison(f"{e.code}: {e}") from e
        except pg.PostgresError as e:
            if getattr(e, "sqlstate", None) == UNREAD:
                raise EndsRefused(_run_ids(str(getattr(e, "detail", ""))), examined=False) from e
            raise Poison(f"{type(e).__name__}: {e}") from e
        except (ValueError, OverflowError, TypeError) as e:
            raise Poison(f"{type(e).__name__}: {e}") from e
        if not row["held"]:
            raise Fenced(f"session {session} has expired; the write was refused")
        return Committed(row["at"], frozenset(row["started"]))

    async def _write(self, c: Any, session: int, number: int, batch: Batch) -> Any:
        if batch.is_plain:
            return await write_batch(c, session, number, batch)
        async with c.transaction():
            if batch.attributes:
                await execute(c, "commit_attributes", session=session, attributes=batch.attributes)
            row = await write_batch(c, session, number, batch)
            if row["held"] and batch.has_rest:
                rest = await fetch_row(c, "commit_batch_rest", session=session, **batch.rest())
                if rest["kept"] < len(batch.uses):
                    # Deleted meanwhile, or deleted and stored again: a statement of its own sees which.
                    await check_stored(c, [(use.ns, use.store, use.sha256) for use in batch.uses])
                if rest["unread"]:
                    raise EndsRefused(frozenset(rest["unread"]), examined=True)
            return row

    async def _settle_doubt(self, session: int, number: int, batch: Batch, cause: BaseException) -> Committed:
        """The answer to a commit was lost. Ask, as often as it takes, whether it took effect; see claim_commit_number."""
        while True:
            try:
                row = await self._row("claim_commit_number", session=session, number=number)
                if row["alive"] and not row["claimed"]:
                    return await self._read_back(batch)
            except Unavailable:
                await asyncio.sleep(DOUBT_PAUSE_S * random.uniform(0.5, 1.5))
                continue
            if not row["alive"]:
                raise Fenced(f"session {session} expired while a commit was in doubt") from cause
            raise NotCommitted(f"{type(cause).__name__}: {cause}") from cause

    async def _read_back(self, batch: Batch) -> Committed:
        """The answer that was lost, taken from the rows themselves, so that memory goes on as if nothing had happened."""
        started = [row.run_id for row in batch.starts]
        written = [(run_id, 1) for run_id in started] + [(row.run_id, row.seq) for row in batch.appends]
        row = await self._row("read_commit", started=started, written=written)
        return Committed(row["at"], frozenset(row["started"]), unconfirmed=True)

    async def trim_commit_log(self, session: int, below: int) -> None:
        await self._fetch("trim_commit_log", session=session, below=below)


async def write_batch(c: Any, session: int, number: int, batch: Batch) -> Any:
    """The rows that nearly every commit has, and what was counted of them."""
    counts = node_counts(batch.tasks)
    return await fetch_row(c, "commit_batch", session=session, number=number, counts=counts, **batch.main())
