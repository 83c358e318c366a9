"""`perdure completion`: a script for the shell, which asks the program for completions."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from perdure.cli.commands import COMPLETE_VARIABLE


def register(app: typer.Typer) -> None:
    app.command()(completion)


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Your shell.", show_default=False)],
) -> None:
    """Print a completion script for your shell.

    In ~/.bashrc or ~/.zshrc: eval "$(perdure completion bash)", or zsh.

    In ~/.config/fish/config.fish: perdure completion fish | source
    """
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name="perdure", complete_var=COMPLETE_VARIABLE, shell=shell))
