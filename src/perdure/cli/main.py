"""The entry point of the command line. A command imports what it needs when it runs, which keeps `perdure --help` fast.

An error exits with the `exit_code` of its class; EXIT_CODES of programs/http_client.py says what the codes mean.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from perdure.cli import quick_values
from perdure.cli.commands import COMPLETE_VARIABLE, CommandGroup
from perdure.cli.help import CONTEXT
from perdure.core.errors import InvalidInput, PerdureError
from perdure.core.version import VERSION
from perdure.programs.terminal import guard

quick_values.install()
app = typer.Typer(
    name="perdure",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich would double the time of `perdure --help`
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
        print(_more(error), end="", file=sys.stderr)
        sys.exit(error.exit_code)


def _more(error: PerdureError) -> str:
    """Where the error is explained: a page if the documentation has an address, otherwise a command."""
    answered = getattr(error, "problem_code", "")
    code = answered or error.code
    # A command line that cannot be understood says everything itself.
    if code == PerdureError.code or (type(error) is InvalidInput and not answered):
        return ""
    base = os.environ.get("PERDURE_DOCS_URL", "").rstrip("/")
    return f"  {base}/reference/errors/{code}/\n" if base else f"  perdure explain {code}\n"
