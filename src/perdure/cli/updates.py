"""Commands that talk with a run: `update` asks it to change something, `state` reads what it has set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from perdure.cli.remote_options import Remote, RunId, json_argument, remote

WAIT_S: float = 30


def register(app: typer.Typer) -> None:
    for command in (update, state):
        app.command()(command)


@remote
def update(
    server: Remote,
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the update.", show_default=False)],
    value: Annotated[
        str, typer.Argument(metavar="JSON", help="What is asked for; @file or - for stdin.", show_default=False)
    ] = "null",
    id: Annotated[
        str | None, typer.Option("--id", help="Yours: asked for twice under the same one, it is done once.")
    ] = None,
    wait: Annotated[float, typer.Option("--wait", "-w", help="Seconds to wait for the answer, at most 30.")] = WAIT_S,
) -> None:
    """Ask a run to change something, and print its answer.

    What the run refuses ends with exit code 2, what fails in its handler with 1.
    """
    from uuid import uuid4

    wanted = id or uuid4().hex
    body = {"value": json_argument(value, "JSON"), "key": wanted, "wait": min(max(wait, 0.0), WAIT_S)}
    # The id makes a repetition harmless, so the request may be repeated.
    answer = server.api.post(server.path(run, "updates", name), body, idempotency_key=uuid4().hex)
    if answer["status"] == "pending":
        server.out.one(answer, people=lambda: print("not answered yet"), plain=[answer["key"], "pending"])
        server.out.next(f"perdure update {run} {name} '{value}' --id {wanted}")
        return
    text = _text(answer["value"])
    server.out.one(answer, people=lambda: print(text), plain=[text])
    server.out.next(f"perdure show {run}")


@remote
def state(
    server: Remote,
    run: RunId,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of one value.", show_default=False)] = None,
) -> None:
    """Print the state that a run has set, or one value of it.

    The run is not disturbed: it is neither woken nor moved.
    """
    from perdure.cli.render import Column

    if name is None:
        columns = [Column("name", lambda s: s["name"]), Column("value", lambda s: _text(s["value"]), fold=True)]
        items = _states(server, server.path(run, "state"))
        server.out.rows(items, columns, empty="the run has set no state")
        return
    found = server.api.get(server.path(run, "state", name))
    text = _text(found["value"])
    server.out.one(found, people=lambda: print(text), plain=[text])


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
