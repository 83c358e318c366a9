"""The results of the bench, as one JSON object or as a table."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from importlib import metadata
from typing import Any, Literal

import msgspec

from perdure.bench.bare import BareServer
from perdure.bench.history import Load
from perdure.bench.processes import CpuSeconds, cores
from perdure.programs.terminal import console


class CpuMicroseconds(msgspec.Struct, frozen=True):
    engine: float
    postgres: float | None


class Spread(msgspec.Struct, frozen=True):
    """Lowest and highest of the repeats."""

    tasks_per_s: tuple[int, int]
    ratio_to_life3: tuple[float, float]


class Workload(msgspec.Struct, frozen=True):
    """Medians of the repeats, each figure on its own."""

    tasks: int
    tasks_per_s: int
    ratio_to_life3: float
    cpu_us_per_task: CpuMicroseconds
    spread: Spread


class BareRates(msgspec.Struct, frozen=True):
    life3: int
    life2: int
    append: int
    spread: dict[str, tuple[int, int]]


class Latency(msgspec.Struct, frozen=True):
    runs: int
    p50: float
    p99: float


class Settings(msgspec.Struct, frozen=True):
    perdure: str
    python: str
    postgresql: str
    asyncpg: str
    loop: str
    fsync: str
    synchronous_commit: str
    shared_buffers: str
    filesystem: str | None
    """That of the private server's data; None for a server that was given."""
    tasks: int
    repeats: int
    cores: int


class BenchReport(msgspec.Struct, frozen=True):
    settings: Settings
    bare: BareRates
    fanout: Workload
    chain: Workload
    many: Workload
    dag: Workload
    latency_ms: Latency
    load: Load
    rss_mb: float
    seconds: float


class Repeat(msgspec.Struct, frozen=True):
    """One measurement of a workload, between two of bare life3."""

    tasks: int
    seconds: float
    cpu: CpuSeconds
    life3: float

    @property
    def tasks_per_s(self) -> float:
        return self.tasks / self.seconds

    @property
    def ratio(self) -> float:
        return self.tasks_per_s / self.life3


def summary(repeats: list[Repeat]) -> Workload:
    rates, ratios = [r.tasks_per_s for r in repeats], [r.ratio for r in repeats]
    postgres = [r.cpu.postgres / r.tasks * 1e6 for r in repeats if r.cpu.postgres is not None]
    return Workload(
        tasks=repeats[0].tasks,
        tasks_per_s=round(statistics.median(rates)),
        ratio_to_life3=round(statistics.median(ratios), 3),
        cpu_us_per_task=CpuMicroseconds(
            round(statistics.median(r.cpu.engine / r.tasks * 1e6 for r in repeats), 1),
            round(statistics.median(postgres), 1) if postgres else None,
        ),
        spread=Spread(spread_of(rates), (round(min(ratios), 3), round(max(ratios), 3))),
    )


def spread_of(rates: list[float]) -> tuple[int, int]:
    return round(min(rates)), round(max(rates))


def settings_of(server: BareServer, *, loop: str, filesystem: str | None, tasks: int, repeats: int) -> Settings:
    return Settings(
        perdure=metadata.version("perdure"),
        python=platform.python_version(),
        postgresql=server.version,
        asyncpg=metadata.version("asyncpg"),
        loop=loop,
        fsync=server.fsync,
        synchronous_commit=server.synchronous_commit,
        shared_buffers=server.shared_buffers,
        filesystem=filesystem,
        tasks=tasks,
        repeats=repeats,
        cores=cores(),
    )


class Target(msgspec.Struct, frozen=True):
    figure: float | None
    """None where it cannot be measured, as the CPU time of a server on another machine."""
    limit: float
    passed: bool | None
    want: Literal["below", "at least"] = "below"


def below(figure: float | None, limit: float, digits: int) -> Target:
    if figure is None:
        return Target(None, limit, None)
    return Target(round(figure, digits), limit, figure < limit)


def at_least(figure: float, limit: float, digits: int) -> Target:
    return Target(round(figure, digits), limit, figure >= limit, "at least")


class Progress:
    """One line on stderr per thing done. No moving parts: what animates a terminal would take CPU from what is measured."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, text: str) -> None:
        sys.stderr.write(f"{self.seconds:6.1f} s  {text}\n")
        sys.stderr.flush()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began


def print_table(report: BenchReport) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    for title in ("workload", "tasks/s", "of life3", "spread", "engine us", "postgres us"):
        table.add_column(title, justify="left" if title == "workload" else "right")
    for name in ("life3", "life2", "append"):
        rate: int = getattr(report.bare, name)
        table.add_row(f"bare {name}", f"{rate:,}", f"{rate / report.bare.life3:.2f}", _range(report.bare.spread[name]))
    for name in ("fanout", "chain", "many", "dag"):
        w: Workload = getattr(report, name)
        cpu = w.cpu_us_per_task
        table.add_row(
            name,
            f"{w.tasks_per_s:,}",
            f"{w.ratio_to_life3:.2f}",
            _range(w.spread.tasks_per_s),
            f"{cpu.engine:.0f}",
            _whole(cpu.postgres),
        )
    out.print(table)
    s, latency = report.settings, report.latency_ms
    out.print(f"\nidle latency p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms; memory {report.rss_mb:.0f} MB")
    load = report.load
    out.print(
        f"a history of {load.events:,} events is read in {load.read_ms:.0f} ms and decided in {load.decide_ms:.0f} ms"
    )
    out.print(
        f"{s.tasks:,} tasks, medians of {s.repeats}; fsync {s.fsync}, synchronous_commit {s.synchronous_commit}; "
        f"PostgreSQL {s.postgresql}, Python {s.python} ({s.loop}), {s.cores} cores",
        style="dim",
    )


def _range(bounds: tuple[Any, Any]) -> str:
    return f"{bounds[0]:,}-{bounds[1]:,}"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"
