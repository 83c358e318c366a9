"""What an event costs as a history grows: one run of many steps, watched while it runs, then taken up again from the database.

A step costs the same however many came before it, or long runs would slow down. Taking a run up again reads and replays
its whole history, so that cost is per event too: it has to stay proportional to the length, and no more.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from typing import Final, Literal

import msgspec

from perdure.app.embedded import Perdure
from perdure.bench.bare import bare, scratch_database
from perdure.bench.history import measure_load
from perdure.bench.processes import CpuSeconds, Processes
from perdure.bench.report import Progress, Target, below
from perdure.bench.suite import Place
from perdure.bench.workloads import noop
from perdure.core import ids
from perdure.sdk import wf
from perdure.sdk.definitions import workflow

GROWTH_EVENTS: Final = 48_000
"""Events of each long run: just below HISTORY_EVENTS_MAX."""
PARTS: Final = 10
EDGE: Final = 3
"""Parts at each end of a run whose medians are compared: one of them alone is at the mercy of a neighbour's load."""
GROWTH_MAX: Final = 1.5
"""How many times more an event may cost at the end of the longest history than at its beginning."""
SAMPLE_S: Final = 0.01
EVENTS_PER_STEP: Final = 2
Step = Literal["task", "timer"]


@workflow(name="perdure.bench.tasks_in_a_row")
async def tasks_in_a_row(steps: int) -> int:
    for n in range(steps):
        await noop(n)
    return steps


@workflow(name="perdure.bench.timers_in_a_row")
async def timers_in_a_row(steps: int) -> int:
    for _ in range(steps):
        await wf.sleep("1ms")
    return steps


class Cost(msgspec.Struct, frozen=True):
    """Of one event, in a part of the history that ends with event number `until`."""

    until: int
    engine_us: float
    postgres_us: float | None
    wall_us: float


class Row(msgspec.Struct, frozen=True):
    """A run of one step after another."""

    step: Step
    events: int
    parts: list[Cost]
    growth: Target


class Reload(msgspec.Struct, frozen=True):
    events: int
    total_ms: float
    us_per_event: float


class Growth(msgspec.Struct, frozen=True):
    rows: list[Row]
    reloads: list[Reload]
    reload_growth: Target


async def measure_growth(where: Place, events: int, say: Progress) -> Growth:
    async with scratch_database(where.dsn) as dsn, bare(dsn) as yardstick, Perdure(dsn) as client:
        processes = Processes((await yardstick.server()).pid)
        rows = [await _row(client, processes, step, events, say) for step in ("task", "timer")]
        reloads = [await _reload(client, length, say) for length in (events // 20, events // 5, events)]
    return Growth(rows, reloads, below(reloads[-1].us_per_event / reloads[0].us_per_event, GROWTH_MAX, 2))


async def _row(client: Perdure, processes: Processes, step: Step, events: int, say: Progress) -> Row:
    kind = tasks_in_a_row if step == "task" else timers_in_a_row
    await kind.run(100)
    handle = await kind.start(events // EVENTS_PER_STEP)
    result = asyncio.ensure_future(handle.result())
    run_id, marks = ids.parse(handle.id), [(0, processes.cpu(), time.perf_counter())]
    while not result.done():
        await asyncio.wait([result], timeout=SAMPLE_S)
        run = client.engine.run_in_memory(run_id)
        if run is not None and run.state.events >= len(marks) * events // PARTS:
            marks.append((run.state.events, processes.cpu(), time.perf_counter()))
    assert await result == events // EVENTS_PER_STEP
    parts = [_cost(a, b) for a, b in itertools.pairwise(marks)]
    first, last = (statistics.median(p.engine_us for p in edge) for edge in (parts[:EDGE], parts[-EDGE:]))
    say(f"{step}s in a row: {first:.0f} us an event at first, {last:.0f} us after {parts[-1].until:,} events")
    return Row(step, events, parts, below(last / first, GROWTH_MAX, 2))


Mark = tuple[int, CpuSeconds, float]


def _cost(a: Mark, b: Mark) -> Cost:
    events, cpu = b[0] - a[0], b[1].since(a[1])
    postgres = None if cpu.postgres is None else round(cpu.postgres / events * 1e6, 1)
    return Cost(b[0], round(cpu.engine / events * 1e6, 1), postgres, round((b[2] - a[2]) / events * 1e6, 1))


async def _reload(client: Perdure, events: int, say: Progress) -> Reload:
    events -= (events - 2) % 3  # one start and three events a step; such a history ends while a task is under way
    load = min([await measure_load(client, events) for _ in range(3)], key=lambda found: found.total_ms)
    say(f"a history of {events:,} events is taken up in {load.total_ms:.0f} ms")
    return Reload(events, load.total_ms, round(load.total_ms / events * 1000, 2))
