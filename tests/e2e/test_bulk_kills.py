"""A bulk cancel by a query while the server is killed twice: it finishes, its counts are exact, and no other run is touched.

PERDURE_BULK_RUNS=10000 is the full size.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure import Client, Perdure, Promise, workflow
from perdure.engine.api.bulk_work import ACTED_AT_ONCE
from perdure.sdk.client.bulk_jobs import BulkHandle, BulkInfo
from perdure.store.verify import verify
from tests.cli.processes import Running, server
from tests.fakes.waiting import until

pytestmark = pytest.mark.usefixtures("processes")

RUNS = int(os.environ.get("PERDURE_BULK_RUNS", "2000"))
OTHERS = 300
STARTS_AT_ONCE = 500
PAGE = 2 * ACTED_AT_ONCE
"""Runs before the one that is locked whose outcomes may not be on record: those of its page, and of one that a kill left."""
ROOT = Path(__file__).parents[2]
QUICK = {"PERDURE_ENGINE_LEASE_S": "2s", "PERDURE_ENGINE_HEARTBEAT_S": "0.5s"}

go = Promise("go", bool)


@workflow(name="bulk_kills_held")
async def held(n: int) -> bool:
    return await go.wait()


async def started(client: Perdure, count: int, team: str) -> None:
    bound = held.options(attributes={"team": team})
    for first in range(0, count, STARTS_AT_ONCE):
        await asyncio.gather(*(client.start(bound, n) for n in range(first, min(first + STARTS_AT_ONCE, count))))


async def touched(dsn: str) -> dict[str, int]:
    """Of the runs that do not match: ended ones, cancel requests, and messages."""
    c = await asyncpg.connect(dsn)
    other = 'select run_id from perdure.run_queue where attributes @> \'{"team": "b"}\''
    try:
        return {
            "active": await c.fetchval(f"select count(*) from ({other}) r"),
            "ended": await c.fetchval('select count(*) from perdure.run where attributes @> \'{"team": "b"}\''),
            "stops": await c.fetchval(
                f"select count(*) from perdure.inbox where stop is not null and run_id in ({other})"
            ),
        }
    finally:
        await c.close()


@asynccontextmanager
async def halted(dsn: str, share: float) -> AsyncIterator[None]:
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


async def worked(dsn: str, enough: int) -> None:
    """Until the outcomes of so many runs are on record, and a later page has been taken."""
    c = await asyncpg.connect(dsn)

    async def far() -> bool:
        done = await c.fetchval("select done from perdure.bulk_job")
        pages = await c.fetchval("select count(*) from perdure.bulk_job_run where tries > 0 and outcome = 'pending'")
        return bool(done >= enough and pages)

    try:
        await until(far, within_s=120)
    finally:
        await c.close()


async def finished(place: Running, job: str) -> BulkInfo:
    async with Client(place.grpc) as client:
        return await BulkHandle(client._backend, job).wait("120s")


async def wait_ended(dsn: str, count: int) -> Any:
    c = await asyncpg.connect(dsn)

    async def ended() -> bool:
        found = await c.fetchval('select count(*) from perdure.run where attributes @> \'{"team": "a"}\'')
        return bool(found == count)

    try:
        await until(ended, within_s=180)
        return await c.fetch(
            'select status, count(*) from perdure.run where attributes @> \'{"team": "a"}\' group by status'
        )
    finally:
        await c.close()


async def test_a_bulk_cancel_survives_two_kills_of_its_server(dsn: str) -> None:
    async with Perdure(dsn) as p:
        await started(p, RUNS, "a")
        await started(p, OTHERS, "b")
    kills, job = 0, ""
    with ExitStack() as stack:
        for share in (0.2, 0.6):
            async with halted(dsn, share):
                place = stack.enter_context(server(dsn, ROOT, "--auth", "open", **QUICK))
                if not job:
                    async with Client(place.grpc) as client:
                        query = "attr.team = a and status in (pending, running)"
                        job = (await client.bulk("cancel", query, reason="test")).id
                await worked(dsn, int(share * RUNS) - PAGE)
                place.program.process.send_signal(signal.SIGKILL)
                place.program.process.wait(120)
                kills += 1
        place = stack.enter_context(server(dsn, ROOT, "--auth", "open", **QUICK))
        found = await finished(place, job)
        counts = (found.status, found.matched, found.done, found.skipped, found.failed)
        assert (kills, counts) == (2, ("success", RUNS, RUNS, 0, 0))
        assert [tuple(r) for r in await wait_ended(dsn, RUNS)] == [("cancelled", RUNS)]
        assert await touched(dsn) == {"active": OTHERS, "ended": 0, "stops": 0}
    tallies = await verify(dsn)
    assert {t.number: t.examples for t in tallies if t.violations} == {}
