"""Commands about approvals: `approvals`, `approve`, `reject`, `delegate`, `link`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, RunId, json_argument, remote

ME = "me"
Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Of the approval; needed where the run has several open.", show_default=False),
]
Comment = Annotated[str | None, typer.Option("--comment", "-c", help="Shown with the answer.")]
As = Annotated[
    str | None,
    typer.Option("--as", metavar="NAME", help="In whose name; your key's own unless given. For administrators."),
]


def register(app: typer.Typer) -> None:
    for command in (approvals, approve, reject, delegate, link):
        app.command()(command)


@remote
def approvals(
    server: Remote,
    mine: Annotated[
        str | None, typer.Option("--mine", metavar="NAME", help="Those that this name may answer now; `me` is you.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Those of one run.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="Those of one workflow.")] = None,
) -> None:
    """List what waits for somebody's yes or no, oldest first."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("run", lambda a: a["run_id"], whole=True),
        Column("name", lambda a: a["name"], style="bold", whole=True),
        Column("workflow", lambda a: a["workflow"]),
        Column("title", lambda a: a["title"], fold=True),
        Column("for", lambda a: ",".join(a["answerers"]) or "anybody"),
        Column("yes", lambda a: f"{sum(v['approved'] for v in a['votes'])}/{a['quorum']}", right=True),
        Column("asked", lambda a: a["created_at"], lambda a: ago(a["created_at"]), "dim"),
        Column("until", lambda a: a["deadline_at"], lambda a: (a["deadline_at"] or "")[:16].replace("T", " "), "dim"),
    ]
    who = f"@{ME}" if mine == ME else mine
    found = server.api.items(
        "/approvals", [("assignee", who), ("run", server.resolve(run) if run else None), ("workflow", workflow)]
    )
    if server.out.rows(found, columns, empty="nothing waits for an answer"):
        server.out.next("perdure approve RUN NAME", "perdure reject RUN NAME --comment WHY")


@remote
def approve(
    server: Remote,
    run: RunId,
    name: Name = None,
    value: Annotated[
        str | None,
        typer.Option("--value", "-v", metavar="JSON", help="What the form asks for; @file reads it, - is stdin."),
    ] = None,
    comment: Comment = None,
    as_: As = None,
) -> None:
    """Say yes to what a run asks."""
    given = json_argument(value, "--value") if value is not None else None
    _answer(server, run, name, "approve", {"value": given, "comment": comment, "as": as_})


@remote
def reject(server: Remote, run: RunId, name: Name = None, comment: Comment = None, as_: As = None) -> None:
    """Say no to what a run asks."""
    _answer(server, run, name, "reject", {"comment": comment, "as": as_})


def _answer(server: Remote, run: str, name: str | None, verb: str, body: dict[str, Any]) -> None:
    found = _post(server, run, name, verb, body)
    done = {"approve": "approved", "reject": "rejected"}[verb]
    if found["status"] == "open":
        yes = sum(v["approved"] for v in found["votes"])
        said = f"{yes} of {found['quorum']} have said yes; it waits for the others"
    else:
        said = f"decided: {found['status']}"
    _announce(server, found, done, said, f"perdure show {found['run_id']}")


@remote
def delegate(
    server: Remote,
    run: RunId,
    name: Name = None,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="Who is asked instead.")] = ...,  # type: ignore[assignment]
    as_: As = None,
) -> None:
    """Hand over an approval to somebody else."""
    found = _post(server, run, name, "delegate", {"to": to, "as": as_})
    _announce(
        server, found, "delegated", f"asked are now: {', '.join(found['answerers'])}", f"perdure approvals --mine {to}"
    )


@remote
def link(
    server: Remote,
    run: RunId,
    name: Name = None,
    who: Annotated[
        str | None,
        typer.Option("--for", metavar="NAME", help="Who answers with it. Without: a link for a plain promise."),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="DURATION", help='How long it works: "12h", "2d"; 7 days unless given.'),
    ] = None,
) -> None:
    """Make a link to a page where somebody can answer, once, without a key.

    Whoever has the link can answer: send it to that person alone.
    """
    from rich.text import Text

    from perdure.core.errors import InvalidInput

    body = {k: v for k, v in {"who": who, "expires_in": expires}.items() if v is not None}
    if who is None:
        if name is None:
            raise InvalidInput("say for whom the link is (--for NAME), or name a promise")
        made = server.api.post(server.path(run, "promises", name, "links"), body)
    else:
        made = server.api.post(_path(server, run, name, "links"), body)
    out = server.out
    out.one(
        made,
        people=lambda: out.console.print(Text(made["url"], style="blue"), soft_wrap=True),
        plain=[made["url"], made["who"], made["expires_at"]],
    )
    out.say(f"works once, until {made['expires_at'][:16].replace('T', ' ')} UTC")


def _post(server: Remote, run: str, name: str | None, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    given = {k: v for k, v in body.items() if v is not None}
    found: dict[str, Any] = server.api.post(_path(server, run, name, verb), given)
    return found


def _path(server: Remote, run: str, name: str | None, verb: str) -> str:
    from perdure.app.http_client import segment

    resolved = server.resolve(run)
    return f"/approvals/{segment(resolved)}/{segment(name or _only(server, resolved))}/{verb}"


def _only(server: Remote, run: str) -> str:
    """The one that is meant when none is named."""
    from perdure.core.errors import InvalidInput, NotFound

    names = [a["name"] for a in server.api.items("/approvals", [("run", run)], limit=20)]
    if not names:
        raise NotFound(f"run {run} waits for no approval; `perdure show {run}` says what it waits for")
    if len(names) > 1:
        raise InvalidInput(f"run {run} waits for several approvals: {', '.join(names)}; say which one")
    return str(names[0])


def _announce(server: Remote, approval: dict[str, Any], verb: str, said: str, *commands: str) -> None:
    from rich.text import Text

    out = server.out

    def people() -> None:
        line = Text.assemble((f"{verb} ", "green"), (approval["name"], "bold"), f"  {approval['title']}")
        out.console.print(line, soft_wrap=True)
        out.console.print(Text(f"  {approval['url']}", style="blue"), soft_wrap=True)

    out.one(approval, people=people, plain=[approval["run_id"], approval["name"], approval["status"], approval["url"]])
    out.say(said if out.is_for_people else f"{said}  {approval['url']}")
    out.next(*commands)
