"""What is sealed. The number of a kind is part of what is sealed, so it never changes and is never used again."""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID


class Kind(NamedTuple):
    number: int
    name: str
    tables: tuple[str, ...]
    """Where it may stand. A value that was put into another table does not open."""
    bound_to: tuple[str, ...] = ()
    """Columns of its row: moved to a row with other values, it does not open."""
    in_text: bool = False
    """It stands in a column of text, as a word."""


_ATTEMPT: Final = ("task", "task_attempt", "task_queue", "attempt")

_ALL: Final = (
    Kind(1, "history", ("history",), ("run_id",)),
    # A message follows its run to the successor, so it is bound to no run.
    Kind(2, "message", ("inbox", "set_aside_message")),
    Kind(3, "state", ("run_state",), ("run_id", "name")),
    Kind(4, "task_input", ("task_queue",), ("run_id",)),
    Kind(5, "task_options", ("task_queue",), ("run_id",)),
    Kind(6, "details", ("task_queue",), ("id",)),
    Kind(7, "log", ("task_log",), ("run_id",)),
    Kind(8, "update_value", ("update_answer",), ("run_id", "id")),
    Kind(9, "update_failure", ("update_answer",), ("run_id", "id")),
    Kind(10, "event", ("named_event",), ("ns",)),
    Kind(11, "schedule_input", ("schedule",), ("ns",)),
    Kind(12, "deferred_request", ("deferred_start",), ("run_id",)),
    Kind(13, "deferred_input", ("deferred_start", "deferred_start_input"), ("run_id",)),
    Kind(14, "vote_value", ("vote",), ("run_id", "name")),
    Kind(15, "vote_comment", ("vote", "decided_approval"), ("run_id",), in_text=True),
    Kind(16, "bulk_payload", ("bulk_job",), ("ns",)),
    Kind(17, "callback_result", ("service_callback",), ("ns", "job")),
    Kind(18, "callback_error", ("service_callback",), ("ns", "job"), in_text=True),
    Kind(19, "kept_answer", ("idempotency",), ("ns", "key")),
    Kind(20, "chunk", ("payload_chunk",), ("ns", "sha256", "n")),
    Kind(21, "spec", ("promise", "decided_approval", "notification"), ("run_id",), in_text=True),
    Kind(
        22,
        "error",
        ("run", "run_queue", "active_run_list", "ended_run_list", "notification", *_ATTEMPT),
        ("run_id",),
        in_text=True,
    ),
    Kind(25, "stuck", ("run_queue", "active_run_list", "notification"), ("run_id",), in_text=True),
    Kind(23, "event_start_error", ("event_start",), ("event_id",), in_text=True),
    Kind(24, "schedule_error", ("schedule",), (), in_text=True),
)
KINDS: Final = {kind.name: kind for kind in _ALL}
BY_NUMBER: Final = {kind.number: kind for kind in _ALL}

HISTORY: Final = KINDS["history"]


def binding(values: list[Any]) -> bytes:
    """What a value is bound to, as bytes: no two lists of values give the same."""
    out = bytearray()
    for value in values:
        if isinstance(value, bytes):
            part = value
        elif isinstance(value, UUID):
            part = value.bytes
        else:
            part = str(value).encode()
        out += len(part).to_bytes(4) + part
    return bytes(out)
