"""Runs as notebooks show them. Everything that comes from a run is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from typing import Any, Final, Protocol

TEXT_CHARS_MAX: Final = 1_000
"""Characters of one cell; the rest is cut."""
COLORS: Final = {"success": "#2e7d32", "failed": "#c62828", "cancelled": "#757575", "running": "#1565c0"}
"""Of statuses; the others have the colour of the text."""


class ShownRun(Protocol):
    """What is shown of a `RunInfo`."""

    @property
    def id(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def workflow(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def finished_at(self) -> datetime | None: ...
    @property
    def error(self) -> str | None: ...
    @property
    def stuck(self) -> str | None: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def attributes(self) -> Mapping[str, Any]: ...


def handle_html(id: str, key: str) -> str:
    """Without the status of the run, which would have to be asked for: a notebook draws a value without waiting."""
    rows = [("run", id), ("key", key), ("next", "await handle.status(), await handle.result()")]
    return _table((name, _cell(value)) for name, value in rows if value)


def run_html(run: ShownRun) -> str:
    color = COLORS.get(run.status, "inherit")
    rows = [
        ("run", _cell(run.id)),
        ("key", _cell(run.key)),
        ("workflow", _cell(f"{run.workflow} {run.version}".strip())),
        ("status", f'<b style="color:{color}">{_cell(run.status)}</b>'),
        ("created", _cell(_moment(run.created_at))),
        ("finished", _cell(_moment(run.finished_at))),
        ("error", _cell(run.error)),
        ("stuck", _cell(run.stuck)),
        ("parent", _cell(run.parent)),
        *((name, _cell(value)) for name, value in sorted(run.attributes.items())),
    ]
    return _table((name, cell) for name, cell in rows if cell)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Cells are HTML, names are text."""
    lines = "".join(
        f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{cell}</td></tr>'
        for name, cell in rows
    )
    return f"<table>{lines}</table>"


def _cell(value: Any) -> str:
    return "" if value is None else escape(str(value)[:TEXT_CHARS_MAX])


def _moment(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat(sep=" ", timespec="seconds")
