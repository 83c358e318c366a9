"""`perdure rerun`, `fork` and `node`: repeat a run, or repair it by hand."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from perdure.cli.announce import announce, announce_reply
from perdure.cli.arguments import pairs
from perdure.cli.remote_options import Remote, RunId, json_argument, remote, value_of

Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Your own id of the run, unique in the namespace.")
]
Node = Annotated[
    str,
    typer.Argument(metavar="NODE", help="Node that failed: load, outer.inner, or each[2].", show_default=False),
]

node = typer.Typer(help="Rerun, skip or set a failed node of a flow.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    app.command()(rerun)
    app.command()(fork)
    app.add_typer(node, name="node")


@remote
def rerun(
    server: Remote,
    run: RunId,
    input_json: Annotated[
        str | None, typer.Option("--input", "-i", metavar="JSON", help="Another input; or @FILE, or - for stdin.")
    ] = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            "--edit", metavar="FIELD=VALUE", help="Change one field of the input: order.amount=42; repeatable."
        ),
    ] = None,
    version: Annotated[str | None, typer.Option(help="Version of the workflow. Default: the current one.")] = None,
    key: Key = None,
) -> None:
    """Start a run again, with the same or an edited input.

    perdure rerun @last --edit order.amount=42
    """
    from uuid import uuid4

    body: dict[str, Any] = {"version": version, "key": key, "edits": pairs(edit or [], "--edit") or None}
    if input_json is not None:
        body["input"] = json_argument(input_json, "--input")
    sent = {name: value for name, value in body.items() if value is not None}
    started = server.api.post(server.path(run, "rerun"), sent, idempotency_key=uuid4().hex)
    server.remember(started["id"])
    announce(server, started, "started", "perdure watch @last", f"perdure diff {started['rerun_of']} {started['id']}")


@remote
def fork(
    server: Remote,
    run: RunId,
    at: Annotated[
        int, typer.Option("--at", metavar="EVENT", min=1, help="The last event to copy; see `perdure history`.")
    ],
    edits: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="STEP=VALUE",
            help="Result of a step: a task's number or name, a node, or child:N; repeatable.",
        ),
    ] = None,
    code: Annotated[
        Literal["same", "current"],
        typer.Option("--code", help="Version to go on with: the run's own, or the current one."),
    ] = "same",
) -> None:
    """Start a run from the middle of another one, with its history up to an event.

    perdure fork @last --at 7 --set charge='{"paid": true}'

    What a step did after an edited result is not copied: the code does it again. The other run stays as it is.
    """
    from uuid import uuid4

    body = {"at": at, "edits": pairs(edits or [], "--set"), "code": code}
    started = server.api.post(server.path(run, "fork"), body, idempotency_key=uuid4().hex)
    server.remember(started["id"])
    announce(server, started, "forked", "perdure watch @last", f"perdure diff {started['forked_from']} {started['id']}")


@node.command("rerun")
@remote
def rerun_node(server: Remote, run: RunId, node: Node) -> None:
    """Retry a failed run, and run this node from its beginning."""
    _override(server, run, {"node": node, "how": "rerun"}, f"rerunning {node} of")


@node.command()
@remote
def skip(server: Remote, run: RunId, node: Node) -> None:
    """Retry a failed run as if this node had been skipped."""
    _override(server, run, {"node": node, "how": "skip"}, f"skipped {node} of")


@node.command("set")
@remote
def set_(
    server: Remote,
    run: RunId,
    node: Node,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="Output: JSON if it parses, otherwise text.", show_default=False)
    ],
) -> None:
    """Retry a failed run as if this node had succeeded with a value.

    perdure node set @last load '{"rows": 10}'
    """
    _override(server, run, {"node": node, "how": "set", "value": value_of(value)}, f"set {node} of")


def _override(server: Remote, run: str, body: dict[str, Any], verb: str) -> None:
    announce_reply(server, run, server.api.post(server.path(run, "override"), body), verb, "perdure watch @last")
