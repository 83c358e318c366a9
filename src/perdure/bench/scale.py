"""`perdure bench scale`: does it hold at size? Five parts, each with a target.

    fanout100k   one run of 100,000 tasks ends, within a bound of memory
    sleeping     200,000 sleeping runs cost an idle engine next to no CPU time
    herd         100,000 runs asleep in the database fall due at the same moment, and none goes on early
    retained     5,000,000 tasks of ended runs slow new work down by little
    history      an event costs the same at the end of a history of 48,000 as at its beginning

Smaller sizes make a quick check that the parts work; the targets are meant for the full sizes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Collection
from typing import Final

import msgspec

from perdure.app.embedded import Perdure
from perdure.bench import workloads
from perdure.bench.bare import bare, scratch_database
from perdure.bench.growth import GROWTH_EVENTS, Growth, measure_growth
from perdure.bench.herd import HERD_RUNS, Herd, all_asleep, measure_herd
from perdure.bench.processes import PeakRss, Processes
from perdure.bench.report import Progress, Repeat, Settings, Target, Workload, below, settings_of, summary
from perdure.bench.suite import REPEATS, Place, Series, check_kept, warm
from perdure.programs.terminal import console

PARTS: Final = ("fanout100k", "sleeping", "herd", "retained", "history")

FANOUT_TASKS: Final = 100_000
SLEEPING_RUNS: Final = 200_000
FANOUT_RSS_MB_MAX: Final = 600.0
IDLE_CPU_PERCENT_MAX: Final = 2.0
RETAINED_SLOWDOWN_MAX: Final = 0.15
BARE_TASKS: Final = 20_000
RETAINED_RUN_TASKS: Final = 100
"""Tasks of each run that is retained."""
RETAINED_REPEATS: Final = 5


class Fanout(msgspec.Struct, frozen=True):
    workload: Workload
    peak_rss_mb: Target


class Sleeping(msgspec.Struct, frozen=True):
    runs: int
    created_per_s: int
    asleep_per_s: int
    """Until the last one has run up to its sleep and has left the engine's memory."""
    idle_s: float
    engine_cpu_percent: Target
    postgres_cpu_percent: Target
    rss_mb: float
    """While the engine idles. It is the process that started them: what Python has not given back since is in it."""
    starter_rss_mb: tuple[float, float]
    """Of the engine that started them: before the first one, and when all were asleep."""
    database_mb: float
    run_queue_mb: float
    """The part of it that the table of active runs has, with its indexes."""
    seconds: float


class Retained(msgspec.Struct, frozen=True):
    tasks: int
    preloaded_per_s: int
    empty: Workload
    loaded: Workload
    slowdown: Target


class ScaleReport(msgspec.Struct, frozen=True, omit_defaults=True):
    settings: Settings
    seconds: float
    passed: bool
    fanout100k: Fanout | None = None
    sleeping: Sleeping | None = None
    herd: Herd | None = None
    retained: Retained | None = None
    history: Growth | None = None


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    fanout: int = FANOUT_TASKS
    sleeping: int = SLEEPING_RUNS
    herd: int = HERD_RUNS
    engines: int = 1
    retained: int = 5_000_000
    history: int = GROWTH_EVENTS
    idle_s: float = 20.0


async def run_scale(where: Place, parts: Collection[str], sizes: Sizes, *, loop: str, say: Progress) -> ScaleReport:
    async with bare(where.dsn) as c:
        server = await c.server()
    fanout = await _fanout(where, sizes, say) if "fanout100k" in parts else None
    sleeping = await _sleeping(where, sizes, say) if "sleeping" in parts else None
    herd = await measure_herd(where, sizes.herd, sizes.engines, say) if "herd" in parts else None
    retained = await _retained(where, sizes, say) if "retained" in parts else None
    history = await measure_growth(where, sizes.history, say) if "history" in parts else None
    settings = settings_of(server, loop=loop, filesystem=where.filesystem, tasks=sizes.fanout, repeats=REPEATS)
    found = ScaleReport(settings, round(say.seconds, 1), True, fanout, sleeping, herd, retained, history)
    return msgspec.structs.replace(found, passed=all(t.passed is not False for _, t in _targets(found)))


