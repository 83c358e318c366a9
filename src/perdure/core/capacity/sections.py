"""The lines of a plan, section by section: what a run costs, the load, servers, workers, PostgreSQL, WAL, disk, and how it looks."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from perdure.core.capacity.costs import MeasuredCosts, UnitCost, UnitName
from perdure.core.capacity.load import Assumptions, ExpectedLoad
from perdure.core.capacity.sheet import Sheet, number

DAY_S: Final = 86_400
MB: Final = 1e6
GB: Final = 1e9
TB: Final = 1e12
KEPT_TABLES: Final = (
    "history",
    "run",
    "task",
    "task_attempt",
    "node_count",
    "run_state",
    "task_log",
    "payload_use",
    "schedule_fire",
)
"""Tables that keep rows of ended runs. All others but the audit log hold active work, and give space back to the next one."""
AUDIT_TABLES: Final = ("audit", "audit_chain")
"""Tables that only grow."""
ACTIVE_TABLES: Final = ("run_queue", "history")
"""Tables with rows of a run that sleeps."""
SESSION_MB: Final = 10
"""Memory of one connection to PostgreSQL."""
CACHED_SHARE: Final = 0.1
"""The share of a day's rows that is worth keeping in memory: what is being written, and what people look at."""
MEMORY_GB_MIN: Final = 4
PAGE_BYTES: Final = 8_192
LOOK: Final = "How it looks at the peak"


class Rates(msgspec.Struct, frozen=True):
    mean_runs: float
    peak_runs: float
    peak_tasks: float
    active: float
    sleeping: float


def parts_of_a_run(load: ExpectedLoad) -> list[tuple[str, UnitName, float]]:
    """What a run consists of: how it is called, the unit, how many."""
    task: dict[str, UnitName] = {"chain": "task_chain", "fanout": "task_fanout", "flow": "task_flow"}
    found: list[tuple[str, UnitName, float]] = [
        ("run", "run", 1.0),
        ("tasks", task[load.shape], load.tasks_per_run),
        ("KiB of payload", "payload_kib", load.tasks_per_run * load.payload_bytes / 1024),
        ("signals", "signal", load.signals_per_run),
        ("timers", "timer", load.timers_per_run),
        ("sleeps", "sleep", load.sleeping_share),
        ("fires of schedules", "fire", load.scheduled_share),
    ]
    return [part for part in found if part[2] > 0]


def cost_of_a_run(load: ExpectedLoad, costs: MeasuredCosts) -> UnitCost:
    total = UnitCost()
    for _, unit, n in parts_of_a_run(load):
        total = total.plus(costs.unit(unit).times(n))
    return total


def add_cost_of_a_run(sheet: Sheet, load: ExpectedLoad, costs: MeasuredCosts) -> UnitCost:
    sheet.section("One run costs")
    parts = parts_of_a_run(load)
    words = " + ".join(name if unit == "run" else f"{name} x cost of one" for name, unit, _ in parts)
    total = cost_of_a_run(load, costs)

    def add(name: str, value: float, unit: str, of: list[tuple[float, float]]) -> None:
        numbers = " + ".join(number(each) if n == 1 else f"{number(n)} * {number(each)}" for n, each in of)
        sheet.add(name, value, unit, words, numbers)

    each = [(n, costs.unit(unit)) for _, unit, n in parts]
    add("server CPU of a run", total.server_us, "us", [(n, c.server_us) for n, c in each])
    add("worker CPU of a run", total.worker_us, "us", [(n, c.worker_us) for n, c in each])
    add("PostgreSQL CPU of a run", total.postgres_us, "us", [(n, c.postgres_us) for n, c in each])
    add("WAL of a run", total.wal_bytes, "bytes", [(n, c.wal_bytes) for n, c in each])
    add("transactions of a run", total.transactions, "", [(n, c.transactions) for n, c in each])
    add("disk of a run", kept_bytes(total), "bytes", [(n, kept_bytes(c)) for n, c in each])
    return total


def kept_bytes(cost: UnitCost) -> float:
    return sum(cost.disk.get(table, 0.0) for table in KEPT_TABLES)


def audit_bytes(cost: UnitCost) -> float:
    return sum(cost.disk.get(table, 0.0) for table in AUDIT_TABLES)


