"""A herd: many runs, all asleep in the database, that fall due at the same moment.

Engines that drain it have never seen any of them: each is claimed, its history read, its timer fired and recorded, its code replayed, its
end written. All moments are the database's own: the due one, those at which timers fired (of the record that says so) and those of the ends.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

import msgspec

from perdure.app.embedded import Perdure
from perdure.bench import workloads
from perdure.bench.bare import Bare, bare, scratch_database
from perdure.bench.processes import Processes
from perdure.bench.remote import START_S_MAX, running
from perdure.bench.report import CpuMicroseconds, Progress, Target, at_least, below
from perdure.bench.suite import BARE_TASKS_MAX, BARE_TASKS_MIN, Place, Series, warm
from perdure.core import events as ev
from perdure.core.errors import PerdureError, Unavailable
from perdure.wire.codec import decode_row

HERD_RUNS: Final = 100_000
HERD_RATIO_MIN: Final = 0.3
EVICTION_S_MAX: Final = 60.0
"""Without any more runs falling asleep."""
WARM_RUNS: Final = 1_000
"""Runs started to find out how long it takes to start the herd."""
LEAD_S: Final = 10.0
"""For all to fall asleep, the upkeep of the database, and an engine to come up."""
SLACK: Final = 3.0
"""How much longer than expected it may take to start the herd, and to measure life3 once more."""
DRAIN_S_MAX: Final = 600.0


class Late(msgspec.Struct, frozen=True):
    """Milliseconds from the moment at which timers were due to the records of their firing."""

    first: float
    median: float
    last: float


class Herd(msgspec.Struct, frozen=True):
    runs: int
    engines: int
    created_per_s: int
    ended_per_s: int
    """From the due moment to the last end."""
    life3: int
    """Bare, just before the moment and after the last end."""
    ratio_to_life3: Target
    early: Target
    late_ms: Late
    cpu_us_per_run: CpuMicroseconds
    rss_mb: float


async def measure_herd(where: Place, runs: int, engines: int, say: Progress) -> Herd:
    async with scratch_database(where.dsn) as dsn, bare(dsn) as yardstick:
        processes = Processes((await yardstick.server()).pid)
        bare_tasks = min(max(runs, BARE_TASKS_MIN), BARE_TASKS_MAX)
        moment_us, rate = await _put_to_sleep(dsn, yardstick, runs, bare_tasks)
        say(f"herd: {runs:,} runs are asleep until the same moment, {rate:,.0f} started per second")
        series = Series(yardstick, processes, bare_tasks, say)
        await yardstick.settle()
        await series.measure_life3()
        # New engines, that have never seen any of them.
        async with Perdure(dsn) as client, others(dsn, engines - 1, yardstick):
            await asyncio.sleep(await _before(moment_us, yardstick) - 0.25)
            before = processes.cpu()
            await _drained(yardstick)
            cpu = processes.cpu().since(before)
            mine, rss_mb = client.engine.counters.runs_ended, processes.rss_mb()
        await series.measure_life3()
        ended, last_us = await yardstick.ends(workloads.herd.name)
        if ended != runs or last_us is None:
            raise PerdureError(f"the bench is void: {ended} of {runs} runs of the herd are in the archive")
        late_us = await _late_us(yardstick, runs)
    life3 = statistics.mean(series.life3)
    per_s = runs / ((last_us - moment_us) / 1e6)
    ratio = per_s / life3
    early = sum(us < 0 for us in late_us)
    say(
        f"herd: {per_s:,.0f} runs/s, {ratio:.2f} of life3; the last timer {late_us[-1] / 1e6:.1f} s late, {early} early"
    )
    return Herd(
        runs=runs,
        engines=engines,
        created_per_s=round(rate),
        ended_per_s=round(per_s),
        life3=round(life3),
        ratio_to_life3=at_least(ratio, HERD_RATIO_MIN, 3),
        early=below(float(early), 1.0, 0),
        late_ms=Late(*(round(us / 1000, 1) for us in (late_us[0], statistics.median(late_us), late_us[-1]))),
        cpu_us_per_run=CpuMicroseconds(
            round(cpu.engine / max(mine, 1) * 1e6, 1),
            None if cpu.postgres is None else round(cpu.postgres / runs * 1e6, 1),
        ),
        rss_mb=round(rss_mb, 1),
    )


async def all_asleep(yardstick: Bare, runs: int) -> None:
    """Wait until that many runs have no owner and are not due."""
    deadline = most = 0.0
    while (asleep := await yardstick.sleeping()) < runs:
        if asleep > most or not deadline:
            most, deadline = asleep, time.monotonic() + EVICTION_S_MAX
        if time.monotonic() > deadline:
            raise Unavailable(f"for {EVICTION_S_MAX:.0f} s only {asleep} of {runs} runs have left the engine's memory")
        await asyncio.sleep(1.0)


async def _put_to_sleep(dsn: str, yardstick: Bare, runs: int, bare_tasks: int) -> tuple[int, float]:
    """The moment until which they sleep, and how many were started per second."""
    async with Perdure(dsn) as client:
        await warm(yardstick, client)
        began = time.perf_counter()
        await workloads.many_times(workloads.single.start, WARM_RUNS)
        start_s = (time.perf_counter() - began) / WARM_RUNS
        began = time.perf_counter()
        await yardstick.tasks_per_s("life3", bare_tasks)
        expected_s = runs * start_s + time.perf_counter() - began
        moment_us = await yardstick.now_us() + int((expected_s * SLACK + LEAD_S) * 1e6)
        began = time.perf_counter()
        await workloads.many_times(lambda n: workloads.herd.start(n, moment_us), runs)
        rate = runs / (time.perf_counter() - began)
        await _before(moment_us, yardstick)
        await all_asleep(yardstick, runs)
    return moment_us, rate


async def _before(moment_us: int, yardstick: Bare) -> float:
    """Seconds until the moment. Unavailable: it is too late."""
    left_s = (moment_us - await yardstick.now_us()) / 1e6
    if left_s < 0.5:
        raise Unavailable("the herd was not asleep in time for its moment: this machine is too busy to measure it")
    return left_s


async def _drained(yardstick: Bare) -> None:
    deadline = time.monotonic() + DRAIN_S_MAX
    while await yardstick.has_runs(workloads.herd.name):
        if time.monotonic() > deadline:
            raise Unavailable(f"after {DRAIN_S_MAX:.0f} s the herd has not ended")
        await asyncio.sleep(0.1)


@asynccontextmanager
async def others(dsn: str, count: int, yardstick: Bare) -> AsyncGenerator[None]:
    """More engines on that database, each a process of its own."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(running("bench", "engine", dsn))
        deadline = time.monotonic() + START_S_MAX
        while await yardstick.engines() < count + 1:
            if time.monotonic() > deadline:
                raise Unavailable(f"{count} more engines did not come up; their own output says why")
            await asyncio.sleep(0.2)
        yield


async def hold_engine(dsn: str) -> None:
    """One engine with a worker that serves the workloads, until stopped."""
    async with Perdure(dsn):
        await asyncio.Event().wait()


async def _late_us(yardstick: Bare, runs: int) -> list[int]:
    """How late each timer fired, in ascending order; below zero is early."""
    late: list[int] = []
    due_us = 0
    async for seq, at_us, body in yardstick.histories(workloads.herd.name):
        for record in decode_row(seq, at_us, body):
            match record.event:
                case ev.TimerStarted(fire_at_us=fire_at_us):
                    due_us = fire_at_us
                case ev.TimerFired():
                    late.append(at_us - due_us)
                case _:
                    pass
    if len(late) != runs:
        raise PerdureError(f"the bench is void: {runs} runs of the herd ended and {len(late)} timers fired")
    return sorted(late)
