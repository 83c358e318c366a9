"""The command line, called as a person would, in the tests' own process."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from perdure.cli.main import main

ROOT = Path(__file__).parents[2]
PROGRAM = "from perdure.cli.main import main; main()"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


def clean_environment() -> dict[str, str]:
    """Nothing of what the person who runs the tests has set for Perdure."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_") and k != "NO_COLOR"}


class Terminal(io.StringIO):
    """For output; and as `typed`, for what a person types."""

    def isatty(self) -> bool:
        return True


def perdure(
    *words: str, tty: bool = False, stdin: str = "", typed: io.StringIO | None = None, **environment: str
) -> Done:
    """`perdure WORDS`, in this process. `typed`: by a person at a terminal."""
    out, err = (Terminal() if tty else io.StringIO()), io.StringIO()
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PERDURE_") and k != "NO_COLOR"}
    variables = kept | {"COLUMNS": "160", "TERM": "xterm"} | environment
    code = 0
    with (
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", ["perdure", *words]),
        mock.patch.object(sys, "stdin", typed or io.StringIO(stdin)),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


@dataclass
class Cli:
    """The command line against one server."""

    url: str
    state: Path

    def __call__(self, *words: str, **options: Any) -> Done:
        return perdure(*words, **{"PERDURE_URL": self.url, "XDG_STATE_HOME": str(self.state)} | options)

    def ok(self, *words: str, **options: Any) -> str:
        done = self(*words, **options)
        assert done.code == 0, f"perdure {' '.join(words)} ended with {done.code}\n{done.out}\n{done.err}"
        return done.out
