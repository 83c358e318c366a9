"""Columns packed by hand are what the driver would have sent, and the driver still lets us."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.core.durations import FOREVER_US
from perdure.store import arrays
from perdure.store.connections import connect

CASES: dict[str, list[Any]] = {
    "bool": [True, False, None],
    "bytea": [b"", b"\x00\xff", None, b"x" * 300_000],
    "smallint": [0, -1, 32767, -32768, None],
    "int": [0, -1, 2**31 - 1, -(2**31)],
    "bigint": [0, -1, 2**63 - 1, -(2**63), None],
    "text": ["", "a", "ä€🎉", None, "a", "'; drop table x"],
    "timestamptz": [0, 1_700_000_000_000_001, FOREVER_US, None],
    "uuid": [bytes(16), bytes(range(16)), None],
}


@pytest.mark.parametrize("kind", CASES)
async def test_a_packed_column_is_what_the_driver_would_have_sent(dsn: str, kind: str) -> None:
    plain, packed = await connect(dsn), await connect(dsn)
    try:
        assert arrays.install(packed), "the driver's private interface has changed"
        values = CASES[kind]
        for column in (values, [], values[:1], [None], [None, *values], tuple(values)):
            query = f"select $1::{kind}[] as back, array_send($1::{kind}[]) as wire"
            ours, theirs = await packed.fetchrow(query, column), await plain.fetchrow(query, column)
            assert ours["wire"] == theirs["wire"]
            assert ours["back"] == theirs["back"] == list(column)
    finally:
        await plain.close()
        await packed.close()


async def test_what_does_not_fit_is_refused_before_it_is_sent(dsn: str) -> None:
    connection = await connect(dsn)
    arrays.install(connection)
    try:
        for kind, wrong in (
            ("int", [2**31]),
            ("smallint", [40_000]),
            ("bigint", [2**63]),
            ("text", [7]),
            ("int", ["x"]),
        ):
            with pytest.raises(Exception):  # noqa: B017 - whichever the driver makes of it
                await connection.fetchval(f"select $1::{kind}[]", wrong)
            assert await connection.fetchval("select 1") == 1
    finally:
        await connection.close()


@given(st.lists(st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_numbers_survive(values: list[int | None]) -> None:
    encode = arrays._array(23, arrays._ints)
    assert arrays._decoder(arrays._number)(encode(values)) == values


async def test_packing_is_not_slower_than_the_driver(dsn: str) -> None:
    plain, packed = await connect(dsn), await connect(dsn)
    arrays.install(packed)
    query = "select cardinality($1::uuid[]) + cardinality($2::int[]) + cardinality($3::text[]) + cardinality($4::timestamptz[])"
    columns = [[os.urandom(16) for _ in range(500)], list(range(500)), ["noop"] * 500, [1_700_000_000_000_000] * 500]
    took: dict[int, float] = {}
    try:
        for connection in (plain, packed, plain, packed):
            began = time.process_time()
            for _ in range(100):
                assert await connection.fetchval(query, *columns) == 2000
            took[id(connection)] = min(took.get(id(connection), 9e9), time.process_time() - began)
        print(f"driver {took[id(plain)] * 1e4:.0f} us, packed {took[id(packed)] * 1e4:.0f} us per statement")
        assert took[id(packed)] < took[id(plain)] * 1.2
    finally:
        await plain.close()
        await packed.close()
