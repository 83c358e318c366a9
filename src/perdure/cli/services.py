"""`perdure services`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, remote


def register(app: typer.Typer) -> None:
    app.command()(services)


@remote
def services(
    server: Remote, service: Annotated[str, typer.Option(help="Only instances of this service.", metavar="NAME")] = ""
) -> None:
    """List the instances of HTTP services."""
    from perdure.cli.render import Column, ago

    def style(i: dict[str, Any]) -> str:
        return "green" if i["status"] == "online" else "yellow"

    columns = [
        Column("instance", lambda i: i["id"], style="bold"),
        Column("status", lambda i: i["status"], style=style, whole=True),
        Column("load", lambda i: f"{i['load']:g}", right=True),
        Column("services", lambda i: ",".join(i["services"])),
        Column("url", lambda i: i["url"]),
        Column("heartbeat", lambda i: i["last_heartbeat"], lambda i: ago(i["last_heartbeat"]), "dim"),
    ]
    params = [("service", service)] if service else []
    empty = "no instance of a service is registered; see docs/how-to/call-http-services.md"
    server.out.rows(server.api.items("/services", params), columns, empty=empty)