def add_load(sheet: Sheet, load: ExpectedLoad) -> Rates:
    sheet.section("Load")
    mean = sheet.add(
        "runs per second, mean",
        load.runs_per_day / DAY_S,
        "per s",
        "runs per day / seconds of a day",
        f"{number(load.runs_per_day)} / {DAY_S}",
    )
    peak = sheet.add(
        "runs per second, peak",
        mean * load.peak_factor,
        "per s",
        "mean x peak factor",
        f"{number(mean)} * {number(load.peak_factor)}",
    )
    tasks = sheet.add(
        "tasks per second, peak",
        peak * load.tasks_per_run,
        "per s",
        "peak runs x tasks of a run",
        f"{number(peak)} * {number(load.tasks_per_run)}",
    )
    active = sheet.add(
        "runs under way, peak",
        peak * load.run_s,
        "",
        "peak runs per second x seconds that a run works (Little's law)",
        f"{number(peak)} * {number(load.run_s)}",
    )
    sleeping = sheet.add(
        "runs asleep",
        mean * load.sleeping_share * load.sleep_s,
        "",
        "mean runs per second x share that sleeps x seconds of sleep (Little's law)",
        f"{number(mean)} * {number(load.sleeping_share)} * {number(load.sleep_s)}",
    )
    return Rates(mean, peak, tasks, active, sleeping)


def add_servers(sheet: Sheet, rates: Rates, run: UnitCost, costs: MeasuredCosts, assumed: Assumptions) -> float:
    sheet.section("Servers, one core each")
    cores = sheet.add(
        "server cores",
        rates.peak_runs * run.server_us / 1e6,
        "cores",
        "peak runs per second x server CPU of a run, us / 1,000,000",
        f"{number(rates.peak_runs)} * {number(run.server_us)} / 1000000",
    )
    by_cpu = sheet.add(
        "servers by CPU",
        math.ceil(cores / assumed.utilisation),
        "",
        "cores / how far a core may be used",
        f"ceil({number(cores)} / {number(assumed.utilisation)})",
    )
    by_memory = sheet.add(
        "servers by runs in memory",
        math.ceil(rates.active / assumed.runs_in_memory),
        "",
        "runs under way / runs that one server holds (engine.runs_max)",
        f"ceil({number(rates.active)} / {assumed.runs_in_memory})",
    )
    servers = sheet.add(
        "servers",
        max(by_cpu, by_memory) + assumed.spare_servers,
        "",
        "the larger of both + spare",
        f"max({number(by_cpu)}, {number(by_memory)}) + {assumed.spare_servers}",
    )
    held = rates.active / servers
    sheet.add(
        "memory of a server",
        costs.idle.server_mb + held * assumed.run_kb / 1_000,
        "MB",
        "measured after many runs + runs under way on one server x kB of one / 1,000",
        f"{number(costs.idle.server_mb)} + {number(held)} * {number(assumed.run_kb)} / 1000",
    )
    return servers


def add_workers(
    sheet: Sheet, load: ExpectedLoad, rates: Rates, run: UnitCost, costs: MeasuredCosts, assumed: Assumptions
) -> float:
    sheet.section("Workers, one core each")
    slots = sheet.add(
        "tasks under way, peak",
        rates.peak_tasks * load.task_s,
        "",
        "peak tasks per second x seconds of a task (Little's law)",
        f"{number(rates.peak_tasks)} * {number(load.task_s)}",
    )
    by_slots = sheet.add(
        "workers by slots",
        math.ceil(slots / (assumed.slots * assumed.slot_use)),
        "",
        "tasks under way / (slots of a worker x share of them in use)",
        f"ceil({number(slots)} / ({assumed.slots} * {number(assumed.slot_use)}))",
    )
    cores = sheet.add(
        "worker cores",
        rates.peak_runs * (run.worker_us / 1e6 + load.tasks_per_run * load.task_cpu_s),
        "cores",
        "peak runs per second x (worker CPU of a run, us / 1,000,000 + tasks of a run x CPU seconds of your code)",
        f"{number(rates.peak_runs)} * ({number(run.worker_us)} / 1000000 + {number(load.tasks_per_run)} * {number(load.task_cpu_s)})",
    )
    by_cpu = sheet.add(
        "workers by CPU",
        math.ceil(cores / assumed.utilisation),
        "",
        "cores / how far a core may be used",
        f"ceil({number(cores)} / {number(assumed.utilisation)})",
    )
    workers = sheet.add(
        "workers",
        max(by_slots, by_cpu) + assumed.spare_workers,
        "",
        "the larger of both + spare",
        f"max({number(by_slots)}, {number(by_cpu)}) + {assumed.spare_workers}",
    )
    held = rates.active / workers
    sheet.add(
        "memory of a worker",
        costs.idle.worker_mb + held * assumed.run_kb / 1_000,
        "MB",
        "measured after many runs + runs under way on one worker x kB of one / 1,000; your own code comes on top",
        f"{number(costs.idle.worker_mb)} + {number(held)} * {number(assumed.run_kb)} / 1000",
    )
    return workers


