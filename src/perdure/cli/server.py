"""`perdure server`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from perdure.cli.options import database

PRIVATE = "private"
"""Stands for the DSN of a PostgreSQL that is started only when everything else was found right."""


FLAGS = {
    "PERDURE_HTTP_BIND": "--http",
    "PERDURE_GRPC_BIND": "--grpc",
    "PERDURE_AUTH": "--auth",
    "PERDURE_PUBLIC_URL": "--public-url",
    "PERDURE_TLS_CERT": "--tls-cert",
    "PERDURE_TLS_KEY": "--tls-key",
    "PERDURE_TLS_CLIENT_CA": "--tls-client-ca",
    "PERDURE_METRICS_BIND": "--metrics",
    "PERDURE_LOG_FORMAT": "--log-format",
    "PERDURE_LOG_LEVEL": "--log-level",
    "PERDURE_DRAIN": "--drain",
}
"""What was given as a flag is named by it when it is wrong."""


def register(app: typer.Typer) -> None:
    app.command()(server)


def server(
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            "--dsn",
            envvar=["PERDURE_DSN", "DATABASE_URL"],
            metavar="DSN",
            help="The database. Without it a private PostgreSQL in .perdure is used.",
        ),
    ] = None,
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="REST and pages; 127.0.0.1:8600.")] = None,
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Workers; 127.0.0.1:8601.")] = None,
    auth: Annotated[
        Literal["keys", "open"] | None,
        typer.Option(help="keys: API keys and tokens (default). open: nobody is asked; loopback only."),
    ] = None,
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="How people reach it; links begin with it.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="PEM, for HTTP and gRPC.")] = None,
    tls_key: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Its private key.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Let in only clients with a certificate of this CA."),
    ] = None,
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="/metrics on an address of its own.")] = None,
    log_format: Annotated[Literal["text", "json"] | None, typer.Option(help="On stderr.")] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Option(help="The least to print; warning.")
    ] = None,
    drain: Annotated[str | None, typer.Option(metavar="DURATION", help="For work at hand when stopping; 30s.")] = None,
    migrate: Annotated[bool, typer.Option(help="Bring the schema up to date first.")] = True,
) -> None:
    """Run a server: REST for people, gRPC for workers.

    Every option can also come from the environment; see docs/how-to/run-a-server.md.
    """
    import asyncio

    import msgspec

    from perdure.app.settings import settings_from

    flags: dict[str, Any] = {
        "PERDURE_HTTP_BIND": http,
        "PERDURE_GRPC_BIND": grpc,
        "PERDURE_AUTH": auth,
        "PERDURE_PUBLIC_URL": public_url,
        "PERDURE_TLS_CERT": tls_cert,
        "PERDURE_TLS_KEY": tls_key,
        "PERDURE_TLS_CLIENT_CA": tls_client_ca,
        "PERDURE_METRICS_BIND": metrics,
        "PERDURE_LOG_FORMAT": log_format,
        "PERDURE_LOG_LEVEL": log_level,
        "PERDURE_DRAIN": drain,
    }
    given = {name: str(value) for name, value in flags.items() if value is not None}
    names = {name: FLAGS[name] for name in given}
    settings = settings_from({**os.environ, **given}, names, dsn=db or PRIVATE, migrate=migrate)

    from perdure.app.logs import configure
    from perdure.app.server_process import serve

    configure(settings.log_format, settings.log_level)
    if db is None:
        print(
            "no --db: a private PostgreSQL in .perdure is used, which is for development", file=sys.stderr, flush=True
        )
    with database(db) as dsn:
        known = msgspec.structs.replace(settings, dsn=dsn)
        if db is None and not known.secret_keys:
            from perdure.app.dev.discovery import secret_key
            from perdure.localpg.cluster import default_directory
            from perdure.server.secret_box import parse_keys

            known = msgspec.structs.replace(known, secret_keys=parse_keys(secret_key(default_directory().parent)))
        asyncio.run(serve(known, lambda text: print(text, file=sys.stderr, flush=True)))
