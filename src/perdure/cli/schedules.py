"""`perdure schedule`: schedules, their past and next times, and backfills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from perdure.cli import completion_values
from perdure.cli.arguments import WorkflowArguments, pairs
from perdure.cli.remote_options import Limit, Remote, WorkflowFilter, local, remote
from perdure.cli.render import Output
from perdure.cli.user_code import importing

Overlap = Literal["skip", "queue", "cancel", "allow"]
Missed = Literal["none", "last", "all"]
Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Name of the schedule.", show_default=False)]

schedule = typer.Typer(help="Start runs on a schedule, and backfill them.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(schedule, name="schedule")


def _path(name: str, *more: str) -> str:
    from perdure.programs.http_client import segment

    return "/".join(["/schedules", segment(name), *more])


@schedule.command("list")
@remote
def list_(
    server: Remote,
    workflow: WorkflowFilter = None,
    limit: Limit = 100,
) -> None:
    """List schedules."""
    from perdure.cli.render import Column, local_time

    columns = [
        Column("schedule", lambda s: s["name"], style="bold", whole=True),
        Column("workflow", lambda s: s["workflow"]),
        Column("when", when, lambda s: s["words"]),
        Column("state", lambda s: s["state"], style=_style, whole=True),
        Column("next", lambda s: _next_at(s), lambda s: local_time(_next_at(s))),
        Column("fired", lambda s: s["fired"], right=True),
        Column("skipped", lambda s: s["skipped"], right=True, style="dim"),
        Column("missed", lambda s: s["missed"], right=True, style=lambda s: "yellow" if s["missed"] else "dim"),
        Column("error", lambda s: s["error"], style="red"),
    ]
    found = server.api.items("/schedules", [("workflow", workflow)], limit=limit)
    server.out.rows(
        found,
        columns,
        empty='no schedules yet; create one: perdure schedule create NAME WORKFLOW --cron "0 8 * * *"',
    )


def _style(item: dict[str, Any]) -> str:
    return {"active": "green", "paused": "yellow"}.get(item["state"], "dim")


def _next_at(item: dict[str, Any]) -> str | None:
    return item["next_at"] if item["state"] == "active" else None


def when(item: dict[str, Any]) -> str:
    """When a schedule fires, on one line: `0 8 * * * Europe/Paris`."""
    spec = item["spec"]
    crons = spec.get("cron", [])
    moments = spec.get("at", [])
    parts = [crons] if isinstance(crons, str) else list(crons)
    if "every" in spec:
        parts.append(f"every {spec['every']}")
    parts += [f"at {at}" for at in ([moments] if isinstance(moments, str) else moments)[:3]]
    zone = f" {spec['tz']}" if "tz" in spec else ""
    return "; ".join(parts) + zone


@schedule.command()
@remote
def show(server: Remote, name: Name) -> None:
    """Show a schedule: spec, workflow, state and next times."""
    found = server.api.get(_path(name))
    times = server.api.get(_path(name, "times"))["times"] if found["state"] != "over" else []
    server.out.one(
        found | {"times": times},
        people=lambda: _draw(server, found, times),
        plain=[found["name"], found["workflow"], when(found), found["state"], _next_at(found)],
    )
    again = "resume" if found["state"] == "paused" else "pause"
    server.out.next(f"perdure schedule fires {name}", f"perdure schedule {again} {name}")


def _draw(server: Remote, s: dict[str, Any], times: list[str]) -> None:
    from rich.text import Text

    from perdure.cli.render import ago, local_time, pretty

    rows = [
        ("workflow", f"{s['workflow']}{' ' + s['version'] if s['version'] else ''}"),
        ("when", when(s)),
        ("", s["words"]),
    ]
    rest = {k: v for k, v in s["spec"].items() if k not in ("cron", "every", "at", "tz")}
    rows += [(key, ", ".join(v) if isinstance(v, list) else str(v)) for key, v in rest.items()]
    rows += [("input", pretty(s["input"])), ("from", s["origin"])]
    if s["paused"]:
        why = f": {s['paused']['reason']}" if s["paused"]["reason"] else ""
        rows.append(("paused", f"{ago(s['paused']['at'])} by {s['paused']['by']}{why}"))
    rows.append(("fired", f"{s['fired']:,}, skipped {s['skipped']:,}, missed {s['missed']:,}"))
    if s["error"]:
        rows.append(("error", s["error"]))
    rows += [("next" if i == 0 else "", local_time(t)) for i, t in enumerate(times)]
    console = server.out.console
    console.print(Text.assemble((s["name"], "bold"), "  ", (s["state"], _style(s))))
    for key, value in rows:
        console.print(Text.assemble((f"  {key:<10}", "dim"), value), soft_wrap=True)


@schedule.command("next")
@remote
def next_(
    server: Remote,
    name: Annotated[
        str | None, typer.Argument(metavar="[SCHEDULE]", help="Name of the schedule.", show_default=False)
    ] = None,
    limit: Limit = 5,
    cron: Annotated[
        list[str] | None, typer.Option(metavar="EXPR", help="Preview a cron expression instead; repeatable.")
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="Preview an interval instead.")] = None,
    tz: Annotated[str | None, typer.Option(metavar="ZONE", help="Time zone of --cron: Europe/Paris.")] = None,
) -> None:
    """Print the next times of a schedule, or of a cron expression."""
    from perdure.core.errors import InvalidInput

    if (name is None) == (not cron and not every):
        raise InvalidInput("name a schedule, or pass --cron or --every to preview one")
    if name is not None:
        times = server.api.get(_path(name, "times"), [("n", limit)])["times"]
        zone = server.api.get(_path(name))["spec"].get("tz", "UTC")
    else:
        spec = {k: v for k, v in {"cron": cron, "every": every, "tz": tz}.items() if v}
        times = server.api.post("/schedules/preview", {"spec": spec, "n": limit})["times"]
        zone = tz or "UTC"
    _print_times(server, times, zone)


@schedule.command()
@local
def explain(
    out: Output,
    cron: Annotated[
        list[str], typer.Argument(metavar="EXPR", help='Cron expression, such as "0 8 * * 1-5".', show_default=False)
    ],
) -> None:
    """Explain cron expressions in words, without a server."""
    from perdure.cli.render import Column
    from perdure.core.schedules import cron_words

    found = [{"cron": text, "words": cron_words(text)} for text in cron]
    columns = [Column("cron", lambda c: c["cron"], style="bold", whole=True), Column("words", lambda c: c["words"])]
    out.rows(found, columns, empty="")


def _print_times(server: Remote, times: list[str], zone: str) -> None:
    from perdure.cli.render import Column, local_time

    columns = [
        Column("nominal time", lambda t: t["at"], lambda t: _in_zone(t["at"], zone)),
        Column("local time", lambda t: t["at"], lambda t: local_time(t["at"]), "dim"),
    ]
    server.out.rows(
        [{"at": t} for t in times], columns[: 2 if server.out.is_for_people else 1], empty="no further times"
    )


def _in_zone(text: str, zone: str) -> str:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    return datetime.fromisoformat(text).astimezone(ZoneInfo(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")


@schedule.command()
@remote
def fires(server: Remote, name: Name, limit: Limit = 20) -> None:
    """List past times and their outcome, newest first."""
    from perdure.cli.render import MARKS, STYLES, Column, local_time

    columns = [
        Column("nominal time", lambda f: f["nominal_at"], lambda f: local_time(f["nominal_at"])),
        Column("how", lambda f: f["how"], style="dim"),
        Column(
            "outcome", lambda f: f["outcome"], style=lambda f: "" if f["outcome"] == "started" else "yellow", whole=True
        ),
        Column(
            "run",
            lambda f: f["status"],
            lambda f: f"{MARKS.get(f['status'], ' ')} {f['status']}" if f["status"] else "",
            lambda f: STYLES.get(f["status"], ""),
        ),
        Column("id", lambda f: f["run_id"], whole=True),
    ]
    found = server.api.items(_path(name, "fires"), limit=limit)
    server.out.rows(found, columns, empty=f"{name} has not fired yet")


@dataclass(frozen=True)
class ScheduleFlags:
    """When a schedule fires; the fields of its spec."""

    cron: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="5 fields, or 6 with seconds first, or @daily; repeatable."),
    ] = None
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="Interval: 15m.")] = None
    at: Annotated[list[str] | None, typer.Option(metavar="TIME", help="A point in time; repeatable.")] = None
    tz: Annotated[str | None, typer.Option(metavar="ZONE", help="Time zone: Europe/Paris. Default: UTC.")] = None
    calendars: Annotated[
        list[str] | None,
        typer.Option("--calendar", metavar="NAME", help="Fire only on the days of this calendar; repeatable."),
    ] = None
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Do not fire on the days of this calendar; repeatable.")
    ] = None
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Do not fire before this time.")] = None
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Do not fire from this time on.")] = None
    jitter: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Delay each start by a random time up to this.")
    ] = None
    overlap: Annotated[Overlap | None, typer.Option(help="If an earlier run is still active. Default: skip.")] = None
    missed: Annotated[
        Missed | None, typer.Option(help="Which missed times to start when servers were down. Default: last.")
    ] = None
    window: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How old a missed time may be. Default: 1h.")
    ] = None

    def spec(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class RunOptions:
    """Options of the runs that a schedule starts."""

    attr: Annotated[
        list[str] | None, typer.Option("--attr", metavar="NAME=VALUE", help="Attribute of its runs; repeatable.")
    ] = None
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="Fail a run after this time.")] = None

    def body(self) -> dict[str, Any]:
        fields = {"attributes": pairs(self.attr or [], "--attr") or None, "timeout": self.timeout}
        return {name: value for name, value in fields.items() if value is not None}


@schedule.command()
@remote
def create(
    server: Remote,
    name: Name,
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="WORKFLOW",
            help="Workflow to start.",
            show_default=False,
            autocompletion=completion_values.workflows,
        ),
    ],
    arguments: WorkflowArguments,
    options: ScheduleFlags,
    runs: RunOptions,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the schedule if it exists.")] = False,
) -> None:
    """Create a schedule.

    perdure schedule create nightly etl day=today --cron "0 8 * * *" --tz Europe/Paris
    """
    body = {"workflow": workflow, "spec": options.spec(), **arguments.body(), **runs.body()}
    made = server.api.put(_path(name), body) if replace else server.api.post("/schedules", body | {"name": name})
    _announce(server, made, f"schedule {name} starts {workflow}: {made['words']}")
    server.out.next(f"perdure schedule show {name}", f"perdure schedule trigger {name}")


@schedule.command()
@remote
def apply(
    server: Remote,
    modules: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE", help="Modules that define schedules: shop.flows, or flows.py.", show_default=False
        ),
    ],
) -> None:
    """Create or update the schedules that Python modules define.

    A schedule that a module no longer defines stays: delete it by name.
    """
    from perdure.core.errors import InvalidInput
    from perdure.programs.modules import load
    from perdure.sdk.registry import schedules_by_name

    with importing():
        load(modules)
    found = schedules_by_name()
    if not found:
        raise InvalidInput(f"{', '.join(modules)}: no schedules are defined; assign Schedule(...) to a variable")
    for one in found:
        made = server.api.put(_path(one.name), one.document())
        _announce(server, made, f"schedule {one.name} starts {one.target.workflow.name}: {when(made)}")
    server.out.next("perdure schedule list")


def _announce(server: Remote, s: dict[str, Any], text: str) -> None:
    from perdure.cli.render import local_time

    at = _next_at(s)
    ahead = f", next at {local_time(at)}" if at else ""
    server.out.one(s, people=lambda: print(f"{text}{ahead}"), plain=[s["name"], s["state"], at])


@schedule.command()
@remote
def pause(
    server: Remote,
    name: Name,
    reason: Annotated[str, typer.Option("--reason", "-r", metavar="TEXT", help="Shown with the schedule.")] = "",
) -> None:
    """Pause a schedule."""
    s = server.api.post(_path(name, "pause"), {"reason": reason})
    _announce(server, s, f"schedule {name} is paused")
    server.out.next(f"perdure schedule resume {name}")


@schedule.command()
@remote
def resume(server: Remote, name: Name) -> None:
    """Resume a paused schedule.

    Times that passed during the pause are not made up; `perdure schedule backfill` does that.
    """
    s = server.api.post(_path(name, "resume"))
    _announce(server, s, f"schedule {name} is resumed")
    server.out.next(f"perdure schedule next {name}")


@schedule.command()
@remote
def trigger(server: Remote, name: Name) -> None:
    """Start a run of a schedule now, in addition to its times."""
    made = server.api.post(_path(name, "trigger"))
    server.remember(made["run_id"])
    server.out.one(made, people=lambda: print(f"run {made['run_id']}  {made['url']}"), plain=[made["run_id"]])
    server.out.next("perdure watch @last")


@schedule.command()
@remote
def delete(server: Remote, name: Name) -> None:
    """Delete a schedule.

    Its runs continue. A schedule from the triggers of a flow comes back with the next deployment of the flow.
    """
    server.api.delete(_path(name))
    server.out.say(f"deleted schedule {name}")


@schedule.command()
@remote
def backfill(
    server: Remote,
    name: Name,
    since: Annotated[str, typer.Option(metavar="TIME", help="A time with a zone, or an age: 7d.")],
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End, exclusive. Default: now.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs without starting them.")] = False,
) -> None:
    """Start the runs of past times that have none."""
    from perdure.cli.render import Column, local_time

    body = {"since": since, "until": until, "dry_run": dry_run}
    made = server.api.post(_path(name, "backfill"), {k: v for k, v in body.items() if v is not None})
    fresh = "would start" if dry_run else "started"
    columns = [
        Column("nominal time", lambda t: t["nominal_at"], lambda t: local_time(t["nominal_at"])),
        Column("", lambda t: "exists" if t["exists"] else fresh, style=lambda t: "dim" if t["exists"] else "green"),
        Column("run", lambda t: t["run_id"], whole=True),
    ]
    server.out.rows(made["times"], columns, empty=f"{name} has no times in that range")
    count = f"{made['started']:,} {'run' if made['started'] == 1 else 'runs'}"
    server.out.say(f"{count} would start" if dry_run else f"{count} started")
    if dry_run and made["started"]:
        tail = f" --until {until}" if until else ""
        server.out.next(f"perdure schedule backfill {name} --since {since}{tail}")
