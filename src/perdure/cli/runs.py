"""Commands that look at runs: `list`, `show`, `watch`, `logs`, `history`, `open`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.remote_options import Remote, RunId, remote
from perdure.cli.run_tree import TASKS_SHOWN_MAX, useful_next

if TYPE_CHECKING:
    from perdure.cli.render import Column


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIST_DEFAULT = 30
LOG_POLL_S = 0.5
LOG_LATENCY_S = 1.0
"""What tasks print is on record this long after the fact, at the latest."""


def register(app: typer.Typer) -> None:
    app.command("list")(list_runs)
    for command in (show, watch, logs, history):
        app.command()(command)
    app.command("open")(open_run)


@remote
def list_runs(
    server: Remote,
    status: Annotated[list[Status] | None, typer.Option("--status", "-s", help="Only these; repeatable.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", metavar="NAME", help="Of this workflow.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help='Started since "2h" ago, or a date or time.')
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help='Started until "1d" ago, or a date or time.')
    ] = None,
    attr: Annotated[
        list[str] | None, typer.Option("--attr", metavar="NAME=VALUE", help="With this attribute; repeatable.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", "-q", help="Whose id, key or workflow contains this.")] = None,
    waiting_on: Annotated[
        str | None,
        typer.Option(
            "--waiting-on", metavar="WORD", help="Active runs that wait for this: approval, limit, retry, ..."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most so many.")] = LIST_DEFAULT,
    everything: Annotated[bool, typer.Option("--all", help="All of them, page by page.")] = False,
) -> None:
    """List runs, newest first."""
    params: list[tuple[str, Any]] = [("status", s.value) for s in status or []]
    params += [
        ("workflow", workflow),
        ("since", moment_given(since, "--since")),
        ("until", moment_given(until, "--until")),
    ]
    params += [("attr", attribute(a)) for a in attr or []] + [("q", text), ("waiting_on", waiting_word(waiting_on))]
    runs = server.api.items("/runs", params, limit=None if everything else limit)
    filtered = bool(status or workflow or since or until or attr or text or waiting_on)
    empty = "no run matches" if filtered else "no runs yet; start one: perdure run WORKFLOW"
    shown = server.out.rows(runs, run_columns(waiting=waiting_on is not None), empty=empty)
    if shown == limit and not everything and server.out.is_for_people:
        server.out.say(f"the newest {limit}; --limit or --all shows more")


def waiting_word(word: str | None) -> str | None:
    """Checked here, so that a slip is told with the words there are."""
    if word is None:
        return None
    from difflib import get_close_matches

    from perdure.core.errors import InvalidInput
    from perdure.core.wait_reasons import CODES

    if word not in CODES:
        near = get_close_matches(word, CODES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise InvalidInput(f"--waiting-on: nothing waits on {word!r}{hint} There are: {', '.join(CODES)}")
    return word


def run_columns(*, waiting: bool = False) -> list[Column]:
    from perdure.cli.render import Column, ago, duration, seconds_between, status_shown, status_style, status_word

    def took(r: dict[str, Any]) -> float | None:
        return seconds_between(r.get("created_at"), r.get("finished_at"))

    return [
        Column("run", lambda r: r["id"], whole=True),
        Column("status", status_word, status_shown, status_style, whole=True),
        Column("workflow", lambda r: r["workflow"]),
        Column("key", lambda r: r.get("key")),
        Column("started", lambda r: r["created_at"], lambda r: ago(r["created_at"]), "dim"),
        Column("took", took, lambda r: duration(took(r)), "dim", right=True),
        *([Column("waiting for", lambda r: (r.get("waiting") or {}).get("reason"), fold=True)] if waiting else []),
    ]


def attribute(text: str) -> str:
    """NAME=VALUE as the server wants it. NAME:VALUE passes as it is."""
    name, equals, value = text.partition("=")
    return f"{name}:{value}" if equals else text


def moment_given(text: str | None, option: str) -> str | None:
    """An age ("2h") or a point in time, as the server wants it. Without a zone it is meant in the reader's own."""
    if text is None:
        return None
    from datetime import UTC, timedelta

    from perdure.core.durations import to_us
    from perdure.core.errors import InvalidInput

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            at = datetime.now(UTC) - timedelta(microseconds=to_us(text))
        except InvalidInput:
            raise InvalidInput(
                f'{option}: {text!r} is neither an age such as "2h" or "1d12h" nor a date or time such as 2025-11-15 or 2025-11-15T08:00'
            ) from None
    return at.astimezone(UTC).isoformat(timespec="microseconds")


@remote
def show(
    server: Remote,
    run: RunId,
    everything: Annotated[bool, typer.Option("--all", help="Fetch all tasks, however many.")] = False,
) -> None:
    """Show a run: how it stands, what it waits for, its tasks."""
    from perdure.cli.run_tree import run_view

    found = server.api.get(server.path(run))
    path = f"/runs/{found['id']}/tasks"

    def people() -> None:
        tasks = list(server.api.items(path, limit=None if everything else TASKS_SHOWN_MAX))
        server.out.console.print(run_view(found, tasks))
        server.out.next(*useful_next(found))

    if server.out.mode == "plain":
        _show_plain(found, server.api.items(path, limit=None if everything else TASKS_SHOWN_MAX))
    else:
        server.out.one(found, people=people, plain=[])


