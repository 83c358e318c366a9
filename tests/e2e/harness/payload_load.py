"""Tasks and workflows of the memory measurements in test_payload_memory.py, served by a worker process of their own."""

from __future__ import annotations

import os

from perdure import Blob, task, wf, workflow

PIECE = 1024 * 1024


@task(name="load.big", timeout="10m")
def big(mib: int) -> Blob:
    with Blob.writer("big.bin") as out:
        for n in range(mib):
            out.write(n.to_bytes(4, "big") * (PIECE // 4))
    return out.blob


@task(name="load.measure", timeout="10m")
def measure(blob: Blob) -> int:
    total = 0
    with blob.open() as file:
        while piece := file.read(PIECE):
            total += len(piece)
    return total


@workflow(name="load.passes_big")
async def passes_big(mib: int) -> Blob:
    blob = await big(mib)
    assert await measure(blob) == blob.size
    return blob


@task(name="load.result")
async def result(n: int) -> str:
    return f"{n:06}" + os.urandom(50_000).hex()


@workflow(name="load.fans_out")
async def fans_out(count: int) -> int:
    return sum(map(len, await wf.map(result, range(count))))


FLOW = """
flow: load.fans_out_flow
tasks:
  all: {python: load.result, foreach: "range(input.count)", with: {n: "${ item }"}}
output: {count: "${ size(all) }", all: "${ all }"}
"""
