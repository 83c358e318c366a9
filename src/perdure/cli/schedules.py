"""`perdure schedule` and `perdure calendar`: runs that start by themselves, what came of them, and the days they keep to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Remote, remote

Overlap = Literal["skip", "queue", "cancel", "allow"]
Missed = Literal["none", "last", "all"]
Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="Its name.", show_default=False)]
CalendarName = Annotated[str, typer.Argument(metavar="CALENDAR", help="Its name.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-l", min=1, help="At most so many.")]

schedule = typer.Typer(help="Start runs by the clock: list, create, pause, backfill.", no_args_is_help=True)
calendar = typer.Typer(help="Name the days that schedules keep to.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(schedule, name="schedule")
    app.add_typer(calendar, name="calendar")


def _path(name: str, *more: str) -> str:
    from perdure.app.http_client import segment

    return "/".join(["/schedules", segment(name), *more])


# -- looking -------------------------------------------------------------------------------------------------------


@schedule.command("list")
@remote
def list_(
    server: Remote,
    workflow: Annotated[
        str | None,
        typer.Option(
            "--workflow", "-w", metavar="NAME", help="Of this workflow.", autocompletion=completion_values.workflows
        ),
    ] = None,
    limit: Limit = 100,
) -> None:
    """List schedules."""
    from perdure.cli.render import Column, local_time

    columns = [
        Column("schedule", lambda s: s["name"], style="bold", whole=True),
        Column("workflow", lambda s: s["workflow"]),
        Column("when", when),
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
        empty='there are no schedules; make one: perdure schedule create NAME WORKFLOW --cron "0 8 * * *"',
    )


def _style(item: dict[str, Any]) -> str:
    return {"active": "green", "paused": "yellow"}.get(item["state"], "dim")


def _next_at(item: dict[str, Any]) -> str | None:
    return item["next_at"] if item["state"] == "active" else None


def when(item: dict[str, Any]) -> str:
    """A spec in one line: `0 8 * * * Europe/Paris`."""
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
    """Show a schedule: when it fires, what it starts, how it went."""
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

    rows = [("workflow", f"{s['workflow']}{' ' + s['version'] if s['version'] else ''}"), ("when", when(s))]
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
    name: Annotated[str | None, typer.Argument(metavar="[SCHEDULE]", help="Its name.", show_default=False)] = None,
    count: Annotated[int, typer.Option("--count", "-c", min=1, help="How many.")] = 5,
    cron: Annotated[
        list[str] | None, typer.Option(metavar="EXPR", help="Instead of a schedule: when would this fire? Repeatable.")
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="The same for an interval.")] = None,
    tz: Annotated[str | None, typer.Option(metavar="ZONE", help="Zone of --cron, such as Europe/Paris.")] = None,
) -> None:
    """Say when a schedule fires next, or when one would."""
    from perdure.core.errors import InvalidInput

    if (name is None) == (not cron and not every):
        raise InvalidInput("name a schedule, or say --cron or --every for one that is not there")
    if name is not None:
        times = server.api.get(_path(name, "times"), [("n", count)])["times"]
        zone = server.api.get(_path(name))["spec"].get("tz", "UTC")
    else:
        spec = {k: v for k, v in {"cron": cron, "every": every, "tz": tz}.items() if v}
        times = server.api.post("/schedules/preview", {"spec": spec, "n": count})["times"]
        zone = tz or "UTC"
    _print_times(server, times, zone)


def _print_times(server: Remote, times: list[str], zone: str) -> None:
    from perdure.cli.render import Column, local_time

    columns = [
        Column("nominal time", lambda t: t["at"], lambda t: _in_zone(t["at"], zone)),
        Column("here", lambda t: t["at"], lambda t: local_time(t["at"]), "dim"),
    ]
    server.out.rows([{"at": t} for t in times], columns[: 2 if server.out.is_for_people else 1], empty="it is over")


def _in_zone(text: str, zone: str) -> str:
    from datetime import datetime
    from zoneinfo import ZoneInfo

    return datetime.fromisoformat(text).astimezone(ZoneInfo(zone)).strftime("%a %Y-%m-%d %H:%M:%S %Z")


@schedule.command()
@remote
def fires(server: Remote, name: Name, limit: Limit = 20) -> None:
    """List past times and what came of them, the latest first."""
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


# -- changing ------------------------------------------------------------------------------------------------------


@schedule.command()
@remote
def create(
    server: Remote,
    name: Name,
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="WORKFLOW", help="What it starts.", show_default=False, autocompletion=completion_values.workflows
        ),
    ],
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Arguments by name. JSON where it is JSON, otherwise text."),
    ] = None,
    cron: Annotated[
        list[str] | None,
        typer.Option(metavar="EXPR", help="5 fields, or 6 with seconds first, or @daily; repeatable."),
    ] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="An interval: 15m.")] = None,
    at: Annotated[list[str] | None, typer.Option(metavar="TIME", help="A moment; repeatable.")] = None,
    tz: Annotated[str | None, typer.Option(metavar="ZONE", help="Such as Europe/Paris; UTC unless given.")] = None,
    calendars: Annotated[
        list[str] | None, typer.Option("--calendar", metavar="NAME", help="Only on its days; repeatable.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Not on the days of this calendar.")] = None,
    start: Annotated[str | None, typer.Option(metavar="TIME", help="Nothing before.")] = None,
    end: Annotated[str | None, typer.Option(metavar="TIME", help="Nothing from then on.")] = None,
    jitter: Annotated[str | None, typer.Option(metavar="DURATION", help="Put each off by up to this much.")] = None,
    overlap: Annotated[Overlap | None, typer.Option(help="When an earlier run is active; skip unless given.")] = None,
    missed: Annotated[Missed | None, typer.Option(help="What to make up for; last unless given.")] = None,
    window: Annotated[str | None, typer.Option(metavar="DURATION", help="How far back; 1h unless given.")] = None,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "-a", metavar="VALUE", help="An argument by position; repeatable.")
    ] = None,
    input_json: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", metavar="JSON", help="All arguments as one JSON value; @file reads it, - is stdin."
        ),
    ] = None,
    attr: Annotated[
        list[str] | None, typer.Option("--attr", metavar="NAME=VALUE", help="To find its runs by; repeatable.")
    ] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="When a run of it fails.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Change the schedule of this name, if there is one.")
    ] = False,
) -> None:
    """Create a schedule.

    perdure schedule create nightly etl day=today --cron "0 8 * * *" --tz Europe/Paris
    """
    from perdure.cli.run import pairs, start_body

    spec = {
        "cron": cron, "every": every, "at": at, "tz": tz, "calendars": calendars, "exclude": exclude, "start": start, "end": end,
        "jitter": jitter, "overlap": overlap, "missed": missed, "window": window,
    }  # fmt: skip
    more = {"attributes": pairs(attr or [], "--attr") or None, "timeout": timeout}
    body = {
        "workflow": workflow,
        "spec": {k: v for k, v in spec.items() if v},
        **start_body(given or [], arg or [], input_json),
        **{k: v for k, v in more.items() if v is not None},
    }
    made = server.api.put(_path(name), body) if replace else server.api.post("/schedules", body | {"name": name})
    _tell(server, made, f"schedule {name} starts {workflow}: {when(made)}")
    server.out.next(f"perdure schedule show {name}", f"perdure schedule trigger {name}")


def _tell(server: Remote, s: dict[str, Any], said: str) -> None:
    from perdure.cli.render import local_time

    at = _next_at(s)
    ahead = f", next at {local_time(at)}" if at else ""
    server.out.one(s, people=lambda: print(f"{said}{ahead}"), plain=[s["name"], s["state"], at])


@schedule.command()
@remote
def pause(
    server: Remote,
    name: Name,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for whoever finds it paused.")] = "",
) -> None:
    """Fire nothing until it is resumed."""
    s = server.api.post(_path(name, "pause"), {"reason": reason})
    _tell(server, s, f"schedule {name} is paused")
    server.out.next(f"perdure schedule resume {name}")


@schedule.command()
@remote
def resume(server: Remote, name: Name) -> None:
    """Let it go on from now.

    What would have fired meanwhile is not made up for; `perdure schedule backfill` does that.
    """
    s = server.api.post(_path(name, "resume"))
    _tell(server, s, f"schedule {name} goes on")
    server.out.next(f"perdure schedule next {name}")


@schedule.command()
@remote
def trigger(server: Remote, name: Name) -> None:
    """Start a run now, beside what the schedule does."""
    made = server.api.post(_path(name, "trigger"))
    server.remember(made["run_id"])
    server.out.one(made, people=lambda: print(f"run {made['run_id']}  {made['url']}"), plain=[made["run_id"]])
    server.out.next("perdure watch @last")


@schedule.command()
@remote
def delete(server: Remote, name: Name) -> None:
    """Delete a schedule.

    Its runs go on. One that comes from a flow's triggers is back when the flow is deployed again.
    """
    server.api.delete(_path(name))
    server.out.say(f"schedule {name} is deleted")


@schedule.command()
@remote
def backfill(
    server: Remote,
    name: Name,
    since: Annotated[str, typer.Option(metavar="TIME", help="A time with its zone, or how long ago: 7d.")],
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Not included; now unless given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be started.")] = False,
) -> None:
    """Start runs for past times that had none."""
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


# -- calendars -----------------------------------------------------------------------------------------------------


@calendar.command("list")
@remote
def list_calendars(server: Remote) -> None:
    """List calendars."""
    from perdure.cli.render import Column, ago, pretty

    columns = [
        Column("calendar", lambda c: c["name"], style="bold"),
        Column("days", lambda c: pretty(c["spec"]), fold=True),
        Column("set", lambda c: c["updated_at"], lambda c: ago(c["updated_at"]), "dim"),
        Column("by", lambda c: c["updated_by"], style="dim"),
    ]
    server.out.rows(
        server.api.items("/calendars"),
        columns,
        empty="there are no calendars; perdure calendar set NAME FILE makes one",
    )


@calendar.command("set")
@remote
def set_(
    server: Remote,
    name: CalendarName,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="YAML or JSON: dates, yearly, weekdays, ranges, not.", show_default=False
        ),
    ] = None,
    date: Annotated[list[str] | None, typer.Option(metavar="DAY", help="2026-12-25; repeatable.")] = None,
    yearly: Annotated[list[str] | None, typer.Option(metavar="DAY", help="12-25; repeatable.")] = None,
    weekday: Annotated[list[str] | None, typer.Option(metavar="DAY", help="sat; repeatable.")] = None,
) -> None:
    """Set the days of a calendar, from a file or as options.

    Schedules that use it find their next time anew.
    """
    from perdure.app.http_client import segment
    from perdure.core.errors import InvalidInput

    days = {"dates": date, "yearly": yearly, "weekdays": weekday}
    given = {k: v for k, v in days.items() if v}
    if (file is None) == (not given):
        raise InvalidInput("give the days as a file, or as --date, --yearly and --weekday")
    made = server.api.put(f"/calendars/{segment(name)}", _days(file) if file is not None else given)
    server.out.one(made, people=lambda: print(f"calendar {name} is set"), plain=[name])
    server.out.next(f'perdure schedule create NAME WORKFLOW --cron "0 8 * * *" --exclude {name}')


def _days(file: Path) -> Any:
    from perdure.app.flow_files import text_of
    from perdure.flows.source import read

    return read(text_of(file), name=str(file)).value


@calendar.command("delete")
@remote
def delete_calendar(server: Remote, name: CalendarName) -> None:
    """Delete a calendar that no schedule uses."""
    from perdure.app.http_client import segment

    server.api.delete(f"/calendars/{segment(name)}")
    server.out.say(f"calendar {name} is deleted")
