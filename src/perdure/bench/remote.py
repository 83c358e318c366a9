"""`perdure bench --remote`: client, server, worker and PostgreSQL, each a process of its own, over gRPC.

The client is this process. The worker has several slots and the server no worker of its own, so every task and every decision of workflow
code crosses the wire twice.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

import grpc
import msgspec
import psutil

from perdure.bench import workloads
from perdure.bench.bare import bare, scratch_database
from perdure.bench.processes import CpuSeconds, Processes
from perdure.bench.report import Latency, Progress, Repeat, Settings, settings_of, spread_of, summary
from perdure.bench.suite import (
    BARE_TASKS_MAX,
    BARE_TASKS_MIN,
    LATENCY_RUNS,
    REPEATS,
    WARM_TASKS,
    Place,
    Series,
)
from perdure.core.errors import PerdureError, Unavailable
from perdure.localpg.postmaster import free_port
from perdure.programs.terminal import console
from perdure.sdk.client.channel import Access
from perdure.sdk.client.client import Client
from perdure.wire import protocol

NAMES: Final[tuple[workloads.Name, ...]] = ("fanout", "chain")
SLOTS: Final = 1_000
START_S_MAX: Final = 90.0
IDLE_SETTLE_S: Final = 3.0
PERDURE: Final = [sys.executable, "-c", "from perdure.cli.main import main; main()"]
_system: Any = psutil


class Shares(msgspec.Struct, frozen=True):
    """CPU microseconds per task."""

    server: float
    worker: float
    client: float
    postgres: float | None


class RemoteWorkload(msgspec.Struct, frozen=True):
    tasks: int
    tasks_per_s: int
    ratio_to_life3: float
    spread: tuple[float, float]
    cpu_us_per_task: Shares


class Idle(msgspec.Struct, frozen=True):
    """What connected workers cost the server that have nothing to do."""

    workers: int
    seconds: float
    cpu_percent: float
    rss_mb: float
    rss_mb_before: float


class RemoteReport(msgspec.Struct, frozen=True):
    settings: Settings
    slots: int
    life3: int
    life3_spread: tuple[int, int]
    fanout: RemoteWorkload
    chain: RemoteWorkload
    latency_ms: Latency
    rss_mb: dict[str, float]
    idle: Idle
    seconds: float


class RemoteProcesses(Processes):
    """The engine's share is the server's; the others are kept beside it."""

    def __init__(self, backend_pid: int | None, server: int, worker: int) -> None:
        super().__init__(backend_pid)
        self._engine = _system.Process(server)
        self._worker, self._client = _system.Process(worker), _system.Process()
        self.others: list[tuple[float, float]] = []
        """(worker, client) CPU seconds at each reading."""

    def cpu(self) -> CpuSeconds:
        self.others.append((_seconds(self._worker), _seconds(self._client)))
        return super().cpu()

    def rss(self) -> dict[str, float]:
        found = {"server": self._engine, "worker": self._worker, "client": self._client}
        return {name: round(p.memory_info().rss / 2**20, 1) for name, p in found.items()}


def _seconds(process: Any) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def running(*arguments: str) -> Generator[subprocess.Popen[bytes]]:
    """A `perdure ...` process; asked to stop at the end, and stopped."""
    process = subprocess.Popen([*PERDURE, *arguments], stdout=subprocess.DEVNULL, env=os.environ | {"NO_COLOR": "1"})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def run_remote(where: Place, tasks: int, *, idle_workers: int, idle_s: float, say: Progress) -> RemoteReport:
    async with scratch_database(where.dsn) as dsn, bare(dsn) as yardstick:
        http, address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        with running("server", "--dsn", dsn, "--http", http, "--grpc", address, "--auth", "open") as server:
            await answering(address, server)
            worker_arguments = ("worker", "perdure.bench.workloads", "--server", address, "--slots", str(SLOTS))
            with running(*worker_arguments) as worker:
                about = await yardstick.server()
                processes = RemoteProcesses(about.pid, server.pid, worker.pid)
                bare_tasks = min(max(tasks, BARE_TASKS_MIN), BARE_TASKS_MAX)
                series = Series(yardstick, processes, bare_tasks, say)
                async with Client(address):
                    await yardstick.tasks_per_s("life3", WARM_TASKS)
                    for name in NAMES:
                        await workloads.run(name, WARM_TASKS)
                    say(f"server, worker and PostgreSQL {about.version} are up and warm")
                    found = await _measure(series, processes, tasks)
                    latencies = await workloads.latencies_ms(LATENCY_RUNS)
                rss = processes.rss()
                kept = await yardstick.tasks_kept()
            await asyncio.sleep(IDLE_SETTLE_S)
            idle = await _idle(server.pid, address, idle_workers, idle_s, say)
    _check_kept(kept, tasks)
    return RemoteReport(
        settings=settings_of(about, loop="asyncio", filesystem=where.filesystem, tasks=tasks, repeats=REPEATS),
        slots=SLOTS,
        life3=round(statistics.median(series.life3)),
        life3_spread=spread_of(series.life3),
        fanout=found["fanout"],
        chain=found["chain"],
        latency_ms=Latency(
            LATENCY_RUNS,
            round(workloads.percentile(latencies, 0.5), 2),
            round(workloads.percentile(latencies, 0.99), 2),
        ),
        rss_mb=rss,
        idle=idle,
        seconds=round(say.seconds, 1),
    )


async def _measure(series: Series, processes: RemoteProcesses, tasks: int) -> dict[workloads.Name, RemoteWorkload]:
    repeats: dict[workloads.Name, list[Repeat]] = {name: [] for name in NAMES}
    others: dict[workloads.Name, list[tuple[float, float]]] = {name: [] for name in NAMES}
    for number in range(REPEATS):
        for name in NAMES:
            processes.others.clear()
            repeat = await series.measure(f"{name} {number + 1} of {REPEATS}", workloads.run(name, tasks))
            repeats[name].append(repeat)
            before, after = processes.others[0], processes.others[1]
            others[name].append(
                ((after[0] - before[0]) / repeat.tasks * 1e6, (after[1] - before[1]) / repeat.tasks * 1e6)
            )
    return {name: _workload(repeats[name], others[name]) for name in NAMES}


def _workload(repeats: list[Repeat], others: list[tuple[float, float]]) -> RemoteWorkload:
    w = summary(repeats)
    return RemoteWorkload(
        tasks=w.tasks,
        tasks_per_s=w.tasks_per_s,
        ratio_to_life3=w.ratio_to_life3,
        spread=w.spread.ratio_to_life3,
        cpu_us_per_task=Shares(
            w.cpu_us_per_task.engine,
            round(statistics.median(worker for worker, _ in others), 1),
            round(statistics.median(client for _, client in others), 1),
            w.cpu_us_per_task.postgres,
        ),
    )


def _check_kept(kept: int, tasks: int) -> None:
    """A figure counts only if every task that it counts is in the database, once."""
    chain = max(1, tasks // 10) * workloads.CHAIN_TASKS
    warm = WARM_TASKS + max(1, WARM_TASKS // 10) * workloads.CHAIN_TASKS
    expected = warm + REPEATS * (tasks + chain) + LATENCY_RUNS
    if kept != expected:
        raise PerdureError(f"the bench is void: {expected} tasks were to be done and {kept} are kept")


async def answering(address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server takes connections."""
    deadline = time.monotonic() + START_S_MAX
    async with Access(addresses=(address,)).channel(address) as channel:
        ready = asyncio.ensure_future(channel.channel_ready())
        while not ready.done():
            if process.poll() is not None or time.monotonic() > deadline:
                ready.cancel()
                raise Unavailable(f"the server at {address} did not come up; its own output says why")
            await asyncio.sleep(0.05)


