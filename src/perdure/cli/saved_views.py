"""`perdure view`: queries with a name."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.remote_options import Remote, remote

ViewName = Annotated[str, typer.Argument(metavar="VIEW", help="Name of the view.", show_default=False)]

view = typer.Typer(help="Save, list and delete named queries for `perdure list`.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(view, name="view")


@view.command("list")
@remote
def list_views(server: Remote) -> None:
    """List saved views."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("view", lambda v: v["name"], style="bold"),
        Column("query", lambda v: v["query"], fold=True),
        Column("saved", lambda v: v["updated_at"], lambda v: ago(v["updated_at"]), "dim"),
        Column("by", lambda v: v["updated_by"], style="dim"),
    ]
    server.out.rows(server.api.items("/views"), columns, empty="no views yet; save one: perdure view save NAME QUERY")


@view.command("save")
@remote
def save_view(
    server: Remote,
    name: ViewName,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query text: 'status = failed'.", show_default=False)],
) -> None:
    """Save a query under a name, or replace it."""
    from perdure.programs.http_client import segment

    made = server.api.put(f"/views/{segment(name)}", {"query": query})
    server.out.one(made, people=lambda: print(f"saved view {name}"), plain=[name])
    server.out.next(f"perdure list --view {name}")


@view.command("delete")
@remote
def delete_view(server: Remote, name: ViewName) -> None:
    """Delete a view. Its runs are not touched."""
    from perdure.programs.http_client import segment

    server.api.delete(f"/views/{segment(name)}")
    server.out.say(f"deleted view {name}")
