"""`perdure init`: a first workflow to change, as code and as a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(
    directory: Annotated[Path, typer.Argument(file_okay=False, help="Where to write it.")] = Path("."),
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is there.")] = False,
) -> None:
    """Write hello.py, a first workflow to change.

    Beside it goes hello.yaml, the same as a flow.
    """
    from perdure.app.starter import HELLO_YAML, write_hello
    from perdure.core.errors import Conflict

    path = directory / "hello.py"
    if path.exists() and not force:
        raise Conflict(f"{path} is there already and was left alone. --force overwrites it.")
    write_hello(directory)
    print(f"wrote {path}")
    flow = directory / HELLO_YAML
    if force or not flow.exists():
        write_hello(directory, HELLO_YAML)
        print(f"wrote {flow}")
    print("  perdure dev")
