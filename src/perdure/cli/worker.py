"""`perdure worker`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer


def register(app: typer.Typer) -> None:
    app.command()(worker)


def worker(
    modules: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE",
            show_default=False,
            help="What to serve: shop.flows, flows.py, or shop.flows:setup to call a function after the import.",
        ),
    ],
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="A,B", help="Only these queues; all that the tasks name unless told."),
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Tasks at a time.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for plain functions.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes for tasks that ask for one.")] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            envvar="PERDURE_GRPC",
            help="PERDURE_GRPC, that of `perdure dev` here, or 127.0.0.1:8601. Several with commas.",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", envvar="PERDURE_API_KEY", help="API key with the role worker, or @FILE."),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", metavar="NAME", envvar="PERDURE_NAMESPACE", help="The key's own unless told."
        ),
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], typer.Option(envvar="PERDURE_LOG_FORMAT", help="On stderr.")
    ] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="PERDURE_LOG_LEVEL", help="The least to print."),
    ] = "info",
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS with the system's authorities.")] = False,
    tls_ca: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, envvar="PERDURE_CA", help="Use TLS and trust this authority."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, envvar="PERDURE_CLIENT_CERT", help="This worker's certificate."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, envvar="PERDURE_CLIENT_KEY", help="Its private key.")
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option(
            "--service",
            metavar="NAME=URL",
            help="A service for `http: {service: NAME}`; also PERDURE_SERVICES. Repeatable.",
        ),
    ] = None,
    http_allow: Annotated[
        list[str] | None,
        typer.Option(
            "--http-allow",
            metavar="HOST",
            help="A host or network for `http:` beside the public internet; also PERDURE_HTTP_ALLOW. Repeatable.",
        ),
    ] = None,
    allow_run: Annotated[
        bool,
        typer.Option("--allow-run", envvar="PERDURE_ALLOW_RUN", help="Run commands for flows, as this user."),
    ] = False,
    run_env: Annotated[
        list[str] | None,
        typer.Option(
            "--run-env",
            metavar="NAME",
            help="A variable of this process that commands get; also PERDURE_RUN_ENV. Repeatable.",
        ),
    ] = None,
    verbs: Annotated[
        bool, typer.Option("--verbs/--no-verbs", envvar="PERDURE_VERBS", help="Serve `http:` and `run:` of flows.")
    ] = True,
    drain: Annotated[
        str, typer.Option(metavar="DURATION", envvar="PERDURE_WORKER_DRAIN", help="For running tasks when stopping.")
    ] = "30s",
) -> None:
    """Serve the tasks and workflows of Python modules.

    The first SIGTERM or Ctrl-C lets running tasks end; the second stops at once.
    """
    from perdure.app.logs import configure
    from perdure.app.modules import BrokenModule, load
    from perdure.app.terminal import unguard
    from perdure.cli.remote_options import given_key
    from perdure.core.durations import to_us
    from perdure.core.errors import InvalidInput

    unguard()  # what tasks print is theirs
    configure(log_format, log_level)
    try:
        defined = load(modules)
    except BrokenModule as broken:
        print(broken.trace, file=sys.stderr)
        print(f"perdure: {broken}", file=sys.stderr)
        raise typer.Exit(1) from None
    if not defined:
        raise InvalidInput(
            f"{', '.join(modules)} define{'s' if len(modules) == 1 else ''} no tasks and no workflows. "
            "Decorate functions with @task and @workflow from perdure, or name the module that does."
        )
    from perdure.app.dev.discovery import server_grpc
    from perdure.app.worker_process import WorkerOptions, work
    from perdure.sdk.worker.builtin_tasks import HTTP_ALLOW_ENV, RUN_ENV_ENV, SERVICES_ENV, parse_services

    server = server or server_grpc(Path.cwd())
    sizes = {name: size for name, size in (("slots", slots), ("threads", threads), ("processes", processes)) if size}
    options = WorkerOptions(
        server=server,
        queues=[q.strip() for q in queue.split(",") if q.strip()] if queue else None,
        **sizes,
        api_key=given_key(key),
        namespace=namespace,
        tls=tls or tls_ca is not None,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        drain_s=to_us(drain) / 1e6,
        verbs=verbs,
        services=parse_services([*os.environ.get(SERVICES_ENV, "").split(","), *(service or [])]),
        allow_run=allow_run,
        run_env=[*os.environ.get(RUN_ENV_ENV, "").split(","), *(run_env or [])],
        http_allow=[*os.environ.get(HTTP_ALLOW_ENV, "").split(","), *(http_allow or [])],
    )
    print(f"serving {defined} on {server} (pid {os.getpid()}; Ctrl-C stops)", file=sys.stderr, flush=True)
    import asyncio

    asyncio.run(work(options, lambda text: print(text, file=sys.stderr, flush=True)))
