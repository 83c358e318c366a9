"""The spec of a schedule: read from JSON or YAML, and written back.

Laws:

1. `parse_spec(spec_json(s)) == s` for everything that `parse_spec` returns.
2. Two ways to write the same (order of a list, blanks in a cron expression, "60m" for "1h") are one spec with one hash.
3. A moment without an offset is local time in `tz`: the first of two where the clock is put back, the end of the gap where it is put forward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from perdure.core.durations import SHOWN_UNITS, datetime_of, to_us, us_of
from perdure.core.errors import InvalidInput
from perdure.core.limits import (
    NAME_CHARS_MAX,
    SCHEDULE_CALENDARS_MAX,
    SCHEDULE_CRONS_MAX,
    SCHEDULE_EVERY_US_MAX,
    SCHEDULE_EVERY_US_MIN,
    SCHEDULE_JITTER_US_MAX,
    SCHEDULE_TIMES_MAX,
    SCHEDULE_YEAR_MAX,
)
from perdure.core.names import UNSAFE, invalid_name
from perdure.core.schedules.cron import read_cron
from perdure.core.schedules.holidays import holiday_place, is_holidays
from perdure.core.schedules.zones import check_zone, moment_of
from perdure.core.suggestions import did_you_mean

OVERLAPS: Final = ("skip", "queue", "cancel", "allow")
"""What becomes of a firing whose predecessor's run has not ended."""
MISSED: Final = ("none", "last", "all")
"""Which of the times that went by unnoticed are made up for."""
SPEC_KEYS: Final = (
    "cron",
    "every",
    "anchor",
    "at",
    "tz",
    "calendars",
    "exclude",
    "start",
    "end",
    "jitter",
    "overlap",
    "missed",
    "window",
)


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """When to fire, and what to do when that is not possible. `cron`, `every` and `at` add up; the rest narrows them down."""

    cron: tuple[str, ...] = ()
    """5 fields (minute first) or 6 (second first), or an alias such as @daily; local time in `tz`."""
    every_us: int = 0
    """Nominal times are anchor_us + k * every_us for all whole k: absolute time, untouched by daylight saving. 0: no interval."""
    anchor_us: int = 0
    """0: the Unix epoch."""
    at_us: tuple[int, ...] = ()
    """Single moments."""
    tz: str = "UTC"
    """IANA zone of the cron expressions, and of the days of calendars."""
    calendars: tuple[str, ...] = ()
    """Fire only on days that are in at least one of these. Empty: on any day."""
    exclude: tuple[str, ...] = ()
    """Never on days that are in one of these."""
    start_us: int = 0
    """No nominal time before it. 0: none."""
    end_us: int = 0
    """No nominal time at it or after it. 0: none."""
    jitter_us: int = 0
    """Each firing is delayed by 0 to this much, always the same for one schedule name and nominal time."""
    overlap: str = "skip"
    missed: str = "last"
    window_us: int = 3_600_000_000
    """How far back a missed time may lie to be made up for."""


def parse_spec(value: Mapping[str, Any]) -> ScheduleSpec:
    """Raises InvalidInput with the key, what is wrong with it, and what to write."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f'a schedule must be a mapping such as {{cron: "0 8 * * *"}}, not {value!r}')
    given = {k: v for k, v in value.items() if v is not None}
    for key in given:
        if key not in SPEC_KEYS:
            raise InvalidInput(
                f"{key}: a schedule has no such key; {did_you_mean(str(key), SPEC_KEYS) or 'it has ' + ', '.join(SPEC_KEYS)}"
            )
    tz = given.get("tz", "UTC")
    if not isinstance(tz, str):
        raise InvalidInput(f'tz must be the name of a zone such as "Europe/Paris", not {tz!r}')
    check_zone(tz)
    spec = ScheduleSpec(
        cron=_crons(given.get("cron")),
        every_us=_span(given, "every", 0, SCHEDULE_EVERY_US_MIN, SCHEDULE_EVERY_US_MAX),
        anchor_us=_moment("anchor", given["anchor"], tz) if "anchor" in given else 0,
        at_us=tuple(sorted({_moment("at", m, tz) for m in _several("at", given.get("at"), SCHEDULE_TIMES_MAX)})),
        tz=tz,
        calendars=_names("calendars", given.get("calendars")),
        exclude=_names("exclude", given.get("exclude")),
        start_us=_moment("start", given["start"], tz) if "start" in given else 0,
        end_us=_moment("end", given["end"], tz) if "end" in given else 0,
        jitter_us=_span(given, "jitter", 0, 0, SCHEDULE_JITTER_US_MAX),
        overlap=_policy("overlap", given.get("overlap", "skip"), OVERLAPS),
        missed=_policy("missed", given.get("missed", "last"), MISSED),
        window_us=_span(given, "window", 3_600_000_000),
    )
    _check(spec)
    return spec


def spec_json(spec: ScheduleSpec) -> dict[str, Any]:
    """What `parse_spec` reads back to the same spec. What is as by default is left out."""
    default = ScheduleSpec()
    out: dict[str, Any] = {}
    if spec.cron:
        out["cron"] = spec.cron[0] if len(spec.cron) == 1 else list(spec.cron)
    if spec.at_us:
        moments = [_iso(us) for us in spec.at_us]
        out["at"] = moments[0] if len(moments) == 1 else moments
    for key, us, usual in (
        ("every", spec.every_us, default.every_us),
        ("jitter", spec.jitter_us, default.jitter_us),
        ("window", spec.window_us, default.window_us),
    ):
        if us != usual:
            out[key] = _duration(us)
    for key, us in (("anchor", spec.anchor_us), ("start", spec.start_us), ("end", spec.end_us)):
        if us:
            out[key] = _iso(us)
    for key, text, common in (
        ("tz", spec.tz, default.tz),
        ("overlap", spec.overlap, default.overlap),
        ("missed", spec.missed, default.missed),
    ):
        if text != common:
            out[key] = text
    for key, names in (("calendars", spec.calendars), ("exclude", spec.exclude)):
        if names:
            out[key] = list(names)
    return out


def spec_hash(spec: ScheduleSpec) -> bytes:
    """32 bytes, the same for the same spec in every release that reads it the same."""
    return sha256(msgspec.json.encode(spec_json(spec), order="sorted")).digest()


def _check(spec: ScheduleSpec) -> None:
    """Checks that concern several keys."""
    if not (spec.cron or spec.every_us or spec.at_us):
        raise InvalidInput("the schedule does not say when: give it cron, every or at")
    if spec.anchor_us and not spec.every_us:
        raise InvalidInput("anchor: it shifts the times of `every`, which is missing; add every, or leave anchor out")
    if spec.end_us and spec.start_us >= spec.end_us:
        raise InvalidInput(
            f"end: {_iso(spec.end_us)} is not after start {_iso(spec.start_us)}, so the schedule would never fire; swap them"
        )
    both = sorted({*spec.calendars} & {*spec.exclude})
    if both:
        raise InvalidInput(f"exclude: {both[0]!r} is in `calendars` too, and a day cannot be both; leave it out of one")


def _several(key: str, value: Any, most: int) -> Sequence[Any]:
    """One or a list of them."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        return (value,)
    many = cast(Sequence[Any], value)
    if len(many) > most:
        raise InvalidInput(f"{key}: a schedule takes at most {most:,}, not {len(many):,}; make several schedules of it")
    return many


