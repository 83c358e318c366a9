"""Failures by cause: texts that differ in numbers, ids and quoted parts only are one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from perdure.core.api.workflow_runs import ErrorCause

MESSAGE_CHARS_MAX: Final = 200
CAUSES_MAX: Final = 50
DAY_US: Final = 86_400_000_000
_QUOTED: Final = re.compile(r"""'[^'\n]*'|"[^"\n]*"|`[^`\n]*`""")
_ID: Final = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b|\b0x[0-9a-fA-F]+\b"
)
_NUMBER: Final = re.compile(r"\d+(?:[.,:]\d+)*")


class FailedRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: bytes
    finished_us: int
    type: str
    message: str
    task: str | None


def normalised(message: str) -> str:
    """The first line without what differs from one failure to the next."""
    line = message.strip().split("\n", 1)[0]
    line = _NUMBER.sub("#", _ID.sub("#", _QUOTED.sub("'…'", line)))
    return line[:MESSAGE_CHARS_MAX]


def causes_of(failed: Iterable[FailedRun], days: int, now_us: int) -> list[ErrorCause]:
    """Most frequent first. The last of `days` is the day of now, in UTC."""
    groups: dict[tuple[str, str, str | None], list[FailedRun]] = {}
    for run in failed:
        groups.setdefault((run.type, normalised(run.message), run.task), []).append(run)
    found = [_cause(key, runs, days, now_us) for key, runs in groups.items()]
    return sorted(found, key=lambda c: (-c.count, -c.last_us))[:CAUSES_MAX]


def _cause(key: tuple[str, str, str | None], runs: list[FailedRun], days: int, now_us: int) -> ErrorCause:
    last = max(runs, key=lambda r: r.finished_us)
    each = [0] * days
    for run in runs:
        ago = now_us // DAY_US - run.finished_us // DAY_US
        if 0 <= ago < days:
            each[days - 1 - ago] += 1
    return ErrorCause(
        type=key[0],
        message=key[1],
        task=key[2],
        count=len(runs),
        last_us=last.finished_us,
        days=each,
        sample_run=last.run_id,
    )
