"""`perdure calendar`: the days on which schedules fire or do not fire."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, remote

CalendarName = Annotated[str, typer.Argument(metavar="CALENDAR", help="Name of the calendar.", show_default=False)]

calendar = typer.Typer(help="Manage the calendars that schedules use.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(calendar, name="calendar")


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
        empty="no calendars yet; create one: perdure calendar set NAME FILE",
    )


@calendar.command()
@remote
def show(server: Remote, name: CalendarName) -> None:
    """Show the days of a calendar."""
    from perdure.cli.render import pretty
    from perdure.programs.http_client import segment

    found = server.api.get(f"/calendars/{segment(name)}")
    server.out.one(found, people=lambda: print(pretty(found["spec"])), plain=[name, found["spec"]])


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
    date: Annotated[list[str] | None, typer.Option(metavar="DAY", help="A date, 2026-12-25; repeatable.")] = None,
    yearly: Annotated[
        list[str] | None, typer.Option(metavar="DAY", help="A day of every year, 12-25; repeatable.")
    ] = None,
    weekday: Annotated[
        list[str] | None, typer.Option(metavar="DAY", help="A day of the week, sat; repeatable.")
    ] = None,
) -> None:
    """Create or replace a calendar, from a file or from options.

    Schedules that use it recompute their next time. `perdure calendar set holidays:DE-BY` needs no days: it reads the public holidays
    again from the package of the server.
    """
    from perdure.core.errors import InvalidInput
    from perdure.core.schedules.holidays import is_holidays
    from perdure.programs.http_client import segment

    days = {"dates": date, "yearly": yearly, "weekdays": weekday}
    given = {k: v for k, v in days.items() if v}
    if (file is None) == (not given) and not (file is None and is_holidays(name)):
        raise InvalidInput("give the days in a file, or with --date, --yearly and --weekday")
    made = server.api.put(f"/calendars/{segment(name)}", _days(file) if file is not None else given)
    server.out.one(made, people=lambda: print(f"saved calendar {name}"), plain=[name])
    server.out.next(f'perdure schedule create NAME WORKFLOW --cron "0 8 * * *" --exclude {name}')


def _days(file: Path) -> Any:
    from perdure.flows.source import read
    from perdure.sdk.client.flow_text import text_of

    return read(text_of(file), name=str(file)).value


@calendar.command("delete")
@remote
def delete_calendar(server: Remote, name: CalendarName) -> None:
    """Delete a calendar that no schedule uses."""
    from perdure.programs.http_client import segment

    server.api.delete(f"/calendars/{segment(name)}")
    server.out.say(f"deleted calendar {name}")
