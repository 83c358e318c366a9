"""Cron by brute force, independent of what it is compared with: every minute of 400 days is read off the wall and matched.

    Wall(zone, first day)    local time of each UTC minute, straight from zoneinfo
    Rule(expression)         a reader of cron fields of its own
    wall.fires(rule)         the minutes that match, under the law of daylight saving as the documentation states it

Masks are strings of 0 and 1 with one byte per UTC minute, so that a whole table is matched at once.
"""

from __future__ import annotations

import os
import re
from calendar import monthrange
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

FULL = bool(os.environ.get("PERDURE_CALENDAR_FULL"))
"""Every zone with every expression over all 400 days, each minute converted on its own."""
DAYS = 400
MINUTES = DAYS * 1440
EPOCH = date(1970, 1, 1)
HOURS = bytes(h for h in range(24) for _ in range(60)) * (DAYS + 1)
MINUTES_OF_HOURS = bytes(range(60)) * 24 * (DAYS + 1)

ZONES = {
    "UTC": "2026-01-05",
    "Europe/Paris": "2026-01-05",
    "America/New_York": "2026-01-05",
    "Australia/Lord_Howe": "2026-01-05",  # half an hour of daylight saving
    "America/Sao_Paulo": "2017-09-05",  # until 2019: the gap swallows midnight, the day before gets 25 hours
    "Asia/Kolkata": "2026-01-05",
    "Asia/Kathmandu": "2026-01-05",  # +05:45
    "Pacific/Apia": "2011-08-05",  # 30 December 2011 never came
    "Africa/Casablanca": "2026-01-05",  # the clock goes back for Ramadan
    "Europe/Dublin": "2026-01-05",  # winter is the exception, in the database
    "America/St_Johns": "2006-01-05",  # -03:30, and changes a minute after midnight
    "Africa/Cairo": "2026-01-05",  # the gap swallows midnight
    "Pacific/Chatham": "2026-01-05",  # +12:45, changes at 02:45
    "Antarctica/Troll": "2026-01-05",  # two hours of daylight saving
    "America/Caracas": "2015-11-05",  # half an hour, for good
    "Asia/Pyongyang": "2017-11-05",  # half an hour, at 23:30
}

FIXED = [
    "0 0 * * *",
    "30 2 * * *",
    "0 2 * * *",
    "0 3 * * *",
    "15 1 * * *",
    "45 1 * * *",
    "59 23 * * *",
    "1 0 * * *",
    "30 0 * * *",
    "30 23 * * *",
    "0,20,40 2 * * *",
    "0-59 2 * * *",
    "0-59/7 1-3 * * *",
    "5/15 0-23 * * *",
    "0 0-23 * * *",
    "0 0-23/2 * * *",
    "7 1,2,3,4 * * *",
    "0 22/1 * * *",
    "30 2 * * MON-FRI",
    "0 8 * * 1-5",
    "0 9 * * sat,sun",
    "0 9 * * 0",
    "0 9 * * 7",
    "0 9 * * 5-7",
    "0 9 * * 0-7",
    "0 9 * * 1/2",
    "0 9 * * */2",
    "0 0 1 * *",
    "0 0 31 * *",
    "0 0 L * *",
    "0 0 L,15 * *",
    "30 12 LW * *",
    "0 0 29 2 *",
    "15 6 1-7 * *",
    "15 6 */10 * *",
    "15 6 10/10 * *",
    "0 4 1,15,30 * *",
    "0 12 * JAN,MAR,oct *",
    "0 12 * 1-6/2 *",
    "0 12 * */5 *",
    "0 12 30 12 *",
    "30 2 * 3,10 7",
    "0 9 * * 5L",
    "0 9 * * 0L",
    "0 9 * * 7L",
    "0 9 * * FRI#2",
    "0 9 * * 1#1,1#3",
    "0 9 * * SUN#5",
    "0 9 * * 3#2,5L",
    "0 9 13 * 5",
    "0 9 1-7 * MON",
    "0 9 L * MON",
    "0 9 */2 * MON",
    "0 9 1,2,3 * */2",
    "0 9 */2 * */3",
    "0 9 1-7 * MON#2",
    "0 9 *,5 * 5",
    "@daily",
    "@midnight",
    "@weekly",
    "@monthly",
    "@yearly",
    "@annually",
    "0 30 2 * * *",
    "15,45 30 2 * * *",
    "*/20 59 23 * * *",
    "* 0 3 1 * *",
    "10-50/10 0,30 1-3 * * SUN",
    "30 0 0 L * *",
]
REPEATING = [
    "0 * * * *",
    "@hourly",
    "30 */2 * * *",
    "*/30 2 * * *",
    "*/20 1-3 * * *",
    "15 * * * SUN",
    "0 * 1 * *",
    "*/7 0,23 * * *",
    "0 */6 L * 5L",
    "5 *,3 * * 1",
    "30 0 * * * SUN",
    "0 */30 2 * * *",
    "*/15 * 2 * * SUN",
]
DENSE = ["* * * * *", "*/5 * * * *", "0-58/2 * * * *", "*/1 0-12 * * *", "*,3 2 * * *", "*/20 * * * * *"]
"""Too many times to list for every zone in a routine run."""

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
WEEKDAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


