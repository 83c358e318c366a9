"""A bulk cancel by a query whose engine is killed twice: it finishes, its counts are exact, and no other run is touched.

PERDURE_BULK_RUNS=10000 is the full size.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from harness.held import held
from harness.storm import Storm, Target, Workload, fetch_rows
from perdure import Perdure
from perdure.engine.api.bulk_work import ACTED_AT_ONCE
from tests.fakes.waiting import until

RUNS = int(os.environ.get("PERDURE_BULK_RUNS", "600"))
OTHERS = 100
STARTS_AT_ONCE = 300
SHARES = (0.2, 0.6)
"""Of the runs: where the job is when its engine is killed."""
PAGE = 2 * ACTED_AT_ONCE
"""Runs before the one that is locked whose outcomes may not be on record: those of its page, and of one that a kill left."""
OWNER = "select owner from perdure.bulk_job where status in ('pending', 'running') and reason = 'test'"


class BulkLoad(Workload):
    name = "bulk"
    serves = ("harness.held",)

    async def prepare(self, storm: Storm) -> Sequence[Target]:
        self.kills = 0
        async with Perdure(storm.dsn) as client:
            for team, count in (("a", RUNS), ("b", OTHERS)):
                bound = held.options(attributes={"team": team})
                for first in range(0, count, STARTS_AT_ONCE):
                    numbers = range(first, min(first + STARTS_AT_ONCE, count))
                    await asyncio.gather(*(client.start(bound, n) for n in numbers))
        return ()

    async def load(self, storm: Storm) -> None:
        for share in SHARES:
            async with _halted(storm.dsn, share):
                if not self.kills:
                    query = "attr.team = a and status in (pending, running)"
                    self._job = await storm.client.bulk("cancel", query, reason="test")
                await _worked(storm.dsn, int(share * RUNS) - PAGE)
                await _owner_killed(storm.dsn)
                self.kills += 1

    async def is_hit(self) -> bool:
        return self.kills == len(SHARES)

    async def settle(self, storm: Storm) -> None:
        found = await self._job.wait("120s")
        counts = (found.status, found.matched, found.done, found.skipped, found.failed)
        assert counts == ("success", RUNS, RUNS, 0, 0), counts

        async def all_ended() -> bool:
            return sum((await _ended(storm.dsn, "a")).values()) == RUNS

        await until(all_ended, "the cancelled runs end")
        assert await _ended(storm.dsn, "a") == {"cancelled": RUNS}
        assert await _touched(storm.dsn) == {"active": OTHERS, "ended": 0, "stops": 0}
        await (await storm.client.bulk("cancel", "attr.team = b", reason="over")).wait("120s")

    async def check(self, storm: Storm) -> str:
        assert await _ended(storm.dsn, "b") == {"cancelled": OTHERS}
        return f"{RUNS} runs cancelled by {self.kills + 1} engines"


@asynccontextmanager
async def _halted(dsn: str, share: float) -> AsyncIterator[None]:
    """The job comes to a run whose row is locked, and to no later page, until the lock is gone. Pages are taken in the order of ids."""
    c = await asyncpg.connect(dsn)
    matching = 'select run_id from perdure.run_queue where attributes @> \'{"team": "a"}\' order by run_id'
    try:
        async with c.transaction():
            last = await c.fetchval(f"{matching} offset $1 limit 1", int(share * RUNS))
            await c.execute("select from perdure.run_queue where run_id = $1 for update", last)
            yield
    finally:
        await c.close()


async def _worked(dsn: str, enough: int) -> None:
    """Until the outcomes of so many runs are on record, and a later page has been taken."""
    query = (
        "select done >= $1 and exists (select from perdure.bulk_job_run where tries > 0 and outcome = 'pending')"
        " from perdure.bulk_job where reason = 'test'"
    )

    async def far() -> bool:
        return bool((await fetch_rows(dsn, query, enough))[0][0])

    await until(far, within_s=120)


async def _owner_killed(dsn: str) -> None:
    """Until the session of the engine that works on the job is gone."""
    owner = (await fetch_rows(dsn, OWNER))[0][0]

    async def is_gone() -> bool:
        return not await fetch_rows(
            dsn, "select from perdure.engine_session where id = $1 and expires_at > now()", owner
        )

    await until(is_gone, "the engine of the bulk job is killed")


async def _ended(dsn: str, team: str) -> dict[str, int]:
    query = "select status, count(*) as n from perdure.run where attributes @> $1 group by status"
    return {row["status"]: row["n"] for row in await fetch_rows(dsn, query, f'{{"team": "{team}"}}')}


async def _touched(dsn: str) -> dict[str, Any]:
    """Of the runs that do not match: ended ones, cancel requests, and messages."""
    other = 'select run_id from perdure.run_queue where attributes @> \'{"team": "b"}\''
    stops = f"select count(*) from perdure.inbox where stop is not null and run_id in ({other})"
    found = await fetch_rows(dsn, f"select (select count(*) from ({other}) r) as active, ({stops}) as stops")
    return {**found[0], "ended": sum((await _ended(dsn, "b")).values())}