def add_database(sheet: Sheet, rates: Rates, run: UnitCost, servers: float, assumed: Assumptions) -> None:
    sheet.section("PostgreSQL")
    cores = sheet.add(
        "PostgreSQL cores used",
        rates.peak_runs * run.postgres_us / 1e6,
        "cores",
        "peak runs per second x PostgreSQL CPU of a run, us / 1,000,000",
        f"{number(rates.peak_runs)} * {number(run.postgres_us)} / 1000000",
    )
    sheet.add(
        "PostgreSQL cores",
        max(1, math.ceil(cores / assumed.utilisation)),
        "",
        "cores / how far a core may be used",
        f"max(1, ceil({number(cores)} / {number(assumed.utilisation)}))",
    )
    sheet.add(
        "commits per second, peak",
        rates.peak_runs * run.transactions,
        "per s",
        "peak runs per second x transactions of a run; each is one flush of the WAL at most, and more of them when batches are small",
        f"{number(rates.peak_runs)} * {number(run.transactions)}",
    )
    sheet.add(
        "connections",
        servers * assumed.connections_per_server,
        "",
        "servers x connections that one may open",
        f"{number(servers)} * {assumed.connections_per_server}",
    )


def add_wal(sheet: Sheet, rates: Rates, run: UnitCost) -> None:
    sheet.section("WAL and writes")
    sheet.add(
        "WAL, peak",
        rates.peak_runs * run.wal_bytes / MB,
        "MB/s",
        "peak runs per second x WAL of a run / 1,000,000",
        f"{number(rates.peak_runs)} * {number(run.wal_bytes)} / 1000000",
    )
    sheet.add(
        "WAL archive",
        rates.mean_runs * run.wal_bytes * DAY_S / GB,
        "GB/day",
        "mean runs per second x WAL of a run x seconds of a day / 1,000,000,000; before compression",
        f"{number(rates.mean_runs)} * {number(run.wal_bytes)} * {DAY_S} / 1000000000",
    )
    new_bytes = kept_bytes(run) + audit_bytes(run)
    sheet.add(
        "pages written per second, peak",
        rates.peak_runs * new_bytes / PAGE_BYTES,
        "per s",
        "peak runs per second x new bytes of a run / bytes of a page; beside the flushes of commits, and more for a page that two checkpoints write",
        f"{number(rates.peak_runs)} * {number(new_bytes)} / {PAGE_BYTES}",
    )


def add_disk(
    sheet: Sheet, load: ExpectedLoad, rates: Rates, run: UnitCost, costs: MeasuredCosts, assumed: Assumptions
) -> None:
    sheet.section("Disk")
    day, rows = _kept(sheet, load, rates, run, costs, assumed)
    copy = sheet.add(
        "disk of one copy",
        (rows + assumed.wal_kept_gb) / assumed.disk_fill,
        "GB",
        "(all rows + WAL that waits) / how full a disk may be",
        f"({number(rows)} + {number(assumed.wal_kept_gb)}) / {number(assumed.disk_fill)}",
    )
    sheet.add(
        "disk of all copies",
        copy * (1 + assumed.replicas),
        "GB",
        "one copy x (1 + standbys)",
        f"{number(copy)} * (1 + {assumed.replicas})",
    )
    sheet.add(
        "hours to restore",
        rows * 1_000 / assumed.restore_mb_s / 3_600,
        "h",
        "all rows, MB / MB per second of a restore / seconds of an hour",
        f"{number(rows)} * 1000 / {number(assumed.restore_mb_s)} / 3600",
    )
    made = {line.name: line.value for line in sheet}
    active, connections = made["active runs"], made["connections"]
    wanted = 4 * (active + CACHED_SHARE * day) + connections * SESSION_MB / 1_000
    sheet.add(
        "memory of PostgreSQL",
        max(MEMORY_GB_MIN, wanted),
        "GB",
        "4 x (active runs + a tenth of a day) + connections x 10 MB; shared_buffers is a quarter of it",
        f"max({MEMORY_GB_MIN}, 4 * ({number(active)} + {CACHED_SHARE} * {number(day)}) + {number(connections)} * {SESSION_MB} / 1000)",
    )


