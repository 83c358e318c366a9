"""`perdure event` and `perdure webhook`: tell of named events, see them, and open ways in for those from elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, json_argument, remote

EventName = Annotated[str, typer.Argument(metavar="EVENT", help="Its name, such as order.paid.", show_default=False)]
WebhookName = Annotated[
    str, typer.Argument(metavar="NAME", help="Letters, digits, dot, dash, underscore.", show_default=False)
]

event = typer.Typer(help="Tell of named events that runs wait for, and list them.", no_args_is_help=True)
webhook = typer.Typer(help="Let signed requests from elsewhere become events.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(event, name="event")
    app.add_typer(webhook, name="webhook")


# -- events --------------------------------------------------------------------------------------------------------


@event.command()
@remote
def send(
    server: Remote,
    name: EventName,
    data: Annotated[
        str, typer.Option("--data", "-d", metavar="JSON", help="What it tells; @file reads it, - is stdin.")
    ] = "null",
    event_key: Annotated[
        str | None,
        typer.Option("--event-key", metavar="TEXT", help="Of your own: sent twice under it, it is one event."),
    ] = None,
) -> None:
    """Tell of an event: every run that waits for it hears of it.

    perdure event send order.paid -d '{"order_id": 42}'
    """
    from uuid import uuid4

    from perdure.app.http_client import segment

    body = {"payload": json_argument(data, "--data"), "key": event_key or uuid4().hex}
    found = server.api.post(f"/events/{segment(name)}", body, idempotency_key=uuid4().hex)

    def people() -> None:
        said = "sent" if found["is_new"] else "it was sent before, under this key:"
        server.out.say(f"{said} {name}  {found['id']}")

    server.out.one(found, people=people, plain=[found["id"], name, str(found["is_new"]).lower()])
    server.out.next(f"perdure event list --name {name}")


@event.command("list")
@remote
def list_events(
    server: Remote,
    name: Annotated[str | None, typer.Option(metavar="EVENT", help="Of this name only.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=10_000, help="How many.")] = 50,
) -> None:
    """List events of the last days, newest first."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("event", lambda e: e["id"], style="bold", whole=True),
        Column("name", lambda e: e["name"]),
        Column("reached", lambda e: e["reached"], lambda e: f"{e['reached']}{'' if e['is_done'] else ' …'}"),
        Column("key", lambda e: e["key"], style="dim"),
        Column("from", lambda e: e["source"]),
        Column("when", lambda e: e["at"], lambda e: ago(e["at"]), "dim"),
    ]
    found = server.api.items("/events", [("name", name)] if name else [], limit=limit)
    server.out.rows(found, columns, empty="no events; tell of one: perdure event send NAME -d JSON")


# -- webhooks ------------------------------------------------------------------------------------------------------


@webhook.command()
@remote
def create(
    server: Remote,
    name: WebhookName,
    event_name: Annotated[str, typer.Option("--event", "-e", metavar="EVENT", help="What a request becomes.")],
) -> None:
    """Make a webhook, and print the secret that its requests are signed with.

    perdure webhook create shop --event order.paid
    """
    from perdure.app.http_client import segment

    made = server.api.put(f"/webhooks/{segment(name)}", {"event": event_name})
    _shown(server, made)
    if made["secret"] is None:
        server.out.say(f"webhook {name} was there already; its requests become {event_name}, its secret is the same.")
        server.out.next(f"perdure webhook rotate {name}")
    else:
        server.out.say("Keep the secret: it is not shown again.")
        server.out.next(f"perdure event list --name {event_name}")


@webhook.command()
@remote
def rotate(server: Remote, name: WebhookName) -> None:
    """Give a webhook another secret. The old one ends at once."""
    from perdure.app.http_client import segment

    _shown(server, server.api.post(f"/webhooks/{segment(name)}/rotate"))
    server.out.say("The old secret has ended. Keep the new one: it is not shown again.")
    server.out.next("perdure webhook list")


def _shown(server: Remote, made: dict[str, Any]) -> None:
    def people() -> None:
        server.out.console.print(f"{made['name']}  {made['url']}", soft_wrap=True, highlight=False)
        if made["secret"] is not None:
            server.out.console.print(f"secret  {made['secret']}", soft_wrap=True, highlight=False)

    server.out.one(made, people=people, plain=[made["name"], made["url"], made["secret"]])


@webhook.command("list")
@remote
def list_webhooks(server: Remote) -> None:
    """List webhooks. Their secrets are not shown."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("webhook", lambda w: w["name"], style="bold", whole=True),
        Column("event", lambda w: w["event"]),
        Column("url", lambda w: w["url"], style="blue", whole=True),
        Column("since", lambda w: w["created_at"], lambda w: ago(w["created_at"]), "dim"),
        Column("created by", lambda w: w["created_by"], style="dim"),
    ]
    server.out.rows(
        server.api.items("/webhooks"), columns, empty="no webhooks; make one: perdure webhook create NAME --event EVENT"
    )


@webhook.command()
@remote
def delete(server: Remote, name: WebhookName) -> None:
    """Close a webhook: its requests are refused from now on."""
    from perdure.app.http_client import segment

    server.api.delete(f"/webhooks/{segment(name)}")
    server.out.say(f"webhook {name} is closed")
    server.out.next("perdure webhook list")
