"""Workflows of which each has many units of one kind, so that the cost of a unit stands out from that of a run."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from perdure.bench import workloads
from perdure.bench.bare import Bare
from perdure.core.capacity.costs import STEADY_PER_S, UnitName, WorkloadName
from perdure.core.errors import Unavailable
from perdure.sdk import wf
from perdure.sdk.client.client import Client
from perdure.sdk.definitions import task, workflow
from perdure.sdk.messages import Signal
from perdure.sdk.schedules import Schedule

SIGNALS: Final = 10
TIMERS: Final = 10
PAYLOAD_KIB: Final = 16
NAP_S: Final = 6
"""Longer than a run waits in memory before it leaves it."""
SCHEDULES: Final = 100
FIRING_S: Final = 6.0
MIXED_STEPS: Final = 3
MIXED_MAP: Final = 10
MIXED_WAITS: Final = 2
MIXED_KIB: Final = 4
ENDS_S_MAX: Final = 60.0
NAMES: Final[tuple[WorkloadName, ...]] = (
    "empty",
    "single",
    "chain",
    "fanout",
    "dag",
    "signals",
    "timers",
    "sleep",
    "fire",
    "payload",
    "quiet",
    "steady",
    "mix",
)
WAITING: Final = frozenset({"sleep", "fire", "steady"})
"""Workloads in which processes are idle for much of the time."""
UNITS_PER_RUN: Final[dict[WorkloadName, float]] = {
    "empty": 1,
    "single": 1,
    "chain": workloads.CHAIN_TASKS,
    "dag": workloads.DAG_TASKS,
    "signals": SIGNALS,
    "timers": TIMERS,
    "sleep": 1,
    "fire": 1,
    "payload": PAYLOAD_KIB,
    "quiet": workloads.CHAIN_TASKS,
    "steady": workloads.CHAIN_TASKS,
    "mix": 1,
}
SHARES: Final[dict[WorkloadName, float]] = {
    "empty": 2.0,
    "single": 1.0,
    "chain": 0.5,
    "dag": 0.25,
    "signals": 0.25,
    "timers": 0.25,
    "sleep": 1.0,
    "payload": 0.5,
    "quiet": 0.1,
    "steady": 0.15,
    "mix": 0.25,
}
"""Runs of each workload, as parts of the number that was asked for, so that none takes much longer than another."""
ping = Signal("perdure.bench.ping", int)


@workflow(name="perdure.bench.empty")
async def empty(n: int) -> int:
    return n


@workflow(name="perdure.bench.signalled")
async def signalled(n: int) -> int:
    return sum([await ping.next() for _ in range(SIGNALS)]) + n


@workflow(name="perdure.bench.ticking")
async def ticking(n: int) -> int:
    for _ in range(TIMERS):
        await wf.sleep("1ms")
    return n


@workflow(name="perdure.bench.napping")
async def napping(n: int) -> int:
    await wf.sleep(f"{NAP_S}s")
    return n


@workflow(name="perdure.bench.fired")
async def fired(n: int) -> int:
    return n


@task(name="perdure.bench.produce")
async def produce(n: int) -> str:
    """Text that PostgreSQL cannot compress."""
    return base64.urlsafe_b64encode(random.Random(n).randbytes(PAYLOAD_KIB * 768)).decode()


@workflow(name="perdure.bench.producing")
async def producing(n: int) -> int:
    return len(await produce(n))


@task(name="perdure.bench.produce_little")
async def produce_little(n: int) -> str:
    return base64.urlsafe_b64encode(random.Random(n).randbytes(MIXED_KIB * 768)).decode()


@workflow(name="perdure.bench.mixed")
async def mixed(n: int) -> int:
    """Of everything something, in another mix than any workload: what `perdure plan` says of it is compared with what it takes."""
    for _ in range(MIXED_STEPS):
        n = await workloads.noop(n)
    await wf.map(workloads.noop, range(MIXED_MAP))
    for _ in range(MIXED_WAITS):
        n += await ping.next()
        await wf.sleep("1ms")
    return len(await produce_little(n))


MIXED_UNITS: Final[dict[UnitName, float]] = {
    "run": 1,
    "task_chain": MIXED_STEPS + 1,
    "task_fanout": MIXED_MAP,
    "signal": MIXED_WAITS,
    "timer": MIXED_WAITS,
    "payload_kib": MIXED_KIB,
}


async def run(name: WorkloadName, runs: int, bare: Bare, client: Client) -> int:
    """Run so many runs of a workload to their ends, or for a fan-out one run of so many tasks. Returns how many runs it really had."""
    if name == "fanout":
        assert await workloads.fanout.run(runs) == runs
        return 1
    if name == "fire":
        return await _fire(bare, client)
    if name == "quiet":
        for n in range(runs):
            await workloads.chain.run(n)
        return runs
    if name == "steady":
        return await _steadily(runs)
    await workloads.many_times(CALLS[name], runs)
    return runs


async def _steadily(runs: int) -> int:
    """Chains that begin at even intervals, however long those before them take."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for n in range(runs):
            await asyncio.sleep(max(0.0, began + n / STEADY_PER_S - time.perf_counter()))
            group.create_task(workloads.chain.run(n))
    return runs


async def _mixed(n: int) -> None:
    handle = await mixed.start(n)
    for number in range(MIXED_WAITS):
        await handle.signal(ping, number)
    assert await handle.result() == MIXED_KIB * 1024


async def _dag(n: int) -> None:
    assert await workloads.diamond.run(n=n) == n


async def _signalled(n: int) -> None:
    handle = await signalled.start(n)
    for number in range(SIGNALS):
        await handle.signal(ping, number)
    assert await handle.result() == n + sum(range(SIGNALS))


CALLS: Final[dict[WorkloadName, Callable[[int], Coroutine[Any, Any, Any]]]] = {
    "empty": empty.run,
    "single": workloads.single.run,
    "chain": workloads.chain.run,
    "dag": _dag,
    "signals": _signalled,
    "timers": ticking.run,
    "sleep": napping.run,
    "payload": producing.run,
    "mix": _mixed,
}


async def _fire(bare: Bare, client: Client) -> int:
    """Many schedules of one second, for some seconds; the runs that they started."""
    before, _ = await bare.ends(fired.name)
    made = [Schedule(f"perdure.bench.{n}", fired.bind(n), every="1s", overlap="allow") for n in range(SCHEDULES)]
    for schedule in made:
        await client.schedules.apply(schedule)
    await asyncio.sleep(FIRING_S)
    for schedule in made:
        await client.schedules.delete(schedule.name)
    deadline = time.monotonic() + ENDS_S_MAX
    while await bare.has_runs(fired.name):
        if time.monotonic() > deadline:
            raise Unavailable(f"after {ENDS_S_MAX:.0f} s runs that schedules started have not ended")
        await asyncio.sleep(0.05)
    return (await bare.ends(fired.name))[0] - before
