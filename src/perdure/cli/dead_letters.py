"""`perdure dead-letter`: tasks that failed for good, and bulk retry of their runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.remote_options import Limit, Remote, WorkflowFilter, remote
from perdure.cli.runs import LIST_DEFAULT, moment_given

if TYPE_CHECKING:
    from perdure.cli.render import Column

dead_letter = typer.Typer(help="List failed tasks and retry their runs in bulk.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(dead_letter, name="dead-letter")


@dataclass(frozen=True)
class FailureFilter:
    workflow: WorkflowFilter = None
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="Only this task, or this node of a flow.")
    ] = None
    queue: Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only this queue.")] = None
    since: Annotated[str | None, typer.Option(metavar="WHEN", help="Failed since: an age (1d), a date or a time.")] = (
        None
    )
    until: Annotated[str | None, typer.Option(metavar="WHEN", help="Failed until: an age (1h), a date or a time.")] = (
        None
    )
    text: Annotated[str | None, typer.Option("--text", "-t", help="The error contains this text.")] = None

    def body(self) -> dict[str, str]:
        """The query of a REST request."""
        given = {
            "workflow": self.workflow,
            "task": self.task,
            "queue": self.queue,
            "since": moment_given(self.since, "--since"),
            "until": moment_given(self.until, "--until"),
            "q": self.text,
        }
        return {name: value for name, value in given.items() if value is not None}


@dead_letter.command("list")
@remote
def list_(
    server: Remote,
    failures: FailureFilter,
    limit: Limit = LIST_DEFAULT,
    everything: Annotated[bool, typer.Option("--all", help="Print all of them, without a limit.")] = False,
) -> None:
    """List tasks that failed for good and failed their runs, newest first.

    Runs that were retried and failures that the code caught are not listed.
    """
    wanted = failures.body()
    found = server.api.items("/dead-letters", list(wanted.items()), limit=None if everything else limit)
    empty = "no dead letters match" if wanted else "no dead letters"
    shown = server.out.rows(found, _columns(), empty=empty)
    if not shown:
        return
    if shown == limit and not everything and server.out.is_for_people:
        server.out.say(f"showing the newest {limit}; use --limit or --all for more")
    server.out.next("perdure dead-letter retry --dry-run", "perdure show RUN")


@dead_letter.command()
@remote
def retry(
    server: Remote,
    failures: FailureFilter,
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Retry these runs; no filter.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Retry all of them; needed without a filter.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be retried; retry nothing.")] = False,
) -> None:
    """Retry the runs of dead letters in bulk.

    perdure dead-letter retry --workflow import --since 1d

    Tasks that succeeded keep their results. Runs that cannot be retried are listed as refused, and the others continue. It is safe to
    repeat. The exit code is 1 if some were refused.
    """
    from perdure.core.errors import InvalidInput

    wanted = failures.body()
    if runs and wanted:
        raise InvalidInput("give runs or filters, not both")
    if not runs and not wanted and not everything and not dry_run:
        raise InvalidInput(
            "choose what to retry: runs, --workflow, --task, --queue, --since, --until, --text, or --all. "
            "--dry-run shows what would be retried."
        )
    done = _retry_runs(server, runs, dry_run) if runs else _retry_found(server, wanted, dry_run)
    outcomes = Counter(r["outcome"] for r in done)
    server.out.rows(done, _outcome_columns(), empty="nothing to retry")
    if done:
        counted = ", ".join(f"{n:,} {word.replace('_', ' ')}" for word, n in sorted(outcomes.items()))
        server.out.say(f"{counted}" + ("; run again without --dry-run to retry them" if dry_run else ""))
    if outcomes["retried"]:
        server.out.next("perdure list --status running", "perdure dead-letter list")
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
    """Page by page from the newest failure to the oldest, so that a run that fails again meanwhile is not retried twice."""
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
        Column(
            "outcome",
            lambda r: r["outcome"],
            lambda r: r["outcome"].replace("_", " "),
            lambda r: styles.get(r["outcome"], ""),
            whole=True,
        ),
        Column("reason", lambda r: r["reason"], fold=True),
        Column("url", lambda r: r["url"], style="blue"),
    ]
