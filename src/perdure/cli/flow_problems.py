"""The problems of a flow on a terminal, as compilers print them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from perdure.flows.problems import DocumentProblem
    from perdure.programs.flow_files import FlowFile


def refuse_invalid(files: list[FlowFile]) -> None:
    """Print the problems of invalid flows and exit; does nothing if all are valid."""
    from perdure.programs.terminal import console

    bad = [f for f in files if f.compiled is None]
    if bad:
        errors = console(sys.stderr)
        for file in bad:
            print_problems(errors, file.problems)
        raise typer.Exit(1)


def print_problems(console: Console, problems: Iterable[DocumentProblem]) -> None:
    """Place, message, source line and a caret below it, as compilers print them."""
    for problem in problems:
        console.print(problem_text(problem), soft_wrap=True)


def problem_text(p: DocumentProblem) -> Text:
    from rich.text import Text

    out = Text()
    where = f"{p.file}:{p.line}:{p.column}" if p.line else p.file
    out.append(f"{where}: ", style="bold")
    out.append(f"{p.severity}: ", style="bold red" if p.severity == "error" else "bold yellow")
    out.append(p.message, style="bold")
    if p.text.strip():
        number = str(p.line)
        out.append(f"\n {number} │ ", style="dim")
        out.append(p.text.replace("\t", " "))
        out.append(f"\n {' ' * len(number)} │ ", style="dim")
        out.append(" " * p.caret)
        out.append("^", style="bold red" if p.severity == "error" else "bold yellow")
    if p.hint:
        out.append("\n  = ", style="dim")
        out.append(p.hint, style="cyan")
    return out
