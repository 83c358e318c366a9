"""Calendars: named sets of days, such as bank holidays or working days. A day is a date on the wall; which moments it covers is up to the zone
of the schedule that uses the calendar.

Law: a day is in a calendar if any of `dates`, `yearly`, `weekdays` and `ranges` names it and `not` does not. A calendar that has only `not`
holds every other day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, Final, cast

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import CALENDAR_DAYS_MAX, CALENDAR_DEPTH_MAX
from perdure.core.suggestions import did_you_mean

WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LONG: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_KEYS: Final = ("dates", "yearly", "weekdays", "ranges", "not")
_LEAP: Final = 2000
"""A year that has every day of the year."""


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """A set of days. Ranges include both ends."""

    dates: frozenset[date] = frozenset()
    yearly: frozenset[tuple[int, int]] = frozenset()
    """Month and day."""
    weekdays: frozenset[int] = frozenset()
    """0 is Monday."""
    ranges: tuple[tuple[date, date], ...] = ()
    without: Calendar | None = None

    def holds(self, day: date) -> bool:
        if self.without is not None and self.without.holds(day):
            return False
        if not (self.dates or self.yearly or self.weekdays or self.ranges):
            return self.without is not None
        return (
            day in self.dates
            or day.weekday() in self.weekdays
            or (day.month, day.day) in self.yearly
            or any(first <= day <= last for first, last in self.ranges)
        )


def parse_calendar(value: Mapping[str, Any]) -> Calendar:
    """Parse a calendar. Raises InvalidInput with the key that is wrong."""
    calendar = _parse(value, "", 1)
    entries = _entries(calendar)
    if entries > CALENDAR_DAYS_MAX:
        raise InvalidInput(
            f"a calendar has at most {CALENDAR_DAYS_MAX:,} dates, yearly days and ranges, not {entries:,}; ranges and weekdays say the same shorter"
        )
    return calendar


def calendar_json(calendar: Calendar) -> dict[str, Any]:
    """What `parse_calendar` reads back to the same calendar."""
    out: dict[str, Any] = {}
    if calendar.dates:
        out["dates"] = [d.isoformat() for d in sorted(calendar.dates)]
    if calendar.yearly:
        out["yearly"] = [f"{month:02}-{day:02}" for month, day in sorted(calendar.yearly)]
    if calendar.weekdays:
        out["weekdays"] = [WEEKDAYS[d] for d in sorted(calendar.weekdays)]
    if calendar.ranges:
        out["ranges"] = [[first.isoformat(), last.isoformat()] for first, last in calendar.ranges]
    if calendar.without is not None:
        out["not"] = calendar_json(calendar.without)
    return out


def _parse(value: Any, at: str, depth: int) -> Calendar:
    if depth > CALENDAR_DEPTH_MAX:
        raise InvalidInput(
            f"{at.rstrip('.')}: `not` goes {CALENDAR_DEPTH_MAX} levels deep at most; name the days instead"
        )
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{at.rstrip('.') or 'a calendar'} must be a mapping of {', '.join(_KEYS)}, not {value!r}")
    given = {k: v for k, v in value.items() if v is not None}
    for key in given:
        if key not in _KEYS:
            raise InvalidInput(
                f"{at}{key}: a calendar has no such key; {did_you_mean(str(key), _KEYS) or 'it has ' + ', '.join(_KEYS)}"
            )
    calendar = Calendar(
        dates=frozenset(_date(f"{at}dates", d) for d in _list(f"{at}dates", given.get("dates"))),
        yearly=frozenset(_yearly(f"{at}yearly", d) for d in _list(f"{at}yearly", given.get("yearly"))),
        weekdays=frozenset(_weekday(f"{at}weekdays", d) for d in _list(f"{at}weekdays", given.get("weekdays"))),
        ranges=tuple(sorted({_range(f"{at}ranges", r) for r in _list(f"{at}ranges", given.get("ranges"))})),
        without=_parse(given["not"], f"{at}not.", depth + 1) if "not" in given else None,
    )
    if calendar == Calendar():
        raise InvalidInput(
            f"{at.rstrip('.') or 'a calendar'}: it names no days; give it at least one of {', '.join(_KEYS)}"
        )
    return calendar


def _entries(calendar: Calendar) -> int:
    own = len(calendar.dates) + len(calendar.yearly) + len(calendar.ranges)
    return own + (_entries(calendar.without) if calendar.without is not None else 0)


def _list(key: str, value: Any) -> Iterable[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{key} must be a list, not {value!r}")
    return cast(Iterable[Any], value)


def _date(key: str, value: Any) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        return date.fromisoformat(cast(str, value))
    except (TypeError, ValueError):
        raise InvalidInput(f'{key}: {value!r} is no day; write it as "2026-12-25"') from None


def _yearly(key: str, value: Any) -> tuple[int, int]:
    try:
        day = datetime.strptime(f"{_LEAP}-{value}", "%Y-%m-%d").date()
    except ValueError:
        raise InvalidInput(f'{key}: {value!r} is no day of the year; write month and day as "12-25"') from None
    return day.month, day.day


def _weekday(key: str, value: Any) -> int:
    name = str(value).lower()
    for names in (WEEKDAYS, _LONG):
        if name in names:
            return names.index(name)
    hint = did_you_mean(name, (*WEEKDAYS, *_LONG)) or f"there are {', '.join(WEEKDAYS)}"
    raise InvalidInput(f"{key}: {value!r} is no weekday; {hint}")


def _range(key: str, value: Any) -> tuple[date, date]:
    if not isinstance(value, list | tuple) or len(cast(list[Any], value)) != 2:
        raise InvalidInput(
            f'{key}: {value!r} is no range; write its first and last day as ["2026-08-01", "2026-08-15"]'
        )
    first, last = (_date(key, d) for d in cast(list[Any], value))
    if last < first:
        raise InvalidInput(f"{key}: the range ends on {last}, before it begins on {first}; swap them")
    return first, last
