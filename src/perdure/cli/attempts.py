"""`perdure attempts`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, RunId, remote

ERROR_CHARS_SHOWN = 80


def register(app: typer.Typer) -> None:
    app.command()(attempts)


@remote
def attempts(
    server: Remote,
    run: RunId,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Only this task, by name or number.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only attempts that did not succeed.")] = False,
) -> None:
    """List the attempts of a run's tasks."""
    from perdure.cli.render import STYLES, Column, duration, local_time
    from perdure.cli.run_tree import error_line

    def outcome(a: dict[str, Any]) -> str:
        return str(a.get("outcome") or "running")

    def error(a: dict[str, Any]) -> str:
        return error_line(a["error"])[:ERROR_CHARS_SHOWN] if a.get("error") else ""

    columns = [
        Column("task", lambda a: f"{a.get('node') or a['name']}#{a['seq']}", style="bold"),
        Column("epoch", lambda a: a["epoch"], right=True),
        Column("attempt", lambda a: a["attempt"], right=True),
        Column("outcome", outcome, style=lambda a: STYLES.get(outcome(a), "red"), whole=True),
        Column("worker", lambda a: a.get("worker")),
        Column("started", lambda a: a.get("started_at"), lambda a: local_time(a.get("started_at")), "dim"),
        Column("wall", lambda a: a.get("wall_s"), lambda a: duration(a.get("wall_s")), right=True),
        Column("cpu", lambda a: a.get("cpu_s"), lambda a: duration(a.get("cpu_s")), right=True),
        Column("lines", _lines, right=True),
        Column("error", lambda a: a.get("error"), error, "red"),
    ]
    path = server.path(run, "attempts") if task is None else server.path(run, "tasks", task, "attempts")
    found = server.api.items(path, [("unsuccessful", "true")] if failed else [])
    shown = server.out.rows(found, columns, empty="no attempts yet")
    if shown and server.out.is_for_people:
        server.out.say("-o json prints tracebacks too; perdure logs RUN TASK --attempt N prints their output")


def _lines(attempt: dict[str, Any]) -> int | None:
    logs: dict[str, int] | None = attempt.get("logs")
    return logs["lines"] if logs else None
