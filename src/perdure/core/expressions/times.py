"""Timestamps and durations within expressions: CEL's, in whole nanoseconds.

Laws:
- They exist only while an expression is evaluated. Where a value leaves it they are text: RFC 3339 in UTC, and seconds (`5400s`), which is a
  duration wherever one is written.
- No clock: a timestamp comes from a text or a number.
- Parsing and arithmetic are exact, or a Fault: outside of the years 1 to 9999, and of durations up to 2^63 nanoseconds (292 years).
- Parts of a date are those of UTC, of a fixed offset, or of a zone by the tz database of the machine.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo

from perdure.core.durations import is_iso, to_us
from perdure.core.errors import InvalidInput
from perdure.core.expressions.values import TIMES, Fault, Instant, TimeSpan
from perdure.core.schedules.zones import zone_names

NS: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_NS: Final = -62_135_596_800 * NS
_LAST_NS: Final = 253_402_300_800 * NS - 1
_SPAN_NS_MAX: Final = (1 << 63) - 1
_TEXT_CHARS_MAX: Final = 100
"""Characters of a timestamp or a duration as text."""
_ZONE_CHARS_MAX: Final = 100
_RFC_3339: Final = re.compile(
    r"(\d{4,5})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_OFFSET: Final = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)
_PART: Final = re.compile(r"(\d{1,18}(?:\.\d{0,18})?|\.\d{1,18})(ns|us|µs|ms|s|m|h|d|w)", re.ASCII)
_PART_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": NS,
    "m": 60 * NS,
    "h": 3_600 * NS,
    "d": 86_400 * NS,
    "w": 604_800 * NS,
}


def instant(ns: int) -> Instant:
    if not _FIRST_NS <= ns <= _LAST_NS:
        raise Fault("the timestamp is out of range: it lies in the years 1 to 9999")
    return Instant(ns)


def span(ns: int) -> TimeSpan:
    if not -_SPAN_NS_MAX <= ns <= _SPAN_NS_MAX:
        raise Fault("the duration is out of range: it is at most 2^63 nanoseconds, 292 years")
    return TimeSpan(ns)


# -- reading -----------------------------------------------------------------------------------------------------------


def read_instant(value: Any) -> Instant:
    """From RFC 3339, or from a number of seconds since 1970."""
    if type(value) is Instant:
        return value
    if isinstance(value, str):
        return _read_rfc_3339(value)
    return instant(_seconds(value))


def _seconds(value: float) -> int:
    try:
        return value * NS if type(value) is int else round(value * NS)
    except (OverflowError, ValueError):
        raise Fault("the number of seconds is out of range") from None


def _read_rfc_3339(text: str) -> Instant:
    found = _RFC_3339.fullmatch(text) if len(text) <= _TEXT_CHARS_MAX else None
    if found is None:
        raise Fault(f"{text[:_TEXT_CHARS_MAX]!r} is no timestamp; write it as 2026-12-24T18:00:00Z")
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    if not 1 <= year <= 9999:
        raise Fault("the timestamp is out of range: it lies in the years 1 to 9999")
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        offset = timedelta(0) if found[8] in "Zz" else _fixed_offset(found[8])
    except ValueError as exc:
        raise Fault(f"{text!r} is no timestamp: {exc}") from None
    since = (whole - _EPOCH) // timedelta(seconds=1) - offset // timedelta(seconds=1)
    return instant(since * NS + int((found[7] or "0").ljust(9, "0")))


def read_span(value: Any) -> TimeSpan:
    """From CEL's text (`1h30m`, `-1.5s`), with days and weeks too, from ISO 8601, or from a number of seconds."""
    if type(value) is TimeSpan:
        return value
    if not isinstance(value, str):
        return span(_seconds(value))
    if is_iso(value) and len(value) <= _TEXT_CHARS_MAX:
        try:
            return span(to_us(value) * 1_000)
        except InvalidInput as exc:
            raise Fault(str(exc)) from None
    return _read_units(value)


def _read_units(text: str) -> TimeSpan:
    sign, body = (text[0], text[1:]) if text[:1] in ("-", "+") else ("+", text)
    parts = list(_PART.finditer(body)) if len(text) <= _TEXT_CHARS_MAX else []
    if body != "0" and (not parts or sum(len(p[0]) for p in parts) != len(body)):
        raise Fault(
            f'{text[:_TEXT_CHARS_MAX]!r} is no duration; write numbers with units, such as "90s" or "1h30m", or "PT1H30M"'
        )
    total = sum(_units(p[1], _PART_NS[p[2]]) for p in parts)
    return span(-total if sign == "-" else total)


