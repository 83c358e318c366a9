"""`perdure watch`: follow a run until it finishes.

The server's event stream only says that something changed; the run is then read again. If the stream breaks, polling takes over and
changes are seen later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from perdure.cli.remote_options import Remote, RunId, remote
from perdure.cli.run_tree import TASKS_SHOWN_MAX, useful_next
from perdure.core.errors import PerdureError
from perdure.programs.http_client import EXIT_CANCELLED, EXIT_FAILED

REDRAW_S_MIN: Final = 0.25
"""At most four redraws a second."""
TICK_S: Final = 1.0
POLL_S: Final = 0.5
POLL_BESIDE_STREAM_S: Final = 5.0
OUTAGE_S_MAX: Final = 60.0
"""How long the server may be unreachable, during a restart for instance, before `watch` gives up."""
STREAM_TRIES: Final = 3
EXIT_OF = {"success": 0, "failed": EXIT_FAILED, "cancelled": EXIT_CANCELLED}

Picture = tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]


def register(app: typer.Typer) -> None:
    app.command()(watch)


@remote
def watch(
    server: Remote,
    run: RunId,
    follow_logs: Annotated[bool, typer.Option("--logs", help="Print the log lines of its tasks as well.")] = False,
) -> None:
    """Follow a run until it finishes; exit with its status.

    The exit code is 0 for success, 1 for failed, 3 for cancelled.
    """
    raise typer.Exit(follow(server, run, logs=follow_logs))


def follow(server: Remote, run: str, *, logs: bool = False) -> int:
    """Print or draw the run until it finishes; returns the exit code of its status."""
    run_id = server.api.get(server.path(run))["id"]
    with News(server, run_id) as news:
        pictures = _pictures(server, run_id, news, logs)
        last = _draw(server, pictures) if server.out.is_for_people else _print_changes(server, pictures)
    if server.out.mode in ("json", "yaml"):
        server.out.data(last)
    if last["status"] == "failed":
        server.out.next(*useful_next(last))
    return EXIT_OF[last["status"]]


class News:
    """Listens to the server's event stream in a thread and wakes the drawing loop."""

    def __init__(self, server: Remote, run_id: str) -> None:
        self._server, self._run_id = server, run_id
        self._fresh = threading.Event()
        self.is_live = False
        self._over = False
        self._thread = threading.Thread(target=self._listen, name="perdure-watch", daemon=True)

    def __enter__(self) -> News:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True

    def wait(self, at_most_s: float) -> bool:
        """True if something changed within the time."""
        found = self._fresh.wait(at_most_s)
        self._fresh.clear()
        return found

    def _listen(self) -> None:
        for _ in range(STREAM_TRIES):
            try:
                with self._server.api.stream("/stream", [("run", self._run_id)]) as events:
                    self.is_live = True
                    for _ in events:
                        if self._over:
                            return
                        self._fresh.set()
            except (PerdureError, RuntimeError):  # the connection is closed when the command ends
                pass
            self.is_live = False
            if self._over:
                return
            time.sleep(POLL_S)


def _pictures(server: Remote, run_id: str, news: News, logs: bool) -> Iterator[Picture]:
    """The run and its tasks after each change; the last picture is of the finished run."""
    lines: list[dict[str, Any]] = []
    cursor: str | None = None
    failing_since: float | None = None
    while True:
        try:
            run = server.api.get(f"/runs/{run_id}")
            if run.get("successor"):  # it continued as a new run
                run_id = run["successor"]
                continue
            tasks = list(server.api.items(f"/runs/{run_id}/tasks", limit=TASKS_SHOWN_MAX))
            if logs:
                page = server.api.get(f"/runs/{run_id}/logs", [("cursor", cursor), ("limit", 500)])
                lines, cursor = page["items"], page.get("next") or cursor
            failing_since = None
        except PerdureError as error:
            if getattr(error, "status", 503) < 500:
                raise
            failing_since = failing_since or time.monotonic()
            if time.monotonic() - failing_since > OUTAGE_S_MAX:
                raise
            time.sleep(POLL_S)
            continue
        yield run, tasks, lines
        if run.get("finished_at") and run["status"] in EXIT_OF:
            return
        time.sleep(REDRAW_S_MIN)
        quiet_s = 0.0
        while not news.wait(TICK_S if news.is_live else POLL_S) and news.is_live and quiet_s < POLL_BESIDE_STREAM_S:
            quiet_s += TICK_S
            yield run, tasks, []  # only the elapsed time has changed


def _draw(server: Remote, pictures: Iterator[Picture]) -> dict[str, Any]:
    from rich.live import Live

    from perdure.cli.run_tree import log_lines, run_view

    last: dict[str, Any] = {}
    with Live(console=server.out.console, auto_refresh=False, transient=False, vertical_overflow="ellipsis") as live:
        for run, tasks, lines in pictures:
            last = run
            for line in log_lines(lines):
                live.console.print(line)
            live.update(run_view(run, tasks), refresh=True)
    return last


def _print_changes(server: Remote, pictures: Iterator[Picture]) -> dict[str, Any]:
    """In a pipe: one line for each change of status."""
    from perdure.cli.render import flat, status_word
    from perdure.cli.run_tree import error_line

    quiet = server.out.mode in ("json", "yaml")
    seen: dict[str, str] = {}
    last: dict[str, Any] = {}

    def report(key: str, word: str, *cells: Any) -> None:
        if seen.get(key) != word:
            seen[key] = word
            if not quiet:
                print("\t".join(flat(c) for c in cells).rstrip(), flush=True)

    for run, tasks, lines in pictures:
        last = run
        for task in tasks:
            error = error_line(task["error"]) if task.get("error") else None
            report(f"task {task['seq']}", task["status"], "task", task["status"], task_label(task), error)
        for line in lines:
            report(f"log {line['at']} {line.get('task')} {line['text']}", "", "log", line.get("task"), line["text"])
        error = error_line(run["error"]) if run.get("error") else None
        report("run", status_word(run), "run", status_word(run), run["id"], error or run.get("url"))
    return last


def task_label(task: dict[str, Any]) -> str:
    """The node of a flow, or the task's name with its number."""
    return str(task.get("node") or f"{task['name']}#{task['seq']}")
