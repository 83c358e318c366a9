"""Commands about declarative flows: `validate`, `deploy`, `activate`, `graph`, `schema`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Format, Remote, remote

if TYPE_CHECKING:
    from perdure.app.flow_files import FlowFile
    from perdure.flows.drawing.chart import Chart

PREVIOUS = "previous"
NAMES_SHOWN = 8
WIDTH_PIPED = 100
"""Columns of a picture where there is no terminal to ask."""


def register(app: typer.Typer) -> None:
    for command in (validate, deploy, activate, graph, schema):
        app.command()(command)


# -- validate ------------------------------------------------------------------------------------------------------


def validate(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE|DIR", help="Flows, or directories to look for them; here unless given."),
    ] = None,
    output: Annotated[Format | None, typer.Option("--output", "-o", help="json or yaml: for programs.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    """Check flows, without a server.

    The exit code is 1 if any of them is invalid.
    """
    from perdure.cli.render import Output

    out = Output(output)
    files = [_loaded(path) for path in _files(paths or [Path(".")])]
    if out.mode in ("json", "yaml"):
        out.data([_as_item(f) for f in files])
    else:
        _tell(out, files)
    bad = [f for f in files if f.compiled is None or (strict and f.problems)]
    if bad or not files:
        raise typer.Exit(1)


def _files(paths: list[Path]) -> list[Path]:
    from perdure.app.flow_files import below

    found: list[Path] = []
    for path in paths:
        found += list(below(path)) if path.is_dir() else [path]
    return list(dict.fromkeys(found))


def _loaded(path: Path, name: str | None = None) -> FlowFile:
    from perdure.app.flow_files import load

    return load(path, name)


def _as_item(file: FlowFile) -> dict[str, Any]:
    import msgspec

    flow = file.compiled.flow if file.compiled else None
    return {
        "file": str(file.path),
        "valid": flow is not None,
        "name": flow.name if flow else None,
        "version": file.version or None,
        "kind": flow.kind if flow else None,
        "problems": [msgspec.to_builtins(p) for p in file.problems],
    }


def _tell(out: Any, files: list[FlowFile]) -> None:
    from perdure.app.terminal import console
    from perdure.cli.flow_graph import print_problems

    errors = console(sys.stderr) if not out.is_for_people else out.console
    for file in files:
        print_problems(errors, file.problems)
        if file.compiled is None:
            continue
        flow = file.compiled.flow
        if out.is_for_people:
            from rich.text import Text

            count = len(flow.body.nodes)
            said = f"  {flow.kind} of {count} {'node' if count == 1 else 'nodes'}  {file.version}"
            out.console.print(Text.assemble(("✓ ", "green"), (str(file.path), "bold"), (said, "dim")), soft_wrap=True)
        else:
            print(f"{file.path}\t{flow.name}\t{flow.kind}\t{file.version}")
    if not files:
        out.say("no flow is here: a YAML or JSON file with `tasks:` or `graph:`")


def refuse_invalid(files: list[FlowFile]) -> None:
    """Show what is wrong with them, and stop."""
    from perdure.app.terminal import console
    from perdure.cli.flow_graph import print_problems

    bad = [f for f in files if f.compiled is None]
    if bad:
        errors = console(sys.stderr)
        for file in bad:
            print_problems(errors, file.problems)
        raise typer.Exit(1)


# -- deploy --------------------------------------------------------------------------------------------------------


@remote
def deploy(
    server: Remote,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE|DIR", help="Flows, or directories with them.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="For a file that names none; its own unless given.")
    ] = None,
    activate: Annotated[
        bool, typer.Option("--activate/--no-activate", help="Let new runs have it, or only make it known.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, and change nothing.")] = False,
) -> None:
    """Deploy flows: validate them, make them known and current.

    The same document is the same version: deploying it again changes nothing.
    """
    from perdure.core.errors import InvalidInput

    found = [_loaded(path, name) for path in _files(files)]
    if not found:
        raise InvalidInput("no flow is there: a YAML or JSON file with `tasks:` or `graph:`")
    if name is not None and len(found) > 1:
        raise InvalidInput(f"--name names one flow, and there are {len(found)} files; put `flow: NAME` into each")
    refuse_invalid(found)
    told = [_deployed(server, file, activate=activate, dry_run=dry_run) for file in found]
    if server.out.mode in ("json", "yaml"):
        server.out.data(told if len(told) > 1 else told[0])
    if not dry_run and activate:
        server.out.next(f"perdure run {told[-1]['name']}")


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
    """Through REST; what became of it."""
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
    from perdure.app.terminal import console
    from perdure.cli.flow_graph import print_problems

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
        server.out.say(f"  new runs still have {item['current']}; perdure activate {item['name']} {item['version']}")
    if item.get("url"):
        server.out.console.print(Text(f"  {item['url']}", style="blue"), soft_wrap=True)


def changes_text(changes: dict[str, list[str]] | None) -> str:
    """+added -removed ~changed, and other keys by name."""
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


# -- activate ------------------------------------------------------------------------------------------------------


@remote
def activate(
    server: Remote,
    workflow: Annotated[
        str,
        typer.Argument(
            metavar="WORKFLOW", help="Its name.", show_default=False, autocompletion=completion_values.workflows
        ),
    ],
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="One of its versions, the beginning of one, or `previous`.")
    ] = PREVIOUS,
) -> None:
    """Choose the version that new runs have: forward, or back.

    Runs that are under way keep theirs. Without a version it is the one before the current one.
    """
    from rich.text import Text

    from perdure.app.http_client import segment

    path = f"/workflows/{segment(workflow)}"
    before = server.api.get(path)
    wanted = _version(before, version)
    after = server.api.post(f"{path}/activate", {"version": wanted})

    def people() -> None:
        verb = "unchanged" if before["version"] == wanted else "activated"
        line = Text.assemble((f"{verb} ", "green"), (after["name"], "bold"), (f"  {after['version']}", ""))
        server.out.console.print(line, soft_wrap=True)
        if before["version"] != wanted:
            server.out.say(f"  it was {before['version']}")

    server.out.one(after, people=people, plain=[after["name"], after["version"], before["version"]])
    server.out.next(f"perdure run {workflow}")


def _version(workflow: dict[str, Any], wanted: str) -> str:
    from perdure.core.errors import Conflict, InvalidInput, NotFound

    known: list[str] = [v["version"] for v in workflow["versions"]]  # newest first
    if wanted == PREVIOUS:
        older = known[known.index(workflow["version"]) + 1 :] if workflow["version"] in known else []
        if not older:
            raise NotFound(f"{workflow['name']} has no version before {workflow['version']}")
        return older[0]
    if wanted in known:
        return wanted
    fits = [v for v in known if v.startswith(wanted) or v.removeprefix("flow-").startswith(wanted)]
    if len(fits) > 1:
        raise Conflict(f"{wanted} is the beginning of several versions: {', '.join(fits[:5])}; give more of it")
    if not wanted:
        raise InvalidInput("VERSION: give one of its versions, the beginning of one, or `previous`")
    return fits[0] if fits else wanted


# -- graph ---------------------------------------------------------------------------------------------------------


@remote
def graph(
    server: Remote,
    flow: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|WORKFLOW", help="A file, or a flow by its name.", autocompletion=completion_values.workflows
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", "-r", metavar="RUN", help="How far this run is, in colours.", autocompletion=completion_values.runs
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write a picture instead; - is stdout.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Another version than the current one.")] = None,
    ascii_only: Annotated[bool, typer.Option("--ascii", help="No box characters; NO_UNICODE says the same.")] = False,
) -> None:
    """Draw a flow.

    A file is drawn without a server.
    """
    found, chart, statuses = _graph(server, flow, run, version)
    if svg is not None:
        _write_svg(server, svg, chart, found["name"], statuses)
        return
    if not chart.items:
        server.out.one(
            found,
            people=lambda: server.out.say(f"{found['name']} is code: what it does is known when it has done it"),
            plain=[],
        )
        return
    if server.out.mode in ("json", "yaml"):
        server.out.data(found)
        return
    from perdure.cli.flow_graph import chart_text, wants_ascii

    width = server.out.console.width if server.out.is_for_people else WIDTH_PIPED
    text = chart_text(chart, width, statuses, ascii_only=wants_ascii(ascii_only))
    if server.out.is_for_people:
        server.out.console.print(text, soft_wrap=True)
    else:
        print(text.plain)


def _graph(
    server: Remote, flow: str | None, run: str | None, version: str | None
) -> tuple[dict[str, Any], Chart, dict[str, str]]:
    """What to draw, as data and as a chart, and how far it is."""
    from perdure.app.flow_files import is_file_name
    from perdure.app.http_client import segment
    from perdure.cli.flow_graph import chart_in
    from perdure.core.errors import InvalidInput

    if run is not None:
        found = server.api.get(server.path(run, "graph"))
        if flow is not None and not is_file_name(flow) and flow != found["name"]:
            raise InvalidInput(f"run {run} is one of {found['name']}, not of {flow}")
    elif flow is None:
        raise InvalidInput("say what to draw: a file, the name of a flow, or --run RUN")
    elif is_file_name(flow) or Path(flow).is_file():
        return _local(Path(flow))
    else:
        found = server.api.get(f"/workflows/{segment(flow)}/graph", [("version", version)])
    chart, statuses = chart_in(found)
    return found, chart, statuses


def _local(path: Path) -> tuple[dict[str, Any], Chart, dict[str, str]]:
    from perdure.flows.drawing.chart import as_graph, chart_of

    file = _loaded(path)
    refuse_invalid([file])
    assert file.compiled is not None
    chart = chart_of(file.compiled.flow.body)
    head = {"name": file.name, "version": file.version, "kind": file.compiled.flow.kind}
    return head | as_graph(chart), chart, {}


def _write_svg(server: Remote, path: Path, chart: Chart, name: str, statuses: dict[str, str]) -> None:
    from perdure.core.errors import InvalidInput
    from perdure.flows.drawing.svg import svg

    text = svg(chart, name, statuses)
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--svg: cannot write {path}: {error.strerror}") from None
    server.out.say(f"wrote {path}")


# -- schema --------------------------------------------------------------------------------------------------------


@remote
def schema(
    server: Remote,
    local: Annotated[bool, typer.Option("--local", help="Ask no server: without the tasks of its workers.")] = False,
) -> None:
    """Print the JSON Schema of flows, for your editor.

    With a server it knows the tasks that workers have registered. perdure schema > flow.schema.json
    """
    import json

    found = _local_schema() if local else _schema(server)
    if server.out.mode == "yaml":
        server.out.data(found)
    else:
        print(json.dumps(found, ensure_ascii=False, indent=2))


def _schema(server: Remote) -> Any:
    from perdure.app.http_client import Unreachable

    try:
        return server.api.get("/schema/flow.json")
    except Unreachable:
        print("no server answers, so tasks of workers are not in it; --local says that this is fine", file=sys.stderr)
        return _local_schema()


def _local_schema() -> Any:
    from perdure.flows.schema import document_schema

    return document_schema({})