def _units(text: str, unit: int) -> int:
    """Exact: what lies below a nanosecond is cut off."""
    whole, _, fraction = text.partition(".")
    below = int(fraction) * unit // 10 ** len(fraction) if fraction else 0
    return int(whole or 0) * unit + below


# -- writing -----------------------------------------------------------------------------------------------------------


def time_text(value: Any) -> str:
    """As it leaves an expression."""
    ns: int = value.ns
    if type(value) is TimeSpan:
        whole, below = divmod(abs(ns), NS)
        return f"{'-' if ns < 0 else ''}{whole}{_fraction(below)}s"
    seconds, below = divmod(ns, NS)
    at = _EPOCH + timedelta(seconds=seconds)
    return f"{at.year:04}{at:-%m-%dT%H:%M:%S}{_fraction(below)}Z"


def _fraction(ns: int) -> str:
    return f".{ns:09}".rstrip("0") if ns else ""


# -- arithmetic --------------------------------------------------------------------------------------------------------


def added(left: Any, right: Any) -> Any:
    """None where these cannot be added."""
    kinds = type(left), type(right)
    if kinds in ((Instant, TimeSpan), (TimeSpan, Instant)):
        return instant(left.ns + right.ns)
    return span(left.ns + right.ns) if kinds == (TimeSpan, TimeSpan) else None


def subtracted(left: Any, right: Any) -> Any:
    """None where these cannot be subtracted."""
    kinds = type(left), type(right)
    if kinds == (Instant, TimeSpan):
        return instant(left.ns - right.ns)
    return span(left.ns - right.ns) if kinds in ((Instant, Instant), (TimeSpan, TimeSpan)) else None


# -- parts -------------------------------------------------------------------------------------------------------------


def part(name: str, value: Any, zone: str | None) -> int:
    """What CEL's accessor of this name gives."""
    if type(value) is TimeSpan:
        return _span_part(name, value, zone)
    ns: int = value.ns
    seconds, below = divmod(ns, NS)
    try:
        at = (_EPOCH + timedelta(seconds=seconds)).astimezone(_zone(zone) if zone is not None else UTC)
    except OverflowError:
        raise Fault("the timestamp is out of range there: it lies in the years 1 to 9999") from None
    match name:
        case "getFullYear":
            return at.year
        case "getMonth":
            return at.month - 1
        case "getDate":
            return at.day
        case "getDayOfMonth":
            return at.day - 1
        case "getDayOfWeek":
            return at.isoweekday() % 7
        case "getDayOfYear":
            return at.timetuple().tm_yday - 1
        case "getHours":
            return at.hour
        case "getMinutes":
            return at.minute
        case "getSeconds":
            return at.second
        case _:
            return below // 1_000_000


_SPAN_PARTS: Final = {"getHours": 3_600 * NS, "getMinutes": 60 * NS, "getSeconds": NS}


def _span_part(name: str, value: TimeSpan, zone: str | None) -> int:
    """Whole hours, minutes or seconds, towards zero; of milliseconds those beyond the seconds."""
    if zone is not None:
        raise Fault("a duration has no time zone")
    size, sign = abs(value.ns), -1 if value.ns < 0 else 1
    return sign * (size % NS // 1_000_000 if name == "getMilliseconds" else size // _SPAN_PARTS[name])


@lru_cache(1_024)
def _zone(name: str) -> tzinfo:
    try:
        if _OFFSET.fullmatch(name):
            return timezone(_fixed_offset(name))
        if name not in zone_names():
            raise ValueError(name)
        return ZoneInfo(name)
    except ValueError:
        raise Fault(
            f"{name[:_ZONE_CHARS_MAX]!r} is no time zone; write a name such as Europe/Paris, or an offset such as +02:00"
        ) from None


def _fixed_offset(text: str) -> timedelta:
    found = _OFFSET.fullmatch(text)
    assert found is not None
    hours, minutes = int(found[2]), int(found[3])
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text} is no offset from UTC")
    return timedelta(hours=hours, minutes=minutes) * (-1 if found[1] == "-" else 1)


def written(value: Any) -> Any:
    """For the encoder of JSON."""
    if type(value) in TIMES:
        return time_text(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")
