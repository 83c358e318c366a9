"""Commands that import the user's code."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout

import typer


@contextmanager
def importing(exit_code: int = 1) -> Generator[None]:
    """What the code prints goes to stderr. Code that cannot be imported ends the command with its traceback."""
    from perdure.programs.modules import BrokenModule

    try:
        with redirect_stdout(sys.stderr):
            yield
    except BrokenModule as broken:
        print(broken.trace, file=sys.stderr)
        print(f"perdure: {broken}", file=sys.stderr)
        raise typer.Exit(exit_code) from None
