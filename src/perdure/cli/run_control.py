"""`perdure cancel`, `retry` and `resume`."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.announce import announce_reply
from perdure.cli.remote_options import Remote, RunId, remote


def register(app: typer.Typer) -> None:
    for command in (cancel, retry, resume):
        app.command()(command)


@remote
def cancel(
    server: Remote,
    run: RunId,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Recorded in the history.")] = None,
) -> None:
    """Cancel a run.

    Its code is cancelled like any coroutine and can clean up; the run then ends as `cancelled`.
    """
    reply = server.api.post(server.path(run, "cancel"), {"reason": reason} if reason else {})
    announce_reply(server, run, reply, "cancelling", "perdure watch @last")


@remote
def retry(server: Remote, run: RunId) -> None:
    """Retry a failed run; completed tasks keep their results."""
    announce_reply(server, run, server.api.post(server.path(run, "retry")), "retrying", "perdure watch @last")


@remote
def resume(server: Remote, run: RunId) -> None:
    """Resume a stuck run after fixing its code."""
    announce_reply(server, run, server.api.post(server.path(run, "resume")), "resumed", "perdure watch @last")
