"""What a plan is made for: the load that is expected, and what is assumed about machines and spares."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.core.errors import InvalidInput

Shape = Literal["chain", "fanout", "flow"]


class ExpectedLoad(msgspec.Struct, frozen=True, kw_only=True):
    runs_per_day: float
    peak_factor: float = 3.0
    """The busiest minutes against the mean of the day."""
    tasks_per_run: float = 5.0
    shape: Shape = "chain"
    """`chain`: one task after another. `fanout`: side by side by `wf.map`. `flow`: a declarative flow."""
    task_s: float = 0.2
    """How long a task takes."""
    task_cpu_s: float = 0.0
    """The CPU time of the user's own code in it."""
    payload_bytes: float = 1_000.0
    """Input and result of a task together, after compression."""
    signals_per_run: float = 0.0
    timers_per_run: float = 0.0
    """Waits of less than a few seconds; longer ones are sleeps."""
    sleeping_share: float = 0.0
    """The share of runs that wait for long: for a timer, a signal or a person."""
    sleep_s: float = 86_400.0
    scheduled_share: float = 0.0
    """The share of runs that schedules start."""
    retention_days: float = 30.0

    def __post_init__(self) -> None:
        check_positive("runs_per_day", self.runs_per_day)
        if self.peak_factor < 1:
            raise InvalidInput("the peak factor is the busiest minutes against the mean of the day: 1 or more")
        for name in ("sleeping_share", "scheduled_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidInput(f"{name} is a share of all runs: 0 to 1")
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, str) and value < 0:
                raise InvalidInput(f"{name} must not be negative")

    @property
    def run_s(self) -> float:
        """How long a run works, without its sleeps."""
        return self.task_s * (min(self.tasks_per_run, 1.0) if self.shape == "fanout" else self.tasks_per_run)


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is not measured. Every value is shown in the plan and can be set."""

    utilisation: float = 0.6
    """How much of what a core can do may be used at the peak. The rest is for failover, vacuum, backups and what a plan does not know."""
    spare_servers: int = 1
    spare_workers: int = 1
    slots: int = 100
    """Tasks at a time of one worker process."""
    slot_use: float = 0.7
    """The share of slots that may be taken at the peak."""
    runs_in_memory: int = 4_096
    """Runs under way in one server (`engine.runs_max`)."""
    run_kb: float = 12.0
    """Memory of a run under way, in a server and in a worker; both were measured below it."""
    connections_per_server: int = 26
    replicas: int = 1
    """Standbys, each with a copy of the database."""
    disk_fill: float = 0.7
    """How full a disk may be."""
    wal_kept_gb: float = 16.0
    """Disk for WAL that is not archived yet or not replayed by a standby."""
    audit_days: float = 365.0
    """Days of the audit log that the disk holds. Retention does not drop it, and each start and signal from outside is a line."""
    restore_mb_s: float = 200.0
    """How fast a backup is restored."""

    def __post_init__(self) -> None:
        for name in ("utilisation", "slot_use", "disk_fill"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidInput(f"{name} is a share: more than 0, at most 1")
        for name in ("slots", "runs_in_memory", "connections_per_server", "restore_mb_s"):
            check_positive(name, getattr(self, name))


class DatabaseSize(msgspec.Struct, frozen=True, kw_only=True):
    """What one PostgreSQL is planned to carry. Larger ones exist; these are sizes that a team restores in an evening."""

    postgres_cores: float = 32.0
    servers: float = 16.0
    """Engines on one database. Measured: two, which together did 1.4 to 1.65 times as much as one on two cores."""
    wal_mb_s: float = 100.0
    disk_tb: float = 4.0
    connections: float = 500.0
    sleeping_runs: float = 10_000_000.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_positive(name, getattr(self, name))


def check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidInput(f"{name} must be more than 0")
