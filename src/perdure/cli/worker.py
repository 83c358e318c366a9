"""`perdure worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import LogFormat, LogLevel, Sources, with_options
from perdure.cli.user_code import importing

if TYPE_CHECKING:
    from perdure.programs.worker_settings import WorkerSettings


def register(app: typer.Typer) -> None:
    app.command()(worker)


@dataclass(kw_only=True)
class WorkerOptions(Sources):
    modules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODULE",
            show_default=False,
            help="What to serve: shop.flows, flows.py, or shop.flows:setup to call a function after the import. Not needed beside --executor.",
        ),
    ] = None
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", "-q", metavar="A,B", help="Only these queues. Default: every queue that its tasks name."
        ),
    ] = None
    build_id: Annotated[
        str | None,
        typer.Option(
            "--build-id",
            metavar="ID",
            help="What it was built from, such as a commit. Pins runs to the version that they began with.",
        ),
    ] = None
    slots: Annotated[int | None, typer.Option(min=1, help="Tasks to run at a time. [100]")] = None
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for plain functions. [cores + 4, at most 32]")] = (
        None
    )
    processes: Annotated[int | None, typer.Option(min=1, help="Processes for CPU-bound tasks. [cores]")] = None
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST:PORT",
            help="Servers, separated by commas. Default: PERDURE_GRPC, or the local server.",
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="KEY", help="API key with the role worker, or @FILE. Default: PERDURE_API_KEY."
        ),
    ] = None
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", metavar="NAME", help="Default: the namespace of the key.")
    ] = None
    log_format: LogFormat = None
    log_level: LogLevel = None
    tls: Annotated[bool | None, typer.Option("--tls", help="Use TLS with the system's authorities.")] = None
    tls_ca: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Use TLS and trust this authority.")
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="This worker's certificate.")] = (
        None
    )
    tls_key: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Private key of the certificate.")
    ] = None
    service: Annotated[
        list[str] | None,
        typer.Option(
            "--service",
            metavar="NAME=URL",
            help="Service for `http: {service: NAME}`, added to PERDURE_SERVICES; repeatable.",
        ),
    ] = None
    http_allow: Annotated[
        list[str] | None,
        typer.Option(
            "--http-allow",
            metavar="HOST",
            help="Private host or network that `http:` may reach, added to PERDURE_HTTP_ALLOW; repeatable.",
        ),
    ] = None
    executor: Annotated[
        list[str] | None,
        typer.Option(
            "--executor",
            metavar="NAME",
            help="Executor to serve, added to PERDURE_EXECUTORS; repeatable. `process` runs commands as this user.",
        ),
    ] = None
    executor_option: Annotated[
        list[str] | None,
        typer.Option("--executor-option", metavar="NAME.KEY=VALUE", help="Option of an executor; repeatable."),
    ] = None
    verbs: Annotated[bool | None, typer.Option("--verbs/--no-verbs", help="Serve `http:` tasks of flows. [on]")] = None
    apply_schedules: Annotated[
        bool | None,
        typer.Option(
            "--apply-schedules",
            help="Apply the schedules of its modules when connected. The key needs the permission to develop.",
        ),
    ] = None
    drain: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long to wait for running tasks when stopping. [30s]")
    ] = None

    def flags(self) -> dict[str, tuple[str, object]]:
        """Key -> (flag, value)."""
        return {
            "server": ("--server", self.server),
            "queues": ("--queue", self.queue),
            "build_id": ("--build-id", self.build_id),
            "slots": ("--slots", self.slots),
            "threads": ("--threads", self.threads),
            "processes": ("--processes", self.processes),
            "api_key": ("--api-key", self.api_key),
            "namespace": ("--namespace", self.namespace),
            "tls": ("--tls", self.tls),
            "tls_ca": ("--tls-ca", self.tls_ca),
            "tls_cert": ("--tls-cert", self.tls_cert),
            "tls_key": ("--tls-key", self.tls_key),
            "verbs": ("--verbs", self.verbs),
            "apply_schedules": ("--apply-schedules", self.apply_schedules),
            "drain_s": ("--drain", self.drain),
            "log_format": ("--log-format", self.log_format),
            "log_level": ("--log-level", self.log_level),
        }


@with_options(WorkerOptions)
def worker(options: WorkerOptions) -> None:
    """Run a worker for the workflows of Python modules.

    The first SIGTERM or Ctrl-C lets running tasks end; the second stops at once.
    """
    from perdure.core.errors import InvalidInput
    from perdure.programs.logs import configure
    from perdure.programs.modules import load
    from perdure.programs.terminal import unguard
    from perdure.programs.worker_settings import WorkerSettings

    layers = options.layers(WorkerSettings, options.flags())
    settings = _with_lists(WorkerSettings.load(layers), options)
    options.print_if_asked(settings, layers)
    unguard()  # tasks may print anything
    configure(settings.log_format, settings.log_level)
    modules = options.modules or []
    with importing():
        defined = load(modules)
    if not modules and not settings.executors:
        raise InvalidInput(
            "there is nothing to serve: name a module, such as flows.py, or an executor, such as --executor process"
        )
    if modules and not defined:
        raise InvalidInput(
            f"{', '.join(modules)} define{'s' if len(modules) == 1 else ''} no tasks and no workflows. "
            "Decorate functions with @task and @workflow from perdure, or name the module that does."
        )
    import asyncio

    from perdure.programs.worker_process import work

    what = " and ".join(filter(None, (str(defined) if defined else "", _executors_shown(settings.executors))))
    print(f"serving {what} on {settings.server} (pid {os.getpid()}; Ctrl-C stops)", file=sys.stderr, flush=True)
    asyncio.run(work(settings, lambda text: print(text, file=sys.stderr, flush=True)))


def _executors_shown(names: Sequence[str]) -> str:
    return f"executor{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""


def _with_lists(settings: WorkerSettings, options: WorkerOptions) -> WorkerSettings:
    """Lists on the command line add to those of the other sources."""
    from perdure.app.discovery import server_grpc
    from perdure.cli.remote_options import given_api_key
    from perdure.executors.http.services import parse_services
    from perdure.executors.registry import parse_options

    return settings.model_copy(
        update={
            "server": settings.server or server_grpc(Path.cwd()),
            "api_key": given_api_key(settings.api_key),
            "services": {**(settings.services or {}), **parse_services(options.service or [])},
            "http_allow": (*(settings.http_allow or ()), *(options.http_allow or ())),
            "executors": (*settings.executors, *(options.executor or ())),
            "executor_options": {**settings.executor_options, **parse_options(options.executor_option or [])},
        }
    )
