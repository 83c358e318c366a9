"""`perdure dead`: tasks that failed for good, and the retry of many of their runs at once."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Remote, remote
from perdure.cli.runs import LIST_DEFAULT, moment_given

if TYPE_CHECKING:
    from perdure.cli.render import Column

dead = typer.Typer(help="List tasks that failed for good, and retry their runs in bulk.", no_args_is_help=True)

WorkflowName = Annotated[
    str | None,
    typer.Option(
        "--workflow", "-w", metavar="NAME", help="Of this workflow.", autocompletion=completion_values.workflows
    ),
]
TaskName = Annotated[
    str | None, typer.Option("--task", "-t", metavar="NAME", help="Of this task, or this node of a flow.")
]
QueueName = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Of this queue.")]
Since = Annotated[str | None, typer.Option(metavar="WHEN", help='Failed since "1d" ago, or a date or time.')]
Until = Annotated[str | None, typer.Option(metavar="WHEN", help='Failed until "1h" ago, or a date or time.')]
ErrorText = Annotated[str | None, typer.Option("--text", "-q", help="Whose error contains this.")]


def register(app: typer.Typer) -> None:
    app.add_typer(dead, name="dead")


@dead.command("list")
@remote
def list_dead(
    server: Remote,
    workflow: WorkflowName = None,
    task: TaskName = None,
    queue: QueueName = None,
    since: Since = None,
    until: Until = None,
    text: ErrorText = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most so many.")] = LIST_DEFAULT,
    everything: Annotated[bool, typer.Option("--all", help="All of them, page by page.")] = False,
) -> None:
    """List tasks that failed for good and took their runs with them.

    Newest failure first. A run that was retried is not in the list, and neither is a task whose failure the code caught.
    """
    wanted = _filter(workflow, task, queue, since, until, text)
    found = server.api.items("/dead-letters", list(wanted.items()), limit=None if everything else limit)
    empty = "no dead letter matches" if wanted else "no dead letters"
    shown = server.out.rows(found, _columns(), empty=empty)
    if not shown:
        return
    if shown == limit and not everything and server.out.is_for_people:
        server.out.say(f"the newest {limit}; --limit or --all shows more")
    server.out.next("perdure dead retry --dry-run", "perdure show RUN")


@dead.command()
@remote
def retry(
    server: Remote,
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="These runs, and no filter.")] = None,
    workflow: WorkflowName = None,
    task: TaskName = None,
    queue: QueueName = None,
    since: Since = None,
    until: Until = None,
    text: ErrorText = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Whatever failed; needed where nothing narrows it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be retried, and do nothing.")] = False,
) -> None:
    """Retry the runs of dead letters, many at once.

    perdure dead retry --workflow import --since 1d

    What succeeded in a run is kept. Runs that cannot be retried are told, and the others go on. It is safe to do twice. The exit code is 1
    when some were refused.
    """
    from perdure.core.errors import InvalidInput

    wanted = _filter(workflow, task, queue, since, until, text)
    if runs and wanted:
        raise InvalidInput("give the runs, or options that find them, not both")
    if not runs and not wanted and not everything and not dry_run:
        raise InvalidInput(
            "say which: --workflow, --task, --queue, --since, --until, --text, some runs, or --all. --dry-run shows what it would be"
        )
    done = _retry_runs(server, runs, dry_run) if runs else _retry_found(server, wanted, dry_run)
    outcomes = Counter(r["outcome"] for r in done)
    server.out.rows(done, _outcome_columns(), empty="nothing to retry")
    if done:
        counted = ", ".join(f"{n:,} {word.replace('_', ' ')}" for word, n in sorted(outcomes.items()))
        server.out.say(f"{counted}" + ("; leave out --dry-run to do it" if dry_run else ""))
    if outcomes["retried"]:
        server.out.next("perdure list --status running", "perdure dead list")
    if outcomes["refused"]:
        raise typer.Exit(1)


def _retry_runs(server: Remote, runs: list[str], dry_run: bool) -> list[dict[str, Any]]:
    from perdure.core.limits import BULK_RETRY_MAX

    done: list[dict[str, Any]] = []
    for at in range(0, len(runs), BULK_RETRY_MAX):
        names = [server.resolve(run) for run in runs[at : at + BULK_RETRY_MAX]]
        done += server.api.post("/dead-letters/retry", {"runs": names, "dry_run": dry_run})["items"]
    return done


def _retry_found(server: Remote, wanted: dict[str, str], dry_run: bool) -> list[dict[str, Any]]:
    """Page by page, from the newest failure down: one that fails again while this goes on is not met a second time."""
    body: dict[str, Any] = {**wanted, "dry_run": dry_run}
    done: dict[str, dict[str, Any]] = {}
    while True:
        page = server.api.post("/dead-letters/retry", body)
        done.update({r["run_id"]: r for r in page["items"] if r["run_id"] not in done})
        if not page["next"]:
            return list(done.values())
        body["cursor"] = page["next"]
        if server.out.is_for_people:
            server.out.say(f"{len(done):,} runs so far …")


def _filter(
    workflow: str | None, task: str | None, queue: str | None, since: str | None, until: str | None, text: str | None
) -> dict[str, str]:
    given = {
        "workflow": workflow,
        "task": task,
        "queue": queue,
        "since": moment_given(since, "--since"),
        "until": moment_given(until, "--until"),
        "q": text,
    }
    return {name: value for name, value in given.items() if value is not None}


def _columns() -> list[Column]:
    from perdure.cli.render import Column, ago

    return [
        Column("run", lambda d: d["run_id"], whole=True),
        Column("workflow", lambda d: d["workflow"], style="bold"),
        Column("task", lambda d: d["node"] or d["task"]),
        Column("attempts", lambda d: d["attempts"], right=True),
        Column("failed", lambda d: d["failed_at"], lambda d: ago(d["failed_at"]), "dim"),
        Column("error", lambda d: d["error"], lambda d: d["error"].partition("\n")[0], "red", fold=True),
    ]


def _outcome_columns() -> list[Column]:
    from perdure.cli.render import Column

    styles = {"retried": "green", "refused": "red"}
    return [
        Column("run", lambda r: r["run_id"], whole=True),
        Column("outcome", lambda r: r["outcome"], lambda r: r["outcome"].replace("_", " "), lambda r: styles.get(r["outcome"], ""), whole=True),
        Column("reason", lambda r: r["reason"], fold=True),
        Column("url", lambda r: r["url"], style="blue"),
    ]  # fmt: skip
