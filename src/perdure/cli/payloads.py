"""`perdure payload`: the content of blobs and stored values."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.remote_options import Remote, remote

payload = typer.Typer(help="Download the content of blobs and stored values.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(payload, name="payload")


@payload.command("get")
@remote
def get(
    server: Remote,
    sha256: Annotated[str, typer.Argument(metavar="SHA256", help="The digest, as results and histories show it.")],
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Write to this file instead of standard output.")
    ] = None,
) -> None:
    """Download stored content, and check it against its digest."""
    import hashlib
    import os

    digest = hashlib.sha256()
    partial = file.with_name(f".{file.name}.part") if file is not None else None
    out = partial.open("wb") if partial is not None else sys.stdout.buffer
    try:
        with server.api.download(f"/payloads/{sha256}") as pieces:
            for piece in pieces:
                digest.update(piece)
                out.write(piece)
        out.flush()
    finally:
        if partial is not None:
            out.close()
    if digest.hexdigest() != sha256:
        if partial is not None:
            partial.unlink()
        typer.echo(f"the content arrived damaged: its SHA-256 is {digest.hexdigest()}. Try again.", err=True)
        raise typer.Exit(1)
    if file is not None and partial is not None:
        os.replace(partial, file)
