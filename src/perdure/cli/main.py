"""The command line. A command loads what it needs when it runs, so that `perdure --help` is instant.

Exit codes are the table `EXIT_CODES` of app/http_client.py.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from perdure.app.terminal import guard
from perdure.cli import quick_values
from perdure.cli.commands import COMPLETE_VARIABLE, Commands
from perdure.cli.help import CONTEXT
from perdure.core.errors import Forbidden, InvalidInput, NotFound, NotRegistered, PerdureError, Unauthenticated
from perdure.core.version import VERSION

quick_values.install()
app = typer.Typer(
    name="perdure",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would double the time that help takes
    context_settings=CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"perdure {VERSION}")
        raise typer.Exit


@app.callback()
def perdure(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Durable workflows in plain Python on PostgreSQL."""


def exit_code_of(error: PerdureError) -> int:
    """Errors of a server know theirs; those met on this side are told apart by what they are."""
    known: Any = getattr(error, "exit_code", None)
    if isinstance(known, int):
        return known
    if isinstance(error, (NotFound, NotRegistered)):
        return 4
    if isinstance(error, (Unauthenticated, Forbidden)):
        return 5
    return 2 if isinstance(error, InvalidInput) else 1


def main() -> None:
    if COMPLETE_VARIABLE in os.environ:
        from typer._completion_classes import completion_init

        completion_init()
    guard()
    try:
        app(prog_name="perdure")
    except PerdureError as error:
        head, _, rest = str(error).partition("\n")
        print(f"perdure: {head}", file=sys.stderr)
        for line in rest.splitlines():
            print(f"  {line}" if line else "", file=sys.stderr)
        sys.exit(exit_code_of(error))
