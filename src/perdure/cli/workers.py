"""`perdure workers`."""

from __future__ import annotations

from typing import Any

import typer

from perdure.cli.remote_options import Remote, remote


def register(app: typer.Typer) -> None:
    app.command()(workers)


@remote
def workers(server: Remote) -> None:
    """List connected workers.

    What they did is of the last five minutes: attempts that ended, those that failed, and how long they took.
    """
    from perdure.cli.render import Column, ago, duration

    def state(w: dict[str, Any]) -> str:
        return "blocked" if w.get("blocked") else "draining" if w.get("draining") else "ready"

    columns = [
        Column("worker", lambda w: w["name"], style="bold"),
        Column("state", state, style=lambda w: {"ready": "green"}.get(state(w), "yellow"), whole=True),
        Column("slots", lambda w: f"{w.get('slots_used', 0)}/{w.get('slots', 0)}", right=True),
        Column("runs", lambda w: w.get("runs_held"), right=True),
        Column("ended", lambda w: w.get("ended"), right=True),
        Column("failed", lambda w: w.get("failed"), style=lambda w: "red" if w.get("failed") else "", right=True),
        Column("p50", lambda w: w.get("p50_s"), lambda w: duration(w.get("p50_s")), right=True),
        Column("p99", lambda w: w.get("p99_s"), lambda w: duration(w.get("p99_s")), right=True),
        Column("queues", lambda w: ",".join(w.get("queues") or [])),
        Column(
            "workflows", lambda w: ",".join(w.get("workflows") or []), lambda w: _first_names(w.get("workflows") or [])
        ),
        Column("tasks", lambda w: ",".join(w.get("tasks") or []), lambda w: _first_names(w.get("tasks") or [])),
        Column("host", lambda w: f"{w.get('host')}:{w.get('pid')}", style="dim"),
        Column("seen", lambda w: w.get("seen_at"), lambda w: ago(w.get("seen_at")), "dim"),
    ]
    empty = "no workers are connected; start one: perdure worker MODULE"
    server.out.rows(server.api.items("/workers"), columns, empty=empty)


def _first_names(names: list[str], at_most: int = 3) -> str:
    more = f", +{len(names) - at_most}" if len(names) > at_most else ""
    return ", ".join(names[:at_most]) + more
