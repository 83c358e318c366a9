"""The shop with two products and a customer, in the database of DATABASE_URL."""

import asyncio
import os
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import pytest
from fastapi.testclient import TestClient
from shop.main import app

Query = Callable[..., Any]


@pytest.fixture
def query() -> Query:
    """The first value of the first row."""

    async def fetched(sql: str, *args: Any) -> Any:
        connection = await asyncpg.connect(os.environ["DATABASE_URL"])
        try:
            return await connection.fetchval(sql, *args)
        finally:
            await connection.close()

    return lambda sql, *args: asyncio.run(fetched(sql, *args))


@pytest.fixture
def shop(query: Query) -> Iterator[TestClient]:
    with TestClient(app) as client:
        query("truncate orders, customers, products")
        query("insert into customers values (1, 500000)")
        query("insert into products values ('tea', 500, 10), ('samovar', 120000, 3)")
        yield client
