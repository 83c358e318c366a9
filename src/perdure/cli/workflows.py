"""`perdure workflow`: registered workflows, and pausing them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli import completion_values
from perdure.cli.limits import Reason, print_paused, print_resumed
from perdure.cli.remote_options import Remote, remote

Name = Annotated[
    str,
    typer.Argument(
        metavar="WORKFLOW",
        help="Name of the workflow.",
        show_default=False,
        autocompletion=completion_values.workflows,
    ),
]
Text = Annotated[str | None, typer.Option("--text", "-t", help="The name contains this text.")]

workflow = typer.Typer(help="List, show, pause and resume workflows.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(workflow, name="workflow")


@workflow.command("list")
@remote
def list_(server: Remote, text: Text = None) -> None:
    """List workflows, in Python and declarative."""
    found = server.api.items("/workflows", [("q", text)])
    empty = "no workflows match" if text else "no workflows yet; a worker registers them: perdure worker MODULE"
    print_workflows(server, found, empty)


def print_workflows(server: Remote, found: Any, empty: str) -> None:
    from perdure.cli.render import Column, ago

    columns = [
        Column("workflow", lambda w: w["name"], style="bold", whole=True),
        Column("kind", lambda w: w.get("kind")),
        Column("version", lambda w: w.get("version")),
        Column("versions", lambda w: w.get("versions"), right=True),
        Column("active runs", lambda w: w.get("runs_active"), right=True),
        Column("since", lambda w: w.get("created_at"), lambda w: ago(w.get("created_at")), "dim"),
    ]
    server.out.rows(found, columns, empty=empty)


@workflow.command()
@remote
def show(server: Remote, name: Name) -> None:
    """Show a workflow: kind, current version, number of versions, active runs, queries, events that start it."""
    from perdure.cli.render import local_time

    found = server.api.get(_path(name))
    rows = {
        "kind": found["kind"],
        "version": found["version"],
        "versions": str(len(found["versions"])),
        "active runs": str(found.get("runs_active", "")),
        "queries": ", ".join(found.get("queries", [])),
        "since": local_time(found["created_at"]),
        "started by": "; ".join(_event(s) for s in found["on"]),
    }
    server.out.one(
        found,
        people=lambda: _print_details(server, found["name"], rows),
        plain=[found["name"], found["kind"], found["version"], len(found["versions"]), found.get("runs_active")],
    )
    server.out.next(f"perdure versions {name}", f"perdure list -w {name}", f"perdure run {name}")


def _event(s: dict[str, Any]) -> str:
    """An event that starts runs, in a line."""
    said = [f"{word} {s[word]}" for word in ("match", "key", "dedup") if s[word]]
    return f"{s['event']} ({', '.join(said)})" if said else str(s["event"])


def _print_details(server: Remote, name: str, rows: dict[str, str]) -> None:
    from rich.text import Text as Styled

    server.out.console.print(Styled(name, style="bold"))
    for title, value in rows.items():
        if value:
            server.out.console.print(Styled.assemble((f"  {title:<12}", "dim"), value), soft_wrap=True)


@workflow.command()
@remote
def pause(server: Remote, name: Name, reason: Reason = None) -> None:
    """Pause a workflow: its runs and tasks do not start.

    Running tasks continue. New runs are accepted and stay pending.
    """
    print_paused(server, "workflow", name, reason)


@workflow.command()
@remote
def resume(server: Remote, name: Name) -> None:
    """Resume a paused workflow."""
    print_resumed(server, "workflow", name)


@workflow.command()
@remote
def delete(server: Remote, name: Name) -> None:
    """Delete a workflow: new runs of it are refused.

    Active runs continue and histories are kept.
    """
    server.api.delete(_path(name))
    server.out.say(f"deleted workflow {name}")


def _path(name: str, *more: str) -> str:
    from perdure.programs.http_client import segment

    return "/".join(["/workflows", segment(name), *more])