def _crons(value: Any) -> tuple[str, ...]:
    out: dict[str, None] = {}
    for text in _several("cron", value, SCHEDULE_CRONS_MAX):
        if not isinstance(text, str):
            raise InvalidInput(f'cron must be an expression such as "0 8 * * *", or a list of them, not {text!r}')
        read_cron(text)
        out[" ".join(text.split())] = None
    return tuple(sorted(out))


def _span(given: Mapping[str, Any], key: str, default: int, least: int = 0, most: int | None = None) -> int:
    value = given.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, str | int | float | timedelta):
        raise InvalidInput(f'{key} must be a duration such as "15m", not {value!r}')
    try:
        us = to_us(value)
    except InvalidInput as e:
        raise InvalidInput(f"{key}: {e}") from None
    except (OverflowError, ValueError):
        raise InvalidInput(f'{key}: {value!r} is not a duration; write one such as "15m"') from None
    if us < least:
        raise InvalidInput(f"{key}: {value!r} is too short; at least {_duration(least)}")
    if most is not None and us > most:
        raise InvalidInput(f"{key}: {value!r} is too long; at most {_duration(most)}")
    return us


def _moment(key: str, value: Any, tz: str) -> int:
    at = _datetime(key, value)
    last = datetime(SCHEDULE_YEAR_MAX, 12, 31, tzinfo=UTC)
    if not 1970 <= at.year <= SCHEDULE_YEAR_MAX:
        raise InvalidInput(f"{key}: {value!s} lies outside of 1970 to {SCHEDULE_YEAR_MAX}")
    if at.tzinfo is None:
        local_us = us_of(at.replace(tzinfo=UTC))
        us = moment_of(tz, local_us // 1_000_000) * 1_000_000 + local_us % 1_000_000
    else:
        us = us_of(at)
    if not 0 <= us <= us_of(last) or (us == 0 and key != "anchor"):
        raise InvalidInput(f"{key}: {value!s} lies outside of 1970 to {SCHEDULE_YEAR_MAX}")
    return us


def _datetime(key: str, value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        hint = 'write it as "2026-12-24T18:00" (local time in `tz`) or "2026-12-24T18:00:00Z"'
        raise InvalidInput(f"{key}: {value!r} is no moment; {hint}") from None


def _names(key: str, value: Any) -> tuple[str, ...]:
    names = _several(key, value, SCHEDULE_CALENDARS_MAX)
    for name in names:
        if not isinstance(name, str):
            raise InvalidInput(f"{key} must be names of calendars, not {name!r}")
        if not name or len(name) > NAME_CHARS_MAX or UNSAFE.search(name):
            raise InvalidInput(f"{key}: {invalid_name('calendar', name)}")
        if is_holidays(name):
            _check_holidays(key, name)
    return tuple(sorted(set(names)))


def _check_holidays(key: str, name: str) -> None:
    try:
        holiday_place(name)
    except InvalidInput as e:
        raise InvalidInput(f"{key}: {e}") from None


def _policy(key: str, value: Any, known: Sequence[str]) -> str:
    if value not in known:
        raise InvalidInput(
            f"{key}: there is no policy {value!r}; {did_you_mean(str(value), known) or 'there are ' + ', '.join(known)}"
        )
    return cast(str, value)


def _duration(us: int) -> str:
    """Exact, unlike `durations.human`."""
    out: list[str] = []
    for unit, size in SHOWN_UNITS:
        count, us = divmod(us, size)
        if count:
            out.append(f"{count}{unit}")
    return "".join(out) or "0s"


def _iso(us: int) -> str:
    return datetime_of(us).isoformat().replace("+00:00", "Z")
