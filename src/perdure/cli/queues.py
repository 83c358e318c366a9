"""`perdure queue`: list, pause and resume queues."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.limits import Reason, print_paused, print_resumed
from perdure.cli.remote_options import Remote, remote

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue.", show_default=False)]

queue = typer.Typer(help="List, pause and resume queues.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(queue, name="queue")


@queue.command("list")
@remote
def list_(server: Remote) -> None:
    """List queues with pending or running tasks, and their workers."""
    from perdure.cli.render import Column, duration

    columns = [
        Column("queue", lambda q: q["queue"], style="bold", whole=True),
        Column("task", lambda q: q.get("task")),
        Column("pending", lambda q: q.get("pending"), right=True),
        Column("running", lambda q: q.get("running"), right=True),
        Column("oldest", lambda q: q.get("oldest_age_s"), lambda q: duration(q.get("oldest_age_s")), right=True),
        Column(
            "workers", lambda q: q.get("workers"), style=lambda q: "" if q.get("workers") else "bold red", right=True
        ),
    ]
    server.out.rows(server.api.get("/queues")["items"], columns, empty="no queue has pending or running tasks")


@queue.command()
@remote
def pause(server: Remote, name: Name, reason: Reason = None) -> None:
    """Pause a queue: no task of it is dispatched.

    Running tasks continue.
    """
    print_paused(server, "queue", name, reason)


@queue.command()
@remote
def resume(server: Remote, name: Name) -> None:
    """Resume a paused queue."""
    print_resumed(server, "queue", name)
