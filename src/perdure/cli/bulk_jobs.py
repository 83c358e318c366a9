"""Bulk jobs: `perdure cancel --query ...` starts one, `perdure bulk` shows and stops them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer

from perdure.cli.remote_options import Limit, Remote, remote
from perdure.cli.runs import LIST_DEFAULT
from perdure.core.api.bulk_jobs import BulkAction, BulkOutcome
from perdure.programs.http_client import EXIT_CANCELLED, EXIT_FAILED

if TYPE_CHECKING:
    from perdure.cli.render import Column

POLL_S: Final = 0.25
OUTAGE_S_MAX: Final = 60.0
"""How long the server may be unreachable, during a restart for instance, before the command gives up. The job goes on."""
EXITS: Final = {"success": 0, "failed": EXIT_FAILED, "cancelled": EXIT_CANCELLED}
DOING: Final[dict[BulkAction, tuple[str, str]]] = {
    "cancel": ("Cancel", "cancelled"),
    "terminate": ("Terminate", "terminated"),
    "pause": ("Pause", "paused"),
    "resume": ("Resume", "resumed"),
    "retry": ("Retry", "retried"),
    "delete": ("Delete", "deleted"),
    "signal": ("Send the signal to", "signalled"),
}
MANY: Final = "Many runs"
"""Heading of these options in the help of a command."""

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the bulk job.", show_default=False)]
Stage = Literal["pending", "done", "skipped", "failed"]

bulk = typer.Typer(help="List, show and stop bulk jobs, which act on many runs.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.add_typer(bulk, name="bulk")


@dataclass(frozen=True)
class ManyRuns:
    """Options of a command that acts on the run that is named, or on all runs that a query matches."""

    query: Annotated[
        str | None,
        typer.Option("--query", metavar="QUERY", rich_help_panel=MANY, help="All runs that match, in one job."),
    ] = None
    view: Annotated[
        str | None,
        typer.Option("--view", metavar="NAME", rich_help_panel=MANY, help="All runs of a saved view."),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", rich_help_panel=MANY, help="Print how many match; do nothing.")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", rich_help_panel=MANY, help="Do not ask.")] = False
    detach: Annotated[
        bool, typer.Option("--detach", rich_help_panel=MANY, help="Do not wait for the end of the job.")
    ] = False

    @property
    def is_given(self) -> bool:
        return self.query is not None or self.view is not None


def one_run(server: Remote, action: BulkAction, run: str | None, many: ManyRuns, reason: str | None = None) -> str:
    """The run that is named. For many, the job is carried out here, and the command ends."""
    from perdure.core.errors import InvalidInput

    if run is not None and many.is_given:
        raise InvalidInput("give a run, or --query or --view, not both")
    if run is not None and (many.dry_run or many.yes or many.detach):
        raise InvalidInput("--dry-run, --yes and --detach go with --query or --view")
    noun, _, name = (run or "").partition("/")
    if name and noun in ("queue", "workflow", "schedule"):
        raise InvalidInput(f"{run!r} names no run; `perdure {noun} {action} NAME` is for a {noun}")
    if run is None and not many.is_given:
        raise InvalidInput("which run? Give its id, key:KEY or @last; or many with --query, such as --query stuck")
    return run if run is not None else act_on_many(server, action, many, reason=reason or "")


def act_on_many(server: Remote, action: BulkAction, many: ManyRuns, **more: Any) -> NoReturn:
    """Start a job and follow it to its end."""
    wanted = {"action": action, "query": many.query or "", "view": many.view or "", **more}
    if many.dry_run or not many.yes:
        found = _followed(server, _started(server, wanted, dry_run=True))
        if many.dry_run or found["status"] != "success" or found["matched"] == found["skipped"]:
            _end(server, found)
        _confirm(found)
    job = _started(server, wanted, dry_run=False)
    _end(server, job if many.detach else _followed(server, job))


def _started(server: Remote, wanted: dict[str, Any], *, dry_run: bool) -> dict[str, Any]:
    from uuid import uuid4

    job: dict[str, Any] = server.api.post("/bulk-jobs", {**wanted, "dry_run": dry_run, "key": uuid4().hex})
    return job


def _confirm(found: dict[str, Any]) -> None:
    import sys

    from perdure.core.errors import InvalidInput

    count = found["matched"] - found["skipped"]
    if not sys.stdin.isatty():
        raise InvalidInput(
            f"{count:,} runs match; nothing was done. Repeat the command with --yes, or with --dry-run to look first."
        )
    runs = "1 run" if count == 1 else f"{count:,} runs"
    if not typer.confirm(f"{DOING[found['action']][0]} {runs}?", err=True):
        raise typer.Exit(1)


def _followed(server: Remote, job: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a job, with a line of progress on a terminal."""
    from perdure.core.errors import PerdureError
    from perdure.programs.terminal import ProgressLine

    progress = ProgressLine()
    failing_since: float | None = None
    try:
        while job["finished_at"] is None:
            progress(_progress(job))
            time.sleep(POLL_S)
            try:
                job = server.api.get(f"/bulk-jobs/{job['id']}")
                failing_since = None
            except PerdureError as error:
                if getattr(error, "status", 503) < 500:
                    raise
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > OUTAGE_S_MAX:
                    raise
    except KeyboardInterrupt:
        server.out.say(f"\nthe job goes on; perdure bulk show {job['id']} shows it, perdure bulk cancel stops it")
        raise
    finally:
        progress.end()
    return job


