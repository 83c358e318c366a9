"""Dead letters: tasks that failed for good in runs that failed with them, and their runs retried in bulk."""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.limits import BULK_RETRY_MAX

DeadLetterPosition = tuple[int, bytes]
"""(moment of the failure, task id): the order of dead letters."""


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which ones. Empty means all. Times are those of the failure; `since_us` is inclusive, `until_us` exclusive."""

    workflow: str = ""
    queue: str = ""
    task: str = ""
    """The task's name, or a node of a flow."""
    since_us: int | None = None
    until_us: int | None = None
    text: str = ""
    """Part of the error; case does not matter."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    task_id: bytes
    run_id: bytes
    seq: int
    task: str
    queue: str
    attempts: int
    lost: int
    scheduled_us: int
    failed_us: int
    error: str | None
    node: str | None
    workflow: str
    key: str | None
    parent_id: bytes | None


class DeadLetterPage(msgspec.Struct, frozen=True):
    """`next` continues below this position; None at the end. A page may be short and still continue."""

    items: list[DeadLetter]
    next: DeadLetterPosition | None


class ListDeadLetters(msgspec.Struct, frozen=True):
    filter: DeadLetterFilter = DeadLetterFilter()
    below: DeadLetterPosition | None = None
    limit: int = 50


class RetryDeadLetters(msgspec.Struct, frozen=True):
    """The runs that are named, or those of the dead letters that the filter finds."""

    runs: list[RunRef] = []
    filter: DeadLetterFilter = DeadLetterFilter()
    below: DeadLetterPosition | None = None
    limit: int = BULK_RETRY_MAX
    is_dry_run: bool = False


class RetriedRun(msgspec.Struct, frozen=True):
    run_id: bytes
    outcome: Literal["retried", "refused", "would_retry"]
    reason: str = ""
    """Why it was refused."""


class RetriedPage(msgspec.Struct, frozen=True):
    items: list[RetriedRun]
    next: DeadLetterPosition | None


LIST: Act[ListDeadLetters, DeadLetterPage] = Act("dead_letter.list", ListDeadLetters, DeadLetterPage, Permission.READ)
RETRY: Act[RetryDeadLetters, RetriedPage] = Act(
    "dead_letter.retry", RetryDeadLetters, RetriedPage, Permission.OPERATE, ("run.retry",), True
)

ACTS = (LIST, RETRY)
