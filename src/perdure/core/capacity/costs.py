"""What a run, a task, a signal, a timer, a sleep and a fire of a schedule cost, from measured workloads.

A workload is measured per run. A run that does nothing is measured too, and what a workload costs more than it, divided by the units in it,
is the cost of one unit: a chain of five tasks less an empty run, by five, is a task.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

UnitName = Literal["run", "task_chain", "task_fanout", "task_flow", "signal", "timer", "sleep", "fire", "payload_kib"]
WorkloadName = Literal[
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
]
UNITS: Final[dict[UnitName, tuple[WorkloadName, WorkloadName | None]]] = {
    "run": ("empty", None),
    "task_chain": ("chain", "empty"),
    "task_fanout": ("fanout", "empty"),
    "task_flow": ("dag", "empty"),
    "signal": ("signals", "empty"),
    "timer": ("timers", "empty"),
    "sleep": ("sleep", "empty"),
    "fire": ("fire", "empty"),
    "payload_kib": ("payload", "single"),
}
"""Unit -> the workload that has such units, and the one that is like it without them."""
STEADY_PER_S: Final = 50.0
"""Runs per second of the workload `steady`."""


class UnitCost(msgspec.Struct, frozen=True):
    """What one unit costs. `disk` and `rows` are by table, with its indexes; those of tables that keep rows are taken after a vacuum."""

    server_us: float = 0.0
    worker_us: float = 0.0
    postgres_us: float = 0.0
    wal_bytes: float = 0.0
    transactions: float = 0.0
    disk: dict[str, float] = {}
    rows: dict[str, float] = {}

    @property
    def disk_bytes(self) -> float:
        return sum(self.disk.values())

    def times(self, n: float) -> UnitCost:
        return UnitCost(
            self.server_us * n,
            self.worker_us * n,
            self.postgres_us * n,
            self.wal_bytes * n,
            self.transactions * n,
            {table: value * n for table, value in self.disk.items()},
            {table: value * n for table, value in self.rows.items()},
        )

    def plus(self, other: UnitCost) -> UnitCost:
        return UnitCost(
            self.server_us + other.server_us,
            self.worker_us + other.worker_us,
            self.postgres_us + other.postgres_us,
            self.wal_bytes + other.wal_bytes,
            self.transactions + other.transactions,
            _sum(self.disk, other.disk),
            _sum(self.rows, other.rows),
        )

    def less(self, other: UnitCost) -> UnitCost:
        """Never below zero: where noise is larger than a difference, the difference is nothing."""
        rest = self.plus(other.times(-1.0))
        return UnitCost(
            max(rest.server_us, 0.0),
            max(rest.worker_us, 0.0),
            max(rest.postgres_us, 0.0),
            max(rest.wal_bytes, 0.0),
            max(rest.transactions, 0.0),
            {table: max(value, 0.0) for table, value in rest.disk.items()},
            {table: max(value, 0.0) for table, value in rest.rows.items()},
        )


class MeasuredWorkload(msgspec.Struct, frozen=True):
    """Per run: medians of the rounds, each figure on its own, and the lowest and highest of them."""

    runs: int
    units_per_run: float
    per_run: UnitCost
    runs_per_s: float
    spread: dict[str, tuple[float, float]]


class CostsAbout(msgspec.Struct, frozen=True):
    """Where and when costs were measured."""

    date: str
    perdure: str
    python: str
    postgresql: str
    machine: str
    cores: int
    fsync: str
    synchronous_commit: str
    rounds: int
    life3_tasks_per_s: int
    """Of bare PostgreSQL on that machine, to compare machines by."""


class IdleCosts(msgspec.Struct, frozen=True):
    """Of one server, one worker and their database with nothing to do: CPU seconds per second, and megabytes after the load."""

    server_cpu: float
    worker_cpu: float
    postgres_cpu: float
    server_mb: float
    worker_mb: float


class MeasuredCosts(msgspec.Struct, frozen=True):
    about: CostsAbout
    workloads: dict[WorkloadName, MeasuredWorkload]
    sleeping_run_bytes: dict[str, float]
    """Bytes of one run that sleeps, by table."""
    idle: IdleCosts

    def unit(self, name: UnitName) -> UnitCost:
        of, without = UNITS[name]
        workload = self.workloads[of]
        if without is None:
            return workload.per_run
        return workload.per_run.less(self.workloads[without].per_run).times(1.0 / workload.units_per_run)

    @property
    def quiet(self) -> UnitCost:
        """How many times more a run costs that runs alone, so that it shares no commit: each figure of the workload `quiet` by that of `chain`."""
        alone, many = self.workloads["quiet"].per_run, self.workloads["chain"].per_run
        return UnitCost(
            alone.server_us / many.server_us,
            alone.worker_us / many.worker_us,
            alone.postgres_us / many.postgres_us,
            alone.wal_bytes / many.wal_bytes,
            alone.transactions / many.transactions,
        )

    def busy(self, runs_per_s: float, server_us: float) -> float:
        """How busy a server looks, from 0 to 1, that gets so many runs a second of such a cost.

        The share of runs that share no commit is the share of time in which the server is idle: busy = rate x (cost + (1 - busy) x (cost alone -
        cost)), solved for busy.
        """
        full = runs_per_s * server_us / 1e6
        alone = full * self.quiet.server_us
        return min(1.0, alone / (1 + alone - full))

    def at_rate(self, runs_per_s: float) -> UnitCost:
        """What a chain costs on one server that gets so many a second."""
        many = self.workloads["chain"].per_run
        shared = self.busy(runs_per_s, many.server_us)
        quiet = self.quiet
        return UnitCost(
            server_us=many.server_us * (shared + (1 - shared) * quiet.server_us),
            worker_us=many.worker_us * (shared + (1 - shared) * quiet.worker_us),
            postgres_us=many.postgres_us * (shared + (1 - shared) * quiet.postgres_us),
            wal_bytes=many.wal_bytes * (shared + (1 - shared) * quiet.wal_bytes),
            transactions=many.transactions * (shared + (1 - shared) * quiet.transactions),
        )

    def spread_of(self, name: UnitName) -> float:
        """How many times more CPU the dearest round took than the cheapest one."""
        low, high = self.workloads[UNITS[name][0]].spread["cpu_us"]
        return high / low if low else 1.0


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {table: one.get(table, 0.0) + other.get(table, 0.0) for table in sorted(one.keys() | other.keys())}