def _progress(job: dict[str, Any]) -> str:
    if job["status"] == "pending":
        return f"finding runs: {job['matched']:,} match"
    ended = job["done"] + job["skipped"] + job["failed"]
    return f"{ended:,} of {job['matched']:,} runs  {_counts(job)}"


def _counts(job: dict[str, Any]) -> str:
    counts = [f"{job['done']:,} {DOING[job['action']][1]}"]
    counts += [f"{job[word]:,} {word}" for word in ("skipped", "failed") if job[word]]
    return ", ".join(counts)


def _summary(job: dict[str, Any]) -> str:
    if job["status"] == "failed":
        return str(job["error"])
    if job["dry_run"]:
        skipped = f", of which {job['skipped']:,} would be skipped" if job["skipped"] else ""
        return f"{job['matched']:,} runs match{skipped}; nothing was done"
    if job["finished_at"] is None:
        return _progress(job)
    left = job["matched"] - job["done"] - job["skipped"] - job["failed"]
    rest = f", {left:,} left alone" if left else ""
    return f"{_counts(job)} of {job['matched']:,} runs{rest}"


def _end(server: Remote, job: dict[str, Any]) -> NoReturn:
    """Print a job, and end the command with its exit code."""

    def people() -> None:
        server.out.console.print(_summary(job), highlight=False, soft_wrap=True)

    plain = [job["id"], job["status"], job["matched"], job["done"], job["skipped"], job["failed"]]
    server.out.one(job, people=people, plain=plain)
    if job["failed"] or job["skipped"]:
        outcome = "failed" if job["failed"] else "skipped"
        server.out.next(f"perdure bulk runs {job['id']} --outcome {outcome}")
    elif job["finished_at"] is None:
        server.out.next(f"perdure bulk show {job['id']}")
    code = EXITS.get(job["status"], 0) or (EXIT_FAILED if job["failed"] else 0)
    raise typer.Exit(code)


@bulk.command("list")
@remote
def list_jobs(server: Remote, limit: Limit = LIST_DEFAULT) -> None:
    """List bulk jobs, newest first. A finished one is kept for 7 days."""
    from perdure.cli.render import Column, ago

    columns = [
        Column("job", lambda j: j["id"], whole=True),
        Column(
            "action",
            lambda j: j["action"],
            lambda j: f"{j['action']}{' (dry run)' if j['dry_run'] else ''}",
            whole=True,
        ),
        Column("status", lambda j: j["status"]),
        Column("matched", lambda j: j["matched"], right=True),
        Column("done", lambda j: j["done"], right=True),
        Column("skipped", lambda j: j["skipped"], right=True),
        Column("failed", lambda j: j["failed"], right=True),
        Column("created", lambda j: j["created_at"], lambda j: ago(j["created_at"]), "dim"),
        Column("by", lambda j: j["created_by"], style="dim"),
        Column("query", lambda j: j["query"], fold=True),
    ]
    found = server.api.items("/bulk-jobs", limit=limit)
    server.out.rows(found, columns, empty="no bulk jobs; start one: perdure cancel --query QUERY")


@bulk.command("show")
@remote
def show_job(
    server: Remote,
    job: JobId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
) -> None:
    """Show a bulk job and its progress; exit with its status."""
    from perdure.programs.http_client import segment

    found = server.api.get(f"/bulk-jobs/{segment(job)}")
    _end(server, _followed(server, found) if wait else found)


@bulk.command("runs")
@remote
def list_runs(
    server: Remote,
    job: JobId,
    outcome: Annotated[Stage | None, typer.Option("--outcome", help="Only runs with this outcome.")] = None,
    limit: Limit = LIST_DEFAULT,
) -> None:
    """List the runs of a bulk job, and what came of each."""
    from perdure.programs.http_client import segment

    wanted = [("outcome", outcome)] if outcome is not None else []
    found = server.api.items(f"/bulk-jobs/{segment(job)}/runs", wanted, limit=limit)
    server.out.rows(found, _run_columns(), empty="no such runs in this job")


@bulk.command("cancel")
@remote
def cancel_job(server: Remote, job: JobId) -> None:
    """Stop a bulk job. What was done stays done."""
    from perdure.programs.http_client import segment

    found = server.api.post(f"/bulk-jobs/{segment(job)}/cancel")
    server.out.one(found, people=lambda: print(f"stopped: {_summary(found)}"), plain=[found["id"], found["status"]])


def _run_columns() -> list[Column]:
    from perdure.cli.render import Column

    styles: dict[BulkOutcome, str] = {"done": "green", "failed": "red"}
    return [
        Column("run", lambda r: r["run_id"], whole=True),
        Column("outcome", lambda r: r["outcome"], style=lambda r: styles.get(r["outcome"], "")),
        Column("reason", lambda r: r["message"], fold=True),
        Column("url", lambda r: r["url"], style="blue"),
    ]
