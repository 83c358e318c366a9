"""Which tests run when.

A test is heavy if it uses a heavy fixture: a PostgreSQL, server, browser or cluster of its own. It is
heavy, too, if it took longer than SLOW_S when `just durations` last wrote down the times. Light tests
make up the gate (`just check`). Heavy tests run in `just long`, and in a gate that touches their folder
or draws their file (tools/checks/parts.py). `@pytest.mark.keep` keeps a heavy test in the gate: one
that stands for its mechanism, or that found what the gate had missed.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
DURATIONS: Final = ROOT / "tests" / "durations.json"
SLOW_S: Final = 1.0
"""Four test processes share two processors when times are recorded, so this is about half a second of work."""
UNKNOWN_S: Final = 30.0
"""Assumed for a file without a recorded time: it starts early."""

PROCESS_FIXTURES: Final = (
    "processes",  # it starts servers, workers or programs that each import all of Perdure: seconds of processor time
)
"""A fixture that starts such processes for its tests, of whatever scope, requests one of these. So this list does not grow with the suite."""
HEAVY_FIXTURES: Final = (
    *PROCESS_FIXTURES,
    "thorough",  # it checks in a longer way what a faster test checks
)
LIGHT_FIXTURES: Final = (
    "interpreter",  # it starts Python for less than about a second: a script, an import check, a job
)
MARK: Final = "starts"
TOGETHER: Final = ("executors/ray", "check", "cli")
"""Folders whose tests share a server: one worker runs all of them."""


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=("gate", "all"), default="all", help="gate: without heavy tests")
    group.addoption(
        "--with-heavy", action="append", default=[], metavar="FILE", help="run the heavy tests of FILE, too"
    )


def fixtures_of(item: pytest.Item) -> set[str]:
    """By name. For one parameter of a test, `pytest.param(..., marks=pytest.mark.starts("processes"))` names one: pytest has no other way."""
    marked = {name for mark in item.iter_markers(MARK) for name in mark.args}
    return marked | set(getattr(item, "fixturenames", ()))


def is_heavy(item: pytest.Item) -> bool:
    return not fixtures_of(item).isdisjoint(HEAVY_FIXTURES) or item.nodeid in read_durations()["slow"]


@cache
def read_durations() -> dict[str, Any]:
    """`files`: file -> seconds of its light and its heavy tests. `slow`: test -> seconds."""
    table: dict[str, Any] = json.loads(DURATIONS.read_text(encoding="utf-8"))
    return table


def select_and_order(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the tier leaves out, and put the longest files first.

    The longest file decides when a parallel run ends, so none may start last.
    """
    wanted = set(config.getoption("--with-heavy"))
    is_gate = config.getoption("--tier") == "gate"
    selected, left_out = [], []
    for item in items:
        if is_heavy(item):
            item.add_marker("heavy")
            if is_gate and item.get_closest_marker("keep") is None and file_of(item.nodeid) not in wanted:
                left_out.append(item)
                continue
        selected.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    seconds = read_seconds({file_of(item.nodeid) for item in selected}, wanted if is_gate else None)
    selected.sort(key=lambda item: -seconds[scope_of(item.nodeid)])
    items[:] = selected


def read_seconds(files: set[str], wanted: set[str] | None) -> dict[str, float]:
    """Scope -> seconds of its files. Heavy tests count where they run: in all files if `wanted` is None."""
    table = read_durations()["files"]
    seconds: dict[str, float] = {}
    for file in files:
        light, heavy = table.get(file, (UNKNOWN_S, 0.0))
        took = light + (heavy if wanted is None or file in wanted else 0.0)
        seconds[scope_of(file)] = seconds.get(scope_of(file), 0.0) + took
    return seconds


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def scope_of(nodeid: str) -> str:
    """What one worker of pytest-xdist runs as a whole: a file, or a folder of TOGETHER."""
    file = file_of(nodeid)
    return next((folder for folder in TOGETHER if file.startswith(f"tests/{folder}/")), file)
