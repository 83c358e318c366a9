"""`perdure webhook`: addresses that turn signed HTTP requests into named events."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, remote

WebhookName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the webhook: letters, digits, dot, dash, underscore.", show_default=False
    ),
]

webhook = typer.Typer(help="Turn signed HTTP requests into named events.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(webhook, name="webhook")


@webhook.command()
@remote
def create(
    server: Remote,
    name: WebhookName,
    event_name: Annotated[str, typer.Option("--event", metavar="EVENT", help="Event that a request sends.")],
) -> None:
    """Create a webhook and print the secret that signs its requests.

    perdure webhook create shop --event order.paid
    """
    from perdure.app.http_client import segment

    made = server.api.put(f"/webhooks/{segment(name)}", {"event": event_name})
    _print_webhook(server, made)
    if made["secret"] is None:
        server.out.say(f"webhook {name} existed; it now sends {event_name} and keeps its secret")
        server.out.next(f"perdure webhook rotate {name}")
    else:
        server.out.say("Store the secret; it is not shown again.")
        server.out.next(f"perdure event list --name {event_name}")


@webhook.command()
@remote
def rotate(server: Remote, name: WebhookName) -> None:
    """Replace the secret of a webhook. The old one stops working at once."""
    from perdure.app.http_client import segment

    _print_webhook(server, server.api.post(f"/webhooks/{segment(name)}/rotate"))
    server.out.say("The old secret no longer works. Store the new one; it is not shown again.")
    server.out.next("perdure webhook list")


def _print_webhook(server: Remote, made: dict[str, Any]) -> None:
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
        server.api.items("/webhooks"),
        columns,
        empty="no webhooks yet; create one: perdure webhook create NAME --event EVENT",
    )


@webhook.command()
@remote
def delete(server: Remote, name: WebhookName) -> None:
    """Delete a webhook; its requests are refused from now on."""
    from perdure.app.http_client import segment

    server.api.delete(f"/webhooks/{segment(name)}")
    server.out.say(f"deleted webhook {name}")
    server.out.next("perdure webhook list")
