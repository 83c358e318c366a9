"""Cron expressions: what they say about local time. The grammar and the rule for days are cronsim's; zones come in at times.py.

`fixed` tells the two kinds of expressions apart that daylight saving treats differently: those that name their hours and minutes, and those
whose minute or hour field begins with `*`. A field of seconds has no part in it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from datetime import date, datetime
from functools import lru_cache
from typing import Final, cast

import msgspec
from cronsim import CronSim, CronSimError

from perdure.core.errors import InvalidInput
from perdure.core.limits import CRON_CHARS_MAX
from perdure.core.schedules.zones import DAY_S
from perdure.core.suggestions import did_you_mean

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
TAKES: Final = {
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L (the last day) or LW (the last weekday)",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 (0 and 7 are Sunday) or SUN-SAT, 5L (the last Friday), FRI#2 (the second)",
}
CRONS_CACHED: Final = 2_048
EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_DOWNWARDS = re.compile(r"(\d+)-(\d+)")

DayRule = Callable[[date], bool]


class Cron(msgspec.Struct, frozen=True, kw_only=True):
    """An expression that has been read. The fields of time are sorted."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    day: DayRule
    fixed: bool

    def first(self, since: int, until: int, allowed: DayRule | None = None) -> int | None:
        """The first local time (seconds since 1970 on the wall clock) from `since` and before `until`, on allowed days only."""
        day, second = divmod(since, DAY_S)
        while day * DAY_S < until:
            at = day_of(day)
            if at.month not in self.months:
                day, second = _next_month(at), 0
                continue
            if self.day(at) and (allowed is None or allowed(at)):
                found = self._second_of_day(second)
                if found is not None:
                    local = day * DAY_S + found
                    return local if local < until else None
            day, second = day + 1, 0
        return None

    def _second_of_day(self, since: int) -> int | None:
        hour, minute, second = since // 3600, since // 60 % 60, since % 60
        h = bisect_left(self.hours, hour)
        if h < len(self.hours) and self.hours[h] == hour:
            m = bisect_left(self.minutes, minute)
            if m < len(self.minutes) and self.minutes[m] == minute:
                s = bisect_left(self.seconds, second)
                if s < len(self.seconds):
                    return hour * 3600 + minute * 60 + self.seconds[s]
                m += 1
            if m < len(self.minutes):
                return hour * 3600 + self.minutes[m] * 60 + self.seconds[0]
            h += 1
        return self.hours[h] * 3600 + self.minutes[0] * 60 + self.seconds[0] if h < len(self.hours) else None


@lru_cache(CRONS_CACHED)
def read_cron(text: str) -> Cron:
    """Raises InvalidInput with the field that is wrong and what it takes."""
    if len(text) > CRON_CHARS_MAX:
        raise InvalidInput(f"cron: an expression has at most {CRON_CHARS_MAX} characters, not {len(text):,}")
    parts = fields_of(text)
    try:
        sim = CronSim(" ".join(parts), datetime(2000, 1, 1))
    except CronSimError as e:
        raise InvalidInput(f"cron: {text!r}: {_wrong(parts, str(e))}") from None
    return Cron(
        seconds=tuple(sorted(sim.seconds)),
        minutes=tuple(sorted(sim.minutes)),
        hours=tuple(sorted(sim.hours)),
        months=frozenset(sim.months),
        day=cast(DayRule, sim.match_day),
        fixed=not parts[1].startswith("*") and not parts[2].startswith("*"),
    )


def day_of(day: int) -> date:
    return date.fromordinal(EPOCH_ORDINAL + day)


def fields_of(text: str) -> list[str]:
    """Six fields, seconds first."""
    if text.lstrip().startswith("@"):
        name = text.strip().lower()
        if name not in ALIASES:
            hint = did_you_mean(name, ALIASES) or f"there are {', '.join(ALIASES)}"
            raise InvalidInput(f"cron: {text!r} is no alias; {hint}")
        text = ALIASES[name]
    parts = text.split()
    if len(parts) not in (5, 6):
        raise InvalidInput(
            f"cron: {text!r} has {len(parts)} fields; write 5 (minute hour day-of-month month day-of-week), or 6 with the second first"
        )
    return parts if len(parts) == 6 else ["0", *parts]


def _wrong(parts: list[str], said: str) -> str:
    """What cronsim found, with the field's text, what it takes, and the usual mistake."""
    name = next(f for f in FIELDS if said == f"Bad {f}")
    found = parts[FIELDS.index(name)]
    if name == "day-of-month" and found.isdigit() and 1 <= int(found) <= 31:
        return f"no month that it names has a day {found}"
    hint = f"it takes {TAKES[name]}, lists (1,2), ranges (1-5) and steps (*/15)"
    if found == "?":
        hint = "write * for any"
    elif any(int(a) > int(b) for a, b in _DOWNWARDS.findall(found)):
        hint = "a range goes upwards; write two, such as 22-23,0-3"
    return f"the {name} {found!r} cannot be read; {hint}"


def _next_month(at: date) -> int:
    first = date(at.year + at.month // 12, at.month % 12 + 1, 1)
    return first.toordinal() - EPOCH_ORDINAL
