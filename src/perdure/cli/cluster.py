"""Commands about what stands around runs: `workflows`, `workers`, `queues`, `audit`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, remote

AUDIT_DEFAULT = 50


def register(app: typer.Typer) -> None:
    for command in (workflows, workers, queues):
        app.command()(command)
    app.command()(audit)


@remote
def workflows(
    server: Remote,
    text: Annotated[str | None, typer.Option("--text", "-q", help="Whose name contains this.")] = None,
) -> None:
    """List the workflows that workers have registered."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("workflow", lambda w: w["name"], style="bold", whole=True),
        Column("kind", lambda w: w.get("kind")),
        Column("version", lambda w: w.get("version")),
        Column("versions", lambda w: w.get("versions"), right=True),
        Column("active runs", lambda w: w.get("runs_active"), right=True),
        Column("since", lambda w: w.get("created_at"), lambda w: ago(w.get("created_at")), "dim"),
    ]
    found = server.api.items("/workflows", [("q", text)])
    empty = "no workflow matches" if text else "no workflows yet; a worker registers its own: perdure worker MODULE"
    server.out.rows(found, columns, empty=empty)


@remote
def workers(server: Remote) -> None:
    """List the workers that are connected."""
    from perdure.cli.render import Column, ago

    def state(w: dict[str, Any]) -> str:
        return "blocked" if w.get("blocked") else "draining" if w.get("draining") else "ready"

    columns = [
        Column("worker", lambda w: w["name"], style="bold"),
        Column("state", state, style=lambda w: {"ready": "green"}.get(state(w), "yellow"), whole=True),
        Column("slots", lambda w: f"{w.get('slots_used', 0)}/{w.get('slots', 0)}", right=True),
        Column("runs", lambda w: w.get("runs_held"), right=True),
        Column("queues", lambda w: ",".join(w.get("queues") or [])),
        Column("workflows", lambda w: ",".join(w.get("workflows") or []), lambda w: _some(w.get("workflows") or [])),
        Column("tasks", lambda w: ",".join(w.get("tasks") or []), lambda w: _some(w.get("tasks") or [])),
        Column("where", lambda w: f"{w.get('host')}:{w.get('pid')}", style="dim"),
        Column("seen", lambda w: w.get("seen_at"), lambda w: ago(w.get("seen_at")), "dim"),
    ]
    empty = "no worker is connected; start one: perdure worker MODULE"
    server.out.rows(server.api.items("/workers"), columns, empty=empty)


def _some(names: list[str], most: int = 3) -> str:
    more = f", +{len(names) - most}" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@remote
def queues(server: Remote) -> None:
    """List queues with work, and who serves them."""
    from perdure.cli.render import Column, duration

    columns = [
        Column("queue", lambda q: q["queue"], style="bold"),
        Column("task", lambda q: q.get("task")),
        Column("pending", lambda q: q.get("pending"), right=True),
        Column("running", lambda q: q.get("running"), right=True),
        Column("oldest", lambda q: q.get("oldest_age_s"), lambda q: duration(q.get("oldest_age_s")), right=True),
        Column(
            "workers", lambda q: q.get("workers"), style=lambda q: "" if q.get("workers") else "bold red", right=True
        ),
    ]
    server.out.rows(server.api.get("/queues")["items"], columns, empty="all queues are empty")


@remote
def audit(
    server: Remote,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most so many.")] = AUDIT_DEFAULT,
) -> None:
    """List who did what, newest first.

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
    server.out.rows(server.api.items("/audit", limit=limit), columns, empty="nothing is on record")