async def _fanout(where: Place, sizes: Sizes, say: Progress) -> Fanout:
    async with scratch_database(where.dsn) as dsn, bare(dsn) as yardstick, Perdure(dsn) as client:
        processes = Processes((await yardstick.server()).pid)
        await warm(yardstick, client)
        series = Series(yardstick, processes, BARE_TASKS, say)
        repeats: list[Repeat] = []
        with PeakRss(processes) as peak:
            for number in range(REPEATS):
                text = f"fan-out of {sizes.fanout:,} tasks, {number + 1} of {REPEATS}"
                repeats.append(await series.measure(text, workloads.run("fanout", sizes.fanout)))
        await check_kept(yardstick, client)
    say(f"peak memory {peak.mb:.0f} MB")
    return Fanout(summary(repeats), below(peak.mb, FANOUT_RSS_MB_MAX, 1))


async def _sleeping(where: Place, sizes: Sizes, say: Progress) -> Sleeping:
    began_all = time.perf_counter()
    async with scratch_database(where.dsn) as dsn, bare(dsn) as yardstick:
        processes = Processes((await yardstick.server()).pid)
        async with Perdure(dsn):
            rss_before = processes.rss_mb()
            began = time.perf_counter()
            for first in range(0, sizes.sleeping, part := max(1, sizes.sleeping // 5)):
                await workloads.many_times(workloads.sleeper.start, min(part, sizes.sleeping - first))
                say(f"sleeping runs: {min(first + part, sizes.sleeping):,} started")
            rate = sizes.sleeping / (time.perf_counter() - began)
            await all_asleep(yardstick, sizes.sleeping)
            asleep_rate = sizes.sleeping / (time.perf_counter() - began)
            rss_after = processes.rss_mb()
        say(f"sleeping runs: all asleep in the database, {rate:,.0f} started per second")
        await yardstick.settle()
        database_mb, run_queue_mb = await yardstick.sizes_mb()
        # A new engine, that has never seen any of them.
        async with Perdure(dsn):
            await asyncio.sleep(min(2.0, sizes.idle_s))
            before, began = processes.cpu(), time.perf_counter()
            await asyncio.sleep(sizes.idle_s)
            idle_s, cpu = time.perf_counter() - began, processes.cpu().since(before)
            engine, postgres = (None if s is None else s / idle_s * 100 for s in (cpu.engine, cpu.postgres))
            rss_mb = processes.rss_mb()
    say(f"sleeping runs: an idle engine takes {engine:.2f} % of a core")
    return Sleeping(
        runs=sizes.sleeping,
        created_per_s=round(rate),
        asleep_per_s=round(asleep_rate),
        idle_s=round(idle_s, 1),
        engine_cpu_percent=below(engine, IDLE_CPU_PERCENT_MAX, 2),
        postgres_cpu_percent=below(postgres, IDLE_CPU_PERCENT_MAX, 2),
        rss_mb=round(rss_mb, 1),
        starter_rss_mb=(round(rss_before, 1), round(rss_after, 1)),
        database_mb=round(database_mb, 1),
        run_queue_mb=round(run_queue_mb, 1),
        seconds=round(time.perf_counter() - began_all, 1),
    )


async def _retained(where: Place, sizes: Sizes, say: Progress) -> Retained:
    """Two databases side by side, so that the empty and the loaded one are measured in turns."""
    async with scratch_database(where.dsn) as empty, scratch_database(where.dsn) as loaded, bare(empty) as yardstick:
        began = time.perf_counter()
        kept = await _preload(loaded, sizes.retained, say)
        rate = kept / (time.perf_counter() - began)
        series = Series(yardstick, Processes((await yardstick.server()).pid), BARE_TASKS, say)
        without: list[Repeat] = []
        with_them: list[Repeat] = []
        for number in range(RETAINED_REPEATS):
            for dsn, what, found in ((empty, "no tasks", without), (loaded, f"{kept:,} tasks", with_them)):
                text = f"fan-out beside {what}, {number + 1} of {RETAINED_REPEATS}"
                async with Perdure(dsn):
                    await workloads.run("fanout", BARE_TASKS // 10)
                    found.append(await series.measure(text, workloads.run("fanout", BARE_TASKS)))
    # Neighbours are compared with each other: what was measured minutes apart was measured on another machine.
    pairs = [1 - b.ratio / a.ratio for a, b in zip(without, with_them, strict=True)]
    slowdown = below(statistics.median(pairs), RETAINED_SLOWDOWN_MAX, 3)
    return Retained(kept, round(rate), summary(without), summary(with_them), slowdown)


async def _preload(dsn: str, tasks: int, say: Progress) -> int:
    async with Perdure(dsn):
        handle = await workloads.fanout.start(RETAINED_RUN_TASKS)
        await handle.result()
    async with bare(dsn) as c:
        await c.copy_run(
            handle.id, RETAINED_RUN_TASKS, tasks, lambda n: say(f"tasks of ended runs: {n:,} of {tasks:,} loaded")
        )
        await c.settle()
        return await c.tasks_kept()


def print_scale(report: ScaleReport) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    for title in ("target", "figure", "is to be", ""):
        table.add_column(title, justify="right" if title in ("figure", "is to be") else "left")
    for text, target in _targets(report):
        word = {True: "[green]pass", False: "[bold red]fail", None: "[dim]not measured"}[target.passed]
        figure = "" if target.figure is None else f"{target.figure:g}"
        table.add_row(text, figure, f"{target.want} {target.limit:g}", word)
    out.print(table)
    if report.sleeping:
        s = report.sleeping
        out.print(
            f"\n{s.runs:,} sleeping runs: {s.created_per_s:,} started a second; memory of the engine that started them {s.starter_rss_mb[0]:.0f} MB before and "
            f"{s.starter_rss_mb[1]:.0f} MB after, of an idle one {s.rss_mb:.0f} MB; database {s.database_mb:,.0f} MB"
        )
    if report.herd:
        h = report.herd
        out.print(
            f"\na herd of {h.runs:,}: {h.ended_per_s:,} ended a second, bare life3 {h.life3:,}; timers fired {h.late_ms.first:,.0f} ms late "
            f"(first), {h.late_ms.median:,.0f} ms (median), {h.late_ms.last:,.0f} ms (last)"
        )


def _targets(r: ScaleReport) -> list[tuple[str, Target]]:
    found: list[tuple[str, Target]] = []
    if r.fanout100k:
        found.append((f"peak MB in a fan-out of {r.fanout100k.workload.tasks:,}", r.fanout100k.peak_rss_mb))
    if r.sleeping:
        found.append((f"engine CPU % beside {r.sleeping.runs:,} sleeping runs", r.sleeping.engine_cpu_percent))
        found.append((f"PostgreSQL CPU % beside {r.sleeping.runs:,} sleeping runs", r.sleeping.postgres_cpu_percent))
    if r.herd:
        found.append((f"ends of a herd of {r.herd.runs:,}, of life3", r.herd.ratio_to_life3))
        found.append(("timers of it that fired early", r.herd.early))
    if r.retained:
        found.append((f"slowdown beside {r.retained.tasks:,} retained tasks", r.retained.slowdown))
    if r.history:
        for row in r.history.rows:
            text = f"cost of an event after {row.events:,} ({row.step}s), of one of the first"
            found.append((text, row.growth))
        found.append(("taking up the longest history, per event, of a short one", r.history.reload_growth))
    return found
