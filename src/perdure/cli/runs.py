"""`perdure list`, `show`, `history` and `open`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Limit, Remote, RunId, WorkflowFilter, remote
from perdure.cli.run_tree import TASKS_SHOWN_MAX, useful_next

if TYPE_CHECKING:
    from perdure.cli.render import Column


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    CANCELLED = "cancelled"


CHILDREN_SHOWN_MAX = 20
"""Child runs that `show` lists; `perdure list --parent RUN` lists all."""
LIST_DEFAULT = 30
VALUE_CHARS_MAX, STORED_CHARS_MAX = 60, 200
"""Characters of a value in the table of events; of one with stored values in it."""


def register(app: typer.Typer) -> None:
    app.command("list")(list_runs)
    for command in (show, history):
        app.command()(command)
    app.command("open")(open_page)


@dataclass(frozen=True)
class RunFilterOptions:
    status: Annotated[list[Status] | None, typer.Option("--status", "-s", help="Only this status; repeatable.")] = None
    workflow: WorkflowFilter = None
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Started since: an age (2h), a date or a time.")] = (
        None
    )
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Started until: an age (1d), a date or a time.")] = (
        None
    )
    attr: Annotated[
        list[str] | None, typer.Option("--attr", metavar="NAME=VALUE", help="Has this attribute; repeatable.")
    ] = None
    text: Annotated[str | None, typer.Option("--text", "-t", help="Id, key or workflow contains this text.")] = None
    waiting_on: Annotated[
        str | None,
        typer.Option("--waiting-on", metavar="REASON", help="Active runs that wait for: approval, limit, retry, ..."),
    ] = None

    query: Annotated[
        str | None,
        typer.Option("--query", metavar="QUERY", help="Matches a query text: 'status = failed and attr.total > 100'."),
    ] = None

    view: Annotated[str | None, typer.Option("--view", metavar="VIEW", help="Matches a saved view.")] = None

    def params(self) -> list[tuple[str, str]]:
        """The query of a REST request."""
        found: list[tuple[str, str | None]] = [
            *(("status", status.value) for status in self.status or []),
            ("workflow", self.workflow),
            ("since", moment_given(self.since, "--since")),
            ("until", moment_given(self.until, "--until")),
            *(("attr", attribute(text)) for text in self.attr or []),
            ("q", self.text),
            ("waiting_on", wait_reason(self.waiting_on)),
            ("query", self.query),
            ("view", self.view),
        ]
        return [(name, value) for name, value in found if value is not None]


@remote
def list_runs(
    server: Remote,
    wanted: RunFilterOptions,
    parent: Annotated[
        str | None, typer.Option("--parent", metavar="RUN", help="Started by this run; without other filters.")
    ] = None,
    limit: Limit = LIST_DEFAULT,
    everything: Annotated[bool, typer.Option("--all", help="Print all of them, without a limit.")] = False,
) -> None:
    """List runs, newest first."""
    params = wanted.params()
    if parent is not None and params:
        raise typer.BadParameter("--parent goes with no other filter; `--query 'parent = ID and ...'` combines them")
    path = "/runs" if parent is None else server.path(parent, "children")
    runs = server.api.items(path, params, limit=None if everything else limit)
    empty = "no runs match" if params else "no runs yet; start one: perdure run WORKFLOW"
    shown = server.out.rows(runs, run_columns(waiting=wanted.waiting_on is not None), empty=empty)
    if shown == limit and not everything and server.out.is_for_people:
        server.out.say(f"showing the newest {limit}; use --limit or --all for more")


def wait_reason(word: str | None) -> str | None:
    """Checked here, so that the error of a misspelled reason lists all of them."""
    if word is None:
        return None
    from perdure.core.errors import InvalidInput
    from perdure.core.suggestions import did_you_mean
    from perdure.core.wait_reasons import CODES

    if word not in CODES:
        hint = did_you_mean(word, CODES)
        raise InvalidInput(
            f"--waiting-on: unknown wait reason {word!r}{f'; {hint}' if hint else ''} Available: {', '.join(CODES)}"
        )
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
        *([Column("waiting for", _wait_reason_of, fold=True)] if waiting else []),
    ]


def attribute(text: str) -> str:
    """NAME=VALUE in the form of the REST API, NAME:VALUE."""
    name, equals, value = text.partition("=")
    return f"{name}:{value}" if equals else text


def moment_given(text: str | None, option: str) -> str | None:
    """An age ("2h") or a point in time, which is local unless it names a zone, as ISO 8601 in UTC."""
    if text is None:
        return None
    from datetime import UTC, timedelta

    from perdure.core.durations import is_iso, to_us
    from perdure.core.errors import InvalidInput

    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        try:
            at = datetime.now(UTC) - timedelta(microseconds=to_us(text))
        except InvalidInput as e:
            if is_iso(text):
                raise InvalidInput(f"{option}: {e}") from None
            raise InvalidInput(
                f"{option}: {text!r} is neither an age (2h, 1d12h) nor a date or time (2025-11-15, 2025-11-15T08:00)"
            ) from None
    return at.astimezone(UTC).isoformat(timespec="microseconds")


@remote
def show(
    server: Remote,
    run: RunId,
    everything: Annotated[bool, typer.Option("--all", help="Print all tasks, without a limit.")] = False,
) -> None:
    """Show a run: status, wait reason, tasks, result."""
    from perdure.cli.run_tree import run_view

    found = server.api.get(server.path(run))
    path = f"/runs/{found['id']}/tasks"

    limit = None if everything else TASKS_SHOWN_MAX

    def people() -> None:
        tasks = list(server.api.items(path, limit=limit))
        failed = _failed_attempts(server, found, tasks, limit)
        children = list(server.api.items(f"/runs/{found['id']}/children", limit=CHILDREN_SHOWN_MAX))
        server.out.console.print(run_view(found, tasks, failed=failed, children=children))
        server.out.next(*useful_next(found))

    if server.out.mode == "plain":
        tasks = list(server.api.items(path, limit=limit))
        _show_plain(found, tasks, _failed_attempts(server, found, tasks, limit))
    else:
        server.out.one(found, people=people, plain=[])


def _failed_attempts(
    server: Remote, run: dict[str, Any], tasks: list[dict[str, Any]], limit: int | None
) -> dict[int, list[dict[str, Any]]]:
    """By task: attempts that were followed by another one. Asked for only if a task was tried again."""
    found: dict[int, list[dict[str, Any]]] = {}
    if any((t.get("attempts") or 0) > 1 or t.get("lost") or t.get("run_at") for t in tasks):
        for a in server.api.items(f"/runs/{run['id']}/attempts", [("unsuccessful", "true")], limit=limit):
            if not a["is_last"]:
                found.setdefault(a["seq"], []).append(a)
    return found


def _show_plain(run: dict[str, Any], tasks: list[dict[str, Any]], failed: dict[int, list[dict[str, Any]]]) -> None:
    """The fields of the run, one per line, then its tasks."""
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
        for a in failed.get(t["seq"], []):
            error = error_line(a["error"]) if a.get("error") else None
            words = ("attempt", t["seq"], a["attempt"], a["outcome"], a.get("worker"), error)
            print("\t".join(flat(v) for v in words).rstrip())
        for line in (t.get("blocked") or "").splitlines():
            print("\t".join(("blocked", str(t["seq"]), line.strip())))


@remote
def history(
    server: Remote,
    run: RunId,
    after: Annotated[int, typer.Option(metavar="N", min=0, help="Only events after this number.")] = 0,
) -> None:
    """Print a run's event history."""
    from perdure.cli.render import Column, clock_time

    def summary(e: dict[str, Any]) -> str:
        data = e.get("data") or {}
        return "  ".join(f"{k}={_brief(v)}" for k, v in data.items() if v not in (None, "", [], {}, 0))

    columns = [
        Column("no", lambda e: e["seq"], right=True),
        Column("at", lambda e: e["at"], lambda e: clock_time(e["at"]), "dim"),
        Column("event", lambda e: e["type"], style="cyan"),
        Column("data", lambda e: e.get("data"), summary, fold=True),
    ]
    events = _events(server, server.path(run, "history"), after)
    count = server.out.rows(events, columns, empty="no events")
    if count and server.out.is_for_people:
        server.out.say(f"{count:,} events; -o json prints them in full")


