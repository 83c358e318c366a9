"""`perdure bench`: the workloads in turns, bare life3 between any two of them."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from perdure.app.embedded import Perdure
from perdure.bench import workloads
from perdure.bench.bare import Bare, Pattern, bare, scratch_database
from perdure.bench.history import measure_load
from perdure.bench.processes import Processes, filesystem_of
from perdure.bench.report import (
    BareRates,
    BenchReport,
    Latency,
    Progress,
    Repeat,
    settings_of,
    spread_of,
    summary,
)
from perdure.core.errors import InvalidInput, PerdureError
from perdure.localpg.cluster import PrivateCluster

T = TypeVar("T")

REPEATS: Final = 3
WARM_TASKS: Final = 500
LATENCY_RUNS: Final = 200
BARE_TASKS_MIN: Final = 4_000
BARE_TASKS_MAX: Final = 20_000
SERVER_SETTINGS: Final = {"shared_buffers": "1GB", "fsync": "on", "synchronous_commit": "on", "max_wal_size": "8GB"}


class Place(NamedTuple):
    """A server to measure on."""

    dsn: str
    filesystem: str | None


@contextmanager
def place(dsn: str | None) -> Generator[Place]:
    """The server that was given, or a private one that is deleted afterwards."""
    if dsn is not None:
        yield Place(dsn, None)
        return
    directory = Path(tempfile.mkdtemp(prefix="perdure-bench-"))
    # The server may have to run as another user than root, who must be able to get in.
    directory.chmod(0o755)
    cluster = PrivateCluster(directory / "pg", settings=SERVER_SETTINGS)
    try:
        yield Place(cluster.start(), filesystem_of(str(cluster.data)))
    finally:
        cluster.stop("immediate")
        shutil.rmtree(cluster.directory, ignore_errors=True)
        shutil.rmtree(directory, ignore_errors=True)


def run_on(uvloop: bool, main: Coroutine[Any, Any, T]) -> T:
    """Run on asyncio's own loop, or on uvloop's."""
    with asyncio.Runner(loop_factory=_uvloop_factory() if uvloop else None) as runner:
        return runner.run(main)


def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        raise InvalidInput("--uvloop needs uvloop: install perdure[uvloop]") from None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class Series:
    """Measures workloads, with bare life3 before and after each one."""

    def __init__(self, yardstick: Bare, processes: Processes, bare_tasks: int, say: Progress) -> None:
        self._bare, self._processes, self._bare_tasks, self._say = yardstick, processes, bare_tasks, say
        self.life3: list[float] = []

    async def measure(self, text: str, work: Coroutine[Any, Any, int]) -> Repeat:
        """`work` returns how many tasks it had."""
        if not self.life3:
            await self.measure_life3()
        before, began = self._processes.cpu(), time.perf_counter()
        tasks = await work
        seconds, cpu = time.perf_counter() - began, self._processes.cpu().since(before)
        await self.measure_life3()
        repeat = Repeat(tasks, seconds, cpu, statistics.mean(self.life3[-2:]))
        self._say(f"{text}: {repeat.tasks_per_s:,.0f} tasks/s, {repeat.ratio:.2f} of life3")
        return repeat

    async def measure_life3(self) -> None:
        self.life3.append(await self._bare.tasks_per_s("life3", self._bare_tasks))


async def run_bench(where: Place, tasks: int, *, loop: str, say: Progress) -> BenchReport:
    async with scratch_database(where.dsn) as dsn, bare(dsn) as yardstick, Perdure(dsn) as client:
        server = await yardstick.server()
        processes = Processes(server.pid)
        bare_tasks = min(max(tasks, BARE_TASKS_MIN), BARE_TASKS_MAX)
        series = Series(yardstick, processes, bare_tasks, say)
        await warm(yardstick, client)
        say(f"PostgreSQL {server.version} is up and warm")
        others = {p: await _bare_rates(yardstick, p, bare_tasks) for p in ("life2", "append")}
        found: dict[workloads.Name, list[Repeat]] = {name: [] for name in workloads.NAMES}
        for number in range(REPEATS):
            for name in workloads.NAMES:
                text = f"{name} {number + 1} of {REPEATS}"
                found[name].append(await series.measure(text, workloads.run(name, tasks)))
        latencies = await workloads.latencies_ms(LATENCY_RUNS)
        load = await measure_load(client)
        say(f"a history of {load.events:,} events is taken up in {load.total_ms:,.0f} ms")
        rates = {"life3": series.life3, **others}
        await check_kept(yardstick, client)
        return BenchReport(
            settings=settings_of(server, loop=loop, filesystem=where.filesystem, tasks=tasks, repeats=REPEATS),
            bare=BareRates(
                **{name: round(statistics.median(r)) for name, r in rates.items()},
                spread={name: spread_of(r) for name, r in rates.items()},
            ),
            **{name: summary(found[name]) for name in workloads.NAMES},
            latency_ms=Latency(
                LATENCY_RUNS,
                round(workloads.percentile(latencies, 0.5), 2),
                round(workloads.percentile(latencies, 0.99), 2),
            ),
            load=load,
            rss_mb=round(processes.rss_mb(), 1),
            seconds=round(say.seconds, 1),
        )


async def warm(yardstick: Bare, client: Perdure) -> None:
    """Everything once: code is loaded, statements are prepared, partitions exist, the flow is deployed."""
    await client.deploy(workloads.DIAMOND)
    await yardstick.tasks_per_s("life3", WARM_TASKS)
    for name in workloads.NAMES:
        await workloads.run(name, WARM_TASKS)


async def check_kept(yardstick: Bare, client: Perdure) -> None:
    """A figure counts only if every task that it counts is in the database, once."""
    counters, kept = client.engine.counters, await yardstick.tasks_kept()
    if counters.tasks_lost or counters.tasks_retried or kept != counters.tasks_ended:
        raise PerdureError(f"the bench is void: {counters.tasks_ended} tasks ended and {kept} are kept; {counters}")


async def _bare_rates(yardstick: Bare, pattern: Pattern, tasks: int) -> list[float]:
    return [await yardstick.tasks_per_s(pattern, tasks) for _ in range(REPEATS)]
