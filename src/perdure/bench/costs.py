"""`perdure bench costs`: what a run, a task, a signal, a timer, a sleep and a fire of a schedule cost, for `perdure plan`.

Client, server, worker and PostgreSQL are processes of their own, as with `--remote`. All workloads are measured in turns, in several rounds. What
server, worker and database take while nothing is to do is measured first, and taken off workloads that mostly wait.
"""

from __future__ import annotations

import asyncio
import datetime
import platform
import statistics
import time
from importlib import metadata
from typing import Any, Final

import msgspec
import psutil

from perdure.bench import cost_workloads, workloads
from perdure.bench.bare import Bare, BareServer, bare, scratch_database
from perdure.bench.herd import all_asleep
from perdure.bench.processes import cores
from perdure.bench.remote import RemoteProcesses, answering, running
from perdure.bench.report import Progress
from perdure.bench.suite import WARM_TASKS, Place
from perdure.core.capacity.costs import (
    CostsAbout,
    IdleCosts,
    MeasuredCosts,
    MeasuredWorkload,
    UnitCost,
    WorkloadName,
)
from perdure.core.errors import PerdureError
from perdure.localpg.postmaster import free_port
from perdure.programs.terminal import console
from perdure.sdk.client.client import Client

RUNS: Final = 2_000
RUNS_MIN: Final = 40
"""Below it a page of a table is a large part of what a run costs."""
ROUNDS: Final = 3
IDLE_S: Final = 6.0
IDLE_LOOKS: Final = 3
SLOTS: Final = 1_000
LIFE3_TASKS: Final = 10_000
_system: Any = psutil


class CpuReading(msgspec.Struct, frozen=True):
    """CPU seconds used so far."""

    server: float
    worker: float
    postgres: float

    def since(self, before: CpuReading) -> CpuReading:
        return CpuReading(self.server - before.server, self.worker - before.worker, self.postgres - before.postgres)


class CostRound(msgspec.Struct, frozen=True):
    """One measurement of a workload, per run."""

    runs: int
    seconds: float
    cost: UnitCost


class CostProcesses:
    def __init__(self, about: BareServer, server: int, worker: int) -> None:
        self._processes = RemoteProcesses(about.pid, server, worker)
        self._server, self._worker = _system.Process(server), _system.Process(worker)

    def cpu(self) -> CpuReading:
        self._processes.others.clear()
        cpu = self._processes.cpu()
        if cpu.postgres is None:
            raise PerdureError("the CPU time of this PostgreSQL cannot be read: it runs on another machine")
        return CpuReading(cpu.engine, self._processes.others[0][0], cpu.postgres)

    def mb(self) -> tuple[float, float]:
        server, worker = (float(round(p.memory_info().rss / 2**20, 1)) for p in (self._server, self._worker))
        return server, worker


