"""The command line. A command loads what it needs when it runs, so that `perdure --help` is instant.

Exit codes: 0 well, 1 a problem that was found or met, 2 wrong usage.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from perdure.app.cli import bench, verify
from perdure.app.cli.options import Dsn, database
from perdure.core.errors import PerdureError

if TYPE_CHECKING:
    from perdure.store.doctor import Finding

app = typer.Typer(
    name="perdure",
    help="Durable workflows in plain Python on PostgreSQL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class CommandModule(Protocol):
    """A module that holds a command of its own."""

    def register(self, app: typer.Typer) -> None: ...


COMMAND_MODULES: tuple[CommandModule, ...] = (bench, verify)
"""Import the module above and name it here. It loads what it needs inside its commands."""

for _module in COMMAND_MODULES:
    _module.register(app)


@app.command()
def migrate(dsn: Dsn = None) -> None:
    """Bring the database's schema up to date."""
    import asyncio

    from perdure.store.migrate import migrate as run

    with database(dsn) as address:
        applied = asyncio.run(run(address))
    for one in applied:
        print(f"applied {one.number:04} {one.name}")
    if not applied:
        print("nothing to do: the database is up to date")


@app.command()
def doctor(
    dsn: Dsn = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
) -> None:
    """Say what is wrong with the database, and what to do about it."""
    import asyncio

    from perdure.store.doctor import examine

    with database(dsn) as address:
        findings = asyncio.run(examine(address))
    if as_json:
        import msgspec

        print(msgspec.json.encode(findings).decode())
    elif sys.stdout.isatty():
        _table(findings)
    else:
        _plain(findings)
    if any(f.status == "fail" for f in findings):
        raise typer.Exit(1)


def _plain(findings: list[Finding]) -> None:
    """One finding per line, columns by tab: for grep and cut."""
    for f in findings:
        print("\t".join(" ".join(text.split()) for text in (f.status, f.name, f.what, f.advice)).rstrip())


def _table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # rich itself drops colours when NO_COLOR is set.
    colours = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    table = Table(box=None, pad_edge=False, header_style="")
    for title in ("", "check", "what"):
        table.add_column(title)
    for f in findings:
        what = Text(f.what)
        if f.advice:
            what.append(f"\n{f.advice}", style="dim" if f.status == "ok" else "italic")
        table.add_row(Text(f.status, style=colours[f.status]), Text(f.name), what)
    Console().print(table)


def main() -> None:
    try:
        app()
    except PerdureError as error:
        print(f"perdure: {error}", file=sys.stderr)
        sys.exit(1)
