"""`perdure versions`: versions of a workflow, their runs in flight, and which one new runs get."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli import completion_values
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
Version = Annotated[
    str, typer.Argument(metavar="VERSION", help="A version, or its first characters.", show_default=False)
]


versions = typer.Typer(help="Show versions of workflows, ramp to a new one and roll back.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(versions, name="versions")


@versions.command("list")
@remote
def list_(server: Remote, name: Name) -> None:
    """List the versions of a workflow, newest first, with workers and runs in flight."""
    _print(server, server.api.get(_path(name, "versions")))


@versions.command("set-current")
@remote
def set_current(
    server: Remote,
    name: Name,
    version: Annotated[
        str,
        typer.Argument(
            metavar="[VERSION]",
            help="A version, or its first characters; needed unless --automatic.",
            show_default=False,
        ),
    ] = "",
    ramp: Annotated[
        str, typer.Option("--ramp", metavar="PERCENT", help="Only this part of new runs, such as 10%.")
    ] = "100%",
    automatic: Annotated[
        bool, typer.Option("--automatic", help="The newest version, now and whenever a worker registers one.")
    ] = False,
) -> None:
    """Choose the version that new runs get. Active runs keep theirs.

    The part of a ramp is chosen by the run's id; a larger percentage adds runs to it.
    """
    from perdure.core.errors import InvalidInput

    if automatic == bool(version):
        raise InvalidInput("name a version, or give --automatic for the newest one")
    body = {"version": version, "ramp_percent": _percent(ramp)}
    _print(server, server.api.post(_path(name, "current"), body))


@versions.command()
@remote
def rollback(server: Remote, name: Name) -> None:
    """End a ramp, or go back to the version that was current before."""
    _print(server, server.api.post(_path(name, "rollback"), {}))


@versions.command()
@remote
def move(
    server: Remote,
    name: Name,
    version: Version,
    to: Annotated[str, typer.Option("--to", metavar="VERSION", help="The version to move to.", show_default=False)],
) -> None:
    """Move the runs of a version that no worker serves to another version.

    Their histories are replayed on its code; check that first. A run whose history does not fit is stuck.
    """
    from perdure.programs.http_client import segment

    moved = server.api.post(_path(name, "versions", segment(version), "move"), {"to": to})
    runs = moved["runs"]
    server.out.one(
        moved, people=lambda: server.out.say(f"{runs} run{'' if runs == 1 else 's'} moved to {to}"), plain=[runs]
    )


def _percent(text: str) -> float:
    from perdure.core.errors import InvalidInput

    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise InvalidInput(f"--ramp {text}: give a percentage, such as 10%") from None


def _print(server: Remote, found: dict[str, Any]) -> None:
    from perdure.cli.render import Column, ago

    columns = [
        Column("version", lambda v: v["version"], style="bold", whole=True),
        Column("new runs", lambda v: _share(found, v), style="green"),
        Column("build", lambda v: v["build_id"] or ""),
        Column("workers", lambda v: v["workers"], right=True),
        Column("pinned runs", lambda v: v["runs_pinned"], right=True),
        Column("other runs", lambda v: v["runs_other"], right=True),
        Column("drain", lambda v: "yes" if v["can_drain"] else ""),
        Column("last seen", lambda v: v["seen_at"], lambda v: ago(v["seen_at"]) if v["seen_at"] else "", "dim"),
        Column("since", lambda v: v["registered_at"], lambda v: ago(v["registered_at"]), "dim"),
    ]
    server.out.rows(found["items"], columns, empty="no versions")


def _share(found: dict[str, Any], v: dict[str, Any]) -> str:
    ramp = found["ramp_percent"] if found["ramp"] else 0
    share = ramp if found["ramp"] == v["version"] else 100 - ramp if v["current"] else 0
    return f"{share:g}%" if share else ""


def _path(name: str, *more: str) -> str:
    from perdure.programs.http_client import segment

    return "/".join(["/workflows", segment(name), *more])
