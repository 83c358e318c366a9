"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        envvar=["PERDURE_DSN", "DATABASE_URL"],
        help="The database. Without it a private PostgreSQL is used, and started where necessary.",
    ),
]


@contextmanager
def database(dsn: str | None) -> Generator[str]:
    """The DSN that was given, or that of the private PostgreSQL, which ends with the last program that uses it."""
    if dsn:
        yield dsn
        return
    from perdure.localpg.cluster import PrivateCluster, default_directory

    with PrivateCluster(default_directory()) as cluster:
        yield cluster.dsn()
