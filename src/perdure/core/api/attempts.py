"""Attempts of a run's tasks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.errors import Failure


class AttemptPosition(msgspec.Struct, frozen=True, array_like=True):
    """After this attempt. Attempts of a run are ordered by task, then by epoch and number."""

    seq: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
    epoch: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class ListAttempts(msgspec.Struct, frozen=True):
    run: RunRef
    task: str = ""
    """A task's number or name. Empty: every task of the run."""
    unsuccessful: bool = False
    """Only those that ended and did not succeed."""
    after: AttemptPosition | None = None
    limit: int = 50


class LogRange(msgspec.Struct, frozen=True):
    """What an attempt printed and logged: chunks `first` to `last` of it, with so many lines."""

    first: int
    last: int
    lines: int


class AttemptItem(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a task. (epoch, attempt) is its number within the task: a retry of the run counts from 1 again."""

    task_id: bytes
    seq: int
    name: str
    node: str | None
    epoch: int
    attempt: int
    outcome: str | None
    """success, error, timeout, lost or cancelled; None while it runs."""
    is_last: bool
    """The task ended with it."""
    worker: str | None
    started_us: int | None
    """None: the engine that had it is gone, and it is not known whether it began."""
    finished_us: int | None
    cpu_us: int | None
    """CPU time of the task's code; None where it is not known."""
    failure: Failure | None
    logs: LogRange | None


class AttemptPage(msgspec.Struct, frozen=True):
    items: list[AttemptItem]
    next: AttemptPosition | None


LIST: Act[ListAttempts, AttemptPage] = Act("run.attempts", ListAttempts, AttemptPage, Permission.READ)

ACTS = (LIST,)
