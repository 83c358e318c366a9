"""How far a running task is: travels with the details of its heartbeats.

Details of a user are JSON. Those with progress begin with a byte that no JSON text begins with, so that neither is taken for the other:

    C1 'p' {"progress": {"done": 3, "total": 10, "text": "..."}, "details": ...}
"""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import PROGRESS_TEXT_CHARS_MAX

MARK: Final = b"\xc1p"


class TaskProgress(msgspec.Struct, frozen=True):
    done: int | float
    total: int | float | None = None
    """None: how much there is to do is not known."""
    text: str = ""


class _Said(msgspec.Struct, frozen=True):
    progress: TaskProgress
    details: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_DECODER: Final = msgspec.json.Decoder(_Said)
_FINITE: Final = 1e300


def checked_progress(done: float, total: float | None, text: str) -> TaskProgress:
    """InvalidInput for numbers that are negative or not finite. A longer text is cut, and has one line."""
    for name, value in (("done", done), ("total", 0 if total is None else total)):
        if not (isinstance(value, int | float) and 0 <= value < _FINITE):
            raise InvalidInput(f"progress({name}={value!r}): give a number from 0 on")
    kept = str(text)[:PROGRESS_TEXT_CHARS_MAX]
    return TaskProgress(done, total, "".join(c if c.isprintable() else " " for c in kept))


def with_progress(progress: TaskProgress, details: bytes) -> bytes:
    """Details of a heartbeat with what the task said last of both; `details` is JSON or empty."""
    return MARK + msgspec.json.encode(_Said(progress, msgspec.Raw(details) if details else msgspec.UNSET))


def split_progress(data: bytes) -> tuple[TaskProgress | None, bytes]:
    """The progress, if there is some, and the details of the user. What cannot be read, from a worker of any kind, is details."""
    if not data.startswith(MARK):
        return None, data
    try:
        said = _DECODER.decode(data[len(MARK) :])
        progress = checked_progress(said.progress.done, said.progress.total, said.progress.text)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidInput):
        return None, data
    return progress, b"" if said.details is msgspec.UNSET else bytes(said.details)
