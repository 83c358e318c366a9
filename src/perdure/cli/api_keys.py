"""`perdure api-key`: API keys, through a server or, for the first key, directly on the database."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli.remote_options import SERVER, Remote, remote

if TYPE_CHECKING:
    from perdure.core.access import KeyView

RoleWord = Literal["viewer", "operator", "developer", "worker", "admin"]
Dsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        rich_help_panel=SERVER,
        help="Use this database, not a server. Default: PERDURE_DSN.",
    ),
]

api_key = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(api_key, name="api-key")


def database_of(server: Remote, dsn: str | None) -> str | None:
    """The database to work on, or None to go through the server. A server that the user named comes before PERDURE_DSN."""
    return dsn or (None if server.is_named else os.environ.get("PERDURE_DSN")) or None


@dataclass(frozen=True)
class NewApiKey:
    name: Annotated[str, typer.Option(help="What the key is for.")]
    role: Annotated[RoleWord, typer.Option(help="Role: the most that the key may do.")]
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Restrict the role: read, start, operate, develop, work, admin. Repeatable."),
    ] = None
    expires: Annotated[str | None, typer.Option(metavar="DURATION", help="Lifetime: 30d. Default: unlimited.")] = None
    rate: Annotated[float | None, typer.Option(metavar="N", help="Maximum number of requests per second.")] = None


@api_key.command()
@remote
def create(server: Remote, new: NewApiKey, dsn: Dsn = None) -> None:
    """Create an API key and print it; it is not shown again.

    Only its hash is stored. With --namespace the key works in that namespace, otherwise in all of them.
    """
    database = database_of(server, dsn)
    made = _create_on(database, new, server.namespace) if database else _create_through(server, new)
    secret: str = made["secret"]
    server.out.one(made, people=lambda: print(secret), plain=[secret])
    where = made["namespace"] or "all namespaces"
    server.out.say(f"created API key {made['id']} ({new.role}, {where}). Store it; it is not shown again.")


def _create_through(server: Remote, new: NewApiKey) -> dict[str, Any]:
    body = {
        "name": new.name,
        "role": new.role,
        "namespace": server.namespace,
        "scopes": new.scope,
        "expires_in": new.expires,
        "rate_per_s": new.rate,
    }
    made: dict[str, Any] = server.api.post("/api-keys", {k: v for k, v in body.items() if v is not None})
    return made


def _create_on(dsn: str, new: NewApiKey, namespace: str | None) -> dict[str, Any]:
    import asyncio

    from perdure.core.access import NewKey, Permission, Role, parse
    from perdure.core.durations import to_us
    from perdure.store.api_keys import create_key

    wanted = NewKey(
        name=new.name,
        role=Role(new.role),
        namespace=namespace,
        scopes=frozenset(parse(Permission, s) for s in new.scope) if new.scope else None,
        rate_per_s=new.rate,
        expires_in_us=to_us(new.expires) if new.expires is not None else None,
        created_by=actor(),
    )
    view, secret = asyncio.run(create_key(dsn, wanted))
    return item_of(view) | {"secret": secret}


@api_key.command("list")
@remote
def list_(server: Remote, dsn: Dsn = None) -> None:
    """List API keys, without their secrets."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("key", lambda k: k["id"], style="bold", whole=True),
        Column("name", lambda k: k["name"]),
        Column("role", lambda k: k["role"]),
        Column("namespace", lambda k: k["namespace"], lambda k: k["namespace"] or "*"),
        Column("scopes", lambda k: ",".join(k["scopes"]) if k["scopes"] is not None else None),
        Column("state", _state, style=lambda k: "green" if _state(k) == "valid" else "dim", whole=True),
        Column("expires", lambda k: k["expires_at"]),
        Column("used", lambda k: k["last_used_at"], lambda k: ago(k["last_used_at"]), "dim"),
        Column("created by", lambda k: k["created_by"], style="dim"),
    ]
    database = database_of(server, dsn)
    found = _list_on(database, server.namespace) if database else server.api.items("/api-keys")
    server.out.rows(found, columns, empty="no API keys yet; create one: perdure api-key create --role admin --name me")


def _list_on(dsn: str, namespace: str | None) -> list[dict[str, Any]]:
    import asyncio

    from perdure.store.api_keys import KEYS_PER_PAGE_MAX, list_keys

    found: list[KeyView] = []
    while page := asyncio.run(list_keys(dsn, namespace=namespace, after=found[-1].id if found else None)):
        found += page
        if len(page) < KEYS_PER_PAGE_MAX:
            break
    return [item_of(view) for view in found]


@api_key.command()
@remote
def revoke(
    server: Remote,
    ident: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the key, the 12 characters after `pd_`.", show_default=False)
    ],
    dsn: Dsn = None,
) -> None:
    """Revoke an API key; it stops working at once, on every server."""
    if database := database_of(server, dsn):
        import asyncio

        from perdure.store.api_keys import revoke_key

        ident = asyncio.run(revoke_key(database, ident, by=actor())).id
    else:
        from perdure.programs.http_client import segment

        server.api.delete(f"/api-keys/{segment(ident)}")
    server.out.say(f"revoked API key {ident}")


def actor() -> str:
    """The user of this terminal, for the audit log."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # the user of a container may have no name
        return f"cli:uid {os.getuid()}"


def item_of(view: KeyView) -> dict[str, Any]:
    """A key in the form of the REST API."""
    from perdure.core.durations import datetime_of

    def moment(us: int | None) -> str | None:
        return None if us is None else datetime_of(us).isoformat(timespec="microseconds").replace("+00:00", "Z")

    return {
        "id": view.id,
        "name": view.name,
        "role": view.role.value,
        "namespace": view.namespace,
        "scopes": None if view.scopes is None else sorted(s.value for s in view.scopes),
        "rate_per_s": view.rate_per_s,
        "created_at": moment(view.created_us),
        "created_by": view.created_by,
        "expires_at": moment(view.expires_us),
        "revoked_at": moment(view.revoked_us),
        "last_used_at": moment(view.last_used_us),
    }


def _state(item: dict[str, Any]) -> str:
    from datetime import UTC, datetime

    if item["revoked_at"]:
        return "revoked"
    ends = item["expires_at"]
    return "expired" if ends and datetime.fromisoformat(ends) <= datetime.now(UTC) else "valid"
