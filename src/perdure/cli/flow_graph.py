"""Charts and problems of flows on a terminal: their roles as colours."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from perdure.cli.render import STYLES
from perdure.flows.drawing.chart import Chart, Item, Link
from perdure.flows.drawing.terminal import draw
from perdure.flows.problems import Problem

if TYPE_CHECKING:
    from rich.console import Console
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


def chart_text(chart: Chart, width: int, statuses: Mapping[str, str], *, ascii_only: bool) -> Text:
    from rich.text import Text

    out = Text(no_wrap=True)
    for n, line in enumerate(draw(chart, max(width, WIDTH_MIN), statuses, ascii_only=ascii_only)):
        out.append("\n" * bool(n))
        for text, role in line:
            out.append(text, style=ROLES.get(role) or STYLES.get(role, ""))
    return out


def wants_ascii(asked: bool) -> bool:
    """By option, by NO_UNICODE, or because the terminal could not show anything else."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    return asked or bool(os.environ.get("NO_UNICODE")) or encoding not in ("utf8", "utf8sig", "utf16")


# -- what a server answers -----------------------------------------------------------------------------------------


def chart_in(graph: Mapping[str, Any]) -> tuple[Chart, dict[str, str]]:
    """A graph as REST tells it."""
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
    links = tuple(Link(places[e["source"]], places[e["target"]], e["label"]) for e in graph["links"])
    return Chart(items, links, places.get(graph.get("start")))


# -- problems ------------------------------------------------------------------------------------------------------


def print_problems(console: Console, problems: Iterable[Problem]) -> None:
    """As compilers do: where, what, the line, and a caret below it."""
    for problem in problems:
        console.print(problem_text(problem), soft_wrap=True)


def problem_text(p: Problem) -> Text:
    from rich.text import Text

    out = Text()
    where = f"{p.file}:{p.line}:{p.column}" if p.line else p.file
    out.append(f"{where}: ", style="bold")
    out.append(f"{p.severity}: ", style="bold red" if p.severity == "error" else "bold yellow")
    out.append(p.message, style="bold")
    if p.text.strip():
        number = str(p.line)
        out.append(f"\n {number} │ ", style="dim")
        out.append(p.text.replace("\t", " "))
        out.append(f"\n {' ' * len(number)} │ ", style="dim")
        out.append(" " * p.caret)
        out.append("^", style="bold red" if p.severity == "error" else "bold yellow")
    if p.hint:
        out.append("\n  = ", style="dim")
        out.append(p.hint, style="cyan")
    return out
