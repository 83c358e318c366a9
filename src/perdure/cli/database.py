"""`perdure migrate` and `perdure doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import Dsn, database
from perdure.programs.terminal import console

if TYPE_CHECKING:
    from perdure.localpg.leftovers import Leftover
    from perdure.store.doctor import Finding


def register(app: typer.Typer) -> None:
    for command in (migrate, doctor):
        app.command()(command)


def migrate(
    dsn: Dsn = None,
    roles: Annotated[
        bool,
        typer.Option(
            "--roles",
            help="Also make the roles perdure_engine, perdure_reader and perdure_caller, and grant what they need.",
        ),
    ] = False,
    finish: Annotated[
        bool,
        typer.Option("--finish", help="End an upgrade: no older version can use the database from now on."),
    ] = False,
) -> None:
    """Update the schema of the database. Servers may run meanwhile."""
    import asyncio

    from perdure.store import migrate as migrations
    from perdure.store.roles import CALLER_ROLE, ENGINE_ROLE, READER_ROLE, apply_roles

    with database(dsn) as address:
        applied = asyncio.run(migrations.migrate(address))
        if roles:
            asyncio.run(apply_roles(address))
        if finish:
            asyncio.run(migrations.finish(address))
        last, needs = asyncio.run(migrations.reached(address))
    for one in applied:
        print(f"applied {one.number:04} {one.name}")
    if not applied:
        print("nothing to do: the database is up to date")
    if roles:
        print(f"granted {ENGINE_ROLE}, {READER_ROLE} and {CALLER_ROLE} what they need, and nothing else")
    if needs < last:
        print(
            f"code that knows migration {needs:04} still works on this database, so you can go back to it. "
            "When all servers are upgraded, run `perdure migrate --finish`."
        )
    elif finish:
        print(f"finished: code that does not know migration {last:04} is refused from now on")


def doctor(
    dsn: Dsn = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
    clean: Annotated[
        bool,
        typer.Option("--clean", help="Stop private servers without users, and remove data whose project is gone."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --clean: do not ask first.")] = False,
) -> None:
    """Check the database and suggest fixes."""
    import asyncio

    from perdure.localpg import leftovers
    from perdure.store.doctor import examine, leftover_finding

    if clean:
        _clean(leftovers.find(), yes)
        return
    with database(dsn) as address:
        findings = asyncio.run(examine(address))
    findings.append(leftover_finding([one.what for one in leftovers.find()]))
    if as_json:
        import msgspec

        print(msgspec.json.encode(findings).decode())
    elif sys.stdout.isatty():
        _table(findings)
    else:
        _plain(findings)
    if any(f.status == "fail" for f in findings):
        raise typer.Exit(1)


def _clean(found: list[Leftover], yes: bool) -> None:
    from perdure.localpg.leftovers import remove

    for one in found:
        print(one.what)
    if not found:
        print("no private server runs without users, and no data is without its project")
    elif yes or typer.confirm(f"Stop and remove {'it' if len(found) == 1 else f'these {len(found)}'}?", err=True):
        for one in found:
            print(f"{'removed' if remove(one) else 'in use by now, left alone'}: {one.directory}")
    else:
        raise typer.Exit(1)


def _plain(findings: list[Finding]) -> None:
    """One finding per line, columns by tab: for grep and cut."""
    for f in findings:
        print("\t".join(" ".join(text.split()) for text in (f.status, f.name, f.what, f.advice)).rstrip())


def _table(findings: list[Finding]) -> None:
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
    console().print(table)
