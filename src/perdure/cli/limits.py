"""`perdure limit`: concurrency and rate limits. Pauses are the same rules on the server: `queue pause` and `workflow pause` use this module."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, remote

Scope = Annotated[
    str,
    typer.Argument(metavar="SCOPE", help="queue/NAME, workflow/NAME, task/NAME, or namespace.", show_default=False),
]
Reason = Annotated[str | None, typer.Option("--reason", "-r", help="Shown with the work that waits.")]
SCOPES = ("namespace", "queue", "workflow", "task")

limit = typer.Typer(help="Set concurrency and rate limits.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(limit, name="limit")


@limit.command("list")
@remote
def list_(server: Remote) -> None:
    """List limits and pauses."""
    from perdure.cli.render import Column

    columns = [
        Column("scope", scope_text, style="bold", whole=True),
        Column("max", lambda r: r["concurrency"], right=True),
        Column("rate", rate_text, right=True),
        Column("paused by", lambda r: r["paused_by"], style="yellow"),
        Column("reason", lambda r: r["pause_reason"], fold=True),
        Column("set by", lambda r: r["updated_by"], style="dim"),
    ]
    empty = "no limits or pauses are set; limits in code and in flows apply regardless"
    server.out.rows(server.api.items("/limits"), columns, empty=empty)


@limit.command("set")
@remote
def set_(
    server: Remote,
    scope: Scope,
    concurrency: Annotated[
        int | None, typer.Option("--max", metavar="N", min=1, help="Maximum number running at the same time.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/TIME", help="Maximum number of starts per time: 100/s, 5000/1m, 10/1h30m.")
    ] = None,
    burst: Annotated[
        float | None, typer.Option(metavar="N", min=1, help="With --rate: maximum number of starts at once.")
    ] = None,
) -> None:
    """Limit a queue, a workflow, a task or the namespace.

    perdure limit set queue/io --max 10 --rate 100/s

    Replaces all limits of the scope: a limit that is not given is removed.
    """
    from perdure.core.errors import InvalidInput

    if concurrency is None and rate is None:
        raise InvalidInput("give --max N, --rate N/TIME, or both")
    if burst is not None and rate is None:
        raise InvalidInput("--burst needs --rate")
    body: dict[str, Any] = {"concurrency": concurrency} if concurrency is not None else {}
    if rate is not None:
        body["rate"] = parse_rate(rate) | ({"burst": burst} if burst is not None else {})
    made = server.api.put(_path(scope), body)
    server.out.one(
        made, people=lambda: print(rule_text(made)), plain=[scope_text(made), made["concurrency"], rate_text(made)]
    )
    server.out.next(f"perdure limit clear {scope_text(made)}", "perdure limit list")


@limit.command()
@remote
def clear(server: Remote, scope: Scope) -> None:
    """Remove the limits of a scope. A pause stays."""
    server.api.delete(_path(scope))
    server.out.say(f"cleared the limits of {scope}")
    server.out.next("perdure limit list")


def print_paused(server: Remote, scope: str, name: str, reason: str | None) -> None:
    """Pause a queue or a workflow and print the rule."""
    made = server.api.post(_pause_path(scope, name, "pause"), {"reason": reason} if reason else {})
    server.out.one(
        made, people=lambda: print(rule_text(made)), plain=[scope_text(made), made["paused_by"], made["pause_reason"]]
    )
    server.out.next(f"perdure {scope} resume {name}")


def print_resumed(server: Remote, scope: str, name: str) -> None:
    server.api.post(_pause_path(scope, name, "resume"))
    server.out.say(f"resumed {scope} {name}")
    server.out.next(f"perdure {scope} list")


def parse_scope(text: str) -> tuple[str, str]:
    """`queue/io` as scope and name; the namespace has no name."""
    from perdure.core.errors import InvalidInput
    from perdure.core.suggestions import did_you_mean

    scope, _, name = text.partition("/")
    if scope not in SCOPES:
        hint = did_you_mean(scope, SCOPES) or "use queue/NAME, workflow/NAME, task/NAME or namespace"
        raise InvalidInput(f"unknown scope {text!r}; {hint}")
    if scope == "namespace":
        return scope, "-"
    if not name:
        raise InvalidInput(f"{text!r} names no {scope}; write {scope}/NAME")
    return scope, name


def _path(scope: str) -> str:
    from perdure.programs.http_client import segment

    kind, name = parse_scope(scope)
    return f"/limits/{kind}/{segment(name)}"


def _pause_path(scope: str, name: str, verb: str) -> str:
    from perdure.programs.http_client import segment

    return f"/{scope}s/{segment(name)}/{verb}"


def parse_rate(text: str) -> dict[str, Any]:
    """`100/s`, `100/1m`: a number per time."""
    from perdure.core.durations import is_iso, to_us
    from perdure.core.errors import InvalidInput

    count, slash, per = text.partition("/")
    wrong = InvalidInput(f"--rate: {text!r} is not N/TIME, such as 100/s, 5000/1m or 10/1h30m")
    if not slash or not per.strip():
        raise wrong
    per = per.strip()
    if not per[0].isdigit() and not is_iso(per):
        per = f"1{per}"
    try:
        number = float(count)
        to_us(per)
    except (ValueError, InvalidInput) as e:
        raise (InvalidInput(f"--rate: {e}") if is_iso(per) else wrong) from None
    return {"count": number, "per": per}


def scope_text(rule: dict[str, Any]) -> str:
    return f"{rule['scope']}/{rule['name']}" if rule["name"] else str(rule["scope"])


def rate_text(rule: dict[str, Any]) -> str | None:
    from perdure.core.durations import human

    rate = rule["rate"]
    if rate is None:
        return None
    per = human(round(rate["per_s"] * 1e6))
    return f"{rate['count']:g}/{per.removeprefix('1') if per in ('1s', '1m', '1h', '1d') else per}"


def rule_text(rule: dict[str, Any]) -> str:
    """The limits and the pause of a scope, on one line."""
    parts: list[str] = []
    if rule["concurrency"] is not None:
        parts.append(f"at most {rule['concurrency']} at the same time")
    if rule["rate"] is not None:
        parts.append(f"at most {rate_text(rule)}")
    if rule["paused_by"] is not None:
        parts.append(f"paused by {rule['paused_by']}" + (f": {rule['pause_reason']}" if rule["pause_reason"] else ""))
    return f"{scope_text(rule)}: {', '.join(parts) or 'no limits'}"
