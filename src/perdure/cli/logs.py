"""`perdure logs`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, RunId, remote

LOG_POLL_S = 0.5
LOG_LATENCY_S = 1.0
"""Output of tasks is recorded after at most this time."""


def register(app: typer.Typer) -> None:
    app.command()(logs)


@remote
def logs(
    server: Remote,
    run: RunId,
    task: Annotated[str | None, typer.Argument(metavar="TASK", help="Only this task, by name or number.")] = None,
    attempt: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only this attempt of the task.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run finishes.")] = False,
) -> None:
    """Print the output and log lines of a run's tasks."""
    from perdure.core.errors import InvalidInput

    if attempt is not None and task is None:
        raise InvalidInput("--attempt needs a task: perdure logs RUN TASK --attempt N")
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
        server.out.say("no output" if found.get("finished_at") else "no output yet; -f waits for it")


def _lines(
    server: Remote, run: dict[str, Any], path: str, params: list[tuple[str, Any]], follow: bool
) -> Iterator[dict[str, Any]]:
    """The lines recorded so far and, with `follow`, new ones until the run finishes.

    The last page has no cursor. It is read again, and the lines of it that were printed are skipped. Lines are recorded with a
    delay, so the last read happens `LOG_LATENCY_S` after the run has finished.
    """
    import time
    from collections import Counter

    cursor: str | None = None
    shown: Counter[str] = Counter()
    ended, last_read = False, not follow
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
        if last_read:
            return
        sys.stdout.flush()
        last_read = ended
        ended = ended or bool(server.api.get(f"/runs/{run['id']}").get("finished_at"))
        time.sleep(LOG_LATENCY_S if ended and not last_read else LOG_POLL_S if not last_read else 0)


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
