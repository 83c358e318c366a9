"""Many databases: how many a load needs, what each of them carries, what crosses between them, and what happens when one is away.

The design that this models is in docs/concepts/scale.md.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from perdure.core import limits
from perdure.core.capacity.costs import MeasuredCosts
from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad
from perdure.core.capacity.plan import CapacityPlan, Need, plan
from perdure.core.capacity.sheet import PlanLine, Sheet, number
from perdure.core.errors import InvalidInput
from perdure.core.ids import SHARDS_MAX

PAGE_ROWS: Final = 50
OUTBOX_MESSAGES: Final = 2
"""An effect on another shard is written twice: as a row of the outbox here, and as a message there."""
MINUTES_A_YEAR: Final = 525_600


class ShardChoices(msgspec.Struct, frozen=True, kw_only=True):
    """`shards` 0: as many as the load needs."""

    shards: int = 0
    fill: float = 0.8
    """How much of what one database is planned to carry is planned for, so that there is time to add one."""
    availability: float = 0.9995
    """Of one database with its standby."""
    cross_share: float = 0.05
    """Effects per run whose other end is found by a key: a child with a key, a signal to a key, an event."""
    shared_key_share: float = 0.0
    """The share of all tasks that one flow-control key takes."""

    def __post_init__(self) -> None:
        if not 0 <= self.shards <= SHARDS_MAX:
            raise InvalidInput(f"shards: 1 to {SHARDS_MAX:,}, as many as an id can name; 0 for as many as needed")
        if not 0 < self.fill <= 1 or not 0 < self.availability <= 1:
            raise InvalidInput("fill and availability are shares: more than 0, at most 1")
        if self.cross_share < 0 or not 0 <= self.shared_key_share <= 1:
            raise InvalidInput("cross_share must not be negative; shared_key_share is a share: 0 to 1")


class ShardPlan(msgspec.Struct, frozen=True):
    shards: int
    lines: list[PlanLine]
    one: CapacityPlan
    """One of the shards."""
    breaks: list[PlanLine]
    """At which load each bound is reached with this number of shards, the nearest first: in runs per day."""

    def __getitem__(self, name: str) -> float:
        return next(line.value for line in self.lines if line.name == name)


def plan_shards(
    load: ExpectedLoad, costs: MeasuredCosts, assumed: Assumptions, size: DatabaseSize, choices: ShardChoices
) -> ShardPlan:
    shards = choices.shards or shards_needed(load, costs, assumed, size, choices)
    one = plan(part_of(load, shards), costs, assumed, size)
    sheet = Sheet()
    _number_of_shards(sheet, load, costs, assumed, size, choices, shards)
    _totals(sheet, one, shards, assumed)
    _crossing(sheet, load, costs, choices, shards)
    _lists(sheet, shards)
    _one_away(sheet, one, choices, shards, assumed)
    _one_place(sheet, load, costs, choices, assumed)
    return ShardPlan(shards, sheet.lines, one, _breaks(load, one))


def part_of(load: ExpectedLoad, shards: int) -> ExpectedLoad:
    return msgspec.structs.replace(load, runs_per_day=load.runs_per_day / shards)


def databases_for(need: Need, fill: float) -> float:
    """Infinite, where one database does not even carry what any load needs."""
    room = need.of_one_database * fill - need.fixed
    if need.growing <= 0:
        return 1
    return math.ceil(need.growing / room) if room > 0 else math.inf


def shards_needed(
    load: ExpectedLoad, costs: MeasuredCosts, assumed: Assumptions, size: DatabaseSize, choices: ShardChoices
) -> int:
    whole = plan(load, costs, assumed, size)
    worst = max(databases_for(need, choices.fill) for need in whole.needs)
    if worst > SHARDS_MAX:
        raise InvalidInput(
            f"this load needs more than the {SHARDS_MAX:,} databases that an id can name: plan larger databases, or keep fewer days"
        )
    return max(1, int(worst))


def _number_of_shards(
    sheet: Sheet,
    load: ExpectedLoad,
    costs: MeasuredCosts,
    assumed: Assumptions,
    size: DatabaseSize,
    choices: ShardChoices,
    shards: int,
) -> None:
    sheet.section("How many databases")
    whole = plan(load, costs, assumed, size)
    for need in whole.needs:
        sheet.add(
            f"databases for {need.resource}",
            databases_for(need, choices.fill),
            "",
            f"what grows with the load{', ' + need.unit if need.unit else ''} / (of one database x how full it is planned - what any load needs)",
            f"ceil({number(need.growing)} / ({number(need.of_one_database)} * {number(choices.fill)} - {number(need.fixed)}))",
        )
    sheet.add("shards", shards, "", "the largest of them, or as many as were asked for", str(shards))


def _totals(sheet: Sheet, one: CapacityPlan, shards: int, assumed: Assumptions) -> None:
    sheet.section("All databases together")
    for name, unit in (
        ("servers", ""),
        ("workers", ""),
        ("PostgreSQL cores", ""),
        ("WAL archive", "GB/day"),
        ("disk of all copies", "GB"),
        ("connections", ""),
    ):
        sheet.add(f"{name}, all", one[name] * shards, unit, "of one shard x shards", f"{number(one[name])} * {shards}")

    each = one["servers"] + one["workers"] + one["PostgreSQL cores"] * (1 + assumed.replicas)
    sheet.add(
        "cores, all",
        each * shards,
        "",
        "(servers + workers + PostgreSQL cores x (1 + standbys)) of one shard x shards",
        f"({number(one['servers'])} + {number(one['workers'])} + {number(one['PostgreSQL cores'])} * (1 + {assumed.replicas})) * {shards}",
    )


def _crossing(sheet: Sheet, load: ExpectedLoad, costs: MeasuredCosts, choices: ShardChoices, shards: int) -> None:
    sheet.section("What crosses between databases")
    away = sheet.add(
        "chance that a key lives elsewhere",
        (shards - 1) / shards,
        "",
        "(shards - 1) / shards",
        f"({shards} - 1) / {shards}",
    )
    peak = load.runs_per_day / 86_400 * load.peak_factor
    effects = sheet.add(
        "effects on another shard, peak",
        peak * choices.cross_share * away,
        "per s",
        "peak runs per second x effects of a run x chance that the other end lives elsewhere",
        f"{number(peak)} * {number(choices.cross_share)} * {number(away)}",
    )
    signal = costs.unit("signal")
    sheet.add(
        "PostgreSQL cores for them",
        effects * OUTBOX_MESSAGES * signal.postgres_us / 1e6,
        "cores",
        "effects per second x 2 messages x PostgreSQL CPU of a signal, us / 1,000,000; an estimate: the outbox is not built",
        f"{number(effects)} * {OUTBOX_MESSAGES} * {number(signal.postgres_us)} / 1000000",
    )
    sheet.add(
        "server cores for them",
        effects * OUTBOX_MESSAGES * signal.server_us / 1e6,
        "cores",
        "effects per second x 2 messages x server CPU of a signal, us / 1,000,000; an estimate as well",
        f"{number(effects)} * {OUTBOX_MESSAGES} * {number(signal.server_us)} / 1000000",
    )


def _lists(sheet: Sheet, shards: int) -> None:
    sheet.section("Lists and counts")
    sheet.add(
        "rows read for a page of 50",
        PAGE_ROWS * shards,
        "",
        "50 of each shard, merged by id; the next page begins below the last id, on every shard",
        f"{PAGE_ROWS} * {shards}",
    )
    sheet.add(
        "answers that wait for a slow shard",
        1 - 0.99**shards,
        "",
        "1 - 0.99 ** shards: chance that one of them takes longer than the slowest hundredth of one shard's answers",
        f"1 - 0.99 ** {shards}",
    )
    sheet.add(
        "quantile of one shard that is the median of all",
        0.5 ** (1 / shards),
        "",
        "0.5 ** (1 / shards): half of the lists are slower than one shard at this quantile",
        f"0.5 ** (1 / {shards})",
    )


def _one_away(sheet: Sheet, one: CapacityPlan, choices: ShardChoices, shards: int, assumed: Assumptions) -> None:
    sheet.section("When a database is away")
    sheet.add("runs that stand still", 1 / shards, "", "1 / shards; they go on when it is back", f"1 / {shards}")
    sheet.add(
        "minutes a year that a given run stands",
        (1 - choices.availability) * MINUTES_A_YEAR,
        "min",
        "(1 - availability of one) x minutes of a year: the same for any number of shards",
        f"(1 - {choices.availability}) * {MINUTES_A_YEAR}",
    )
    sheet.add(
        "minutes a year that some shard is away",
        (1 - choices.availability**shards) * MINUTES_A_YEAR,
        "min",
        "(1 - availability of one ** shards) x minutes of a year: lists say which shards did not answer",
        f"(1 - {choices.availability} ** {shards}) * {MINUTES_A_YEAR}",
    )
    if shards > 1:
        sheet.add(
            "load of the others",
            shards / (shards - 1),
            "x",
            "shards / (shards - 1): new runs without a key are placed elsewhere",
            f"{shards} / ({shards} - 1)",
        )
        busy = min(assumed.utilisation, one["PostgreSQL cores used"] / one["PostgreSQL cores"])
        sheet.add(
            "how far their PostgreSQL is used then",
            busy * shards / (shards - 1),
            "",
            "cores used of one / its cores x load of the others; below 1, or new runs queue",
            f"{number(busy)} * {shards} / ({shards} - 1)",
        )


def _one_place(
    sheet: Sheet, load: ExpectedLoad, costs: MeasuredCosts, choices: ShardChoices, assumed: Assumptions
) -> None:
    sheet.section("What stays in one place, however many databases there are")
    task = costs.unit("task_chain")
    sheet.add(
        "tasks per second of one run",
        assumed.utilisation * 1e6 / costs.unit("task_fanout").server_us,
        "per s",
        "how far a core may be used x 1,000,000 / server CPU of a task of a fan-out, us: a run is decided by one server",
        f"{number(assumed.utilisation)} * 1000000 / {number(costs.unit('task_fanout').server_us)}",
    )
    sheet.add(
        "events of one run",
        limits.HISTORY_EVENTS_MAX,
        "",
        "HISTORY_EVENTS_MAX; then wf.continue_as_new",
        str(limits.HISTORY_EVENTS_MAX),
    )
    limited = sheet.add(
        "tasks per second under one key",
        assumed.utilisation * 1e6 / (3 * task.server_us),
        "per s",
        "how far a core may be used x 1,000,000 / (3 x server CPU of a task, us): a key's claims are one transaction at a time, "
        "and a limited task costs about three times as much",
        f"{number(assumed.utilisation)} * 1000000 / (3 * {number(task.server_us)})",
    )
    if choices.shared_key_share:
        peak = load.runs_per_day / 86_400 * load.peak_factor * load.tasks_per_run
        sheet.add(
            "how far the shared key is used",
            peak * choices.shared_key_share / limited,
            "",
            "peak tasks per second x share of the key / tasks per second under one key; above 1 they queue",
            f"{number(peak)} * {number(choices.shared_key_share)} / {number(limited)}",
        )
    sheet.add(
        "schedules of one namespace",
        limits.SCHEDULES_MAX,
        "",
        "SCHEDULES_MAX; a schedule lives on the home of its name, and its runs with it",
        str(limits.SCHEDULES_MAX),
    )


def _breaks(load: ExpectedLoad, one: CapacityPlan) -> list[PlanLine]:
    found = [
        PlanLine(
            "What breaks first",
            need.resource,
            load.runs_per_day * need.times,
            "runs a day",
            "runs per day x (of one database - what any load needs) / what grows with the load, in one shard",
            f"{number(load.runs_per_day)} * ({number(need.of_one_database)} - {number(need.fixed)}) / {number(need.growing)}",
        )
        for need in one.needs
        if need.growing > 0
    ]
    return sorted(found, key=lambda line: line.value)
