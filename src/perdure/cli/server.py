"""`perdure server`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from perdure.cli.options import Dsn, LogFormat, LogLevel, Sources, database, with_options


def register(app: typer.Typer) -> None:
    app.command()(server)


@dataclass(kw_only=True)
class ServerOptions(Sources):
    dsn: Dsn = None
    http: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="REST and pages; 127.0.0.1:8600.")] = None
    grpc: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Workers; 127.0.0.1:8601.")] = None
    auth: Annotated[
        Literal["keys", "open"] | None,
        typer.Option(help="keys: API keys and tokens (default). open: no authentication; loopback only."),
    ] = None
    public_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The public URL of the server; links begin with it.")
    ] = None
    tls_cert: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Certificate (PEM) for HTTP and gRPC.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Private key of the certificate.")
    ] = None
    tls_client_ca: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Accept only clients with a certificate of this CA."),
    ] = None
    metrics: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="A separate address for /metrics.")] = None
    log_format: LogFormat = None
    log_level: LogLevel = None
    drain: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time for running work to finish at shutdown; 30s.")
    ] = None
    migrate: Annotated[
        bool | None, typer.Option("--migrate/--no-migrate", help="Bring the schema up to date first; on.")
    ] = None

    def flags(self) -> dict[str, tuple[str, object]]:
        """Key -> (flag, value)."""
        return {
            "dsn": ("--dsn", self.dsn),
            "http": ("--http", self.http),
            "grpc": ("--grpc", self.grpc),
            "auth": ("--auth", self.auth),
            "public_url": ("--public-url", self.public_url),
            "tls.cert": ("--tls-cert", self.tls_cert),
            "tls.key": ("--tls-key", self.tls_key),
            "tls.client_ca": ("--tls-client-ca", self.tls_client_ca),
            "metrics": ("--metrics", self.metrics),
            "log_format": ("--log-format", self.log_format),
            "log_level": ("--log-level", self.log_level),
            "drain_s": ("--drain", self.drain),
            "migrate": ("--migrate", self.migrate),
        }


@with_options(ServerOptions)
def server(options: ServerOptions) -> None:
    """Run a server: pages, REST API, and gRPC for workers.

    Every setting can also come from the environment, .env, a secrets directory or perdure.toml; see docs/reference/settings.md.
    """
    import asyncio

    from perdure.programs.settings import ServerSettings

    layers = options.layers(ServerSettings, options.flags())
    settings = ServerSettings.load(layers)
    options.print_if_asked(settings, layers)

    from perdure.programs.logs import configure
    from perdure.programs.server_process import serve

    configure(settings.log_format, settings.log_level)
    private = not settings.dsn
    if private:
        print(
            "no --dsn: a private PostgreSQL in .perdure is used, which is for development", file=sys.stderr, flush=True
        )
    with database(settings.dsn) as dsn:
        known = settings.with_changes(dsn=dsn)
        if private and not known.secret_keys:
            from perdure.app.discovery import secret_key
            from perdure.app.secret_box import parse_keys
            from perdure.localpg.cluster import default_directory

            known = known.with_changes(secret_keys=parse_keys(secret_key(default_directory().parent)))
        asyncio.run(serve(known, lambda text: print(text, file=sys.stderr, flush=True)))
