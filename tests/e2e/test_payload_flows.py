"""Large values in declarative flows: passed on as references, loaded only where an expression reads inside."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from perdure import Blob, Perdure, flow, task
from perdure.core.payloads import MARK
from perdure.errors import Stuck

LARGE = 200_000


@task(name="payloads.make")
async def make(n: int, size: int = LARGE) -> dict[str, Any]:
    return {"n": n, "text": f"{n:06}" + "x" * (size - 6)}


@task(name="payloads.rows")
async def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "fill": "y" * 100} for n in range(count)]


@task(name="payloads.size")
async def size(made: dict[str, Any]) -> int:
    return len(made["text"])


@task(name="payloads.blob")
async def blob() -> Blob:
    return Blob.from_bytes(b"z" * 5000, name="z.bin")


@task(name="payloads.read")
async def read(it: Blob) -> int:
    return len(await it.aread_bytes())


PASSES = """
flow: passes
tasks:
  made: {python: payloads.make, with: {n: "${ input.n }"}}
  size: {python: payloads.size, depends_on: [made], with: {made: "${ made }"}}
output: {n: "${ made.n }", size: "${ size }", text: "${ made.text }"}
"""

READS = """
flow: reads
tasks:
  rows: {python: payloads.rows, with: {count: 2000}}
  each: {python: payloads.size, depends_on: [rows], foreach: rows, with: {made: {text: "${ item.fill }"}}}
output: {count: "${ size(rows) }", last: "${ rows[1999].id }", sizes: "${ sum(each) }"}
"""

BLOBS = """
flow: blobs
tasks:
  blob: {python: payloads.blob}
  read: {python: payloads.read, depends_on: [blob], with: {it: "${ blob }"}}
output: {size: "${ blob.size }", name: "${ blob.name }", read: "${ read }", blob: "${ blob }"}
"""

FANS = """
flow: fans
tasks:
  all: {python: payloads.make, foreach: input.items, with: {n: "${ item }", size: 100000}}
output: "${ all }"
"""

READS_ALL = """
flow: reads_all
tasks:
  all: {python: payloads.make, foreach: input.items, with: {n: "${ item }", size: 100000}}
  first: {python: payloads.rows, depends_on: [all], foreach: all, with: {count: "${ size(item.text) }"}}
"""


async def loads(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("select count(*) from perdure.payload"))
    finally:
        await connection.close()


async def ran(client: Perdure, document: str, **given: Any) -> Any:
    await client.deploy(document)
    name = document.split("flow: ")[1].split()[0]
    return await asyncio.wait_for(client.run(flow(name), **given), 60)


async def test_a_value_that_is_passed_on_stays_a_reference(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from perdure.engine.runs.flow_payloads import FlowPayloads

    async def refused(*_: Any) -> None:
        raise AssertionError("nothing reads inside a stored value here")

    monkeypatch.setattr(FlowPayloads, "load", refused)
    async with Perdure(dsn) as client:
        result = await ran(client, PASSES, n=7)
        assert result == {"n": 7, "size": LARGE, "text": "000007" + "x" * (LARGE - 6)}
    assert await loads(dsn) == 1


async def test_what_an_expression_reads_inside_of_is_loaded(dsn: str) -> None:
    async with Perdure(dsn) as client:
        result = await ran(client, READS)
        assert result == {"count": 2000, "last": 1999, "sizes": 200_000}


async def test_a_flow_sees_what_is_known_about_a_blob_and_passes_it_on(dsn: str) -> None:
    async with Perdure(dsn) as client:
        result = await ran(client, BLOBS)
        assert (result["size"], result["name"], result["read"]) == (5000, "z.bin", 5000)
        assert isinstance(result["blob"], Blob) and await result["blob"].aread_bytes() == b"z" * 5000


async def test_a_fan_out_of_large_results_is_a_list_of_references(dsn: str) -> None:
    async with Perdure(dsn) as client:
        await client.deploy(FANS)
        handle = await client.start(flow("fans"), items=list(range(900)))
        result = await asyncio.wait_for(handle.result(), 120)
        assert [item["n"] for item in result] == list(range(900)) and len(result[899]["text"]) == 100_000
        ended = (await handle.history())[-1].event
        assert ended.result.startswith(MARK) and len(ended.result) < 1000, (
            "900 references are a stored value themselves"
        )


async def test_expressions_that_read_too_much_stop_the_run_and_say_so(dsn: str) -> None:
    async with Perdure(dsn) as client:
        await client.deploy(READS_ALL)
        handle = await client.start(flow("reads_all"), items=list(range(400)))
        with pytest.raises(Stuck, match="FLOW_PAYLOAD_BYTES_MAX"):
            await asyncio.wait_for(handle.result(), 120)
