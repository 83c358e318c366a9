"""`perdure audit`."""

from __future__ import annotations

import typer

from perdure.cli.remote_options import Limit, Remote, remote

LIST_DEFAULT = 50


def register(app: typer.Typer) -> None:
    app.command()(audit)


@remote
def audit(
    server: Remote,
    limit: Limit = LIST_DEFAULT,
) -> None:
    """Print the audit log, newest first.

    Needs the role admin.
    """
    from perdure.cli.render import Column, ago

    columns = [
        Column("at", lambda a: a["at"], lambda a: ago(a["at"]), "dim"),
        Column("who", lambda a: a["actor"]),
        Column("action", lambda a: a["action"], style="bold"),
        Column("target", lambda a: a["target"]),
        Column("namespace", lambda a: a.get("namespace")),
        Column("detail", lambda a: a.get("detail"), fold=True),
    ]
    server.out.rows(server.api.items("/audit", limit=limit), columns, empty="the audit log is empty")
