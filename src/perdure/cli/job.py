"""`perdure job`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

DETACHED_LOG = "PERDURE_JOB_LOG"


def register(app: typer.Typer) -> None:
    app.command()(job)


def job(
    spec: Annotated[
        str | None,
        typer.Argument(
            metavar="SPEC", show_default=False, help="URL or path of the spec, instead of the variable TASK_SPEC_PATH."
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Run it in the background and return at once, for use as a launcher.")
    ] = False,
) -> None:
    """Run one job whose spec is in an object store.

    Exits with 0 if the work succeeded, or if another process has claimed it, and with 1 otherwise. It needs no server: credentials
    of the store come from the environment.
    """
    from perdure.core.errors import InvalidInput
    from perdure.executors.objects.layout import SPEC_ENV

    url = spec or os.environ.get(SPEC_ENV, "")
    if not url:
        raise InvalidInput(f"there is no spec: give its URL, or set {SPEC_ENV}")
    if detach:
        _detach(url)
        return
    from perdure.executors.objects.job import run_job

    code = run_job(url)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the store's client sometimes abort the process while the interpreter shuts down: the job would end by SIGABRT.
    os._exit(code)


def _detach(url: str) -> None:
    """The same command without --detach, in a session of its own. Its output goes to the store."""
    import subprocess

    where = os.environ.get(DETACHED_LOG, os.devnull)
    with open(where, "ab") as log, open(os.devnull, "rb") as nothing:
        command = [sys.executable, "-c", "from perdure.cli.main import main; main()", "job", url]
        done = subprocess.Popen(command, stdin=nothing, stdout=log, stderr=log, start_new_session=True)
    print(f"started process {done.pid}")
