"""`perdure flow`, and `perdure deploy` and `validate` for short. `flow graph` is in flow_graph.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.flow_graph import graph
from perdure.cli.flow_problems import print_problems, refuse_invalid
from perdure.cli.remote_options import Remote, local, remote
from perdure.cli.render import Output

if TYPE_CHECKING:
    from perdure.programs.flow_files import FlowFile

PREVIOUS = "previous"
NAMES_SHOWN = 8

flow = typer.Typer(help="Validate, deploy and draw declarative flows.", no_args_is_help=True)
flow.command()(graph)


def register(app: typer.Typer) -> None:
    app.add_typer(flow, name="flow")
    for command in (deploy, validate):
        app.command()(command)


@flow.command("list")
@remote
def list_(server: Remote) -> None:
    """List deployed flows."""
    from perdure.cli.workflows import print_workflows

    found = (w for w in server.api.items("/workflows") if w.get("kind") != "code")
    print_workflows(server, found, "no flows yet; deploy one: perdure deploy FILE")


@flow.command()
@local
def validate(
    out: Output,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE|DIR", help="Flows, or directories to search. Default: this directory."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
) -> None:
    """Check flows for errors, without a server.

    The exit code is 1 if any of them is invalid.
    """
    files = [_loaded(path) for path in _files(paths or [Path(".")])]
    if out.mode in ("json", "yaml"):
        out.data([_as_item(f) for f in files])
    else:
        _print_validated(out, files)
    bad = [f for f in files if f.compiled is None or (strict and f.problems)]
    if bad or not files:
        raise typer.Exit(1)


def _files(paths: list[Path]) -> list[Path]:
    from perdure.programs.flow_files import below

    found: list[Path] = []
    for path in paths:
        found += list(below(path)) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def _loaded(path: Path, name: str | None = None) -> FlowFile:
    from perdure.programs.flow_files import load

    return load(path, name)


def _as_item(file: FlowFile) -> dict[str, Any]:
    import msgspec

    compiled = file.compiled.flow if file.compiled else None
    return {
        "file": str(file.path),
        "valid": compiled is not None,
        "name": compiled.name if compiled else None,
        "version": file.version or None,
        "kind": compiled.kind if compiled else None,
        "secrets": compiled.secrets() if compiled else [],
        "problems": [msgspec.to_builtins(p) for p in file.problems],
    }


def _print_validated(out: Output, files: list[FlowFile]) -> None:
    from perdure.programs.terminal import console

    errors = console(sys.stderr) if not out.is_for_people else out.console
    for file in files:
        print_problems(errors, file.problems)
        if file.compiled is None:
            continue
        body = file.compiled.flow
        if out.is_for_people:
            from rich.text import Text

            count = len(body.body.nodes)
            details = f"  {body.kind}, {count} {'node' if count == 1 else 'nodes'}  {file.version}"
            if needed := body.secrets():
                details += f"  secrets {', '.join(needed)}"
            line = Text.assemble(("✓ ", "green"), (str(file.path), "bold"), (details, "dim"))
            out.console.print(line, soft_wrap=True)
        else:
            print(f"{file.path}\t{body.name}\t{body.kind}\t{file.version}")
    if not files:
        out.say("no flows found; a flow is a YAML or JSON file with `tasks:` or `graph:`")


@flow.command()
@remote
def deploy(
    server: Remote,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR", help="Flows, or directories to search.", show_default=False)
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the flow, if the file has no `flow:`. Default: the file name."
        ),
    ] = None,
    activate: Annotated[
        bool, typer.Option("--activate/--no-activate", help="Use it for new runs, or only register it.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change; change nothing.")] = False,
) -> None:
    """Deploy flows and make them the current version.

    A version is identified by its content: deploying the same document again changes nothing. Active runs keep their version.
    """
    from perdure.core.errors import InvalidInput

    found = [_loaded(path, name) for path in _files(files)]
    if not found:
        raise InvalidInput("no flows found; a flow is a YAML or JSON file with `tasks:` or `graph:`")
    if name is not None and len(found) > 1:
        raise InvalidInput(f"--name is for one file, and {len(found)} were given; write `flow: NAME` in each of them")
    refuse_invalid(found)
    done = [_deployed(server, file, activate=activate, dry_run=dry_run) for file in found]
    if server.out.mode in ("json", "yaml"):
        server.out.data(done if len(done) > 1 else done[0])
    if not dry_run and activate:
        server.out.next(f"perdure run {done[-1]['name']}")


def _deployed(server: Remote, file: FlowFile, *, activate: bool, dry_run: bool) -> dict[str, Any]:
    body = {"source": file.text, "name": file.name, "file": str(file.path)}
    if dry_run:
        answer = server.api.post("/workflows/validate", body)
        item = {
            "name": answer["name"],
            "version": answer["version"],
            "outcome": "would be unchanged" if answer["current"] == answer["version"] else "would be deployed",
            "changes": answer["changes"],
            "warnings": answer["warnings"],
        }
    else:
        item = push(server, body, activate=activate)
    _print_deployed(server, file, item)
    return item


def push(server: Remote, body: dict[str, Any], *, activate: bool = True) -> dict[str, Any]:
    """Deploy a flow through the server; returns its version and the outcome."""
    answer = server.api.post("/workflows/deploy", {**body, "activate": activate})
    deployed = answer["deployed"]
    outcome = "created" if deployed["created"] else "activated" if deployed["activated"] else "unchanged"
    return {
        "name": answer["name"],
        "version": deployed["version"],
        "outcome": outcome,
        "current": answer["version"],
        "changes": deployed["changes"],
        "warnings": deployed["warnings"],
        "url": f"{server.api.url}/api/v1/workflows/{answer['name']}/graph?format=svg",
    }


def _print_deployed(server: Remote, file: FlowFile, item: dict[str, Any]) -> None:
    from perdure.programs.terminal import console

    if server.out.mode in ("json", "yaml"):
        return
    print_problems(server.out.console if server.out.is_for_people else console(sys.stderr), file.problems)
    if not server.out.is_for_people:
        print("\t".join((item["name"], item["version"], item["outcome"], changes_text(item["changes"]))).rstrip())
        return
    from rich.text import Text

    line = Text.assemble((f"{item['outcome']} ", "green"), (item["name"], "bold"), (f"  {item['version']}", ""))
    server.out.console.print(line, soft_wrap=True)
    if item["outcome"] not in ("unchanged", "would be unchanged") and changes_text(item["changes"]):
        server.out.console.print(_changes_line(item["changes"]), soft_wrap=True)
    if item.get("current") not in (None, item["version"]):
        server.out.say(
            f"  new runs use {item['current']}; perdure versions set-current {item['name']} {item['version']}"
        )
    if item.get("url"):
        server.out.console.print(Text(f"  {item['url']}", style="blue"), soft_wrap=True)


def changes_text(changes: dict[str, list[str]] | None) -> str:
    """`+added -removed ~changed`, and other changed keys in parentheses."""
    if changes is None:
        return ""
    marks = (("added", "+"), ("removed", "-"), ("changed", "~"))
    nodes = [f"{mark}{key}" for kind, mark in marks for key in changes[kind]]
    return " ".join([*_some(nodes), *(f"({key})" for key in changes["other"])])


def _changes_line(changes: dict[str, list[str]]) -> Any:
    from rich.text import Text

    out = Text("  ")
    colours = {"+": "green", "-": "red", "~": "yellow"}
    for word in changes_text(changes).split(" "):
        out.append(f"{word} ", style=colours.get(word[:1], "dim"))
    return out


def _some(words: list[str]) -> list[str]:
    return words if len(words) <= NAMES_SHOWN else [*words[:NAMES_SHOWN], f"+{len(words) - NAMES_SHOWN} more"]


@flow.command()
@remote
def schema(
    server: Remote,
    local: Annotated[
        bool, typer.Option("--local", help="Do not ask a server; leave out the tasks of its workers.")
    ] = False,
) -> None:
    """Print the JSON Schema of flows, for your editor.

    perdure flow schema > flow.schema.json

    With a server it includes the tasks that workers have registered.
    """
    import json

    found = _local_schema() if local else _schema(server)
    if server.out.mode == "yaml":
        server.out.data(found)
    else:
        print(json.dumps(found, ensure_ascii=False, indent=2))


def _schema(server: Remote) -> Any:
    from perdure.programs.http_client import Unreachable

    try:
        return server.api.get("/schema/flow.json")
    except Unreachable:
        print(
            "warning: no server answers, so the schema has no tasks of workers; --local hides this warning",
            file=sys.stderr,
        )
        return _local_schema()


def _local_schema() -> Any:
    from perdure.flows.schema import document_schema

    return document_schema({})
