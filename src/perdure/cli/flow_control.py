"""Rules of flow control: `limit list|set|clear`, `pause` and `unpause`. Each write prints what holds now and how to take it back."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, remote

Where = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE/NAME", help="queue/io, workflow/checkout, task/charge, or namespace.", show_default=False
    ),
]
Paused = Annotated[str, typer.Argument(metavar="SCOPE/NAME", help="queue/io or workflow/checkout.", show_default=False)]
SCOPES = ("namespace", "queue", "workflow", "task")
PAUSABLE = ("queue", "workflow")

limit = typer.Typer(help="Limit how much runs at a time, or per time.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(limit, name="limit")
    for command in (pause, unpause):
        app.command()(command)


@limit.command("list")
@remote
def list_(server: Remote) -> None:
    """List what is limited or paused."""
    from perdure.cli.render import Column

    columns = [
        Column("scope", shown, style="bold"),
        Column("at a time", lambda r: r["concurrency"], right=True),
        Column("rate", rate_of, right=True),
        Column("paused by", lambda r: r["paused_by"], style="yellow"),
        Column("reason", lambda r: r["pause_reason"], fold=True),
        Column("set by", lambda r: r["updated_by"], style="dim"),
    ]
    empty = "nothing is limited or paused from here; what code and flows say about themselves holds in any case"
    server.out.rows(server.api.items("/limits"), columns, empty=empty)


@limit.command("set")
@remote
def set_(
    server: Remote,
    where: Where,
    most: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="At most so many at a time.")] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N/TIME", help="At most so many per time: 100/s, 5000/1m, 10/1h30m.")
    ] = None,
    burst: Annotated[float | None, typer.Option(metavar="N", min=1, help="How many may begin at once.")] = None,
) -> None:
    """Limit a queue, a workflow, a task or the namespace.

    perdure limit set queue/io --max 10 --rate 100/s

    All limits of the scope are set at once: what is left out is no limit any more.
    """
    from perdure.core.errors import InvalidInput

    if most is None and rate is None:
        raise InvalidInput("say how many: --max for how many at a time, --rate for how many per time, or both")
    if burst is not None and rate is None:
        raise InvalidInput("--burst goes with --rate: it says how many of a rate may begin at once")
    body: dict[str, Any] = {"concurrency": most} if most is not None else {}
    if rate is not None:
        body["rate"] = parse_rate(rate) | ({"burst": burst} if burst is not None else {})
    made = server.api.put(path_of(where), body)
    server.out.one(made, people=lambda: print(sentence(made)), plain=[shown(made), made["concurrency"], rate_of(made)])
    server.out.next(f"perdure limit clear {shown(made)}", "perdure limit list")


@limit.command()
@remote
def clear(server: Remote, where: Where) -> None:
    """Take the limits of a scope back. What is paused stays paused."""
    server.api.delete(path_of(where))
    server.out.say(f"{where} is not limited from here any more")
    server.out.next("perdure limit list")


@remote
def pause(
    server: Remote,
    where: Paused,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Shown to everybody whose work waits.")] = None,
) -> None:
    """Let nothing of a queue or a workflow begin.

    What runs goes on. Starts are taken and wait.
    """
    made = server.api.post(pause_path(where, "pause"), {"reason": reason} if reason else {})
    server.out.one(
        made, people=lambda: print(sentence(made)), plain=[shown(made), made["paused_by"], made["pause_reason"]]
    )
    server.out.next(f"perdure unpause {shown(made)}")


@remote
def unpause(server: Remote, where: Paused) -> None:
    """Let a queue or a workflow go on."""
    server.api.post(pause_path(where, "resume"))
    server.out.say(f"{where} goes on")
    server.out.next("perdure limit list")


# -- words ---------------------------------------------------------------------------------------------------------


def scope_of(where: str, scopes: tuple[str, ...]) -> tuple[str, str]:
    from perdure.core.errors import InvalidInput
    from perdure.core.suggestions import did_you_mean

    scope, _, name = where.partition("/")
    if scope not in scopes:
        near = (
            did_you_mean(scope, scopes) or f"write one of {', '.join(f'{s}/NAME' for s in scopes if s != 'namespace')}"
        )
        raise InvalidInput(f"{where!r} does not say what it is about; {near}")
    if scope == "namespace":
        return scope, "-"
    if not name:
        raise InvalidInput(f"{where!r}: which {scope}? write {scope}/NAME")
    return scope, name


def path_of(where: str) -> str:
    from perdure.app.http_client import segment

    scope, name = scope_of(where, SCOPES)
    return f"/limits/{scope}/{segment(name)}"


def pause_path(where: str, verb: str) -> str:
    from perdure.app.http_client import segment

    scope, name = scope_of(where, PAUSABLE)
    return f"/{scope}s/{segment(name)}/{verb}"


def parse_rate(text: str) -> dict[str, Any]:
    """`100/s`, `100/1m`: a number and the time that it is for."""
    from perdure.core.durations import to_us
    from perdure.core.errors import InvalidInput

    count, slash, per = text.partition("/")
    wrong = InvalidInput(f"--rate: {text!r} is not N/TIME; write 100/s, 5000/1m or 10/1h30m")
    if not slash or not per.strip():
        raise wrong
    per = per.strip()
    try:
        number = float(count)
        to_us(per if per[0].isdigit() else f"1{per}")
    except (ValueError, InvalidInput):
        raise wrong from None
    return {"count": number, "per": per if per[0].isdigit() else f"1{per}"}


def shown(rule: dict[str, Any]) -> str:
    return f"{rule['scope']}/{rule['name']}" if rule["name"] else str(rule["scope"])


def rate_of(rule: dict[str, Any]) -> str | None:
    from perdure.core.durations import human

    rate = rule["rate"]
    if rate is None:
        return None
    per = human(round(rate["per_s"] * 1e6))
    return f"{rate['count']:g}/{per.removeprefix('1') if per in ('1s', '1m', '1h', '1d') else per}"


def sentence(rule: dict[str, Any]) -> str:
    """What holds now."""
    parts: list[str] = []
    if rule["concurrency"] is not None:
        parts.append(f"at most {rule['concurrency']} at a time")
    if rule["rate"] is not None:
        parts.append(f"at most {rate_of(rule)}")
    if rule["paused_by"] is not None:
        parts.append(f"paused by {rule['paused_by']}" + (f": {rule['pause_reason']}" if rule["pause_reason"] else ""))
    return f"{shown(rule)}: {', '.join(parts) or 'nothing is limited'}"
