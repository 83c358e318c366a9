"""Durations as text: "30s", "1h30m", "1.5d", or ISO 8601, "PT1H30M"; or a timedelta. Inside, whole microseconds.

A duration is exact. ISO 8601 also has years and months, whose length depends on where they begin; they are refused.
"""

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
_ISO_NUMBER = r"([0-9]+(?:[.,][0-9]+)?)"
_ISO = re.compile(
    rf"P(?:{_ISO_NUMBER}Y)?(?:{_ISO_NUMBER}M)?(?:{_ISO_NUMBER}W)?(?:{_ISO_NUMBER}D)?"
    rf"(?:T(?=[0-9])(?:{_ISO_NUMBER}H)?(?:{_ISO_NUMBER}M)?(?:{_ISO_NUMBER}S)?)?"
)
_ISO_UNITS: Final = ("w", "d", "h", "m", "s")
"""Of the groups of _ISO that follow years and months."""
ISO_PATTERN: Final = r"P[0-9.,WDTHMS]+"
"""A JSON Schema's pattern of durations in ISO 8601. It is coarse: the reader says what is wrong with the rest."""
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


def is_iso(text: str) -> bool:
    """Whether a text is meant as a duration in ISO 8601. It may still be wrong."""
    return text[:1] == "P" and (text[1:2].isdecimal() or text[1:2] == "T")


def _parse(text: str) -> int:
    if is_iso(text):
        return _parse_iso(text)
    compact = text.replace(" ", "")
    parts = list(_PART.finditer(compact))
    if not parts or "".join(m.group(0) for m in parts) != compact:
        raise InvalidInput(
            f'{text!r} is not a duration: write a number and a unit, such as "500ms", "30s", "1h30m" or "2d", or ISO 8601 '
            'such as "PT1H30M"'
        )
    return sum(round(float(m.group(1)) * _UNITS_US[m.group(2)]) for m in parts)


def _parse_iso(text: str) -> int:
    found = _ISO.fullmatch(text)
    if found is None:
        raise InvalidInput(
            f"{text!r} is not a duration of ISO 8601: write P, weeks and days, then T, hours, minutes and seconds, "
            'such as "P2W", "P1DT12H" or "PT1H30M"'
        )
    years, months, *numbers = found.groups()
    if years is not None or months is not None:
        raise InvalidInput(
            f"{text!r} has {'years' if years is not None else 'months'}, which differ in length: a duration is exact. "
            'Write days or weeks, such as "P365D" or "P4W"; minutes stand after a T, as in "PT5M"'
        )
    given = [(number, unit) for number, unit in zip(numbers, _ISO_UNITS, strict=True) if number is not None]
    if any(not number.isdecimal() for number, _ in given[:-1]):
        raise InvalidInput(f"{text!r} is not a duration of ISO 8601: only its last number may have a fraction")
    return sum(round(float(number.replace(",", ".")) * _UNITS_US[unit]) for number, unit in given)


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
