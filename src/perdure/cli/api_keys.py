"""`perdure key`: create, list and revoke API keys, through a server or, before there is any key, on the database itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli.remote_options import PANEL, Remote, remote

if TYPE_CHECKING:
    from perdure.core.access import KeyView

RoleWord = Literal["viewer", "operator", "developer", "worker", "admin"]
Db = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="DSN",
        rich_help_panel=PANEL,
        help="Work on this database and not through a server: for the first key.",
    ),
]

key = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(key, name="key")


@key.command()
@remote
def create(
    server: Remote,
    name: Annotated[str, typer.Option(help="What the key is for.")],
    role: Annotated[RoleWord, typer.Option(help="What it may do at most.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="Narrow the role: read, start, operate, develop, work, admin. Repeatable.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="When it ends: 30d. Never unless told.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    db: Db = None,
) -> None:
    """Create a key and print it, this once.

    Only its hash is stored. With --namespace the key is good for that namespace, otherwise for all of them.
    """
    if db is not None:
        made = _create_on(db, name, role, server.namespace, scope, expires, rate)
    else:
        asked = {
            "name": name, "role": role, "namespace": server.namespace, "scopes": scope, "expires_in": expires, "rate_per_s": rate,
        }  # fmt: skip
        made = server.api.post("/api-keys", {k: v for k, v in asked.items() if v is not None})
    secret: str = made["secret"]
    server.out.one(made, people=lambda: print(secret), plain=[secret])
    where = made["namespace"] or "every namespace"
    server.out.say(f"key {made['id']} ({role}, {where}) was created. Keep it: it is not shown again.")


def _create_on(
    dsn: str,
    name: str,
    role: RoleWord,
    namespace: str | None,
    scopes: list[str] | None,
    expires: str | None,
    rate: float | None,
) -> dict[str, Any]:
    import asyncio

    from perdure.core.access import NewKey, Permission, Role, parse
    from perdure.core.durations import to_us
    from perdure.store.api_keys import create_key

    new = NewKey(
        name=name,
        role=Role(role),
        namespace=namespace,
        scopes=frozenset(parse(Permission, s) for s in scopes) if scopes else None,
        rate_per_s=rate,
        expires_in_us=to_us(expires) if expires is not None else None,
        created_by=actor(),
    )
    view, secret = asyncio.run(create_key(dsn, new))
    return item_of(view) | {"secret": secret}


@key.command("list")
@remote
def list_(server: Remote, db: Db = None) -> None:
    """List keys. Their secrets are nowhere to be found."""
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
    found = _list_on(db, server.namespace) if db is not None else server.api.items("/api-keys")
    server.out.rows(found, columns, empty="there are no keys; make one: perdure key create --role admin --name me")


def _list_on(dsn: str, namespace: str | None) -> list[dict[str, Any]]:
    import asyncio

    from perdure.store.api_keys import KEYS_PER_PAGE_MAX, list_keys

    found: list[KeyView] = []
    while page := asyncio.run(list_keys(dsn, namespace=namespace, after=found[-1].id if found else None)):
        found += page
        if len(page) < KEYS_PER_PAGE_MAX:
            break
    return [item_of(view) for view in found]


@key.command()
@remote
def revoke(
    server: Remote,
    ident: Annotated[str, typer.Argument(metavar="KEY", help="Its id, the 12 characters after `pd_`.")],
    db: Db = None,
) -> None:
    """Revoke a key. It ends at once, on every server."""
    if db is not None:
        import asyncio

        from perdure.store.api_keys import revoke_key

        ident = asyncio.run(revoke_key(db, ident, by=actor())).id
    else:
        from perdure.app.http_client import segment

        server.api.delete(f"/api-keys/{segment(ident)}")
    server.out.say(f"key {ident} is revoked")


def actor() -> str:
    """Who is at this terminal, for the audit log."""
    import getpass

    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container whose user has no name
        import os

        return f"cli:uid {os.getuid()}"


def item_of(view: KeyView) -> dict[str, Any]:
    """A key as the server would show it."""
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