class CostBench:
    """Measures rounds of workloads on one database."""

    def __init__(self, yardstick: Bare, processes: CostProcesses, client: Client, say: Progress) -> None:
        self._bare, self._processes, self._client, self._say = yardstick, processes, client, say
        self._idle = CpuReading(0.0, 0.0, 0.0)
        self._tables: dict[str, tuple[int, int]] = {}
        """After the last round; a vacuum of all partitions takes longer than most workloads."""

    async def idle(self, idle_s: float) -> IdleCosts:
        """The least of some looks: one of them may meet an autovacuum."""
        looks: list[CpuReading] = []
        for _ in range(IDLE_LOOKS):
            began, before = time.perf_counter(), self._processes.cpu()
            await asyncio.sleep(idle_s / IDLE_LOOKS)
            cpu, seconds = self._processes.cpu().since(before), time.perf_counter() - began
            looks.append(CpuReading(cpu.server / seconds, cpu.worker / seconds, cpu.postgres / seconds))
        least = CpuReading(
            min(look.server for look in looks), min(look.worker for look in looks), min(look.postgres for look in looks)
        )
        self._idle = least
        server_mb, worker_mb = self._processes.mb()
        return IdleCosts(round(least.server, 5), round(least.worker, 5), round(least.postgres, 5), server_mb, worker_mb)

    async def round(self, name: WorkloadName, runs: int) -> CostRound:
        tables = self._tables or await self._bare.tables()
        wal, transactions = await self._bare.written()
        cpu, began = self._processes.cpu(), time.perf_counter()
        ended = await cost_workloads.run(name, runs, self._bare, self._client)
        seconds, used = time.perf_counter() - began, self._processes.cpu().since(cpu)
        wal_after, transactions_after = await self._bare.written()
        idle_s = seconds if name in cost_workloads.WAITING else 0.0
        after = self._tables = await self._bare.tables()
        growth = {t: (size - tables[t][0], rows - tables[t][1]) for t, (size, rows) in after.items() if t in tables}
        cost = UnitCost(
            server_us=max(used.server - self._idle.server * idle_s, 0.0) / ended * 1e6,
            worker_us=max(used.worker - self._idle.worker * idle_s, 0.0) / ended * 1e6,
            postgres_us=max(used.postgres - self._idle.postgres * idle_s, 0.0) / ended * 1e6,
            wal_bytes=(wal_after - wal) / ended,
            transactions=(transactions_after - transactions) / ended,
            disk={t: size / ended for t, (size, _) in growth.items() if size > 0},
            rows={t: rows / ended for t, (_, rows) in growth.items() if rows > 0},
        )
        self._say(
            f"{name}: {ended:,} runs; server {cost.server_us:,.0f}, worker {cost.worker_us:,.0f}, PostgreSQL "
            f"{cost.postgres_us:,.0f} us, WAL {cost.wal_bytes:,.0f}, disk {cost.disk_bytes:,.0f} bytes a run"
        )
        return CostRound(ended, seconds, cost)

    async def sleeping_bytes(self, runs: int) -> dict[str, float]:
        before = await self._bare.tables()
        await workloads.many_times(workloads.sleeper.start, runs)
        await all_asleep(self._bare, runs)
        after = await self._bare.tables()
        return {t: round((after[t][0] - before[t][0]) / runs, 1) for t in before if after[t][0] > before[t][0]}


async def run_costs(where: Place, runs: int, rounds: int, say: Progress) -> MeasuredCosts:
    async with scratch_database(where.dsn) as dsn, bare(dsn) as yardstick:
        about = await yardstick.server()
        http, address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        with running("server", "--dsn", dsn, "--http", http, "--grpc", address, "--auth", "open") as server:
            await answering(address, server)
            modules = ("perdure.bench.workloads", "perdure.bench.cost_workloads")
            with running("worker", *modules, "--server", address, "--slots", str(SLOTS)) as worker:
                async with Client(address) as client:
                    await client.deploy(workloads.DIAMOND)
                    bench = CostBench(yardstick, CostProcesses(about, server.pid, worker.pid), client, say)
                    await _warm(yardstick, client)
                    say(f"server, worker and PostgreSQL {about.version} are up and warm")
                    life3 = [await yardstick.tasks_per_s("life3", LIFE3_TASKS)]
                    idle = await bench.idle(IDLE_S)
                    found: dict[WorkloadName, list[CostRound]] = {name: [] for name in cost_workloads.NAMES}
                    for _ in range(rounds):
                        for name in cost_workloads.NAMES:
                            found[name].append(await bench.round(name, _size(name, runs)))
                        life3.append(await yardstick.tasks_per_s("life3", LIFE3_TASKS))
                    sleeping = await bench.sleeping_bytes(runs)
                    loaded = await bench.idle(0.5)
    return MeasuredCosts(
        _about(about, rounds, round(statistics.median(life3))),
        {name: _medians(name, runs, of) for name, of in found.items()},
        sleeping,
        msgspec.structs.replace(idle, server_mb=loaded.server_mb, worker_mb=loaded.worker_mb),
    )


