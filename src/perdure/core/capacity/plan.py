"""From a load and measured costs to servers, workers, PostgreSQL cores, WAL and disk, line by line."""

from __future__ import annotations

import math

import msgspec

from perdure.core import limits
from perdure.core.capacity import sections
from perdure.core.capacity.costs import MeasuredCosts
from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad
from perdure.core.capacity.sheet import PlanLine, Sheet, number


class Need(msgspec.Struct, frozen=True):
    """What the load takes of one resource, against what one database is planned to carry."""

    resource: str
    needed: float
    of_one_database: float
    unit: str
    fixed: float = 0.0
    """The part of it that any load needs."""
    growing: float = 0.0
    """The part that grows with the load, before it is rounded up to whole machines."""

    @property
    def share(self) -> float:
        return self.needed / self.of_one_database

    @property
    def times(self) -> float:
        """How many times the load fits."""
        room = max(self.of_one_database - self.fixed, 0.0)
        return room / self.growing if self.growing else math.inf


class CapacityPlan(msgspec.Struct, frozen=True):
    load: ExpectedLoad
    lines: list[PlanLine]
    needs: list[Need]
    """The one that the fewest times the load fits comes first."""
    warnings: list[str]

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def plan(load: ExpectedLoad, costs: MeasuredCosts, assumed: Assumptions, size: DatabaseSize) -> CapacityPlan:
    sheet = Sheet()
    run = sections.add_cost_of_a_run(sheet, load, costs)
    rates = sections.add_load(sheet, load)
    servers = sections.add_servers(sheet, rates, run, costs, assumed)
    workers = sections.add_workers(sheet, load, rates, run, costs, assumed)
    sections.add_database(sheet, rates, run, servers, assumed)
    sections.add_wal(sheet, rates, run)
    sections.add_disk(sheet, load, rates, run, costs, assumed)
    sections.add_look(sheet, rates, run, servers, costs)
    made = {line.name: line.value for line in sheet}
    needs = _needs(made, size, assumed)
    return CapacityPlan(load, sheet.lines, needs, _warnings(load, made, workers, needs, assumed))


def _needs(made: dict[str, float], size: DatabaseSize, assumed: Assumptions) -> list[Need]:
    servers = max(made["server cores"] / assumed.utilisation, made["runs under way, peak"] / assumed.runs_in_memory)
    connections = assumed.connections_per_server
    copy_tb, wal_tb = made["disk of one copy"] / 1_000, assumed.wal_kept_gb / assumed.disk_fill / 1_000
    wal, asleep = made["WAL, peak"], made["runs asleep"]
    found = [
        Need(
            "PostgreSQL cores",
            made["PostgreSQL cores"],
            size.postgres_cores,
            "",
            0.0,
            made["PostgreSQL cores used"] / assumed.utilisation,
        ),
        Need("servers on one database", made["servers"], size.servers, "", assumed.spare_servers, servers),
        Need("WAL, peak", wal, size.wal_mb_s, "MB/s", 0.0, wal),
        Need("disk of one copy", copy_tb, size.disk_tb, "TB", wal_tb, copy_tb - wal_tb),
        Need(
            "connections",
            made["connections"],
            size.connections,
            "",
            assumed.spare_servers * connections,
            servers * connections,
        ),
        Need("runs asleep", asleep, size.sleeping_runs, "", 0.0, asleep),
    ]
    return sorted(found, key=lambda need: need.times)


def _warnings(
    load: ExpectedLoad, made: dict[str, float], workers: float, needs: list[Need], assumed: Assumptions
) -> list[str]:
    found: list[str] = []
    for need in needs:
        if need.share > 1:
            found.append(
                f"One database is not enough for {need.resource}: {number(need.needed)} {need.unit}".rstrip()
                + f" against the {number(need.of_one_database)} that it is planned for."
                + (
                    " Keep fewer days before you think of several databases."
                    if need.resource.startswith("disk")
                    else ""
                )
                + " `perdure plan --shards auto` plans several."
            )
            break
    events = 2 + load.tasks_per_run * 3 + 2 * load.signals_per_run + 2 * load.timers_per_run
    if events > limits.HISTORY_EVENTS_MAX:
        found.append(
            f"A run of {number(load.tasks_per_run)} tasks may have {number(events)} events, and HISTORY_EVENTS_MAX is "
            f"{limits.HISTORY_EVENTS_MAX:,}: use wf.continue_as_new, or children."
        )
    if load.shape == "fanout" and load.tasks_per_run > limits.FANOUT_TASKS_MAX:
        found.append(f"A fan-out of one run has at most {limits.FANOUT_TASKS_MAX:,} tasks (FANOUT_TASKS_MAX).")
    if load.payload_bytes > limits.PAYLOAD_INLINE_BYTES:
        found.append(
            f"Values over {limits.PAYLOAD_INLINE_BYTES:,} bytes (PAYLOAD_INLINE_BYTES) go to the payload store: with an object store "
            "they take no disk and no WAL here, and the figures of this plan are too high."
        )
    if made["audit log, kept"] > made["ended runs, kept"]:
        found.append(
            f"The audit log of {number(assumed.audit_days)} days takes {number(made['audit log, kept'])} GB, more than the runs that are kept, and "
            "retention does not drop it: starts by schedules, events and parents have no line in it."
        )
    if made["connections"] > 100:
        found.append(
            f"{number(made['connections'])} connections are more than PostgreSQL's default max_connections of 100: raise it, or use PgBouncer."
        )
    if workers > limits.GRPC_CONNECTIONS_MAX * made["servers"]:
        found.append(
            f"A server takes {limits.GRPC_CONNECTIONS_MAX:,} workers (GRPC_CONNECTIONS_MAX): use more slots per worker."
        )
    if made["hours to restore"] > 8:
        found.append(
            f"A restore takes {number(made['hours to restore'])} hours. Keep fewer days, export ended runs, or use more databases."
        )
    if assumed.replicas < 1:
        found.append("Without a standby a lost disk loses what was acknowledged since the last archived WAL.")
    return found