async def _idle(server_pid: int, address: str, workers: int, watch_s: float, say: Progress) -> Idle:
    server = _system.Process(server_pid)
    before = server.memory_info().rss / 2**20
    with running("bench", "idle-workers", address, str(workers)):
        await _until_connected(server, workers)
        await asyncio.sleep(IDLE_SETTLE_S)
        began, cpu = time.perf_counter(), _seconds(server)
        await asyncio.sleep(watch_s)
        seconds = time.perf_counter() - began
        idle = Idle(
            workers,
            round(seconds, 1),
            round((_seconds(server) - cpu) / seconds * 100, 2),
            round(server.memory_info().rss / 2**20, 1),
            round(before, 1),
        )
    say(f"{workers} idle workers: {idle.cpu_percent:.1f}% of a core, {idle.rss_mb:.0f} MB")
    return idle


async def _until_connected(server: Any, workers: int) -> None:
    deadline = time.monotonic() + 2 * START_S_MAX
    while len([c for c in server.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED]) < workers:
        if time.monotonic() > deadline:
            raise Unavailable(f"{workers} workers did not connect in time")
        await asyncio.sleep(0.2)


async def hold_idle_workers(address: str, count: int) -> None:
    """Many idle workers in one process, each with a separate connection."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(_idle_worker(address, number))
            if number % 50 == 49:
                await asyncio.sleep(0.1)


async def _idle_worker(address: str, number: int) -> None:
    options = [*protocol.CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    hello = protocol.Hello(
        os.urandom(16), f"idle-{number}", "bench", os.getpid(), "perdure-bench", 10, [("default", "idle")], {}, []
    )
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call: Any = channel.stream_stream(protocol.CONNECT)()
        await call.write(protocol.encode_up(protocol.Up(hello=hello)))
        welcome = protocol.decode_down(await call.read()).welcome
        assert welcome is not None
        while True:
            await asyncio.sleep(welcome.alive_every_ms / 1000 / 2)
            await call.write(protocol.encode_up(protocol.Up(alive=True)))


def print_remote(report: RemoteReport) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    for title in ("workload", "tasks/s", "of life3", "server us", "worker us", "client us", "postgres us"):
        table.add_column(title, justify="left" if title == "workload" else "right")
    table.add_row("bare life3", f"{report.life3:,}", "1.00")
    for name in NAMES:
        w: RemoteWorkload = getattr(report, name)
        cpu = w.cpu_us_per_task
        postgres = "" if cpu.postgres is None else f"{cpu.postgres:.0f}"
        table.add_row(
            name,
            f"{w.tasks_per_s:,}",
            f"{w.ratio_to_life3:.2f}",
            f"{cpu.server:.0f}",
            f"{cpu.worker:.0f}",
            f"{cpu.client:.0f}",
            postgres,
        )
    out.print(table)
    latency, idle = report.latency_ms, report.idle
    out.print(f"\nidle latency p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms")
    out.print(f"{idle.workers:,} idle workers: {idle.cpu_percent:.1f}% of a core, {idle.rss_mb:.0f} MB")
