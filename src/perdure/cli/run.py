"""Commands that change runs: `run`, `cancel`, `retry`, `resume`, `signal`, `resolve`. Each prints its link and what to do next."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Remote, RunId, json_argument, remote, value_of

OnConflict = Literal["fail", "attach", "replace"]
PUT_OFF_POLL_S = 0.5


def register(app: typer.Typer) -> None:
    for command in (run, cancel, retry, resume, signal, resolve):
        app.command()(command)


@remote
def run(
    server: Remote,
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="WORKFLOW|FILE",
            help="Its name, or a flow's file, which is deployed first.",
            show_default=False,
            autocompletion=completion_values.workflows,
        ),
    ],
    given: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Arguments by name. JSON where it is JSON, otherwise text."),
    ] = None,
    arg: Annotated[
        list[str] | None, typer.Option("--arg", "-a", metavar="VALUE", help="An argument by position; repeatable.")
    ] = None,
    input_json: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", metavar="JSON", help="All arguments as one JSON value; @file reads it, - is stdin."
        ),
    ] = None,
    run_key: Annotated[
        str | None, typer.Option("--id", metavar="KEY", help="An id of your own, unique in the namespace.")
    ] = None,
    on_conflict: Annotated[OnConflict | None, typer.Option(help="What if the id is taken.")] = None,
    attr: Annotated[
        list[str] | None, typer.Option("--attr", metavar="NAME=VALUE", help="To find the run by; repeatable.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help='It fails when it has not ended by then: "90s", "2h".')
    ] = None,
    version: Annotated[str | None, typer.Option(help="Another version than the current one.")] = None,
    dedup: Annotated[
        str | None, typer.Option(metavar="KEY", help="One run at a time under this key: this, or the one there is.")
    ] = None,
    dedup_for: Annotated[
        str | None, typer.Option("--for", metavar="DURATION", help="With --dedup: one run within this time.")
    ] = None,
    debounce: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Begin when no start under the key came for so long.")
    ] = None,
    start_key: Annotated[
        str | None,
        typer.Option("--debounce-key", metavar="KEY", help="With --debounce; the workflow's name unless given."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Stay until it ends, and end as it did.")] = False,
) -> None:
    """Start a run of a workflow.

    perdure run greet name=Ada times=3 --watch
    """
    from uuid import uuid4

    from perdure.app.flow_files import is_file_name
    from perdure.app.http_client import ApiError, segment

    if is_file_name(workflow):
        workflow, deployed = _deployed(server, workflow)
        version = version or deployed
    body = start_body(given or [], arg or [], input_json) | {
        name: value
        for name, value in {
            "key": run_key,
            "on_conflict": on_conflict,
            "timeout": timeout,
            "version": version,
            "attributes": pairs(attr or [], "--attr") or None,
            "dedup": _dedup(dedup, dedup_for),
            "debounce": _debounce(debounce, start_key, workflow),
        }.items()
        if value is not None
    }
    try:
        started = server.api.post(f"/workflows/{segment(workflow)}/runs", body, idempotency_key=uuid4().hex)
    except ApiError as error:
        raise _unknown_workflow(server, workflow, error) from None
    server.remember(started["id"])
    if "due_at" in started:
        _put_off(server, started)
        if watch:
            _until_there(server, started)
        else:
            return
    if watch:
        from perdure.cli.watch import follow

        raise typer.Exit(follow(server, started["id"]))
    announce(server, started, "started", "perdure watch @last", "perdure logs @last -f")


def _dedup(key: str | None, time: str | None) -> dict[str, Any] | None:
    from perdure.core.errors import InvalidInput

    if key is None and time is not None:
        raise InvalidInput("--for goes with --dedup: it says how long its key lasts")
    return None if key is None else {"key": key} | ({"within": time} if time is not None else {})


def _debounce(quiet: str | None, key: str | None, workflow: str) -> dict[str, Any] | None:
    from perdure.core.errors import InvalidInput

    if quiet is None and key is not None:
        raise InvalidInput("--debounce-key goes with --debounce: it says whose last start counts")
    return None if quiet is None else {"key": key or workflow, "quiet": quiet}


def _put_off(server: Remote, started: dict[str, Any]) -> None:
    from perdure.cli.render import local_time

    server.out.one(
        started,
        people=lambda: print(
            f"put off {started['workflow']}  {started['id']}  begins {local_time(started['due_at'])} unless more starts come"
        ),
        plain=[started["id"], "put off", started["due_at"]],
    )
    server.out.next("perdure watch @last")


def _until_there(server: Remote, started: dict[str, Any]) -> None:
    """Wait until a run that was put off has begun."""
    from time import sleep

    from perdure.app.http_client import ApiError

    while True:
        try:
            server.api.get(server.path(started["id"]))
            return
        except ApiError as error:
            if error.status != 404:
                raise
        sleep(PUT_OFF_POLL_S)


def _deployed(server: Remote, file: str) -> tuple[str, str]:
    """Name and version of a flow that was a file a moment ago."""
    from pathlib import Path

    from perdure.app.flow_files import load
    from perdure.cli.flows import push, refuse_invalid

    found = load(Path(file))
    refuse_invalid([found])
    item = push(server, {"source": found.text, "name": found.name, "file": file})
    if item["outcome"] != "unchanged":
        server.out.say(f"{item['outcome']} {item['name']} {item['version']}")
    return item["name"], item["version"]


def start_body(given: list[str], arg: list[str], input_json: str | None) -> dict[str, Any]:
    """The one way of giving arguments that was used; two at once are refused."""
    from perdure.core.errors import InvalidInput

    if input_json is not None:
        if given or arg:
            raise InvalidInput("give either --input or single arguments, not both")
        return {"input": json_argument(input_json, "--input")}
    body: dict[str, Any] = {}
    if arg:
        body["args"] = [value_of(text) for text in arg]
    if given:
        body["kwargs"] = pairs(given, "arguments")
    return body


def pairs(texts: list[str], what: str) -> dict[str, Any]:
    from perdure.core.errors import InvalidInput

    out: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InvalidInput(
                f"{what}: {text!r} is not NAME=VALUE. Arguments by position are given with -a: -a {text!r}"
                if what == "arguments"
                else f"{what}: {text!r} is not NAME=VALUE"
            )
        if name in out:
            raise InvalidInput(f"{what}: {name} is given twice")
        out[name] = value_of(value)
    return out


def _unknown_workflow(server: Remote, workflow: str, error: Exception) -> Exception:
    """A name nobody registered: say which there are, and which one was probably meant."""
    from difflib import get_close_matches

    from perdure.app.http_client import ApiError

    assert isinstance(error, ApiError)
    if error.status != 404:
        return error
    try:
        known = [w["name"] for w in server.api.items("/workflows", limit=500)]
    except ApiError:
        return error
    if not known:
        advice = "None is registered yet: start a worker that defines it, `perdure worker yourmodule`."
    elif close := get_close_matches(workflow, known, n=1):
        advice = f"Did you mean {close[0]}?"
    else:
        advice = f"There are: {', '.join(sorted(known)[:10])}{', …' if len(known) > 10 else ''}."
    namespace = f" in namespace {server.api.namespace}" if server.api.namespace else ""
    return ApiError(
        f"no workflow {workflow!r} is registered{namespace}. {advice}", status=404, problem_code="not_found"
    )


def announce(server: Remote, run: dict[str, Any], verb: str, *commands: str) -> None:
    """The answer to a write: what became of it, its link, and what may come next."""
    from rich.text import Text

    def people() -> None:
        line = Text()
        line.append(f"{verb} ", style="green")
        line.append(run.get("workflow", "run"), style="bold")
        line.append(f"  {run['id']}")
        server.out.console.print(line, soft_wrap=True)
        if run.get("url"):
            server.out.console.print(Text(f"  {run['url']}", style="blue"), soft_wrap=True)

    server.out.one(run, people=people, plain=[run["id"], run.get("status"), run.get("url")])
    if not server.out.is_for_people and run.get("url"):
        server.out.say(run["url"])
    server.out.next(*(c if verb == "started" else c.replace("@last", run["id"]) for c in commands))


def _after(server: Remote, run: str, answer: Any, verb: str, *commands: str) -> None:
    """Some writes answer with the run, some with nothing; people see the run either way."""
    found = answer if isinstance(answer, dict) and "workflow" in answer else server.api.get(server.path(run))
    announce(server, found, verb, *commands)


@remote
def cancel(
    server: Remote,
    run: RunId,
    reason: Annotated[str | None, typer.Option("--reason", "-r", help="Kept in its history.")] = None,
) -> None:
    """Ask a run to stop.

    It unwinds like any cancelled coroutine, and ends `cancelled`.
    """
    answer = server.api.post(server.path(run, "cancel"), {"reason": reason} if reason else {})
    _after(server, run, answer, "cancelling", "perdure watch @last")


@remote
def retry(server: Remote, run: RunId) -> None:
    """Open a failed run again; what succeeded is kept."""
    _after(server, run, server.api.post(server.path(run, "retry")), "retrying", "perdure watch @last")


@remote
def resume(server: Remote, run: RunId) -> None:
    """Let a stuck run try again, after its code was repaired."""
    _after(server, run, server.api.post(server.path(run, "resume")), "resumed", "perdure watch @last")


Value = Annotated[
    str,
    typer.Argument(metavar="VALUE", help="JSON where it is JSON, otherwise text.", show_default=False),
]


@remote
def signal(
    server: Remote,
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the signal.", show_default=False)],
    value: Value = "null",
    message_key: Annotated[
        str | None,
        typer.Option("--message-key", metavar="TEXT", help="Of your own: sent twice under it, it is one message."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="WORKFLOW",
            help="Start a run of it under key:ID if none is active there.",
            autocompletion=completion_values.workflows,
        ),
    ] = None,
    input_json: Annotated[
        str | None, typer.Option("--input", "-i", metavar="JSON", help="With --start: the arguments of the run.")
    ] = None,
) -> None:
    """Send a signal to a run.

    perdure signal key:order-42 add '"book"' --start checkout
    """
    from uuid import uuid4

    if start is not None:
        _signal_with_start(
            server, run, start, {"signal": name, "value": value_of(value), "signal_key": message_key}, input_json
        )
        return
    path = server.path(run, "signals", name)
    if message_key is not None:
        from urllib.parse import quote

        path = f"{path}?key={quote(message_key, safe='')}"
    answer = server.api.post(path, value_of(value), idempotency_key=uuid4().hex)
    _after(server, run, answer, f"sent {name} to", "perdure show @last")


def _signal_with_start(server: Remote, run: str, workflow: str, sent: dict[str, Any], input_json: str | None) -> None:
    from perdure.app.http_client import ApiError, segment
    from perdure.core.errors import InvalidInput

    if not run.startswith("key:"):
        raise InvalidInput(f"--start needs the run's own id: key:{run} instead of {run}")
    body = {**sent, "key": run.removeprefix("key:")}
    if input_json is not None:
        body["input"] = json_argument(input_json, "--input")
    try:
        found = server.api.post(f"/workflows/{segment(workflow)}/signal-with-start", body)
    except ApiError as error:
        raise _unknown_workflow(server, workflow, error) from None
    server.remember(found["id"])
    announce(server, found, f"sent {sent['signal']} to", "perdure show @last")


@remote
def resolve(
    server: Remote,
    run: RunId,
    promise: Annotated[str, typer.Argument(metavar="PROMISE", help="Its name.", show_default=False)],
    value: Value = "null",
) -> None:
    """Give a promise of a run its value.

    The first value stands.
    """
    answer = server.api.post(server.path(run, "promises", promise), value_of(value))
    _after(server, run, answer, f"resolved {promise} of", "perdure show @last")
