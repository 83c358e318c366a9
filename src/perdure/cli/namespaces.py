"""`perdure namespace`: create, list and delete namespaces, through a server or directly on the database."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.api_keys import Dsn, actor, database_of
from perdure.cli.remote_options import Remote, remote

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the namespace.", show_default=False)]

namespace = typer.Typer(help="Create, list and delete namespaces.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(namespace, name="namespace")


@namespace.command()
@remote
def create(server: Remote, name: Name, dsn: Dsn = None) -> None:
    """Create a namespace: it separates runs, API keys and workers."""
    if database := database_of(server, dsn):
        import asyncio

        from perdure.store.api_keys import create_namespace

        asyncio.run(create_namespace(database, name, by=actor()))
    else:
        server.api.post("/namespaces", {"name": name})
    server.out.say(f"created namespace {name}")


@namespace.command("list")
@remote
def list_(server: Remote, dsn: Dsn = None) -> None:
    """List namespaces."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("namespace", lambda n: n["name"], style="bold", whole=True),
        Column("since", lambda n: n["created_at"], lambda n: ago(n["created_at"]), "dim"),
    ]
    database = database_of(server, dsn)
    found = _list_on(database) if database else server.api.items("/namespaces")
    server.out.rows(found, columns, empty="no namespaces")


def _list_on(dsn: str) -> list[dict[str, Any]]:
    import asyncio

    from perdure.core.durations import datetime_of
    from perdure.store.api_keys import list_namespaces

    found = asyncio.run(list_namespaces(dsn))
    return [{"name": n.name, "created_at": datetime_of(n.created_us).isoformat()} for n in found]


@namespace.command()
@remote
def delete(server: Remote, name: Name, dsn: Dsn = None) -> None:
    """Delete a namespace and revoke its API keys.

    Histories are kept until retention deletes them.
    """
    if database := database_of(server, dsn):
        import asyncio

        from perdure.store.api_keys import delete_namespace

        asyncio.run(delete_namespace(database, name, by=actor()))
    else:
        from perdure.programs.http_client import segment

        server.api.delete(f"/namespaces/{segment(name)}")
    server.out.say(f"deleted namespace {name}")
