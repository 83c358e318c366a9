"""`perdure audit`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from perdure.cli.remote_options import Limit, Remote, remote
from perdure.cli.runs import moment_given

LIST_DEFAULT = 50


def register(app: typer.Typer) -> None:
    app.command()(audit)


@dataclass(frozen=True)
class AuditOptions:
    actor: Annotated[
        str | None, typer.Option("--actor", metavar="WHO", help="Acts of this subject, such as user:ada or ada.")
    ] = None
    action: Annotated[
        str | None, typer.Option("--action", metavar="WORD", help="Acts whose name begins with this, such as run.")
    ] = None
    target: Annotated[str | None, typer.Option("--target", metavar="NAME", help="Acts on this id or name.")] = None
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Done since: an age (1d), a date or a time.")] = None
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Done until: an age (1h), a date or a time.")] = None

    def query(self) -> list[tuple[str, str]]:
        given = {
            "actor": self.actor,
            "action": self.action,
            "target": self.target,
            "since": moment_given(self.since, "--since"),
            "until": moment_given(self.until, "--until"),
        }
        return [(name, value) for name, value in given.items() if value]


@remote
def audit(
    server: Remote,
    options: AuditOptions,
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
    query = options.query()
    empty = "no entry of the audit log matches" if query else "the audit log is empty"
    server.out.rows(server.api.items("/audit", query, limit=limit), columns, empty=empty)