def _events(server: Remote, path: str, after: int) -> Iterator[dict[str, Any]]:
    while True:
        page = server.api.get(path, [("after", after), ("limit", 500)])
        yield from page["items"]
        if not page["items"] or not page.get("next"):
            return
        after = page["items"][-1]["seq"]


def _brief(value: Any) -> str:
    """A value in a table. Lines about stored values are not cut within."""
    from perdure.cli.render import flat
    from perdure.cli.stored_values import readable

    shown = readable(value, short=True)
    return _clip(flat(shown), VALUE_CHARS_MAX if shown == value else STORED_CHARS_MAX)


def _clip(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


@remote
def open_page(
    server: Remote,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run, as in `perdure show`. Default: the server's start page.",
            show_default=False,
            autocompletion=completion_values.runs,
        ),
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the link; do not open the browser.")] = False,
) -> None:
    """Open a run's page in the browser.

    Prints the link as well. In a pipe or without a display it only prints it.
    """
    found = server.api.get(server.path(run)) if run is not None else {"url": f"{server.api.url}/"}
    server.out.one(found, people=lambda: print(found["url"]), plain=[found["url"]])
    if server.out.is_for_people and not print_only and has_display():
        import webbrowser

        if not webbrowser.open(found["url"]):
            server.out.say("no browser could be started; open the link yourself")


def has_display() -> bool:
    """Without one, `webbrowser` would start a text browser in the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _wait_reason_of(run: dict[str, Any]) -> str | None:
    waiting: dict[str, Any] | None = run.get("waiting")
    return None if waiting is None else waiting["reason"]
