"""`perdure check`: would a deploy break runs in flight?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from perdure.cli import completion_values
from perdure.cli.remote_options import Remote, remote
from perdure.cli.user_code import importing

if TYPE_CHECKING:
    from perdure.programs.check.findings import CheckFinding, CheckReport

PATHS_SHOWN = 10
"""Paths of a workflow that a terminal shows; JSON has all."""


def register(app: typer.Typer) -> None:
    app.command()(check)


@dataclass(frozen=True)
class CheckScopeOptions:
    """Which runs, and how many of them are replayed."""

    workflow: Annotated[
        list[str] | None,
        typer.Option(
            "--workflow",
            "-w",
            metavar="NAME",
            help="Only runs of this workflow; repeatable.",
            autocompletion=completion_values.workflows,
        ),
    ] = None
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Only runs created since: 24h, or a time.")
    ] = None
    finished: Annotated[
        int, typer.Option("--finished", metavar="N", min=0, help="Also replay among the N newest ended runs.")
    ] = 0
    pinned: Annotated[
        bool, typer.Option("--pinned", help="Also replay pinned runs, as if they were moved to this code.")
    ] = False
    samples: Annotated[int, typer.Option("--samples", min=1, max=50, help="Runs to replay of each path.")] = 8


@remote
def check(
    server: Remote,
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET",
            help="What is about to be deployed: shop.flows, flows.py, order.yaml, or a directory.",
            show_default=False,
        ),
    ],
    scope: CheckScopeOptions,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as breaks.")] = False,
    format: Annotated[
        Literal["text", "github"], typer.Option("--format", help="github: annotations of GitHub Actions.")
    ] = "text",
) -> None:
    """Check that a deploy breaks no run in flight.

    Replays the histories of active runs against code or flows, by distinct path and without side effects. Exit code 6 when runs would
    break, 7 when not all could be checked.
    """
    from perdure.programs.check.collect import CheckScope
    from perdure.programs.check.gate import check as run
    from perdure.programs.http_client import EXIT_BREAKS, EXIT_UNCHECKED
    from perdure.programs.terminal import ProgressLine

    loaded = _loaded(targets)
    wanted = CheckScope(
        workflows=tuple(scope.workflow or ()),
        since=scope.since,
        samples=scope.samples,
        finished=scope.finished,
        pinned=scope.pinned,
    )
    progress = ProgressLine()
    try:
        report = run(server.api, loaded, wanted, progress)
    finally:
        progress.end()
    if format == "github":
        _print_github(report)
    elif server.out.mode in ("json", "yaml"):
        server.out.data(_as_data(report))
    else:
        _print_text(server, report)
    if report.breaks or (strict and report.findings):
        raise typer.Exit(EXIT_BREAKS)
    if report.unchecked:
        raise typer.Exit(EXIT_UNCHECKED)


def _loaded(targets: list[str]) -> Any:
    """What the targets define. Their own output goes to stderr."""
    from perdure.programs.check.targets import load
    from perdure.programs.http_client import EXIT_UNCHECKED

    with importing(EXIT_UNCHECKED):
        return load(targets)


def _as_data(report: CheckReport) -> dict[str, Any]:
    import msgspec

    found = msgspec.to_builtins(report)
    assert isinstance(found, dict)
    for finding in found["findings"]:
        at_us = finding.pop("event_at_us", 0)
        if at_us:
            finding["event_at"] = _moment(at_us)
        finding.setdefault("severity", "break")
    return {"result": report.result, **found}


def _moment(at_us: int) -> str:
    from perdure.core.durations import datetime_of

    return datetime_of(at_us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _print_github(report: CheckReport) -> None:
    """https://docs.github.com/actions/reference/workflow-commands-for-github-actions"""
    for finding in report.findings:
        word = "error" if finding.severity == "break" else "warning"
        where = ""
        if finding.place is not None:
            where = f"file={_property(_relative(finding.place.file))},line={finding.place.line},"
        title = f"{finding.workflow}: {_count(finding.runs, 'run')} in flight" if finding.runs else finding.workflow
        print(f"::{word} {where}title={_property(title)}::{_escaped(chr(10).join(_lines(finding)))}")
    for text in report.unchecked:
        print(f"::warning title=perdure check::{_escaped(text)}")
    print(_summary(report))


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