async def _warm(yardstick: Bare, client: Client) -> None:
    """Everything once: code is loaded, statements are prepared, partitions exist."""
    await yardstick.tasks_per_s("life3", WARM_TASKS)
    for name in cost_workloads.NAMES:
        if name not in ("fire", "sleep"):
            await cost_workloads.run(name, WARM_TASKS // 2, yardstick, client)


def _size(name: WorkloadName, runs: int) -> int:
    """Runs of a workload, or tasks of the fan-out."""
    return runs * 10 if name == "fanout" else max(RUNS_MIN, int(runs * cost_workloads.SHARES.get(name, 1.0)))


def _medians(name: WorkloadName, runs: int, found: list[CostRound]) -> MeasuredWorkload:
    costs = [r.cost for r in found]

    def middle(figures: list[float]) -> float:
        return round(statistics.median(figures), 3)

    def by_table(of: list[dict[str, float]]) -> dict[str, float]:
        tables = sorted({table for one in of for table in one})
        medians = {table: middle([one.get(table, 0.0) for one in of]) for table in tables}
        return {table: value for table, value in medians.items() if value > 0}

    figures: dict[str, list[float]] = {
        "cpu_us": [c.server_us + c.worker_us + c.postgres_us for c in costs],
        "server_us": [c.server_us for c in costs],
        "worker_us": [c.worker_us for c in costs],
        "postgres_us": [c.postgres_us for c in costs],
        "wal_bytes": [c.wal_bytes for c in costs],
        "disk_bytes": [c.disk_bytes for c in costs],
    }
    return MeasuredWorkload(
        runs=found[0].runs,
        units_per_run=cost_workloads.UNITS_PER_RUN.get(name, float(_size(name, runs))),
        per_run=UnitCost(
            middle(figures["server_us"]),
            middle(figures["worker_us"]),
            middle(figures["postgres_us"]),
            middle(figures["wal_bytes"]),
            round(statistics.median(c.transactions for c in costs), 4),
            by_table([c.disk for c in costs]),
            by_table([c.rows for c in costs]),
        ),
        runs_per_s=round(statistics.median(r.runs / r.seconds for r in found), 1),
        spread={name: (round(min(of), 1), round(max(of), 1)) for name, of in figures.items()},
    )


def _about(server: BareServer, rounds: int, life3: int) -> CostsAbout:
    return CostsAbout(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        perdure=metadata.version("perdure"),
        python=platform.python_version(),
        postgresql=server.version,
        machine=f"{cores()} cores, {platform.machine()}, {round(_system.virtual_memory().total / 2**30)} GiB",
        cores=cores(),
        fsync=server.fsync,
        synchronous_commit=server.synchronous_commit,
        rounds=rounds,
        life3_tasks_per_s=life3,
    )


def print_costs(costs: MeasuredCosts) -> None:
    from rich.table import Table

    from perdure.core.capacity.costs import UNITS

    table = Table(box=None, pad_edge=False)
    for title in ("one", "server us", "worker us", "postgres us", "WAL bytes", "commits", "disk bytes", "CPU spread"):
        table.add_column(title, justify="left" if title == "one" else "right")
    for name in UNITS:
        c = costs.unit(name)
        table.add_row(
            name.replace("_", " "),
            *(f"{v:,.0f}" for v in (c.server_us, c.worker_us, c.postgres_us, c.wal_bytes)),
            f"{c.transactions:.3f}",
            f"{c.disk_bytes:,.0f}",
            f"x {costs.spread_of(name):.2f}",
        )
    out, about = console(), costs.about
    out.print(table)
    out.print(
        f"\nmedians of {about.rounds} rounds on {about.date}: {about.machine}; Perdure {about.perdure}, PostgreSQL {about.postgresql}, "
        f"Python {about.python}; fsync {about.fsync}; bare PostgreSQL {about.life3_tasks_per_s:,} tasks/s (life3)",
        style="dim",
    )
