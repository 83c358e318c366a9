"""A cancelled task ends cancelled, whatever the driver says about the connection that is cut on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from perdure.store.connections import Connections
from tests.fakes.waiting import until


@pytest.fixture
async def pool(dsn: str) -> AsyncIterator[Connections]:
    one = Connections(dsn)
    await one.open()
    yield one
    await one.close()


async def test_a_cancellation_in_a_transaction_is_not_taken_for_an_outage(pool: Connections) -> None:
    """The driver cut the connection, and the rollback's error took the place of the CancelledError: a loop polled on for ever."""

    async def work() -> None:
        async with pool.take() as c, c.transaction():
            await c.execute("select pg_sleep(60)")

    async def is_at_work() -> bool:
        async with pool.take() as c:
            return bool(await c.fetchval("select count(*) from pg_stat_activity where query = 'select pg_sleep(60)'"))

    working = asyncio.create_task(work())
    await until(is_at_work)
    working.cancel()
    await asyncio.wait([working], timeout=60)
    assert working.cancelled()
    async with pool.take() as c:
        assert await c.fetchval("select 1") == 1


async def test_a_time_limit_around_a_transaction_is_a_timeout(pool: Connections) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            async with pool.take() as c, c.transaction():
                await c.execute("select pg_sleep(60)")
