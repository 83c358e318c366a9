"""`perdure notify`: rules that notify people and systems about runs, and what was sent."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Limit, Remote, remote

RuleName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the rule.", show_default=False)]

notify = typer.Typer(help="Notify people and systems about runs.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(notify, name="notify")


@notify.command()
@remote
def create(
    server: Remote,
    name: RuleName,
    on: Annotated[
        list[str],
        typer.Option(
            "--on",
            metavar="KIND",
            help="run.failed, run.succeeded, run.cancelled, run.stuck, run.late, run.deadline_missed, approval.asked or "
            "schedule.missed. May be repeated.",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="https://host/path: a signed webhook. mailto:a@x,b@x: email. slack:https://…: a Slack incoming webhook.",
        ),
    ],
    workflow: Annotated[
        list[str] | None,
        typer.Option("--workflow", "-w", metavar="NAME", help="Workflow. May be repeated. Default: all."),
    ] = None,
    late_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="For run.late: after this time a run is late, such as 1h.")
    ] = None,
) -> None:
    """Create a rule, or change it, and print the secret that signs a webhook.

    perdure notify create on-call --on run.failed --workflow orders --to https://example.com/hook
    """
    from perdure.programs.http_client import segment

    target, address = _target(to)
    body: dict[str, Any] = {"kinds": on, "workflows": workflow or ["*"], "target": target, "address": address}
    if late_after is not None:
        body["late_after"] = late_after
    made = server.api.put(f"/notification-rules/{segment(name)}", body)
    _print_rule(server, made)
    if made["secret"] is not None:
        server.out.say("Store the secret; it is not shown again.")
    server.out.next(f"perdure notify log --rule {name}")


def _target(to: str) -> tuple[str, str]:
    """The target and its address."""
    for prefix, target in (("mailto:", "email"), ("slack:", "slack")):
        if to.startswith(prefix):
            return target, to.removeprefix(prefix)
    return "webhook", to


@notify.command()
@remote
def rotate(server: Remote, name: RuleName) -> None:
    """Replace the secret of a rule's webhook."""
    from perdure.programs.http_client import segment

    _print_rule(server, server.api.post(f"/notification-rules/{segment(name)}/rotate"))
    server.out.say("Notifications are signed with the new secret from now on. Store it; it is not shown again.")
    server.out.next("perdure notify list")


def _print_rule(server: Remote, made: dict[str, Any]) -> None:
    def people() -> None:
        console = server.out.console
        console.print(f"{made['name']}  {made['target']} {made['address']}", soft_wrap=True, highlight=False)
        if made["secret"] is not None:
            console.print(f"secret  {made['secret']}", soft_wrap=True, highlight=False)

    server.out.one(made, people=people, plain=[made["name"], made["address"], made["secret"]])


@notify.command("list")
@remote
def list_rules(server: Remote) -> None:
    """List rules. Their secrets are not shown."""
    from perdure.cli.render import Column

    columns = [
        Column("rule", lambda r: r["name"], style="bold", whole=True),
        Column("on", lambda r: ",".join(r["kinds"])),
        Column("workflows", lambda r: ",".join(r["workflows"])),
        Column("target", lambda r: r["target"]),
        Column("address", lambda r: r["address"], style="blue"),
        Column("pending", lambda r: r["pending"], right=True),
        Column("dead", lambda r: r["dead"], style=lambda r: "red" if r["dead"] else "dim", right=True),
        Column("dropped", lambda r: r["dropped"], style=lambda r: "red" if r["dropped"] else "dim", right=True),
    ]
    empty = "no notification rules yet; create one: perdure notify create NAME --on run.failed --to URL"
    server.out.rows(server.api.items("/notification-rules"), columns, empty=empty)


@notify.command()
@remote
def log(
    server: Remote,
    rule: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this rule.")] = None,
    status: Annotated[str | None, typer.Option(metavar="STATUS", help="Only pending, done or dead.")] = None,
    limit: Limit = 50,
) -> None:
    """List notifications and hooks, newest first."""
    from perdure.cli.render import Column, ago

    styles = {"done": "green", "pending": "yellow", "dead": "red"}
    columns = [
        Column("notification", lambda n: n["id"], style="dim", whole=True),
        Column("kind", lambda n: n["kind"], whole=True),
        Column("workflow", lambda n: n["workflow"]),
        Column("rule", lambda n: n["rule"] or f"hook {n['hook']}"),
        Column("status", lambda n: n["status"], style=lambda n: styles[n["status"]], whole=True),
        Column("tries", lambda n: n["attempts"], right=True),
        Column("at", lambda n: n["at"], lambda n: ago(n["at"]), "dim"),
        Column("error", lambda n: n["error"], fold=True),
    ]
    params = [(k, v) for k, v in (("rule", rule), ("status", status)) if v is not None]
    server.out.rows(server.api.items("/notifications", params, limit=limit), columns, empty="no notifications")


@notify.command()
@remote
def retry(
    server: Remote,
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A dead notification. Default: all.", show_default=False)
    ] = None,
    rule: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this rule.")] = None,
) -> None:
    """Try dead notifications again."""
    done = server.api.post("/notifications/retry", {"id": id, "rule": rule})
    server.out.say(f"{done['count']} dead notifications are tried again")
    server.out.next("perdure notify log")


@notify.command()
@remote
def delete(server: Remote, name: RuleName) -> None:
    """Delete a rule, with its notifications."""
    from perdure.programs.http_client import segment

    server.api.delete(f"/notification-rules/{segment(name)}")
    server.out.say(f"deleted notification rule {name}")
    server.out.next("perdure notify list")
