"""The latest runs of a workflow together: a grid of runs and nodes, errors by cause, and inputs."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act

GRID_RUNS_DEFAULT: Final = 25
GRID_RUNS_MAX: Final = 100
ERROR_DAYS_DEFAULT: Final = 15
ERROR_DAYS_MAX: Final = 90


class GetGrid(msgspec.Struct, frozen=True):
    workflow: str
    runs: int = GRID_RUNS_DEFAULT


class GridCell(msgspec.Struct, frozen=True):
    """A node in a run."""

    status: int
    """TaskStatus of all its tasks together."""
    tasks: int
    done: int
    failed: int
    attempts: int
    """The most of one task."""


class GridRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: bytes
    key: str | None
    status: int
    created_us: int
    finished_us: int | None
    cells: dict[str, GridCell]


class Grid(msgspec.Struct, frozen=True):
    nodes: list[str]
    """In the order of the flow, or in which code asked for them."""
    runs: list[GridRun]
    """Newest last."""


class GetErrors(msgspec.Struct, frozen=True):
    workflow: str
    days: int = ERROR_DAYS_DEFAULT


class ErrorCause(msgspec.Struct, frozen=True, kw_only=True):
    """Failures that differ in numbers and quoted parts only."""

    type: str
    message: str
    task: str | None
    """The node, or the task of code, that failed; None: the workflow's own code."""
    count: int
    last_us: int
    days: list[int]
    """How many on each day, oldest first."""
    sample_run: bytes
    """The latest."""


class WorkflowErrors(msgspec.Struct, frozen=True):
    items: list[ErrorCause]
    """Most frequent first."""
    scanned: int
    """Runs that were looked at."""
    capped: bool
    """There were more."""


class GetInputs(msgspec.Struct, frozen=True):
    workflow: str


class RecentInput(msgspec.Struct, frozen=True):
    input: bytes
    run_id: bytes
    created_us: int


class RecentInputs(msgspec.Struct, frozen=True):
    items: list[RecentInput]
    """Different ones, the latest first."""


GRID: Act[GetGrid, Grid] = Act("workflow.grid", GetGrid, Grid, Permission.READ)
ERRORS: Act[GetErrors, WorkflowErrors] = Act("workflow.errors", GetErrors, WorkflowErrors, Permission.READ)
INPUTS: Act[GetInputs, RecentInputs] = Act("workflow.inputs", GetInputs, RecentInputs, Permission.READ)

ACTS = (GRID, ERRORS, INPUTS)
