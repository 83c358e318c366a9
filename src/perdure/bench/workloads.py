"""What is measured: workflows of tasks that do nothing, so that all the time is Perdure's own.

Tasks are `async`, return what they are given, and run in the default number of slots.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Literal

from perdure.sdk import wf
from perdure.sdk.definitions import task, workflow
from perdure.sdk.flows import flow

Name = Literal["fanout", "chain", "many", "dag"]
NAMES: Final[tuple[Name, ...]] = ("fanout", "chain", "many", "dag")
CHAIN_TASKS: Final = 5
DAG_TASKS: Final = 10
RUNS_AT_ONCE: Final = 1_000
"""Runs that a workload of many runs keeps under way."""


@task(name="perdure.bench.noop")
async def noop(n: int) -> int:
    return n


@workflow(name="perdure.bench.fanout")
async def fanout(tasks: int) -> int:
    return len(await wf.map(noop, range(tasks)))


@workflow(name="perdure.bench.chain")
async def chain(n: int) -> int:
    for _ in range(CHAIN_TASKS):
        n = await noop(n)
    return n


@workflow(name="perdure.bench.single")
async def single(n: int) -> int:
    return await noop(n)


@workflow(name="perdure.bench.sleeper")
async def sleeper(n: int) -> int:
    await wf.sleep("30d")
    return n


@workflow(name="perdure.bench.herd")
async def herd(n: int, moment_us: int) -> int:
    """All of a herd sleep until the same moment."""
    await wf.sleep(datetime.fromtimestamp(moment_us / 1_000_000, UTC))
    return n


DIAMOND: Final[dict[str, Any]] = {
    "flow": "perdure.bench.diamond",
    "tasks": {
        "top": {"python": noop.name, "with": {"n": "${ input.n }"}},
        **{
            f"side{i}": {"python": noop.name, "depends_on": "top", "with": {"n": "${ top }"}}
            for i in range(DAG_TASKS - 2)
        },
        "bottom": {
            "python": noop.name,
            "depends_on": [f"side{i}" for i in range(DAG_TASKS - 2)],
            "with": {"n": "${ side0 }"},
        },
    },
    "output": "${ bottom }",
}
"""One task, then eight side by side, then one. It has to be deployed before it runs."""
diamond = flow("perdure.bench.diamond", int)


async def _diamond(n: int) -> None:
    assert await diamond.run(n=n) == n


async def run(name: Name, tasks: int) -> int:
    """Run a workload of about this size to its end. Returns how many tasks it really had."""
    match name:
        case "fanout":
            assert await fanout.run(tasks) == tasks
            return tasks
        case "chain":
            runs = max(1, tasks // 10)
            await many_times(chain.run, runs)
            return runs * CHAIN_TASKS
        case "many":
            await many_times(single.run, tasks)
            return tasks
        case "dag":
            runs = max(1, tasks // DAG_TASKS)
            await many_times(_diamond, runs)
            return runs * DAG_TASKS


async def many_times(call: Callable[[int], Coroutine[Any, Any, Any]], times: int) -> None:
    """Call it so many times, RUNS_AT_ONCE side by side: a client that always has as many runs under way."""
    numbers = iter(range(times))

    async def client() -> None:
        for n in numbers:
            await call(n)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(RUNS_AT_ONCE, times)):
            group.create_task(client())


async def latencies_ms(runs: int) -> list[float]:
    """From the call to start one run to its result in hand, one run after the other, sorted."""
    found: list[float] = []
    for n in range(runs):
        began = time.perf_counter()
        handle = await single.start(n)
        assert await handle.result() == n
        found.append((time.perf_counter() - began) * 1000)
    return sorted(found)


def percentile(ordered: list[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
