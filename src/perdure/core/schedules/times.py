"""The times of a schedule: which moments it names, and which of them to fire now.

    cron     local times in a zone --the law of daylight saving--+
    every    anchor + k * every -----------------------------------+--> on allowed days, from start, before end --> nominal times
    at       moments --------------------------------------------+

The law of daylight saving, for expressions of 5 fields and of 6 alike:

1. An expression whose minute and hour fields both do not begin with `*` is *fixed*: it names times of the day, and each of them counts once a
   day. Where the clock is put back and a local time comes twice, it fires the first time. Where the clock is put forward over the local time,
   it fires at the first moment after the gap, once, however many of its times the gap swallowed.
2. Any other expression is *repeating*: it fires at every moment whose local time matches, so as often as the clock shows it: twice where the
   clock is put back, not at all within a gap. Hence `*/10 * * * *` fires every ten minutes of real time throughout.
3. `every` and `at` are absolute and know no daylight saving.

Further laws:

4. A nominal time is named once, however many expressions name it.
5. Calendars are asked about the local day of the nominal time itself, wherever it comes from.
6. No nominal time lies before 1970 or after SCHEDULE_YEAR_MAX. One that is more than CRON_SEARCH_YEARS after the one before it is not found;
   only moments of `at` are found however far away.
7. `due` parts the nominal times from `next_us` on: some fire, some are missed, and all from the new `next_us` on are still to come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from hashlib import blake2b
from heapq import merge
from itertools import islice
from typing import Final

import msgspec

from perdure.core.errors import InvalidInput
from perdure.core.limits import CRON_SEARCH_YEARS, MISSED_COUNTED_MAX, SCHEDULE_YEAR_MAX
from perdure.core.schedules.calendars import Calendar
from perdure.core.schedules.cron import Cron, DayRule, day_of, read_cron
from perdure.core.schedules.spec import ScheduleSpec
from perdure.core.schedules.zones import DAY_S, offset_at, segments
from perdure.core.suggestions import did_you_mean

ON_TIME_US: Final = 60_000_000
"""A firing that is at most this late, its jitter not counted, is on time and not missed."""
SECOND_US: Final = 1_000_000
SEARCH_US: Final = CRON_SEARCH_YEARS * 366 * DAY_S * SECOND_US
LEAP_S: Final = 64 * DAY_S
"""The search goes on in steps of this length."""
END_US: Final = int(datetime(SCHEDULE_YEAR_MAX + 1, 1, 1, tzinfo=UTC).timestamp()) * SECOND_US


class DueTimes(msgspec.Struct, frozen=True):
    fire: tuple[int, ...]
    """Nominal times to fire now, oldest first."""
    missed: int
    """Nominal times that went by and will not be fired; more than MISSED_COUNTED_MAX are not counted."""
    next_us: int | None
    """The next nominal time. At most now: the limit was reached, and the rest is due at once. None: the schedule is over."""


class _TimePlan(msgspec.Struct, frozen=True):
    """A spec with its expressions read and its calendars looked up."""

    spec: ScheduleSpec
    crons: tuple[Cron, ...]
    allowed: DayRule | None


def next_after(spec: ScheduleSpec, calendars: Mapping[str, Calendar], after_us: int) -> int | None:
    """The first nominal time strictly after a moment; None: never again (law 6). InvalidInput for a calendar that is not in the mapping."""
    return next(_moments(_plan(spec, calendars), after_us, END_US), None)


def between(
    spec: ScheduleSpec, calendars: Mapping[str, Calendar], since_us: int, until_us: int, limit: int
) -> list[int]:
    """The first `limit` nominal times from `since_us` and before `until_us`."""
    return list(islice(_moments(_plan(spec, calendars), since_us - 1, until_us), limit))


def fire_at(spec: ScheduleSpec, name: str, nominal_us: int) -> int:
    """The nominal time plus its jitter."""
    if not spec.jitter_us:
        return nominal_us
    drawn = blake2b(f"{name}\0{nominal_us}".encode(), digest_size=8).digest()
    return nominal_us + int.from_bytes(drawn, "big") % (spec.jitter_us + 1)


def due(
    spec: ScheduleSpec,
    calendars: Mapping[str, Calendar],
    next_us: int,
    now_us: int,
    limit: int,
    name: str | None = None,
) -> DueTimes:
    """What to do about the nominal times from `next_us` up to now.

    A time is on time for ON_TIME_US and the jitter. What is on time fires, unless there is something older and the policy is `last`:

    - `none`: nothing else fires;
    - `last`: the newest fires, if it lies in the window, and nothing else;
    - `all`: all in the window fire.

    Oldest first, and at most `limit` now. With the schedule's name, times whose own jitter is not over yet are left for later; without it all
    nominal times up to now are due. Calendars count as they are now: a day excluded since `next_us` was found does not fire.
    """
    assert limit >= 1
    plan = _plan(spec, calendars)
    until = now_us + 1 if name is None else _until(plan, name, next_us, now_us)
    on_time = now_us - ON_TIME_US - spec.jitter_us
    reach = min(on_time, now_us - spec.window_us)
    oldest = next(_moments(plan, next_us - 1, until), None)
    if oldest is None:
        return DueTimes((), 0, next(_moments(plan, max(next_us, until) - 1, END_US), None))
    if spec.missed == "last" and oldest < on_time:
        newest = _newest(plan, max(next_us, reach), until)
        lost = _count(plan, next_us, until) if newest is None else _count(plan, next_us, newest)
        return DueTimes(() if newest is None else (newest,), lost, next(_moments(plan, until - 1, END_US), None))
    since = max(next_us, reach if spec.missed == "all" else on_time)
    found = list(islice(_moments(plan, since - 1, until), limit + 1))
    left = found[limit] if len(found) > limit else next(_moments(plan, until - 1, END_US), None)
    return DueTimes(tuple(found[:limit]), _count(plan, next_us, min(since, until)), left)


def _plan(spec: ScheduleSpec, calendars: Mapping[str, Calendar]) -> _TimePlan:
    only = tuple(_calendar(name, calendars) for name in spec.calendars)
    never = tuple(_calendar(name, calendars) for name in spec.exclude)

    def allowed(day: date) -> bool:
        return (not only or any(c.holds(day) for c in only)) and not any(c.holds(day) for c in never)

    return _TimePlan(spec, tuple(read_cron(c) for c in spec.cron), allowed if only or never else None)


def _calendar(name: str, calendars: Mapping[str, Calendar]) -> Calendar:
    found = calendars.get(name)
    if found is None:
        hint = did_you_mean(name, calendars) or "create it, or take it out of the schedule"
        raise InvalidInput(f"there is no calendar {name!r}; {hint}")
    return found


def _moments(plan: _TimePlan, after_us: int, stop_us: int) -> Iterator[int]:
    """Nominal times after one moment and before another, in order, each once, until CRON_SEARCH_YEARS have brought none."""
    spec = plan.spec
    last = after = max(after_us, spec.start_us - 1, -1)
    stop = min(stop_us, spec.end_us or END_US, END_US)
    while after + 1 < stop:
        until = min(
            after + 1 + LEAP_S * SECOND_US, max(last + SEARCH_US, spec.at_us[-1] + 1 if spec.at_us else 0), stop
        )
        if until <= after + 1:
            return
        for at in merge(*_sources(plan, after + 1, until)):
            if at > last:
                yield at
                last = at
        after = until - 1


def _sources(plan: _TimePlan, since_us: int, until_us: int) -> Iterator[Iterator[int]]:
    for cron in plan.crons:
        yield _cron_times(cron, plan, -(-since_us // SECOND_US), -(-until_us // SECOND_US))
    if plan.spec.every_us:
        yield _every_times(plan, since_us, until_us)
    if plan.spec.at_us:
        yield _at_times(plan, since_us, until_us)


def _cron_times(cron: Cron, plan: _TimePlan, since: int, until: int) -> Iterator[int]:
    """By the law of daylight saving. Seconds inside, microseconds outside."""
    for segment in segments(plan.spec.tz, since, until):
        begin = low = segment.start + segment.offset
        if cron.fixed:
            if (
                since <= segment.start
                and segment.passed < begin
                and _fires_after_gap(cron, plan, segment.passed, begin)
            ):
                yield segment.start * SECOND_US
            low = max(begin, segment.passed)
        local = cron.first(max(low, since + segment.offset), segment.end + segment.offset, plan.allowed)
        while local is not None:
            yield (local - segment.offset) * SECOND_US
            local = cron.first(local + 1, segment.end + segment.offset, plan.allowed)


def _fires_after_gap(cron: Cron, plan: _TimePlan, passed: int, begin: int) -> bool:
    return cron.first(passed, begin) is not None and (plan.allowed is None or plan.allowed(day_of(begin // DAY_S)))


def _every_times(plan: _TimePlan, since_us: int, until_us: int) -> Iterator[int]:
    """Days that are not allowed are leapt over, however many times they have."""
    every, anchor = plan.spec.every_us, plan.spec.anchor_us % plan.spec.every_us

    def not_before(us: int) -> int:
        return anchor + -((anchor - us) // every) * every

    at = not_before(since_us)
    if plan.allowed is None:
        yield from range(at, until_us, every)
        return
    for segment in segments(plan.spec.tz, since_us // SECOND_US, -(-until_us // SECOND_US)):
        end = min(segment.end * SECOND_US, until_us)
        while at < end:
            day = (at // SECOND_US + segment.offset) // DAY_S
            tomorrow = min(((day + 1) * DAY_S - segment.offset) * SECOND_US, end)
            if plan.allowed(day_of(day)):
                yield from range(at, tomorrow, every)
            at = not_before(tomorrow)


def _at_times(plan: _TimePlan, since_us: int, until_us: int) -> Iterator[int]:
    for at in plan.spec.at_us:
        if since_us <= at < until_us and (plan.allowed is None or plan.allowed(_local_day(plan.spec.tz, at))):
            yield at


def _local_day(tz: str, at_us: int) -> date:
    at = at_us // SECOND_US
    return day_of((at + offset_at(tz, at)) // DAY_S)


def _until(plan: _TimePlan, name: str, next_us: int, now_us: int) -> int:
    """The first nominal time whose jitter is not over, or just after now. Later ones wait for it: they are never late by more than their jitter."""
    for at in _moments(plan, max(next_us, now_us - plan.spec.jitter_us) - 1, now_us + 1):
        if fire_at(plan.spec, name, at) > now_us:
            return at
    return now_us + 1


def _newest(plan: _TimePlan, since_us: int, until_us: int) -> int | None:
    """The last nominal time of a span, by halving it: about fifty looks, however many times it has."""
    found = next(_moments(plan, since_us - 1, until_us), None)
    low, high = since_us if found is None else found + 1, until_us
    while found is not None and low < high:
        middle = (low + high) // 2
        later = next(_moments(plan, middle - 1, until_us), None)
        if later is None:
            high = middle
        else:
            found, low = later, later + 1
    return found


def _count(plan: _TimePlan, since_us: int, until_us: int) -> int:
    return sum(1 for _ in islice(_moments(plan, since_us - 1, until_us), MISSED_COUNTED_MAX))