def _kept(
    sheet: Sheet, load: ExpectedLoad, rates: Rates, run: UnitCost, costs: MeasuredCosts, assumed: Assumptions
) -> tuple[float, float]:
    """GB of a day's ended runs, and of all rows."""

    def of_a_day(name: str, each: float, words: str) -> float:
        return sheet.add(
            name,
            load.runs_per_day * each / GB,
            "GB",
            f"runs per day x {words} / 1,000,000,000",
            f"{number(load.runs_per_day)} * {number(each)} / 1000000000",
        )

    for table in ("history", "run", "task"):
        of_a_day(f"table {table}, a day", run.disk.get(table, 0.0), "bytes of a run in it, with indexes")
    day = of_a_day("ended runs, a day", kept_bytes(run), "disk of a run")
    kept = sheet.add(
        "ended runs, kept",
        day * (load.retention_days + 1),
        "GB",
        "a day x (days of retention + the day that is being written)",
        f"{number(day)} * ({number(load.retention_days)} + 1)",
    )
    audit_day = of_a_day("audit log, a day", audit_bytes(run), "audit lines of a run, in bytes")
    audit = sheet.add(
        "audit log, kept",
        audit_day * assumed.audit_days,
        "GB",
        "a day x days of the audit log; retention does not drop it",
        f"{number(audit_day)} * {number(assumed.audit_days)}",
    )
    each = sum(costs.sleeping_run_bytes.get(table, 0.0) for table in ACTIVE_TABLES)
    active = sheet.add(
        "active runs",
        (rates.active + rates.sleeping) * each * 2 / GB,
        "GB",
        "(runs under way + runs asleep) x bytes of one x 2 for dead rows / 1,000,000,000",
        f"({number(rates.active)} + {number(rates.sleeping)}) * {number(each)} * 2 / 1000000000",
    )
    rows = sheet.add(
        "all rows",
        kept + audit + active,
        "GB",
        "kept + audit log + active",
        f"{number(kept)} + {number(audit)} + {number(active)}",
    )
    return day, rows


def add_look(sheet: Sheet, rates: Rates, run: UnitCost, servers: float, costs: MeasuredCosts) -> None:
    """The costs above are those of full batches, which is what a machine can do at most. With few runs at a time a commit holds the work of one
    or two, each costs more, and machines look busier than they are used."""
    sheet.section(LOOK)
    quiet, rate = costs.quiet, rates.peak_runs / servers
    full, alone = rate * run.server_us / 1e6, rate * run.server_us / 1e6 * quiet.server_us
    busy = sheet.add(
        "how busy a server looks",
        costs.busy(rate, run.server_us),
        "",
        "a / (1 + a - b), with a: runs per second of one server x CPU of a run that is alone; b: the same in full batches",
        f"{number(alone)} / (1 + {number(alone)} - {number(full)})",
    )
    for name, unit, each, times, divisor in (
        ("PostgreSQL cores that look busy", "cores", run.postgres_us, quiet.postgres_us, 1_000_000),
        ("commits per second, of small batches", "per s", run.transactions, quiet.transactions, 1),
    ):
        sheet.add(
            name,
            rates.peak_runs * each * (busy + (1 - busy) * times) / divisor,
            unit,
            "peak runs per second x as above for a run x (busy + (1 - busy) x how many times more a run takes that is alone)",
            f"{number(rates.peak_runs)} * {number(each)} * ({number(busy)} + (1 - {number(busy)}) * {number(times)}) / {divisor}",
        )
    sheet.add(
        "WAL archive, at most",
        rates.mean_runs * run.wal_bytes * quiet.wal_bytes * DAY_S / GB,
        "GB/day",
        "mean runs per second x WAL of a run x how many times more a run writes that is alone x seconds of a day / 1,000,000,000",
        f"{number(rates.mean_runs)} * {number(run.wal_bytes)} * {number(quiet.wal_bytes)} * {DAY_S} / 1000000000",
    )
