"""Engines that die count against the request in SQL that they were carrying out, and against no other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from perdure import Perdure, in_transaction, workflow
from perdure.core.application_limits import SQL_REQUEST_TRIES_MAX
from perdure.store.deferred_starts import LEASE_S
from tests.fakes.waiting import until

REQUESTS = 10


@workflow(name="deaths_order")
async def order(n: int) -> int:
    return n


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def _requested(dsn: str, connection: Any) -> Perdure:
    """Requests that no engine has carried out, and a store to claim them with."""
    async with Perdure(dsn, tune_gc=False) as client:
        client.serve(order)
        await client.engine.refresh()  # the workflow is registered
    async with connection.transaction():
        for n in range(REQUESTS):
            await in_transaction(connection).start(order.options(key=f"o-{n}"), n)
    return client


async def _claimed(client: Perdure, connection: Any) -> list[tuple[int, int]]:
    """By an engine that dies before it carries out any, and then its lease runs out: number and tries of each."""
    taken = await client.api.ports.sql_requests.take(200)
    await connection.execute("update perdure.sql_request set due_at = due_at - 2 * interval '1 second' * $1", LEASE_S)
    return [(one.id, one.tries) for one in taken]


async def test_a_request_whose_engine_died_is_claimed_alone(dsn: str, connection: Any) -> None:
    client = await _requested(dsn, connection)
    await client.store.open()
    try:
        first = await _claimed(client, connection)
        assert [tries for _, tries in first] == [1] * REQUESTS
        assert len(first) == REQUESTS
        again = await _claimed(client, connection)
        assert len(again) == 1
        assert again[0][1] == 2
    finally:
        await client.store.close()


async def test_requests_outlive_any_number_of_engines_that_died_with_them_in_hand(dsn: str, connection: Any) -> None:
    client = await _requested(dsn, connection)
    await client.store.open()
    try:
        for _ in range(2 * SQL_REQUEST_TRIES_MAX):
            await _claimed(client, connection)
    finally:
        await client.store.close()
    async with Perdure(dsn, tune_gc=False) as survivor:

        async def all_ended() -> bool:
            return len(await survivor.list(status="success")) == REQUESTS

        await until(all_ended)
    assert await connection.fetchval("select count(*) from perdure.sql_request") == 0


async def test_a_request_that_engines_die_of_is_given_up_and_the_others_are_carried_out(
    dsn: str, connection: Any
) -> None:
    client = await _requested(dsn, connection)
    await client.store.open()
    try:
        ((poison, _), *_) = await _claimed(client, connection)
        for _ in range(SQL_REQUEST_TRIES_MAX):
            await connection.execute(
                "update perdure.sql_request set due_at = now() + interval '1 hour' where id <> $1", poison
            )
            await client.api.ports.sql_requests.take(200)
            await connection.execute("update perdure.sql_request set due_at = now() - interval '1 second'")
    finally:
        await client.store.close()
    async with Perdure(dsn, tune_gc=False) as survivor:

        async def all_others_ended() -> bool:
            return len(await survivor.list(status="success")) == REQUESTS - 1

        await until(all_others_ended)
        await until(
            lambda: connection.fetchval("select error is not null from perdure.sql_request where id = $1", poison)
        )
