"""How long ended runs are kept, and the manifest of an export.

The most specific policy counts: of a workflow, of its namespace, of all namespaces; without any, the setting of the engines. Ages count
from the end of a run.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from perdure.core.durations import human, to_us
from perdure.core.errors import InvalidInput
from perdure.core.retention_limits import RETENTION_DAYS_MIN

ExportFormat = Literal["jsonl", "parquet"]
FORMATS: Final[tuple[ExportFormat, ...]] = ("jsonl", "parquet")
SUFFIXES: Final[dict[str, str]] = {"jsonl": "jsonl.gz", "parquet": "parquet"}
MANIFEST: Final = "manifest.json"
"""The last object of an export: without it the others do not count."""
MANIFEST_VERSION: Final = 1
FOREVER: Final = "forever"
DAY_US: Final = 86_400_000_000
REST: Final = "rest"
"""Runs whose day has no partition of its own any more."""


class ExportPart(msgspec.Struct, frozen=True, kw_only=True):
    """One object of an export."""

    object: str
    """Its name, beside the manifest."""
    first: str
    last: str
    runs: int
    events: int
    tasks: int
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an export has. An export without its manifest is not finished."""

    perdure_export: int = MANIFEST_VERSION
    job: str
    name: str
    """The day of its runs, or `rest`."""
    format: ExportFormat
    version: str
    """Of the Perdure that wrote it."""
    cutoff_us: int
    namespaces: dict[str, int]
    """Name -> number, which the hashes of histories cover."""
    runs: int
    events: int
    tasks: int
    bytes: int
    parts: list[ExportPart]


def folder_of(name: str, job: str) -> str:
    """Of an export below its address. The id of the job is in it: no other export uses the same one."""
    return f"{name}/{job}"


def part_name(n: int, epoch: int, format: str) -> str:
    """With the epoch, so that an engine that lost the job cannot overwrite what its successor wrote."""
    return f"part-{n:05}-{epoch}.{SUFFIXES[format]}"


def parse_days(text: str) -> float | None:
    """`30d`, `12h`, or `forever`, which is None."""
    if text.strip().lower() == FOREVER:
        return None
    return checked_days(to_us(text) / DAY_US)


def checked_days(days: float | None) -> float | None:
    if days is not None and not days >= RETENTION_DAYS_MIN:
        raise InvalidInput(
            f"runs would be kept for {human(round(days * DAY_US))}; the shortest time is an hour "
            f"(RETENTION_DAYS_MIN). To keep them without end, write {FOREVER}"
        )
    return days


def shown_days(days: float | None) -> str:
    return FOREVER if days is None else human(round(days * DAY_US))


def shortest_days(rules: dict[str, float | None]) -> float | None:
    """The shortest time that any policy keeps runs for; None: all are kept for ever."""
    return min((days for days in rules.values() if days is not None), default=None)


def passed_steps(rules: dict[str, float | None], ended_us: int, now_us: int) -> list[int]:
    """When runs of a day that ended then may have expired: one moment for each policy, up to now."""
    moments = {ended_us + round(days * DAY_US) for days in rules.values() if days is not None}
    return sorted(at for at in moments if at <= now_us)
