"""Cron expressions in words: `0 8 * * 1-5` is "at 08:00, Monday to Friday".

Law: two expressions with the same words fire at the same times, in every zone.

The words are made of the values that the fields name, not of their text, so `1,2,3` and `1-3` have the same words. What the text adds is whether an expression is repeating (see times.py), which decides what happens when the clock is changed: a minute or hour
that begins with `*` is told by "every", or, where the values do not repeat evenly, by REPEATING at the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import product
from typing import Final

from cronsim import CronSim

from perdure.core.durations import SHOWN_UNITS, datetime_of
from perdure.core.schedules.cron import CRONS_CACHED, fields_of, read_cron
from perdure.core.schedules.spec import ScheduleSpec

TIMES_SHOWN_MAX: Final = 6
"""Times of the day that are listed one by one."""
MOMENTS_SHOWN_MAX: Final = 3
"""Of `at`; more are counted."""
REPEATING: Final = "each time the clock shows it"
MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_NTH: Final = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", CronSim.LAST: "last"}
_UNITS: Final = {"d": "day", "h": "hour", "m": "minute", "s": "second", "ms": "millisecond", "us": "microsecond"}


@lru_cache(CRONS_CACHED)
def cron_words(text: str) -> str:
    """What an expression says. Raises InvalidInput as `read_cron` does."""
    cron = read_cron(text)
    parts = fields_of(text)
    sim = CronSim(" ".join(parts), datetime(2000, 1, 1))
    time = _time(parts, cron.seconds, cron.minutes, cron.hours)
    day = _day(sim)
    out = [time, *([day] if day else [])]
    if not day and time.startswith("at ") and "every" not in time:
        out.append("every day")
    if len(sim.months) < len(MONTHS):
        out.append(f"in {_several(MONTHS, sorted(m - 1 for m in sim.months))}")
    if not cron.fixed and "every" not in time:
        out.append(REPEATING)
    return ", ".join(out)


def spec_words(spec: ScheduleSpec) -> str:
    """When a schedule fires: its expressions, interval and moments, and the zone where it matters."""
    parts = [cron_words(cron) for cron in spec.cron]
    if spec.every_us:
        parts.append(f"every {_interval(spec.every_us)}")
    if len(spec.at_us) > MOMENTS_SHOWN_MAX:
        parts.append(f"at {len(spec.at_us):,} moments")
    else:
        parts += [f"at {datetime_of(us).isoformat(sep=' ').removesuffix('+00:00')} UTC" for us in spec.at_us]
    zone = f" ({spec.tz})" if spec.cron else ""
    days = [f"only {', '.join(spec.calendars)}"] if spec.calendars else []
    days += [f"not {', '.join(spec.exclude)}"] if spec.exclude else []
    return "; ".join(parts) + zone + (f"; {'; '.join(days)}" if days else "")


def _interval(us: int) -> str:
    out: list[str] = []
    for unit, size in SHOWN_UNITS:
        count, us = divmod(us, size)
        if count:
            out.append(f"{count:,} {_UNITS[unit]}{'s' * (count != 1)}")
    return out[0].removeprefix("1 ") if len(out) == 1 else " ".join(out)


# -- the time of the day -----------------------------------------------------------------------------------------------


def _time(parts: Sequence[str], seconds: Sequence[int], minutes: Sequence[int], hours: Sequence[int]) -> str:
    minute, hour = _every(parts[1], minutes, 60, "minute"), _every(parts[2], hours, 24, "hour")
    if not minute and not hour and len(seconds) * len(minutes) * len(hours) <= TIMES_SHOWN_MAX:
        return f"at {_and(_clock(h, m, s, seconds) for h, m, s in product(hours, minutes, seconds))}"
    if minute:
        span = "" if hour == "every hour" else f" {_spans(hours)}"
        evenly = _every("*", seconds, 60, "second") if minute == "every minute" else ""
        if evenly or seconds == (0,):
            return f"{evenly or minute}{span}"
        return f"{minute}{span} at {_seconds(seconds)}"
    at = [_places("minute", minutes), *([_seconds(seconds)] if seconds != (0,) else [])]
    if not hour:
        return f"at {' and '.join(at)} of {_places('hour', hours)}"
    return hour if minutes == (0,) and seconds == (0,) else f"{hour} at {' and '.join(at)}"


def _every(text: str, values: Sequence[int], size: int, unit: str) -> str:
    """Of a field that begins with `*` and repeats evenly; else nothing."""
    step = size // len(values)
    if not text.startswith("*") or values != tuple(range(0, size, step)) or size % step:
        return ""
    return f"every {unit}" if step == 1 else f"every {step} {unit}s" if step < size else ""


def _seconds(values: Sequence[int]) -> str:
    return "each second" if len(values) == 60 else _places("second", values)


def _clock(hour: int, minute: int, second: int, seconds: Sequence[int]) -> str:
    return f"{hour:02}:{minute:02}" + ("" if seconds == (0,) else f":{second:02}")


def _spans(hours: Sequence[int]) -> str:
    """`from 09:00 to 17:59`: runs of hours with all their minutes."""
    return f"from {_and(f'{first:02}:00 to {last:02}:59' for first, last in _runs(hours))}"


def _places(unit: str, values: Sequence[int]) -> str:
    if len(values) == 1:
        return f"{unit} {values[0]}"
    step = values[1] - values[0]
    if len(values) > 3 and step > 1 and values == tuple(range(values[0], values[-1] + 1, step)):
        return f"{unit}s {values[0]} to {values[-1]} in steps of {step}"
    return f"{unit}s {_several([str(v) for v in range(values[-1] + 1)], values)}"


# -- the day -----------------------------------------------------------------------------------------------------------


def _day(sim: CronSim) -> str:
    """Nothing for all days."""
    of_month = sorted(sim.days)
    of_week = {w % 7 if isinstance(w, int) else (w[0] % 7, w[1]) for w in sim.weekdays}
    all_month = len({d for d in of_month if d > 0}) == 31
    all_week = len({w for w in of_week if isinstance(w, int)}) == 7
    if sim.day_and:
        if all_month:
            return "" if all_week else _weekdays(of_week)
        return _dates(of_month) if all_week else f"{_dates(of_month)} if it is {_weekdays(of_week)}"
    return "" if all_month or all_week else f"{_dates(of_month)} or {_weekdays(of_week)}"


def _dates(days: Sequence[int]) -> str:
    numbered = tuple(d for d in days if d > 0)
    out = [_places("day", numbered)] if numbered else []
    out += ["the last day"] if CronSim.LAST in days else []
    out += ["the last Monday-to-Friday day"] if CronSim.LAST_WEEKDAY in days else []
    return f"on {_and(out)} of the month"


def _weekdays(found: Collection[int | tuple[int, int]]) -> str:
    """Monday first."""
    plain = sorted((d - 1) % 7 for d in found if isinstance(d, int))
    out = [_several([DAYS[(n + 1) % 7] for n in range(7)], plain)] if plain else []
    counted = sorted(d for d in found if not isinstance(d, int))
    return _and([*out, *(f"the {_NTH[nth]} {DAYS[day]} of the month" for day, nth in counted)])


# -- lists -------------------------------------------------------------------------------------------------------------


def _runs(values: Iterable[int]) -> list[tuple[int, int]]:
    """Values that follow each other, as first and last."""
    out: list[tuple[int, int]] = []
    for value in values:
        if out and value == out[-1][1] + 1:
            out[-1] = (out[-1][0], value)
        else:
            out.append((value, value))
    return out


def _several(names: Sequence[str], places: Sequence[int]) -> str:
    """`Monday to Wednesday and Friday`."""
    out: list[str] = []
    for first, last in _runs(places):
        if last - first < 2:
            out += [names[n] for n in range(first, last + 1)]
        else:
            out.append(f"{names[first]} to {names[last]}")
    return _and(out)


def _and(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last
