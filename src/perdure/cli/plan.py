"""`perdure plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli.remote_options import local
from perdure.cli.render import Column, Output

if TYPE_CHECKING:
    from perdure.core.capacity.balance import Balance
    from perdure.core.capacity.costs import MeasuredCosts
    from perdure.core.capacity.load import Assumptions, DatabaseSize, ExpectedLoad
    from perdure.core.capacity.plan import CapacityPlan
    from perdure.core.capacity.shards import ShardChoices, ShardPlan
    from perdure.core.capacity.sheet import PlanLine

LOAD, MACHINES, SHARDS = "Load", "Machines", "More than one database"
TRIAL_SHARDS_MAX = 256
"""Shards that the trial of placement takes; more of them take long and show nothing else."""


def register(app: typer.Typer) -> None:
    app.command("plan")(local(plan))


@dataclass(frozen=True)
class LoadOptions:
    runs_per_day: Annotated[str, typer.Option(metavar="N", help="250k, 10M, 1B.", rich_help_panel=LOAD)]
    peak: Annotated[float, typer.Option(min=1, help="The busiest minutes against the mean.", rich_help_panel=LOAD)] = 3
    tasks: Annotated[float, typer.Option(min=0, help="Tasks of a run.", rich_help_panel=LOAD)] = 5
    shape: Annotated[
        Literal["chain", "fanout", "flow"],
        typer.Option(help="Tasks one after another, side by side by wf.map, or in a flow.", rich_help_panel=LOAD),
    ] = "chain"
    task_time: Annotated[str, typer.Option(metavar="DURATION", help="How long a task takes.", rich_help_panel=LOAD)] = (
        "200ms"
    )
    task_cpu: Annotated[
        str, typer.Option(metavar="DURATION", help="CPU time of your code in it.", rich_help_panel=LOAD)
    ] = "0s"
    payload: Annotated[
        str, typer.Option(metavar="SIZE", help="Input and result of a task: 800, 4kB.", rich_help_panel=LOAD)
    ] = "1kB"
    signals: Annotated[float, typer.Option(min=0, help="Signals of a run.", rich_help_panel=LOAD)] = 0
    timers: Annotated[float, typer.Option(min=0, help="Short waits of a run.", rich_help_panel=LOAD)] = 0
    sleeping: Annotated[
        float, typer.Option(min=0, max=1, help="Share of runs that sleep or wait for people.", rich_help_panel=LOAD)
    ] = 0
    sleep: Annotated[str, typer.Option(metavar="DURATION", help="How long they do.", rich_help_panel=LOAD)] = "1d"
    scheduled: Annotated[
        float, typer.Option(min=0, max=1, help="Share of runs that schedules start.", rich_help_panel=LOAD)
    ] = 0
    days: Annotated[float, typer.Option(min=0, help="Days of retention of ended runs.", rich_help_panel=LOAD)] = 30
    audit_days: Annotated[
        float, typer.Option(min=0, help="Days of the audit log; it is never dropped.", rich_help_panel=LOAD)
    ] = 365

    def load(self) -> ExpectedLoad:
        from perdure.core.capacity.load import ExpectedLoad
        from perdure.core.capacity.quantities import bytes_of, count_of
        from perdure.core.durations import to_us

        return ExpectedLoad(
            runs_per_day=count_of(self.runs_per_day),
            peak_factor=self.peak,
            tasks_per_run=self.tasks,
            shape=self.shape,
            task_s=to_us(self.task_time) / 1e6,
            task_cpu_s=to_us(self.task_cpu) / 1e6,
            payload_bytes=bytes_of(self.payload),
            signals_per_run=self.signals,
            timers_per_run=self.timers,
            sleeping_share=self.sleeping,
            sleep_s=to_us(self.sleep) / 1e6,
            scheduled_share=self.scheduled,
            retention_days=self.days,
        )


@dataclass(frozen=True)
class MachineOptions:
    utilisation: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of a core to use at the peak.", rich_help_panel=MACHINES)
    ] = 0.6
    spare: Annotated[
        int, typer.Option(min=0, help="Spare servers, and as many spare workers.", rich_help_panel=MACHINES)
    ] = 1
    replicas: Annotated[int, typer.Option(min=0, help="Standbys of PostgreSQL.", rich_help_panel=MACHINES)] = 1
    slots: Annotated[int, typer.Option(min=1, help="Tasks at a time of one worker.", rich_help_panel=MACHINES)] = 100
    database_cores: Annotated[
        float, typer.Option(min=1, help="Cores that one PostgreSQL has at most.", rich_help_panel=MACHINES)
    ] = 32
    database_disk: Annotated[
        float, typer.Option(min=0.01, help="TB of disk that it has at most.", rich_help_panel=MACHINES)
    ] = 4
    database_servers: Annotated[float, typer.Option(min=1, help="Servers on it at most.", rich_help_panel=MACHINES)] = (
        16
    )
    costs: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Costs of your own machine, from `perdure bench costs --json`. Default: those that come with this version.",
            rich_help_panel=MACHINES,
        ),
    ] = None
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure them now; takes some minutes.", rich_help_panel=MACHINES)
    ] = False

    def assumed(self, audit_days: float) -> Assumptions:
        from perdure.core.capacity.load import Assumptions

        return Assumptions(
            utilisation=self.utilisation,
            spare_servers=self.spare,
            spare_workers=self.spare,
            slots=self.slots,
            replicas=self.replicas,
            audit_days=audit_days,
        )

    def size(self) -> DatabaseSize:
        from perdure.core.capacity.load import DatabaseSize

        return DatabaseSize(
            postgres_cores=self.database_cores, disk_tb=self.database_disk, servers=self.database_servers
        )

    def measured(self) -> MeasuredCosts:
        from perdure.core.errors import InvalidInput

        if self.measure and self.costs is not None:
            raise InvalidInput("--measure and --costs contradict each other; use one of them")
        if self.measure:
            return _measured_now()
        from perdure.bench.shipped_costs import read_costs, shipped_costs

        return shipped_costs() if self.costs is None else read_costs(self.costs)


@dataclass(frozen=True)
class ShardOptions:
    shards: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto", help="Plan for many databases; auto: as many as needed.", rich_help_panel=SHARDS
        ),
    ] = None
    crossing: Annotated[
        float, typer.Option(min=0, help="Effects of a run on another database.", rich_help_panel=SHARDS)
    ] = 0.05
    shared_key: Annotated[
        float, typer.Option(min=0, max=1, help="Share of tasks under one flow-control key.", rich_help_panel=SHARDS)
    ] = 0
    try_placement: Annotated[
        bool, typer.Option("--try", help="Place runs and keys on them, and add one.", rich_help_panel=SHARDS)
    ] = False
    weights: Annotated[
        str | None,
        typer.Option(metavar="1,1,2", help="With --try: weights of the databases; 1x8,2x4.", rich_help_panel=SHARDS),
    ] = None
    added: Annotated[int, typer.Option(min=1, help="With --try: databases to add.", rich_help_panel=SHARDS)] = 1
    seed: Annotated[int, typer.Option(help="With --try: another trial.", rich_help_panel=SHARDS)] = 0

    @property
    def are_wanted(self) -> bool:
        return self.shards is not None or self.try_placement

    def choices(self) -> ShardChoices:
        from perdure.core.capacity.shards import ShardChoices
        from perdure.core.errors import InvalidInput

        if self.weights is not None and not self.try_placement:
            raise InvalidInput("--weights are of the databases of a trial: add --try")
        asked = self.shards or (str(len(self._weights(0))) if self.weights else "auto")
        if asked != "auto" and not asked.isdecimal():
            raise InvalidInput("--shards takes a number, or auto for as many as the load needs")
        return ShardChoices(
            shards=0 if asked == "auto" else int(asked), cross_share=self.crossing, shared_key_share=self.shared_key
        )

    def trial(self, shards: int) -> Balance:
        from perdure.core.capacity.balance import try_out
        from perdure.core.errors import InvalidInput

        weights = self._weights(shards)
        if len(weights) != shards:
            raise InvalidInput(f"--weights names {len(weights)} databases, and the plan is for {shards}")
        if len(weights) > TRIAL_SHARDS_MAX:
            raise InvalidInput(f"--try takes at most {TRIAL_SHARDS_MAX} databases, and there are {len(weights):,}")
        return try_out(weights, added=self.added, seed=self.seed)

    def _weights(self, shards: int) -> list[float]:
        from perdure.core.capacity.quantities import weights_of

        return weights_of(self.weights) if self.weights else [1.0] * shards


def plan(out: Output, load: LoadOptions, machines: MachineOptions, shards: ShardOptions) -> None:
    """Plan servers, workers and PostgreSQL for a load, with the arithmetic shown.

    CPU, WAL and disk follow from measured costs: those that come with this version, or your own by --measure or --costs.
    """
    from perdure.core.capacity.plan import plan as planned
    from perdure.core.capacity.shards import plan_shards

    expected, choices = load.load(), shards.choices()
    assumed, size = machines.assumed(load.audit_days), machines.size()
    costs = machines.measured()  # last: it may take minutes
    if not shards.are_wanted:
        _print_plan(out, planned(expected, costs, assumed, size), costs)
        return
    many = plan_shards(expected, costs, assumed, size, choices)
    trial = shards.trial(many.shards) if shards.try_placement else None
    _print_shards(out, many, trial, costs)


def _measured_now() -> MeasuredCosts:
    import asyncio

    from perdure.bench.costs import ROUNDS, RUNS, run_costs
    from perdure.bench.report import Progress
    from perdure.bench.suite import place

    with place(None) as where:
        return asyncio.run(run_costs(where, RUNS, ROUNDS, Progress()))


def _print_plan(out: Output, made: CapacityPlan, costs: MeasuredCosts) -> None:
    if out.mode in ("json", "yaml"):
        out.data(_data(made, costs))
        return
    _lines(out, made.lines)
    if out.is_for_people:
        _needs(out, made)
        _warnings(out, made)
        _about(out, costs)


def _print_shards(out: Output, many: ShardPlan, trial: Balance | None, costs: MeasuredCosts) -> None:
    if out.mode in ("json", "yaml"):
        import msgspec

        data: dict[str, Any] = msgspec.to_builtins(many)
        out.data(data | {"trial": msgspec.to_builtins(trial), "costs": msgspec.to_builtins(costs.about)})
        return
    _lines(out, [*many.lines, *many.breaks])
    if trial is not None:
        _trial(out, trial)
    if out.is_for_people:
        _say(out, "")
        _say(out, _summary(many.one, "Each of them: "))
        _warnings(out, many.one)
        _about(out, costs)
        out.next("perdure plan without --shards shows the arithmetic of one database")


def _data(made: CapacityPlan, costs: MeasuredCosts) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(made)
    for plain, need in zip(data["needs"], made.needs, strict=True):
        plain["share"] = need.share
        plain["full_at_runs_per_day"] = made.load.runs_per_day * need.times if need.growing else None
    return data | {"costs": msgspec.to_builtins(costs.about)}


def _lines(out: Output, lines: list[PlanLine]) -> None:
    """By section: on a terminal with the formula in words below the one in numbers, in a pipe one line each."""
    if not out.is_for_people:
        columns = [
            Column("section", lambda i: i["line"].section),
            Column("name", lambda i: i["line"].name),
            Column("value", lambda i: i["line"].shown),
            Column("numbers", lambda i: i["line"].numbers),
            Column("words", lambda i: i["line"].words),
        ]
        out.rows([{"line": line} for line in lines], columns, empty="")
        return
    from rich.table import Table
    from rich.text import Text

    section = ""
    table: Table | None = None
    for line in lines:
        if line.section != section or table is None:
            if table is not None:
                out.console.print(table)
            section = line.section
            out.console.print(Text(f"\n{section}", style="bold"))
            table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0), expand=True)
            table.add_column(width=max(len(each.name) for each in lines if each.section == section))
            table.add_column(justify="right", width=max(len(each.shown) for each in lines if each.section == section))
            table.add_column(ratio=1)
        how = Text(f"= {line.numbers}\n").append(line.words, style="dim")
        table.add_row(line.name, Text(line.shown, style="bold"), how)
    if table is not None:
        out.console.print(table)


def _summary(made: CapacityPlan, prefix: str = "") -> str:
    from perdure.core.capacity.sheet import number

    def counted(name: str, one: str) -> str:
        return f"{number(made[name])} {one}{'' if made[name] == 1 else 's'}"

    return (
        f"{prefix}{counted('servers', 'server')}, {counted('workers', 'worker')}, PostgreSQL with {counted('PostgreSQL cores', 'core')}, "
        f"{number(round(made['memory of PostgreSQL']))} GB of memory and {number(round(made['disk of one copy']))} GB of disk"
    )


def _needs(out: Output, made: CapacityPlan) -> None:
    from perdure.core.capacity.sheet import number

    columns = [
        Column("of one database", lambda i: i["need"].resource),
        Column("needed", lambda i: f"{number(i['need'].needed)} {i['need'].unit}".strip(), right=True),
        Column("planned for", lambda i: f"{number(i['need'].of_one_database)} {i['need'].unit}".strip(), right=True),
        Column(
            "share",
            lambda i: f"{i['need'].share:.1%}",
            right=True,
            style=lambda i: "red" if i["need"].share > 1 else "",
        ),
        Column(
            "full at",
            lambda i: f"{number(made.load.runs_per_day * i['need'].times)} runs a day" if i["need"].growing else "",
            right=True,
        ),
    ]
    _say(out, "\nWhat limits first", style="bold")
    out.rows([{"need": need} for need in made.needs], columns, empty="")
    _say(out, "")
    _say(out, _summary(made), style="bold")


def _warnings(out: Output, made: CapacityPlan) -> None:
    for text in made.warnings:
        _say(out, f"! {text}", style="yellow")


def _trial(out: Output, trial: Balance) -> None:
    columns = [
        Column("placed", lambda i: i["spread"].what),
        Column("emptiest", lambda i: f"{i['spread'].lowest:.3f}", right=True),
        Column("fullest", lambda i: f"{i['spread'].highest:.3f}", right=True),
    ]
    if out.is_for_people:
        _say(
            out,
            f"\n{trial.runs:,} of each on {trial.shards} databases, seed {trial.seed}; 1 is a fair part",
            style="bold",
        )
    out.rows([{"spread": spread} for spread in trial.spreads], columns, empty="")
    moved = trial.added
    out.say(
        f"adding databases moves {moved.share:.1%} of the keys (their weight is {moved.share_of_weight:.1%}; a hash by modulo would move "
        f"{moved.share_by_modulo:.1%}), {moved.between_old} of them between old ones, and no run"
    )


def _about(out: Output, costs: MeasuredCosts) -> None:
    from perdure.core.capacity.costs import UNITS

    about = costs.about
    spread = max(costs.spread_of(name) for name in UNITS)
    _say(
        out,
        f"\nCosts are medians of {about.rounds} rounds of {about.date} on {about.machine}: Perdure {about.perdure}, PostgreSQL "
        f"{about.postgresql.split()[0]}, Python {about.python}, bare PostgreSQL {about.life3_tasks_per_s:,} tasks/s (life3). CPU differed between "
        f"rounds by up to x {spread:.2f}. Your machine differs too: perdure plan --measure",
        style="dim",
    )


def _say(out: Output, text: str, style: str = "") -> None:
    out.console.print(text, style=style, highlight=False, markup=False)
