"""`perdure run`: start a run of a workflow, of a flow's file, or as a debounced or deduplicated start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from perdure.cli import completion_values
from perdure.cli.announce import announce
from perdure.cli.arguments import WorkflowArguments, pairs
from perdure.cli.remote_options import Remote, remote

DEFERRED_POLL_S = 0.5


def register(app: typer.Typer) -> None:
    app.command()(run)


@dataclass(frozen=True)
class StartOptions:
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Your own id of the run, unique in the namespace.")
    ] = None
    on_conflict: Annotated[
        Literal["fail", "attach", "replace"] | None, typer.Option(help="If the key is taken. Default: fail.")
    ] = None
    attr: Annotated[
        list[str] | None, typer.Option("--attr", metavar="NAME=VALUE", help="Searchable attribute; repeatable.")
    ] = None
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="Fail the run after this time: 90s, 2h.")] = (
        None
    )
    version: Annotated[str | None, typer.Option(help="Version of the workflow. Default: the current one.")] = None
    delay: Annotated[str | None, typer.Option(metavar="DURATION", help="Begin this much later: 10m, 2h.")] = None
    start_at: Annotated[str | None, typer.Option(metavar="TIME", help="Begin at this time: 2026-10-21T14:00:00Z.")] = (
        None
    )
    start_within: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Fail the run if it has not begun in this time.")
    ] = None

    def body(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "on_conflict": self.on_conflict,
            "attributes": pairs(self.attr or [], "--attr") or None,
            "timeout": self.timeout,
            "version": self.version,
            "delay": self.delay,
            "start_at": self.start_at,
            "start_within": self.start_within,
        }


@dataclass(frozen=True)
class DeferralOptions:
    dedup: Annotated[
        str | None, typer.Option(metavar="KEY", help="Attach to the active run with this dedup key, if any.")
    ] = None
    dedup_within: Annotated[
        str | None, typer.Option(metavar="DURATION", help="With --dedup: start at most one run in this time.")
    ] = None
    debounce: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Start after this much quiet time for the debounce key.")
    ] = None
    debounce_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="With --debounce. Default: the workflow's name.")
    ] = None

    def body(self, workflow: str) -> dict[str, Any]:
        from perdure.core.errors import InvalidInput

        if self.dedup is None and self.dedup_within is not None:
            raise InvalidInput("--dedup-within needs --dedup KEY")
        if self.debounce is None and self.debounce_key is not None:
            raise InvalidInput("--debounce-key needs --debounce DURATION")
        out: dict[str, Any] = {}
        if self.dedup is not None:
            out["dedup"] = {"key": self.dedup} | (
                {"within": self.dedup_within} if self.dedup_within is not None else {}
            )
        if self.debounce is not None:
            out["debounce"] = {"key": self.debounce_key or workflow, "quiet": self.debounce}
        return out


@remote
def run(
    server: Remote,
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="WORKFLOW|FILE",
            help="Name of a workflow, or the file of a flow, which is deployed first.",
            show_default=False,
            autocompletion=completion_values.workflows,
        ),
    ],
    arguments: WorkflowArguments,
    options: StartOptions,
    deferral: DeferralOptions,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run, like `perdure watch`.")] = False,
) -> None:
    """Start a run of a workflow.

    perdure run greet name=Ada times=3 --watch
    """
    from uuid import uuid4

    from perdure.programs.http_client import ApiError, segment
    from perdure.sdk.client.flow_text import is_file_name

    fields = options.body()
    if is_file_name(workflow):
        workflow, deployed = _deployed(server, workflow)
        fields["version"] = fields["version"] or deployed
    fields |= arguments.body() | deferral.body(workflow)
    body = {name: value for name, value in fields.items() if value is not None or name == "input"}
    try:
        started = server.api.post(f"/workflows/{segment(workflow)}/runs", body, idempotency_key=uuid4().hex)
    except ApiError as error:
        raise unknown_workflow(server, workflow, error) from None
    server.remember(started["id"])
    if "due_at" in started:
        _announce_deferred(server, started)
        if not watch:
            return
        _wait_for_start(server, started)
    if watch:
        from perdure.cli.watch import follow

        raise typer.Exit(follow(server, started["id"]))
    announce(server, started, "started", "perdure watch @last", "perdure logs @last -f")


def _announce_deferred(server: Remote, started: dict[str, Any]) -> None:
    from perdure.cli.render import local_time

    server.out.one(
        started,
        people=lambda: print(
            f"deferred {started['workflow']}  {started['id']}  starts at {local_time(started['due_at'])} "
            "unless another start postpones it"
        ),
        plain=[started["id"], "deferred", started["due_at"]],
    )
    server.out.next("perdure watch @last")


def _wait_for_start(server: Remote, started: dict[str, Any]) -> None:
    """Wait until a deferred start has become a run."""
    from time import sleep

    from perdure.programs.http_client import ApiError

    while True:
        try:
            server.api.get(server.path(started["id"]))
            return
        except ApiError as error:
            if error.status != 404:
                raise
        sleep(DEFERRED_POLL_S)


def _deployed(server: Remote, file: str) -> tuple[str, str]:
    """Deploy the flow in `file`; returns its name and version."""
    from pathlib import Path

    from perdure.cli.flow_problems import refuse_invalid
    from perdure.cli.flows import push
    from perdure.programs.flow_files import load

    found = load(Path(file))
    refuse_invalid([found])
    item = push(server, {"source": found.text, "name": found.name, "file": file})
    if item["outcome"] != "unchanged":
        server.out.say(f"{item['outcome']} {item['name']} {item['version']}")
    return item["name"], item["version"]


def unknown_workflow(server: Remote, workflow: str, error: Exception) -> Exception:
    """The error of a start, with the registered workflows if the name was unknown."""
    from difflib import get_close_matches

    from perdure.cli.commands import COMMANDS
    from perdure.programs.http_client import ApiError

    assert isinstance(error, ApiError)
    if error.status != 404:
        return error
    try:
        known = [w["name"] for w in server.api.items("/workflows", limit=500)]
    except ApiError:
        return error
    if close := get_close_matches(workflow, known, n=1):
        advice = f"Did you mean {close[0]}?"
    elif workflow in COMMANDS:
        advice = f"`perdure {workflow}` is a command of its own."
    elif not known:
        advice = "No workflow is registered yet; start a worker that defines one: perdure worker MODULE"
    else:
        advice = f"Registered: {', '.join(sorted(known)[:10])}{', …' if len(known) > 10 else ''}."
    namespace = f" in namespace {server.api.namespace}" if server.api.namespace else ""
    return ApiError(f"unknown workflow {workflow!r}{namespace}. {advice}", status=404, problem_code="not_found")