def _show_plain(run: dict[str, Any], tasks: Iterator[dict[str, Any]]) -> None:
    """First the run's fields, one per line, then its tasks."""
    from perdure.cli.render import flat, status_word
    from perdure.cli.run_tree import error_line, label, waiting_text

    rows = {
        "id": run["id"],
        "workflow": run["workflow"],
        "status": status_word(run),
        "key": run.get("key"),
        "created_at": run["created_at"],
        "finished_at": run.get("finished_at"),
        "waiting": waiting_text(run["waiting"]) if run.get("waiting") else None,
        "result": run.get("result") if run["status"] == "success" else None,
        "error": error_line(run["error"]) if run.get("error") else None,
        "url": run.get("url"),
    }
    for name, value in rows.items():
        if value is not None:
            print(f"{name}\t{flat(value)}")
    for t in tasks:
        error = error_line(t["error"]) if t.get("error") else None
        print("\t".join(flat(v) for v in ("task", t["seq"], label(t), t["status"], t.get("attempts"), error)).rstrip())
        for line in (t.get("blocked") or "").splitlines():
            print("\t".join(("blocked", str(t["seq"]), line.strip())))


@remote
def watch(
    server: Remote,
    run: RunId,
    follow_logs: Annotated[bool, typer.Option("--logs", help="Show what its tasks print as well.")] = False,
) -> None:
    """Watch a run until it ends, and end as it did.

    The exit code is the outcome: 0 success, 1 failed, 3 cancelled.
    """
    from perdure.cli.watch import follow

    raise typer.Exit(follow(server, run, logs=follow_logs))


@remote
def logs(
    server: Remote,
    run: RunId,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Name or number of one task.")] = None,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of one attempt of that task.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
) -> None:
    """Print what a run's tasks printed and logged."""
    from perdure.core.errors import InvalidInput

    if attempt is not None and task is None:
        raise InvalidInput("--attempt is about one task: name it, perdure logs RUN TASK --attempt N")
    found = server.api.get(server.path(run))
    path = f"/runs/{found['id']}/logs" if task is None else server.path(found["id"], "tasks", task, "logs")
    params = [("attempt", attempt)]
    if server.out.mode in ("json", "yaml") and not follow:
        server.out.data(list(server.api.items(path, params)))
        return
    count = 0
    for line in _lines(server, found, path, params, follow):
        _print_line(server, line)
        count += 1
    if not count and server.out.is_for_people:
        server.out.say(
            "nothing was printed" if found.get("finished_at") else "nothing was printed yet; -f waits for it"
        )


def _lines(
    server: Remote, run: dict[str, Any], path: str, params: list[tuple[str, Any]], follow: bool
) -> Iterator[dict[str, Any]]:
    """Lines so far and, with `follow`, those to come.

    The last page has no cursor to go on from: it is read again, and what was shown of it is left out. Output is written a moment
    after the fact, so the last look happens a moment after the run has ended.
    """
    import time
    from collections import Counter

    cursor: str | None = None
    shown: Counter[str] = Counter()
    ended, last_look = False, not follow
    while True:
        page = server.api.get(path, [*params, ("limit", 500), ("cursor", cursor)])
        again = Counter(shown)
        for line in page["items"]:
            identity = repr(line)
            if again[identity]:
                again[identity] -= 1
                continue
            shown[identity] += 1
            yield line
        if page.get("next"):
            cursor = page["next"]
            shown.clear()
            continue
        if last_look:
            return
        sys.stdout.flush()
        last_look = ended
        ended = ended or bool(server.api.get(f"/runs/{run['id']}").get("finished_at"))
        time.sleep(LOG_LATENCY_S if ended and not last_look else LOG_POLL_S if not last_look else 0)


def _print_line(server: Remote, line: dict[str, Any]) -> None:
    from perdure.cli.render import clock_time

    if server.out.mode in ("json", "yaml"):
        import json

        print(json.dumps(line, ensure_ascii=False))
    elif server.out.is_for_people:
        from rich.text import Text

        level = str(line.get("level") or "")
        style = {"warning": "yellow", "error": "red", "critical": "bold red", "debug": "dim"}.get(level, "")
        if line.get("stream") == "stderr" and not style:
            style = "red"
        text = Text()
        text.append(f"{clock_time(line['at'])} ", style="dim")
        text.append(f"{line.get('task') or ''} ", style="cyan")
        text.append(line["text"], style=style)
        server.out.console.print(text, soft_wrap=True)
    else:
        print("\t".join((line["at"], str(line.get("task") or ""), str(line.get("level") or ""), line["text"])))


@remote
def history(
    server: Remote,
    run: RunId,
    after: Annotated[int, typer.Option(min=0, help="Only events after this number.")] = 0,
) -> None:
    """Print a run's events, the only truth about it."""
    from perdure.cli.render import Column, clock_time, flat

    def summary(e: dict[str, Any]) -> str:
        data = e.get("data") or {}
        return "  ".join(f"{k}={_clip(flat(v))}" for k, v in data.items() if v not in (None, "", [], {}, 0))

    columns = [
        Column("no", lambda e: e["seq"], right=True),
        Column("at", lambda e: e["at"], lambda e: clock_time(e["at"]), "dim"),
        Column("event", lambda e: e["type"], style="cyan"),
        Column("data", lambda e: e.get("data"), summary, fold=True),
    ]
    events = _events(server, server.path(run, "history"), after)
    count = server.out.rows(events, columns, empty="no events")
    if count and server.out.is_for_people:
        server.out.say(f"{count:,} events; -o json shows them whole")


def _events(server: Remote, path: str, after: int) -> Iterator[dict[str, Any]]:
    while True:
        page = server.api.get(path, [("after", after), ("limit", 500)])
        yield from page["items"]
        if not page["items"] or not page.get("next"):
            return
        after = page["items"][-1]["seq"]


def _clip(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


@remote
def open_run(server: Remote, run: RunId) -> None:
    """Print the link to a run's page."""
    found = server.api.get(server.path(run))
    server.out.one(found, people=lambda: print(found["url"]), plain=[found["url"]])
