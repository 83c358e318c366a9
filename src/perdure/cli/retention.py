"""`perdure retention`: how long ended runs are kept, and what is being exported and removed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Limit, Remote, remote

Scope = Annotated[
    str,
    typer.Argument(metavar="SCOPE", help="workflow/NAME, namespace, or everywhere.", show_default=False),
]
Keep = Annotated[
    str,
    typer.Argument(metavar="TIME", help="How long after the end of a run: 30d, 12h, or forever.", show_default=False),
]
SCOPES = ("everywhere", "namespace", "workflow")

retention = typer.Typer(help="Say how long ended runs are kept; follow their export.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(retention, name="retention")


@retention.command("list")
@remote
def list_(server: Remote) -> None:
    """List retention policies, the widest first."""
    from perdure.cli.render import Column, ago

    found = server.api.get("/retention")
    columns = [
        Column("scope", scope_text, style="bold", whole=True),
        Column("kept", lambda p: kept_text(p["days"]), right=True),
        Column("set by", lambda p: p["updated_by"], style="dim"),
        Column("since", lambda p: p["updated_at"], lambda p: ago(p["updated_at"]), "dim"),
    ]
    default = kept_text(found["default_days"])
    server.out.rows(found["items"], columns, empty=f"no policies; ended runs are kept {default}")
    if found["items"] and not any(p["scope"] == "everywhere" for p in found["items"]):
        server.out.say(f"other ended runs are kept {default}")


@retention.command("set")
@remote
def set_(server: Remote, scope: Scope, keep: Keep) -> None:
    """Keep ended runs of a workflow, of the namespace or everywhere for a time, or forever.

    The narrowest policy counts. It also holds for runs that have ended already.
    """
    from perdure.core.retention import parse_days

    policy = server.api.put(_path(scope), {"days": parse_days(keep)})
    server.out.say(f"{scope_text(policy)}: ended runs are kept {kept_text(policy['days'])}")
    server.out.next("perdure retention status")


@retention.command()
@remote
def remove(server: Remote, scope: Scope) -> None:
    """Remove a policy; the next wider one counts."""
    server.api.delete(_path(scope))
    server.out.say(f"removed the retention policy of {scope}")
    server.out.next("perdure retention list")


@retention.command()
@remote
def status(server: Remote, limit: Limit = 10) -> None:
    """Show what is being exported and removed, newest first."""
    from perdure.cli.render import Column, ago

    found = server.api.get("/retention-status", [("limit", limit)])
    columns = [
        Column("day", lambda j: j["day"], style="bold", whole=True),
        Column("status", lambda j: j["status"], status_text, style="green"),
        Column("runs", lambda j: j["expected"], lambda j: f"{j['expected']:,}", right=True),
        Column("exported", lambda j: j["exported"], lambda j: exported_text(j), right=True),
        Column("removed", lambda j: j["removed"], lambda j: f"{j['removed']:,}", right=True),
        Column("kept", lambda j: j["kept"], lambda j: f"{j['kept']:,}" if j["kept"] else "", right=True),
        Column("when", lambda j: j["updated_at"], lambda j: ago(j["updated_at"]), "dim"),
        Column("address", lambda j: j["address"], fold=True),
        Column("note", lambda j: j["error"], style="yellow", fold=True),
    ]
    where = f"exports go to {found['export']}" if found["export"] else "ended runs are removed without an export"
    server.out.rows(found["jobs"], columns, empty=f"nothing was removed yet; {where}")
    if found["jobs"]:
        server.out.say(where)


def status_text(job: dict[str, Any]) -> str:
    """With the progress of a job that is under way."""
    done = {"exporting": job["exported"], "removing": job["removed"]}.get(job["status"])
    if done is None or not job["expected"]:
        return str(job["status"])
    return f"{job['status']} {min(100 * done // job['expected'], 100)}%"


def exported_text(job: dict[str, Any]) -> str:
    if not job["exported"]:
        return ""
    return f"{job['exported']:,} ({job['exported_bytes'] / 1e6:,.1f} MB)"


def kept_text(days: float | None) -> str:
    from perdure.core.retention import shown_days

    return shown_days(days) if days is None else f"for {shown_days(days)}"


def scope_text(policy: dict[str, Any]) -> str:
    return f"{policy['scope']}/{policy['name']}" if policy["name"] else str(policy["scope"])


def _path(scope: str) -> str:
    from perdure.core.errors import InvalidInput
    from perdure.core.suggestions import did_you_mean
    from perdure.programs.http_client import segment

    kind, _, name = scope.partition("/")
    if kind not in SCOPES:
        hint = did_you_mean(kind, SCOPES) or "use workflow/NAME, namespace or everywhere"
        raise InvalidInput(f"unknown scope {scope!r}; {hint}")
    if (kind == "workflow") != bool(name):
        raise InvalidInput(f"{scope!r} is not a scope: write workflow/NAME, namespace or everywhere")
    return f"/retention/{kind}/{segment(name or '-')}"
