"""What the columns of a run or a task must be, given its history."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core import events as ev
from perdure.core.errors import clip
from perdure.core.lifecycle import TaskStatus, next_task_status

SHOWN_CHARS: Final = 80
"""Characters of a column's value that a violation shows."""


def end_of(event: ev.Event | None) -> tuple[str | None, str | None, bytes | None]:
    """Error code, error and successor that the row of a run has which ended like this."""
    match event:
        case ev.RunFailed():
            return event.failure.code, event.failure.message, None
        case ev.RunCancelled():
            return "run_cancelled", clip(event.reason) or "the run was cancelled", None
        case ev.RunTerminated():
            failure = ev.terminated(event)
            return failure.code, failure.message, None
        case ev.RunContinued():
            return None, None, event.run_id
        case _:
            return None, None, None


def attributes_of(text: str | None) -> object:
    """By value: the database keeps them in a form of its own."""
    return msgspec.json.decode(text) if text else None


def short(value: object) -> str:
    text = value.hex() if isinstance(value, bytes) else repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def walk(status: TaskStatus, attempts: int) -> None:
    """The shortest path of the table to a final state: with an attempt through `dispatched`, without one straight from `pending`."""
    acts = {
        TaskStatus.SUCCESS: "succeed",
        TaskStatus.FAILED: "fail",
        TaskStatus.CANCELLED: "cancel",
        TaskStatus.SKIPPED: "skip",
    }
    at = next_task_status(TaskStatus.PENDING, "dispatch") if attempts else TaskStatus.PENDING
    next_task_status(at, acts[status])