def _relative(file: str) -> str:
    import os

    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _lines(f: CheckFinding) -> list[str]:
    """A finding in words, the headline first."""
    said = [f.message]
    if f.expected:
        said.append(f"expected (history): {f.expected}")
    if f.got:
        said.append(f"got      (code):    {f.got}")
    if f.event:
        said.append(f"event {f.event} {f.event_type} at {_moment(f.event_at_us)} of run {f.run}")
    elif f.run:
        said.append(f"for example run {f.run}")
    if f.path:
        said.append(f"path: {f.path}")
    return [*said, *(f"-> {advice}" for advice in f.advice)]


def _count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def _summary(report: CheckReport) -> str:
    flying = [p for p in report.paths if not p.ended]
    text = (
        f"{_count(report.runs, 'run')} in flight, {_count(len(flying), 'path')} of {', '.join(report.workflows)}, "
        f"{_count(report.replayed, 'history', 'histories')} replayed in {report.seconds:.1f} s: "
    )
    breaks = report.breaks
    affected = sum(f.runs for f in breaks)
    text += f"{_count(len(breaks), 'break')}, {_count(affected, 'run')} affected" if breaks else "no breaks"
    warnings = len(report.findings) - len(breaks)
    if warnings:
        text += f", {_count(warnings, 'warning')}"
    return text + (f", {len(report.unchecked)} not checked" if report.unchecked else "")


def _pinned(report: CheckReport) -> list[str]:
    """What the workers of earlier versions are still needed for."""
    return [
        f"{_count(runs, 'run')} of {workflow} pinned to version {version}: not replayed; keep its workers until they have ended"
        for workflow, versions in report.pinned.items()
        for version, runs in versions.items()
    ]


def _print_text(server: Remote, report: CheckReport) -> None:
    if not server.out.is_for_people:
        for f in report.findings:
            place = f"{_relative(f.place.file)}:{f.place.line}" if f.place is not None else ""
            print("\t".join((f.severity, f.kind, f.workflow, str(f.runs), place, f.message, f.expected, f.got, f.run)))
        for line in _pinned(report):
            print(line, file=sys.stderr)
        print(_summary(report), file=sys.stderr)
        return
    from rich.text import Text

    out = server.out.console
    for p in report.paths[:PATHS_SHOWN]:
        mark = ("✗", "bold red") if p.breaks else ("✓", "green")
        what = " (ended)" if p.ended else ""
        out.print(
            Text.assemble(mark, f" {p.runs:>8,} ", (p.workflow, "bold"), f"{what}  ", (p.path, "dim")),
            overflow="ellipsis",
            no_wrap=True,
        )
    if len(report.paths) > PATHS_SHOWN:
        server.out.say(f"  and {len(report.paths) - PATHS_SHOWN:,} more paths; --json lists all")
    for line in _pinned(report):
        server.out.say(line)
    for f in report.findings:
        head, *rest = _lines(f)
        place = f"{_relative(f.place.file)}:{f.place.line}: " if f.place is not None else ""
        colour = "bold red" if f.severity == "break" else "bold yellow"
        runs = f" ({_count(f.runs, 'run')})" if f.runs else ""
        out.print(
            Text.assemble("\n", (place, "bold"), (f"{f.severity}: ", colour), (head + runs, "bold")), soft_wrap=True
        )
        for line in rest:
            out.print(Text(f"  {line}", style="cyan" if line.startswith("->") else ""), soft_wrap=True)
    for text in report.unchecked:
        out.print(Text.assemble(("not checked: ", "bold yellow"), text), soft_wrap=True)
    out.print(Text(f"\n{_summary(report)}", style="bold"), soft_wrap=True)
