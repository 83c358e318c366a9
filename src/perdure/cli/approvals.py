"""`perdure approval`, and `perdure approve` and `reject` for short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.remote_options import Remote, RunId, WorkflowFilter, json_argument, remote

if TYPE_CHECKING:
    from perdure.cli.render import Column

ME = "me"
Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Name of the approval, if the run has several open.", show_default=False),
]
As = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="Answer for this person; administrators only. Default: your API key."),
]
Question = Annotated[
    str | None,
    typer.Option(
        "--question", metavar="ID", help="The `question` you read in the list. Refused if the run asks another one now."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Comment = Annotated[str | None, typer.Option("--comment", "-c", help="Shown with the answer.")]

approval = typer.Typer(help="List and answer approvals.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(approval, name="approval")
    for command in (approve, reject):
        app.command()(command)


@approval.command("list")
@remote
def list_(
    server: Remote,
    mine: Annotated[
        str | None,
        typer.Option("--mine", metavar="NAME", help="Only those this person may answer, or has answered; `me` is you."),
    ] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only those of this run.")] = None,
    workflow: WorkflowFilter = None,
    decided: Annotated[
        bool, typer.Option("--decided", help="Those decided or expired in the last 30 days, latest first.")
    ] = False,
) -> None:
    """List open approvals, oldest first."""
    who = f"@{ME}" if mine == ME else mine
    if decided:
        query = [("state", "decided"), ("decided_by", who), ("workflow", workflow), ("run", run)]
        server.out.rows(server.api.items("/approvals", query), _decided_columns(), empty="no approval was decided")
        return
    found = server.api.items(
        "/approvals", [("assignee", who), ("run", server.resolve(run) if run else None), ("workflow", workflow)]
    )
    if server.out.rows(found, _open_columns(), empty="no open approvals"):
        server.out.next("perdure approve RUN NAME", "perdure reject RUN NAME --comment TEXT")


def _open_columns() -> list[Column]:
    from perdure.cli.render import Column, ago

    return [
        Column("run", lambda a: a["run_id"], whole=True),
        Column("name", lambda a: a["name"], style="bold", whole=True),
        Column("workflow", lambda a: a["workflow"]),
        Column("title", lambda a: a["title"], fold=True),
        Column("for", lambda a: ",".join(a["answerers"]) or "anyone"),
        Column("approved", lambda a: f"{sum(v['approved'] for v in a['votes'])}/{a['quorum']}", right=True),
        Column("asked", lambda a: a["created_at"], lambda a: ago(a["created_at"]), "dim"),
        Column(
            "deadline", lambda a: a["deadline_at"], lambda a: (a["deadline_at"] or "")[:16].replace("T", " "), "dim"
        ),
    ]


def _decided_columns() -> list[Column]:
    from perdure.cli.render import Column, ago

    return [
        Column("run", lambda a: a["run_id"], whole=True),
        Column("name", lambda a: a["name"], style="bold", whole=True),
        Column("workflow", lambda a: a["workflow"]),
        Column("title", lambda a: a["title"], fold=True),
        Column("decision", lambda a: a["status"]),
        Column("by", lambda a: ",".join(v["who"] for v in a["votes"])),
        Column("decided", lambda a: a["decided_at"], lambda a: ago(a["decided_at"]), "dim"),
    ]


@approval.command()
@remote
def approve(
    server: Remote,
    run: RunId,
    name: Name = None,
    value: Annotated[
        str | None,
        typer.Option("--value", "-v", metavar="JSON", help="Values of the form, @FILE, or - for stdin."),
    ] = None,
    comment: Comment = None,
    question: Question = None,
    yes: Yes = False,
    as_: As = None,
) -> None:
    """Approve what a run asks for. On a terminal, shows the question and asks you to confirm."""
    given = json_argument(value, "--value") if value is not None else None
    body = {"value": given, "comment": comment, "question": question, "as": as_}
    _answer(server, run, name, "approve", body, yes=yes)


@approval.command()
@remote
def reject(
    server: Remote,
    run: RunId,
    name: Name = None,
    comment: Comment = None,
    question: Question = None,
    yes: Yes = False,
    as_: As = None,
) -> None:
    """Reject what a run asks for. On a terminal, shows the question and asks you to confirm."""
    _answer(server, run, name, "reject", {"comment": comment, "question": question, "as": as_}, yes=yes)


def _answer(server: Remote, run: str, name: str | None, verb: str, body: dict[str, Any], *, yes: bool) -> None:
    import sys

    if not yes and body["question"] is None and server.out.is_for_people and sys.stdin.isatty():
        resolved = server.resolve(run)
        asked = _only(server, resolved) if name is None else server.api.get(_path(resolved, name))
        if asked["status"] == "open":
            _confirm(server, asked, verb)
        run, name, body = resolved, str(asked["name"]), {**body, "question": asked["question"]}
    found = _post(server, run, name, verb, body)
    done = {"approve": "approved", "reject": "rejected"}[verb]
    if found["status"] == "open":
        votes = sum(v["approved"] for v in found["votes"])
        outcome = f"{votes} of {found['quorum']} approvals; waiting for the others"
    else:
        outcome = f"decided: {found['status']}"
    _announce(server, found, done, outcome, f"perdure show {found['run_id']}")


def _confirm(server: Remote, asked: dict[str, Any], verb: str) -> None:
    import json

    from rich.text import Text

    from perdure.core.names import escaped

    details = "" if asked["details"] is None else json.dumps(asked["details"], ensure_ascii=False)
    server.out.console.print(
        Text.assemble((escaped(asked["name"]), "bold"), f"  {escaped(asked['title'])}"), soft_wrap=True
    )
    for text in filter(None, (asked["description"], details)):
        server.out.console.print(Text(f"  {escaped(text)}"), soft_wrap=True)
    if not typer.confirm(f"{verb.capitalize()}?", err=True):
        raise typer.Exit(1)


@approval.command()
@remote
def delegate(
    server: Remote,
    run: RunId,
    name: Name = None,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Person or group to ask instead.")] = ...,  # type: ignore[assignment]
    question: Question = None,
    as_: As = None,
) -> None:
    """Delegate an approval to another person or group."""
    found = _post(server, run, name, "delegate", {"to": to, "question": question, "as": as_})
    _announce(
        server,
        found,
        "delegated",
        f"assigned to: {', '.join(found['answerers'])}",
        f"perdure approval list --mine {to}",
    )


@approval.command()
@remote
def link(
    server: Remote,
    run: RunId,
    name: Name = None,
    who: Annotated[
        str | None,
        typer.Option("--for", metavar="NAME", help="Person who answers. Without it NAME is a promise."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help="Lifetime: 12h, 2d. Default: 7d."),
    ] = None,
) -> None:
    """Create a link to a page where a person can answer once, without an API key.

    Anyone who has the link can answer: send it to that person only.
    """
    from rich.text import Text

    from perdure.core.errors import InvalidInput

    body = {k: v for k, v in {"who": who, "expires_in": expires}.items() if v is not None}
    if who is None:
        if name is None:
            raise InvalidInput("give --for PERSON for an approval, or the name of a promise")
        made = server.api.post(server.path(run, "promises", name, "links"), body)
    else:
        resolved = server.resolve(run)
        made = server.api.post(_path(resolved, name or str(_only(server, resolved)["name"]), "links"), body)
    out = server.out
    out.one(
        made,
        people=lambda: out.console.print(Text(made["url"], style="blue"), soft_wrap=True),
        plain=[made["url"], made["who"], made["expires_at"]],
    )
    out.say(f"valid for one answer, until {made['expires_at'][:16].replace('T', ' ')} UTC")


def _post(server: Remote, run: str, name: str | None, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    given = {k: v for k, v in body.items() if v is not None}
    resolved = server.resolve(run)
    if name is None:
        only = _only(server, resolved)
        name = str(only["name"])
        given.setdefault("question", only["question"])
    found: dict[str, Any] = server.api.post(_path(resolved, name, verb), given)
    return found


def _path(run: str, name: str, verb: str = "") -> str:
    from perdure.programs.http_client import segment

    return f"/approvals/{segment(run)}/{segment(name)}{f'/{verb}' if verb else ''}"


def _only(server: Remote, run: str) -> dict[str, Any]:
    """The only open approval of the run."""
    from perdure.core.errors import InvalidInput, NotFound

    found: list[dict[str, Any]] = list(server.api.items("/approvals", [("run", run)], limit=20))
    if not found:
        raise NotFound(f"run {run} has no open approval; `perdure show {run}` shows what it is waiting for")
    if len(found) > 1:
        names = ", ".join(a["name"] for a in found)
        raise InvalidInput(f"run {run} has several open approvals; name one of them: {names}")
    return found[0]


def _announce(server: Remote, approval: dict[str, Any], verb: str, outcome: str, *commands: str) -> None:
    from rich.text import Text

    out = server.out

    def people() -> None:
        line = Text.assemble((f"{verb} ", "green"), (approval["name"], "bold"), f"  {approval['title']}")
        out.console.print(line, soft_wrap=True)
        out.console.print(Text(f"  {approval['url']}", style="blue"), soft_wrap=True)

    out.one(approval, people=people, plain=[approval["run_id"], approval["name"], approval["status"], approval["url"]])
    out.say(outcome if out.is_for_people else f"{outcome}  {approval['url']}")
    out.next(*commands)
