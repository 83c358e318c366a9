"""`perdure flow graph`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from perdure.cli import completion_values
from perdure.cli.flow_problems import refuse_invalid
from perdure.cli.remote_options import Remote, remote
from perdure.cli.render import STYLES
from perdure.flows.drawing.chart import Chart, ChartLink, Item
from perdure.flows.drawing.terminal import draw

if TYPE_CHECKING:
    from rich.text import Text

ROLES: Final = {
    "line": "dim",
    "back": "magenta",
    "label": "cyan",
    "box": "dim",
    "key": "bold",
    "word": "dim",
    "badge": "blue",
    "waiting": "yellow",
}
WIDTH_MIN: Final = 40
WIDTH_PIPED: Final = 100
"""Columns of a drawing in a pipe."""


@remote
def graph(
    server: Remote,
    flow: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|WORKFLOW",
            help="File of a flow, or name of a deployed flow.",
            autocompletion=completion_values.workflows,
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="RUN",
            help="Colour the graph by the progress of this run.",
            autocompletion=completion_values.runs,
        ),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option("--svg", metavar="FILE", help="Write an SVG file instead; - is stdout.")
    ] = None,
    format: Annotated[
        Literal["text", "mermaid"], typer.Option("--format", help="mermaid: a Mermaid flowchart for Markdown.")
    ] = "text",
    version: Annotated[str | None, typer.Option(help="Version of the flow. Default: the current one.")] = None,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="Draw with ASCII characters, as with NO_UNICODE.")
    ] = False,
) -> None:
    """Draw a flow.

    A file is drawn without a server.
    """
    from perdure.core.errors import InvalidInput

    found, chart, statuses = _graph(server, flow, run, version)
    if svg is not None:
        if format != "text":
            raise InvalidInput(f"--svg writes an SVG file; leave out --format {format}")
        _write_svg(server, svg, chart, found["name"], statuses)
        return
    if not chart.items:
        server.out.one(
            found,
            people=lambda: server.out.say(f"{found['name']} is a workflow in Python and has no graph"),
            plain=[],
        )
        return
    if format == "mermaid":
        _print_mermaid(server, chart, found["name"], statuses)
        return
    if server.out.mode in ("json", "yaml"):
        server.out.data(found)
        return
    width = server.out.console.width if server.out.is_for_people else WIDTH_PIPED
    text = chart_text(chart, width, statuses, ascii_only=wants_ascii(ascii_only))
    if server.out.is_for_people:
        server.out.console.print(text, soft_wrap=True)
    else:
        print(text.plain)


def _graph(
    server: Remote, flow: str | None, run: str | None, version: str | None
) -> tuple[dict[str, Any], Chart, dict[str, str]]:
    """The graph as data and as a chart, and the status of its nodes."""
    from perdure.core.errors import InvalidInput
    from perdure.programs.http_client import segment
    from perdure.sdk.client.flow_text import is_file_name

    if run is not None:
        found = server.api.get(server.path(run, "graph"))
        if flow is not None and not is_file_name(flow) and flow != found["name"]:
            raise InvalidInput(f"run {run} is a run of {found['name']}, not of {flow}")
    elif flow is None:
        raise InvalidInput("give a file, the name of a flow, or --run RUN")
    elif is_file_name(flow) or Path(flow).is_file():
        return _from_file(Path(flow))
    else:
        found = server.api.get(f"/workflows/{segment(flow)}/graph", [("version", version)])
    chart, statuses = chart_in(found)
    return found, chart, statuses


def _from_file(path: Path) -> tuple[dict[str, Any], Chart, dict[str, str]]:
    from perdure.flows.drawing.chart import as_graph, chart_of
    from perdure.programs.flow_files import load

    file = load(path)
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


def _print_mermaid(server: Remote, chart: Chart, name: str, statuses: dict[str, str]) -> None:
    from perdure.flows.drawing.mermaid import MERMAID_CHARS_MAX, MERMAID_LINKS_MAX, is_too_large, mermaid

    text = mermaid(chart, name, statuses)
    print(text, end="")
    if is_too_large(chart, text):
        server.out.say(
            f"the flowchart has more than {MERMAID_LINKS_MAX} links or {MERMAID_CHARS_MAX:,} characters, "
            "which Mermaid draws only if maxEdges and maxTextSize of its page are raised"
        )


def chart_text(chart: Chart, width: int, statuses: Mapping[str, str], *, ascii_only: bool) -> Text:
    from rich.text import Text

    out = Text(no_wrap=True)
    for n, line in enumerate(draw(chart, max(width, WIDTH_MIN), statuses, ascii_only=ascii_only)):
        out.append("\n" * bool(n))
        for text, role in line:
            out.append(text, style=ROLES.get(role) or STYLES.get(role, ""))
    return out


def wants_ascii(asked: bool) -> bool:
    """If requested by option or NO_UNICODE, or if the encoding of stdout has no box characters."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return asked or bool(os.environ.get("NO_UNICODE")) or encoding not in ("utf8", "utf8sig", "utf16")


def chart_in(graph: Mapping[str, Any]) -> tuple[Chart, dict[str, str]]:
    """The chart and the statuses of nodes in a graph of the REST API."""
    statuses: dict[str, str] = {}
    return _chart_in(graph, statuses), statuses


def _chart_in(graph: Mapping[str, Any], statuses: dict[str, str]) -> Chart:
    places = {node["key"]: n for n, node in enumerate(graph["nodes"])}
    for node in graph["nodes"]:
        if node.get("status"):
            statuses[node["path"]] = node["status"]
    items = tuple(
        Item(
            key=n["key"],
            path=n["path"],
            word=n["word"],
            detail=n["detail"],
            badges=tuple(n["badges"]),
            inner=_chart_in(n["inner"], statuses) if n.get("inner") else None,
        )
        for n in graph["nodes"]
    )
    links = tuple(ChartLink(places[e["source"]], places[e["target"]], e["label"]) for e in graph["links"])
    return Chart(items, links, places.get(graph.get("start")))
