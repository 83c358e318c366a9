"""Time zones as runs of constant offset, which is all that schedules need of them.

    UTC    ---------[ offset +1h ----------------)[ offset +2h ------------------)[ +1h -------
    local  ------------------------- 02:00 gap 03:00 ------------ 03:00, back to 02:00 --------

Laws:

1. The segments of a span follow each other without holes. Local time is UTC plus the offset of the segment.
2. `passed` is the latest local time that was reached before the segment began. A segment that begins above it leaves a gap (local times that
   never came); one that begins below it repeats local times.
3. Offsets are looked up once a day, so a zone that changed twice within a day would be misread. None has since 1970; the closest changes are
   six days apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from perdure.core.errors import InvalidInput
from perdure.core.suggestions import did_you_mean

DAY_S: Final = 86_400
FOLD_S_MAX: Final = 2 * DAY_S
"""No zone repeats, or leaves out, more local time than this at once."""
ZONE_YEARS_CACHED: Final = 4_096


class ZoneSegment(NamedTuple):
    """From `start` up to `end` (Unix seconds) local time is UTC plus `offset` seconds."""

    start: int
    end: int
    offset: int
    passed: int


@lru_cache(1)
def zone_names() -> frozenset[str]:
    """IANA names of this machine's database. `localtime`, which means something else on each machine, is not taken for one."""
    return frozenset(available_timezones()) - {"localtime", "Factory", "posixrules"}


def check_zone(name: str) -> None:
    if name not in zone_names():
        hint = did_you_mean(name, sorted(zone_names())) or 'write an IANA name such as "Europe/Paris"'
        raise InvalidInput(f"tz: no time zone is called {name!r}; {hint}")


@lru_cache(256)
def _zone(name: str) -> ZoneInfo:
    check_zone(name)
    return ZoneInfo(name)


def offset_at(name: str, at_s: int) -> int:
    """Seconds that the zone is ahead of UTC at a moment."""
    ahead = datetime.fromtimestamp(at_s, _zone(name)).utcoffset()
    assert ahead is not None
    return ahead.days * DAY_S + ahead.seconds


def segments(name: str, since_s: int, until_s: int) -> Iterator[ZoneSegment]:
    """The segments that cover a span. The first begins a little before it, so that what it repeats is known."""
    start = since_s - FOLD_S_MAX
    offset = offset_at(name, start)
    passed = start + offset
    for year in range(_year(start), _year(until_s) + 1):
        # A year's end ends a segment too, though nothing changes there: the next year is computed only when it is needed.
        for at, then in (*_changes(name, year), (_new_year(year + 1), None)):
            end = min(at, until_s)
            if end > start:
                yield ZoneSegment(start, end, offset, passed)
                start, passed = end, max(passed, end + offset)
            offset = offset if then is None or at > end else then


def moment_of(name: str, local_s: int) -> int:
    """The moment of a local time: the first of two, and the first after a gap that swallowed it."""
    for segment in segments(name, local_s - FOLD_S_MAX, local_s + FOLD_S_MAX):
        if local_s < segment.end + segment.offset:
            return max(local_s - segment.offset, segment.start)
    raise AssertionError(f"{name} is more than two days from UTC")


@lru_cache(ZONE_YEARS_CACHED)
def _changes(name: str, year: int) -> tuple[tuple[int, int], ...]:
    """Moments after the beginning of the (UTC) year, up to its end, at which the offset changes, with the new offset."""
    out: list[tuple[int, int]] = []
    begin = _new_year(year)
    was = offset_at(name, begin)
    for day in range(begin + DAY_S, _new_year(year + 1) + 1, DAY_S):
        now = offset_at(name, day)
        if now != was:
            out.append((_change(name, day - DAY_S, day, was), now))
            was = now
    return tuple(out)


def _change(name: str, low: int, high: int, was: int) -> int:
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset_at(name, middle) == was else (low, middle)
    return high


def _new_year(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp())


def _year(at_s: int) -> int:
    return datetime.fromtimestamp(at_s, UTC).year
