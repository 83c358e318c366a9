"""Messages to a run and its published state: `perdure signal`, `update`, `resolve`, `state` and `query`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from perdure.cli import completion_values
from perdure.cli.announce import announce, announce_reply
from perdure.cli.bulk_jobs import ManyRuns, act_on_many
from perdure.cli.remote_options import OptionalRunId, Remote, RunId, json_argument, remote, value_of

WAIT_S: float = 30

OptionalValue = Annotated[
    str | None, typer.Argument(metavar="VALUE", help="JSON if it parses, otherwise text.", show_default=False)
]
Value = Annotated[str, typer.Argument(metavar="VALUE", help="JSON if it parses, otherwise text.", show_default=False)]


def register(app: typer.Typer) -> None:
    for command in (signal, update, resolve, state, query):
        app.command()(command)


@dataclass(frozen=True)
class SignalOptions:
    """How a signal to one run is sent."""

    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Your own id of the message; a second one is ignored."),
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            metavar="WORKFLOW",
            help="Start a run of this workflow first, if key:KEY has no active run.",
            autocompletion=completion_values.workflows,
        ),
    ] = None
    input_json: Annotated[
        str | None, typer.Option("--input", "-i", metavar="JSON", help="With --start: the arguments of the run.")
    ] = None


@remote
def signal(
    server: Remote,
    many: ManyRuns,
    options: SignalOptions,
    run: OptionalRunId = None,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the signal.", show_default=False)] = None,
    value: OptionalValue = None,
) -> None:
    """Send a signal to a run, or to many.

    perdure signal key:order-42 add '"book"' --start checkout
    perdure signal --query 'workflow = checkout and status = running' add '"book"'
    """
    from uuid import uuid4

    from perdure.core.errors import InvalidInput

    if many.is_given:  # there is no RUN: what stands first is the name
        if run is None or value is not None or options.start is not None or options.key is not None:
            raise InvalidInput(
                "with --query or --view, give the NAME of the signal and its VALUE, and no RUN, --key or --start"
            )
        act_on_many(server, "signal", many, signal=run, payload=value_of(name or "null"))
    if run is None or name is None:
        raise InvalidInput("give a RUN and the NAME of the signal; or many runs with --query, and the NAME")
    if many.dry_run or many.yes or many.detach:
        raise InvalidInput("--dry-run, --yes and --detach go with --query or --view")
    value = value or "null"
    if options.start is not None:
        _signal_with_start(
            server,
            run,
            options.start,
            {"signal": name, "value": value_of(value), "signal_key": options.key},
            options.input_json,
        )
        return
    path = server.path(run, "signals", name)
    if options.key is not None:
        from urllib.parse import quote

        path = f"{path}?key={quote(options.key, safe='')}"
    reply = server.api.post(path, value_of(value), idempotency_key=uuid4().hex)
    announce_reply(server, run, reply, f"sent {name} to", "perdure show @last")


def _signal_with_start(server: Remote, run: str, workflow: str, sent: dict[str, Any], input_json: str | None) -> None:
    from perdure.cli.run import unknown_workflow
    from perdure.core.errors import InvalidInput
    from perdure.programs.http_client import ApiError, segment

    if not run.startswith("key:"):
        raise InvalidInput(f"--start needs the key of the run: write key:{run}, not {run}")
    body = {**sent, "key": run.removeprefix("key:")}
    if input_json is not None:
        body["input"] = json_argument(input_json, "--input")
    try:
        found = server.api.post(f"/workflows/{segment(workflow)}/signal-with-start", body)
    except ApiError as error:
        raise unknown_workflow(server, workflow, error) from None
    server.remember(found["id"])
    announce(server, found, f"sent {sent['signal']} to", "perdure show @last")


@remote
def update(
    server: Remote,
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the update.", show_default=False)],
    value: Annotated[
        str, typer.Argument(metavar="JSON", help="Argument of the update, @FILE, or - for stdin.", show_default=False)
    ] = "null",
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="Your own id of the update; a second one is ignored.")
    ] = None,
    wait: Annotated[float, typer.Option("--wait", metavar="SECONDS", help="Wait for the reply, at most 30.")] = WAIT_S,
) -> None:
    """Send an update to a run and print its reply.

    Exit code 2 if the run rejects the update, 1 if its handler fails.
    """
    from uuid import uuid4

    wanted = key or uuid4().hex
    body = {"value": json_argument(value, "JSON"), "key": wanted, "wait": min(max(wait, 0.0), WAIT_S)}
    # Its key makes an update idempotent, so the request may be repeated.
    reply = server.api.post(server.path(run, "updates", name), body, idempotency_key=uuid4().hex)
    if reply["status"] == "pending":
        server.out.one(reply, people=lambda: print("no reply yet"), plain=[reply["key"], "pending"])
        server.out.next(f"perdure update {run} {name} '{value}' --key {wanted}")
        return
    text = _text(reply["value"])
    server.out.one(reply, people=lambda: print(text), plain=[text])
    server.out.next(f"perdure show {run}")


@remote
def resolve(
    server: Remote,
    run: RunId,
    promise: Annotated[str, typer.Argument(metavar="PROMISE", help="Name of the promise.", show_default=False)],
    value: Value = "null",
) -> None:
    """Resolve a promise that a run is waiting for.

    A promise is resolved once; the first value stands.
    """
    reply = server.api.post(server.path(run, "promises", promise), value_of(value))
    announce_reply(server, run, reply, f"resolved {promise} of", "perdure show @last")


@remote
def state(
    server: Remote,
    run: RunId,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Print one value only.", show_default=False)
    ] = None,
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="EVENT", min=0, help="Everything about the run as of this event; 0: the last."),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option("--code", metavar="TARGET", help="With --at: module or file, to print where the code waited."),
    ] = None,
) -> None:
    """Print the state that a run has published.

    Reading the state does not wake the run. With --at: what was outstanding, set and known when an event was recorded.
    """
    if at is not None:
        from perdure.cli.inspection import print_state_at

        print_state_at(server, run, at, code)
        return
    from perdure.cli.render import Column

    if name is None:
        columns = [Column("name", lambda s: s["name"]), Column("value", lambda s: _text(s["value"]), fold=True)]
        server.out.rows(_states(server, server.path(run, "state")), columns, empty="the run has not set any state")
        return
    found = server.api.get(server.path(run, "state", name))
    text = _text(found["value"])
    server.out.one(found, people=lambda: print(text), plain=[text])


@remote
def query(
    server: Remote,
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the query.", show_default=False)],
    named: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="Arguments by name; a value is JSON if it parses, else text."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=VALUE|JSON",
            help="The same, repeatable; or all arguments as one JSON object, @FILE, or - for stdin.",
        ),
    ] = None,
) -> None:
    """Compute a query of a run's workflow and print the answer.

    perdure query @last percent digits=1

    A worker computes it from the state of the run, which is not woken. Exit code 1 if the query fails, 4 if there is none of that
    name, 5 if no worker that serves the run's version is connected.
    """
    from uuid import uuid4

    arguments = _query_arguments(named or [], given or [])
    # It changes nothing, so the request may be repeated.
    reply = server.api.post(server.path(run, "queries", name), arguments, idempotency_key=uuid4().hex)
    text = _text(reply["value"])
    server.out.one(reply, people=lambda: print(text), plain=[text])


def _query_arguments(named: list[str], given: list[str]) -> dict[str, Any]:
    from perdure.cli.arguments import pairs
    from perdure.core.errors import InvalidInput

    if len(given) == 1 and not named and (given[0] == "-" or given[0].lstrip()[:1] in ("{", "@")):
        found = json_argument(given[0], "--input")
        if not isinstance(found, dict):
            raise InvalidInput("--input: the arguments of a query are a JSON object, by name")
        return found
    return pairs([*named, *given], "arguments")


def _states(server: Remote, path: str) -> Iterator[dict[str, Any]]:
    cursor = None
    while True:
        page = server.api.get(path, [("limit", 100), ("cursor", cursor)])
        yield from page["items"]
        cursor = page.get("next")
        if not cursor:
            return


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