class Rule:
    """An expression read field by field. Upper limits, steps and names are as the documentation says."""

    def __init__(self, text: str) -> None:
        fields = ALIASES.get(text, text).upper().split()
        if len(fields) == 5:
            fields.insert(0, "0")
        second, minute, hour, self.dom, month, self.dow = fields
        self.seconds = numbers(second, 0, 59)
        self.minutes = numbers(minute, 0, 59)
        self.hours = numbers(hour, 0, 23)
        self.months = numbers(numbered(month, MONTHS, 1), 1, 12)
        self.fixed = minute[0] != "*" and hour[0] != "*"
        self.both = self.dom[0] == "*" or self.dow[0] == "*"
        """Both day fields have to match; else either."""

    def in_month_days(self, day: date) -> bool:
        last = monthrange(day.year, day.month)[1]
        for item in self.dom.split(","):
            if item == "L":
                found = day.day == last
            elif item == "LW":
                end = date(day.year, day.month, last)
                while end.isoweekday() > 5:
                    end -= timedelta(1)
                found = day == end
            else:
                found = day.day in numbers(item, 1, 31)
            if found:
                return True
        return False

    def in_weekdays(self, day: date) -> bool:
        for item in self.dow.split(","):
            week = day.isoweekday() % 7
            if item.endswith("L"):
                found = week == int(item[:-1]) % 7 and (day + timedelta(7)).month != day.month
            elif "#" in item:
                name, nth = item.split("#")
                found = week in weekdays(name) and (day.day - 1) // 7 + 1 == int(nth)
            else:
                found = week in weekdays(item)
            if found:
                return True
        return False

    def on(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        a, b = self.in_month_days(day), self.in_weekdays(day)
        return (a and b) if self.both else (a or b)


@lru_cache(None)
def numbers(text: str, low: int, high: int) -> frozenset[int]:
    out: set[int] = set()
    for item in text.split(","):
        span, _, step = item.partition("/")
        if span == "*":
            first, last = low, high
        else:
            a, dash, b = span.partition("-")
            first, last = int(a), int(b) if dash else high if step else int(a)
        out.update(range(first, last + 1, int(step or 1)))
    return frozenset(out)


@lru_cache(None)
def weekdays(text: str) -> frozenset[int]:
    return frozenset(n % 7 for n in numbers(numbered(text, WEEKDAYS, 0), 0, 7))


def numbered(text: str, names: list[str], first: int) -> str:
    for i, name in enumerate(names, first):
        text = text.replace(name, str(i))
    return text


def any_day(_: date) -> bool:
    return True


def days_of(run: range) -> Iterator[tuple[date, int]]:
    for day in range(run[0] // 1440, run[-1] // 1440 + 1):
        yield EPOCH + timedelta(day), min(run[-1] + 1, (day + 1) * 1440) - max(run[0], day * 1440)


class Wall:
    """What the clock on the wall shows at each UTC minute of 400 days."""

    def __init__(self, zone: str, first_day: str) -> None:
        self.zone = ZoneInfo(zone)
        self.base = int(datetime.fromisoformat(first_day).replace(tzinfo=UTC).timestamp())
        runs = self._runs(self._each_minute() if FULL else self._by_hours())
        self.shown = [m for run in runs for m in run]
        """Minutes since 1970 on the wall."""
        self.hours = b"".join(HOURS[run[0] % 1440 :][: len(run)] for run in runs)
        self.minutes = b"".join(MINUTES_OF_HOURS[run[0] % 1440 :][: len(run)] for run in runs)
        self.days = [day for run in runs for day in days_of(run)]
        """Stretches of minutes with the same date on the wall."""
        self.gaps: list[tuple[int, range]] = []
        """The minute after a gap, and the times on the wall that never came."""
        self.backs: list[int] = []
        """The minutes at which the clock was put back."""
        first = bytearray(b"\1" * MINUTES)
        at, passed = 0, runs[0][0] - 1
        for run in runs:
            if run[0] > passed + 1:
                self.gaps.append((at, range(passed + 1, run[0])))
            elif run[0] <= passed:
                self.backs.append(at)
                first[at : at + passed - run[0] + 1] = bytes(passed - run[0] + 1)
            at, passed = at + len(run), max(passed, run[-1])
        self.first = int.from_bytes(first, "big")

    def _minute(self, at: int) -> int:
        local = datetime.fromtimestamp(at, self.zone)
        return (local.date() - EPOCH).days * 1440 + local.hour * 60 + local.minute

    def _each_minute(self) -> Iterator[range]:
        for i in range(MINUTES):
            shown = self._minute(self.base + 60 * i)
            yield range(shown, shown + 1)

    def _by_hours(self) -> Iterator[range]:
        """An hour that begins and ends with the same offset has it throughout; only others are converted minute by minute."""
        for at in range(self.base, self.base + MINUTES * 60, 3600):
            begin, end = self._minute(at), self._minute(at + 3540)
            if end == begin + 59:
                yield range(begin, end + 1)
            else:
                yield from (range(m, m + 1) for m in (self._minute(at + 60 * i) for i in range(60)))

    @staticmethod
    def _runs(pieces: Iterator[range]) -> list[range]:
        """Pieces that follow each other without a jump, put together."""
        out = [next(pieces)]
        for piece in pieces:
            if piece[0] == out[-1][-1] + 1:
                out[-1] = range(out[-1][0], piece[-1] + 1)
            else:
                out.append(piece)
        return out

    def fires(self, rule: Rule, span: tuple[int, int] | None = None, on: Callable[[date], bool] = any_day) -> list[int]:
        """Unix seconds, those of a span or all. `on` narrows the days down, by the date on the wall."""
        found = self.matching(rule, on)
        if rule.fixed:
            found &= self.first
        since, until = span or (self.base, self.base + MINUTES * 60)
        mask = found.to_bytes(MINUTES, "big")[: (until - self.base) // 60]
        at = (m.start() for m in re.compile(b"\1").finditer(mask, (since - self.base) // 60))
        out = {self.base + i * 60 + s for i in at for s in rule.seconds}
        if rule.fixed:
            for i, never in self.gaps:
                after = EPOCH + timedelta(self.shown[i] // 1440)
                if since <= self.base + i * 60 < until and on(after) and any(self.names(rule, m) for m in never):
                    out.add(self.base + i * 60)
        return sorted(out)

    def matching(self, rule: Rule, on: Callable[[date], bool]) -> int:
        hours = self.hours.translate(bytes(h in rule.hours for h in range(256)))
        minutes = self.minutes.translate(bytes(m in rule.minutes for m in range(256)))
        days = b"".join((b"\1" if rule.on(day) and on(day) else b"\0") * count for day, count in self.days)
        return int.from_bytes(hours, "big") & int.from_bytes(minutes, "big") & int.from_bytes(days, "big")

    @staticmethod
    def names(rule: Rule, minute: int) -> bool:
        return (
            minute // 60 % 24 in rule.hours
            and minute % 60 in rule.minutes
            and rule.on(EPOCH + timedelta(minute // 1440))
        )

    def windows(self, days: int) -> list[tuple[int, int]]:
        """Spans around each change of the clock, in Unix seconds; the first days where it never changes."""
        at = sorted({i for i, _ in self.gaps} | set(self.backs)) or [days * 1440]
        return [(self.base + max(0, i - days * 1440) * 60, self.base + min(MINUTES, i + days * 1440) * 60) for i in at]


@lru_cache(None)
def wall(zone: str) -> Wall:
    return Wall(zone, ZONES[zone])
