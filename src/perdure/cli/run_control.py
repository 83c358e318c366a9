"""`perdure cancel`, `terminate`, `pause`, `resume`, `retry` and `delete`, of one run or of many."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.announce import announce, announce_reply
from perdure.cli.bulk_jobs import ManyRuns, one_run
from perdure.cli.remote_options import OptionalRunId, Remote, remote


def register(app: typer.Typer) -> None:
    for command in (cancel, terminate, pause, resume, retry, delete):
        app.command()(command)


@remote
def cancel(
    server: Remote,
    many: ManyRuns,
    run: OptionalRunId = None,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Recorded in the history.")] = None,
) -> None:
    """Cancel a run.

    Its code is cancelled like any coroutine and can clean up; the run then ends as `cancelled`.
    """
    named = one_run(server, "cancel", run, many, reason)
    reply = server.api.post(server.path(named, "cancel"), {"reason": reason} if reason else {})
    announce_reply(server, named, reply, "cancelling", "perdure watch @last")


@remote
def terminate(
    server: Remote,
    many: ManyRuns,
    run: OptionalRunId = None,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Recorded in the history.")] = None,
) -> None:
    """End a run at once, in any state; none of its code runs.

    Nothing is undone. Its children end by their parent-close policies. `perdure cancel` lets the code clean up instead.
    """
    named = one_run(server, "terminate", run, many, reason)
    reply = server.api.post(server.path(named, "terminate"), {"reason": reason} if reason else {})
    announce_reply(server, named, reply, "terminated", "perdure show @last")


@remote
def pause(
    server: Remote,
    many: ManyRuns,
    run: OptionalRunId = None,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Shown while the run is paused.")] = None,
) -> None:
    """Pause a run: nothing new of it starts until it is resumed.

    Tasks that are running end as usual. Timers and deadlines keep their dates; a cancel request or the deadline ends the pause.
    """
    named = one_run(server, "pause", run, many, reason)
    reply = server.api.post(server.path(named, "pause"), {"reason": reason} if reason else {})
    announce_reply(server, named, reply, "paused", "perdure resume @last")


@remote
def delete(server: Remote, many: ManyRuns, run: OptionalRunId = None) -> None:
    """Delete an ended run with its history, tasks, logs and values."""
    named = one_run(server, "delete", run, many)
    found = server.api.get(server.path(named, "status"))
    server.api.delete(server.path(found["id"]))
    announce(server, {k: v for k, v in found.items() if k != "url"}, "deleted")


@remote
def retry(server: Remote, many: ManyRuns, run: OptionalRunId = None) -> None:
    """Retry a failed run; completed tasks keep their results."""
    named = one_run(server, "retry", run, many)
    announce_reply(server, named, server.api.post(server.path(named, "retry")), "retrying", "perdure watch @last")


@remote
def resume(server: Remote, many: ManyRuns, run: OptionalRunId = None) -> None:
    """Resume a paused run, or a stuck run after fixing its code."""
    named = one_run(server, "resume", run, many)
    announce_reply(server, named, server.api.post(server.path(named, "resume")), "resumed", "perdure watch @last")
