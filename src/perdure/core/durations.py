"""Durations as text: "30s", "1h30m", "1.5d", timedelta. Inside, whole microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from perdure.core.errors import InvalidInput

Duration = str | timedelta

_UNITS_US: Final = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
SHOWN_UNITS: Final = tuple((unit, _UNITS_US[unit]) for unit in ("d", "h", "m", "s", "ms", "us"))
"""Units that durations are written in, the largest first, in microseconds."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FOREVER_US: Final = (1 << 63) - 1
"""A moment that never comes."""
DURATION_US_MAX: Final = 100 * 366 * _UNITS_US["d"]


def to_us(value: Duration | float) -> int:
    """Microseconds of a duration. Numbers are seconds."""
    try:
        if isinstance(value, timedelta):
            us = round(value.total_seconds() * 1_000_000)
        else:
            us = _parse(value) if isinstance(value, str) else round(value * 1_000_000)
    except (OverflowError, ValueError):  # infinite, or not a number
        us = -1
    if not 0 <= us <= DURATION_US_MAX:
        raise InvalidInput(f"{value!r} is not a duration Perdure takes: it must lie between 0 and 100 years")
    return us


def _parse(text: str) -> int:
    compact = text.replace(" ", "")
    parts = list(_PART.finditer(compact))
    if not parts or "".join(m.group(0) for m in parts) != compact:
        raise InvalidInput(
            f'{text!r} is not a duration: write a number and a unit, such as "500ms", "30s", "1h30m" or "2d"'
        )
    return sum(round(float(m.group(1)) * _UNITS_US[m.group(2)]) for m in parts)


def us_of(moment: datetime) -> int:
    """Unix microseconds. A datetime without a zone is refused: it does not name a moment."""
    if moment.tzinfo is None:
        raise InvalidInput(f"{moment.isoformat()} has no time zone; use datetime(..., tzinfo=timezone.utc)")
    return (moment - _EPOCH) // timedelta(microseconds=1)


def datetime_of(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def human(us: int) -> str:
    """A readable duration: 1d2h, 3m20s, 450ms."""
    if us < 1_000_000:
        return f"{us / 1000:g}ms"
    out: list[str] = []
    rest = us // 1_000_000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if rest >= size:
            out.append(f"{rest // size}{unit}")
            rest %= size
    return "".join(out[:2])
