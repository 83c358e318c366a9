"""`perdure event`: send and list named events."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.remote_options import Limit, Remote, json_argument, remote

EventName = Annotated[
    str, typer.Argument(metavar="EVENT", help="Name of the event, such as order.paid.", show_default=False)
]

LIST_DEFAULT = 50
FAILURES_SHOWN_MAX = 5
"""Failed starts that are explained below the list."""

event = typer.Typer(help="Send and list named events.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(event, name="event")


@event.command()
@remote
def send(
    server: Remote,
    name: EventName,
    data: Annotated[str, typer.Option("--data", "-d", metavar="JSON", help="Payload, @FILE, or - for stdin.")] = "null",
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Your own id of the event; a second one is ignored.")
    ] = None,
) -> None:
    """Send a named event to every run that waits for it.

    perdure event send order.paid -d '{"order_id": 42}'
    """
    from uuid import uuid4

    from perdure.programs.http_client import segment

    body = {"payload": json_argument(data, "--data"), "key": key or uuid4().hex}
    found = server.api.post(f"/events/{segment(name)}", body, idempotency_key=uuid4().hex)

    def people() -> None:
        verb = "sent" if found["is_new"] else "already sent with this key:"
        server.out.say(f"{verb} {name}  {found['id']}")

    server.out.one(found, people=people, plain=[found["id"], name, str(found["is_new"]).lower()])
    server.out.next(f"perdure event list --name {name}")


@event.command("list")
@remote
def list_events(
    server: Remote,
    name: Annotated[str | None, typer.Option(metavar="EVENT", help="Only events of this name.")] = None,
    limit: Limit = LIST_DEFAULT,
) -> None:
    """List named events of the last days, newest first.

    The events in the history of one run: perdure history RUN
    """
    from perdure.cli.render import Column, ago

    columns = [
        Column("event", lambda e: e["id"], style="bold", whole=True),
        Column("name", lambda e: e["name"]),
        Column("reached", lambda e: e["reached"], lambda e: f"{e['reached']}{'' if e['is_done'] else ' …'}"),
        Column("started", lambda e: e["started"]),
        Column("failed", lambda e: e["failed"], lambda e: str(e["failed"] or ""), "red"),
        Column("key", lambda e: e["key"], style="dim"),
        Column("from", lambda e: e["source"]),
        Column("when", lambda e: e["at"], lambda e: ago(e["at"]), "dim"),
    ]
    found = list(server.api.items("/events", [("name", name)] if name else [], limit=limit))
    server.out.rows(
        found,
        columns,
        empty="no named events; send one: perdure event send NAME -d JSON. The history of a run: perdure history RUN",
    )
    failed = [(e, s) for e in found for s in e["starts"] if s["outcome"] == "failed"]
    for e, s in failed[:FAILURES_SHOWN_MAX]:
        server.out.say(f"event {e['id']} ({e['name']}) started no run of {s['workflow']}: {s['error']}")
