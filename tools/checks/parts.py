"""The parts of the long tier, and which of them a gate runs besides its own.

A part is a recipe of the justfile or a file with heavy tests. A gate adds the parts of the folders
that a landing touches, and a slice of the others: those whose last result is the oldest, or, without
a record, those that the commit's hash draws. A slice takes two minutes and the long tier half an hour,
so about fifteen landings on one machine run every part.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tools.checks.record import ROOT, Entry

DURATIONS: Final = ROOT / "tests" / "durations.json"
"""Recorded seconds, as tests/tiers.py reads them. `just durations` writes it."""
WORKERS: Final = 4
"""Processes of pytest-xdist side by side: most tests wait for processes and timers."""
SLICE_S: Final = 120
"""Wall time that a gate gives to its slice."""
TOUCHED_S_MAX: Final = 60
"""Wall time that a gate gives to touched folders. It names the parts left out, for `just long`."""

RECIPES: Final = {
    "mypy": 77.0,
    "pyright": 95.0,
    "ui-check": 45.0,
    "wheel": 28.0,
    "protobuf6-wire": 33.0,
    "coverage": 360.0,
    "mutate-sample": 60.0,
    "kills": 180.0,
}
"""Recipes that only the long tier runs, with their seconds."""
ALONE: Final = {"kills": "tests/e2e/test_kills.py"}
"""Recipe -> the test file that it runs. Its processes need both processors, so nothing runs beside it."""

TOUCHED: Final[dict[str, tuple[str, ...]]] = {
    "ui/": ("ui-check", "tests/ui/"),
    "src/perdure/executors/process": ("tests/executors/test_process", "tests/e2e/test_process"),
    "src/perdure/executors/service": ("tests/executors/test_service",),
    "src/perdure/executors/container": ("tests/executors/container/",),
    "src/perdure/executors/kubernetes": ("tests/executors/kubernetes", "tests/executors/test_kube"),
    "src/perdure/executors/cloud_run": ("tests/executors/cloud_run/", "tests/executors/test_cloud"),
    "src/perdure/executors/objects": ("tests/executors/objects/", "tests/executors/test_objects"),
    "src/perdure/executors/ray": ("tests/executors/ray/",),
    "src/perdure/frameworks/": ("tests/frameworks/", "tests/e2e/test_django", "tests/e2e/test_fast"),
    "src/perdure/store/migrations/": ("tests/migration/", "tests/compatibility/"),
    "src/perdure/wire/": ("protobuf6-wire", "tests/wire/"),
    "src/perdure/localpg/": ("tests/localpg/",),
    "src/perdure/cli/": ("tests/cli/",),
    "proto/": ("protobuf6-wire", "tests/wire/"),
    "deploy/": ("tests/deploy/",),
    "tests/e2e/harness/": ("kills",),
    "tests/e2e/test_kills": ("kills",),
    "packages/": ("wheel",),
    "pyproject.toml": ("wheel", "protobuf6-wire"),
    "uv.lock": ("wheel", "protobuf6-wire"),
}
"""Beginning of a changed path -> parts, or beginnings of their names. A changed test file is a part, too."""


@dataclass(frozen=True)
class Durations:
    light: dict[str, float]
    heavy: dict[str, float]

    def parts(self) -> dict[str, float]:
        """Every part of the long tier -> wall seconds it adds to a gate with all its workers busy."""
        alone = set(ALONE.values())
        heavy = {file: seconds / WORKERS for file, seconds in self.heavy.items() if seconds and file not in alone}
        return RECIPES | heavy


def read_durations() -> Durations:
    table: dict[str, list[float]] = json.loads(DURATIONS.read_text(encoding="utf-8"))["files"]
    known = {file: times for file, times in table.items() if (ROOT / file).exists()}
    return Durations(
        {file: light for file, (light, _) in known.items()},
        {file: heavy for file, (_, heavy) in known.items()},
    )


def list_touched(changed: Iterable[str], parts: dict[str, float]) -> list[str]:
    """Parts of the folders that a change touches, cheapest first."""
    found: set[str] = set()
    for file in changed:
        if file in parts:
            found.add(file)
        for prefix, wanted in TOUCHED.items():
            if file.startswith(prefix):
                found.update(part for part in parts if part.startswith(wanted))
    return sorted(found, key=lambda part: parts[part])


def draw_slice(commit: str, record: Sequence[Entry], parts: dict[str, float]) -> list[str]:
    """The parts that ran longest ago; among those that never ran, the commit's hash decides."""
    last = {entry.part: entry.at for entry in record}

    def rank(part: str) -> tuple[int, bytes]:
        return last.get(part, 0), hashlib.blake2b(f"{commit}\0{part}".encode()).digest()

    # One part may be longer than a slice: it is a slice of its own.
    return fill(sorted(parts, key=rank), parts, SLICE_S, least=1)


def fill(ranked: Sequence[str], parts: dict[str, float], seconds: float, least: int = 0) -> list[str]:
    """The first parts that fit into the time together."""
    taken: list[str] = []
    left = seconds
    for part in ranked:
        if parts[part] <= left or len(taken) < least:
            taken.append(part)
            left -= parts[part]
    return taken


def split_parts(parts: Iterable[str]) -> tuple[list[str], list[str]]:
    """(recipes, test files)"""
    listed = list(parts)
    return [part for part in listed if part in RECIPES], [part for part in listed if part not in RECIPES]
