"""`perdure init`: a first workflow, in Python and as a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(
    directory: Annotated[
        Path, typer.Argument(file_okay=False, help="Directory to write to. Default: this one.", show_default=False)
    ] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a first workflow, hello.py and hello.yaml.

    The second file is the same workflow as a declarative flow.
    """
    from perdure.core.errors import Conflict
    from perdure.programs.starter import HELLO_YAML, write_hello

    path = directory / "hello.py"
    if path.exists() and not force:
        raise Conflict(f"{path} exists; use --force to overwrite it")
    write_hello(directory)
    print(f"wrote {path}")
    flow = directory / HELLO_YAML
    if force or not flow.exists():
        write_hello(directory, HELLO_YAML)
        print(f"wrote {flow}")
    print("  perdure dev")
