"""Paths of runs (core/run_paths.py): which ones runs have taken, how many runs each, and some runs of each to look at."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act

PATH_SAMPLES_DEFAULT: Final = 8
PATH_PAGE_RUNS_DEFAULT: Final = 500


class FindPaths(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, newest first."""

    workflows: tuple[str, ...] = ()
    """Only these; empty: all."""
    since_us: int | None = None
    """Created at this time or later."""
    ended: bool = False
    """Runs that have ended, of one workflow, instead of active ones."""
    below: bytes | None = None
    """Continue below this id."""
    limit: int = PATH_PAGE_RUNS_DEFAULT
    """Runs to look at."""
    samples: int = PATH_SAMPLES_DEFAULT
    """Runs to name of each path."""


class PathSample(msgspec.Struct, frozen=True):
    run_id: bytes
    values: int
    """Class of the values in its history; samples of a path differ in it as far as possible."""
    detail: int
    """Checksum of the values."""


class PathGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one workflow that have taken the same path."""

    workflow: str
    kind: str
    """`code` or `flow`."""
    fingerprint: bytes
    steps: str
    """The path in words."""
    runs: int
    versions: dict[str, int]
    """Runs by version."""
    pending: tuple[str, ...]
    """Tasks that are scheduled and have not ended."""
    waits: tuple[str, ...]
    """Signals and updates that the code waits for, as `signal:name`."""
    samples: tuple[PathSample, ...]
    pinned: bool = False
    """Only workers with their version of the code execute them."""


class UnreadableRun(msgspec.Struct, frozen=True):
    run_id: bytes
    workflow: str
    why: str


class PathPage(msgspec.Struct, frozen=True):
    items: list[PathGroup]
    unreadable: list[UnreadableRun]
    """Runs whose history cannot be decoded."""
    next: bytes | None
    """Continue below this id; None at the end. A page may be empty and still go on."""


PATHS: Act[FindPaths, PathPage] = Act("run.paths", FindPaths, PathPage, Permission.READ)

ACTS = (PATHS,)
