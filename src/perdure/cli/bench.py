"""`perdure bench`, `perdure bench costs` and `perdure bench scale`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from perdure.cli.options import with_options

TASKS = 20_000
TASKS_QUICK = 8_000

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
# Not the option that other commands share: a DSN from the environment must not make a bench load a production database.
Server = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        help="Measure on this server, in a database of its own that is dropped afterwards. "
        "Without it a private PostgreSQL is started, and deleted afterwards.",
    ),
]
Uvloop = Annotated[bool, typer.Option("--uvloop", help="Run on uvloop instead of asyncio's own loop.")]

bench = typer.Typer(rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")


@dataclass(kw_only=True)
class BenchOptions:
    context: typer.Context
    as_json: AsJson = False
    tasks: Annotated[int | None, typer.Option(min=100, help=f"Tasks per workload; default {TASKS}.")] = None
    quick: Annotated[bool, typer.Option("--quick", help=f"{TASKS_QUICK} tasks: rougher, in under 40 seconds.")] = False
    dsn: Server = None
    uvloop: Uvloop = False
    remote: Annotated[
        bool, typer.Option("--remote", help="Client, server, worker and PostgreSQL as processes of their own.")
    ] = False
    idle_workers: Annotated[int, typer.Option(min=1, max=10_000, help="With --remote: idle workers to connect.")] = 1000
    idle: Annotated[float, typer.Option(min=0.5, help="With --remote: seconds for which they are watched.")] = 15.0


@bench.callback(invoke_without_command=True)
@with_options(BenchOptions)
def measure(options: BenchOptions) -> None:
    """Measure Perdure against bare PostgreSQL.

    The same rows are also written without an engine; the ratio is the cost of Perdure.
    """
    if options.context.invoked_subcommand is not None:
        return
    from perdure.bench.report import Progress, print_table
    from perdure.bench.suite import place, run_bench, run_on

    size = options.tasks or (TASKS_QUICK if options.quick else TASKS)
    if options.remote:
        _remote(size, options)
        return
    loop = "uvloop" if options.uvloop else "asyncio"
    with place(options.dsn) as where:
        report = run_on(options.uvloop, run_bench(where, size, loop=loop, say=Progress()))
    if options.as_json:
        _print_json(report)
    else:
        print_table(report)


def _remote(tasks: int, options: BenchOptions) -> None:
    import asyncio

    from perdure.bench.remote import print_remote, run_remote
    from perdure.bench.report import Progress
    from perdure.bench.suite import place

    with place(options.dsn) as where:
        report = asyncio.run(
            run_remote(where, tasks, idle_workers=options.idle_workers, idle_s=options.idle, say=Progress())
        )
    if options.as_json:
        _print_json(report)
    else:
        print_remote(report)


@bench.command("idle-workers", hidden=True)
def idle_workers(address: str, count: int) -> None:
    """Connect workers that do nothing, until stopped."""
    import asyncio

    from perdure.bench.remote import hold_idle_workers

    asyncio.run(hold_idle_workers(address, count))


@bench.command("engine", hidden=True)
def engine(dsn: str) -> None:
    """One more engine, until stopped."""
    import asyncio

    from perdure.bench.herd import hold_engine

    asyncio.run(hold_engine(dsn))


def _print_json(report: Any) -> None:
    import msgspec

    print(msgspec.json.encode(report).decode())


@dataclass(kw_only=True)
class CostOptions:
    as_json: AsJson = False
    runs: Annotated[int, typer.Option(min=40, help="Runs per workload and round.")] = 2_000
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds, of which medians are taken.")] = 3
    dsn: Server = None


@bench.command("costs")
@with_options(CostOptions)
def measure_costs(options: CostOptions) -> None:
    """Measure what a run, a task, a signal or a timer costs, for `perdure plan --costs`.

    CPU time of server, worker and PostgreSQL, WAL, transactions and disk. Takes about two minutes.
    """
    import asyncio

    from perdure.bench.costs import print_costs, run_costs
    from perdure.bench.report import Progress
    from perdure.bench.suite import place

    with place(options.dsn) as where:
        costs = asyncio.run(run_costs(where, options.runs, options.rounds, Progress()))
    if options.as_json:
        _print_json(costs)
    else:
        print_costs(costs)


@dataclass(kw_only=True)
class ScaleOptions:
    as_json: AsJson = False
    only: Annotated[str | None, typer.Option(help="Some of fanout100k,sleeping,herd,retained,history.")] = None
    sleeping: Annotated[int, typer.Option(min=1, help="Runs that sleep.")] = 200_000
    herd: Annotated[int, typer.Option(min=1, help="Runs that sleep until the same moment.")] = 100_000
    engines: Annotated[
        int, typer.Option(min=1, max=16, help="Engines that the herd wakes, each a process of its own.")
    ] = 1
    retained: Annotated[int, typer.Option(min=100, help="Tasks of ended runs that are kept.")] = 5_000_000
    history: Annotated[int, typer.Option(min=1_000, max=48_000, help="Events of one long run.")] = 48_000
    fanout: Annotated[int, typer.Option(min=1, max=100_000, help="Tasks of the large fan-out.")] = 100_000
    idle: Annotated[float, typer.Option(min=0.5, help="Seconds for which an idle engine is watched.")] = 20.0
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where a target is missed.")] = False
    dsn: Server = None
    uvloop: Uvloop = False


@bench.command()
@with_options(ScaleOptions)
def scale(options: ScaleOptions) -> None:
    """Measure at size: a large fan-out, many sleeping runs, many due at once, many retained tasks, a long history."""
    from perdure.bench.report import Progress
    from perdure.bench.scale import PARTS, Sizes, print_scale, run_scale
    from perdure.bench.suite import place, run_on

    parts = set(PARTS if options.only is None else options.only.split(","))
    if not parts <= set(PARTS):
        raise typer.BadParameter(f"choose from {','.join(PARTS)}", param_hint="--only")
    sizes = Sizes(
        fanout=options.fanout,
        sleeping=options.sleeping,
        herd=options.herd,
        engines=options.engines,
        retained=options.retained,
        history=options.history,
        idle_s=options.idle,
    )
    loop = "uvloop" if options.uvloop else "asyncio"
    with place(options.dsn) as where:
        report = run_on(options.uvloop, run_scale(where, parts, sizes, loop=loop, say=Progress()))
    if options.as_json:
        _print_json(report)
    else:
        print_scale(report)
    if options.strict and not report.passed:
        raise typer.Exit(1)
