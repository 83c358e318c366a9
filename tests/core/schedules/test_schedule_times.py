"""Laws of the times of a schedule: they only go forward, looking once is the same as looking often, and what is due is parted exactly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.limits import MISSED_COUNTED_MAX
from perdure.core.schedules import (
    ON_TIME_US,
    Calendar,
    DueTimes,
    ScheduleSpec,
    between,
    due,
    fire_at,
    next_after,
    parse_calendar,
    parse_spec,
)
from tests.core.schedules.wall import FIXED, REPEATING, ZONES

SECOND_US = 1_000_000
HOUR_US = 3_600 * SECOND_US
DAY_US = 24 * HOUR_US
CALENDARS: dict[str, Calendar] = {
    "work": parse_calendar({"weekdays": ["mon", "tue", "wed", "thu", "fri"], "not": {"yearly": ["12-25", "01-01"]}}),
    "summer": parse_calendar({"ranges": [["2026-07-01", "2026-08-31"]]}),
    "nothing": parse_calendar({"dates": ["2001-01-01"]}),
}


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * SECOND_US)


NOW = us("2026-11-15T12:00:00+00:00")


def iso(us: int | None) -> str:
    return "" if us is None else datetime.fromtimestamp(us / SECOND_US, UTC).isoformat().replace("+00:00", "Z")


def coming(value: dict[str, Any], after: str, count: int = 3) -> list[str]:
    at = us(after)
    return [iso(t) for t in between(parse_spec(value), CALENDARS, at + 1, at + 4000 * DAY_US, count)]


# -- single cases ------------------------------------------------------------------------------------------------------


def test_cron_every_and_at_add_up_and_each_time_comes_once() -> None:
    value = {
        "cron": ["0 12 * * *", "0 */12 * * *"],
        "every": "8h",
        "at": ["2026-01-01T12:00:00Z", "2026-01-01T13:30:00Z"],
    }
    assert coming(value, "2026-01-01T00:00:00Z", 5) == [
        "2026-01-01T08:00:00Z",
        "2026-01-01T12:00:00Z",
        "2026-01-01T13:30:00Z",
        "2026-01-01T16:00:00Z",
        "2026-01-02T00:00:00Z",
    ]


def test_an_interval_counts_from_its_anchor_both_ways() -> None:
    value = {"every": "1h", "anchor": "2030-01-01T00:20:00Z"}
    assert coming(value, "2026-01-01T00:20:00Z", 2) == ["2026-01-01T01:20:00Z", "2026-01-01T02:20:00Z"]
    assert coming({"every": "1d"}, "2026-01-01T00:00:00Z", 1) == ["2026-01-02T00:00:00Z"]


def test_an_interval_does_not_know_daylight_saving() -> None:
    value = {"every": "1d", "anchor": "2026-03-28T09:00", "tz": "Europe/Paris"}
    assert coming(value, "2026-03-28T00:00:00Z") == [
        "2026-03-28T08:00:00Z",
        "2026-03-29T08:00:00Z",
        "2026-03-30T08:00:00Z",
    ]


def test_start_is_in_and_end_is_out() -> None:
    value = {"cron": "@daily", "start": "2026-01-02T00:00:00Z", "end": "2026-01-04T00:00:00Z"}
    assert coming(value, "2020-01-01T00:00:00Z") == ["2026-01-02T00:00:00Z", "2026-01-03T00:00:00Z"]


def test_one_shots_are_over_after_the_last() -> None:
    spec = parse_spec({"at": "2026-06-01T08:00:00Z"})
    assert next_after(spec, {}, 0) == us("2026-06-01T08:00:00Z")
    assert next_after(spec, {}, us("2026-06-01T08:00:00Z")) is None


def test_a_moment_more_than_the_search_away_is_found_and_a_rare_cron_too() -> None:
    assert iso(next_after(parse_spec({"at": "2190-01-01T00:00:00Z"}), {}, NOW)) == "2190-01-01T00:00:00Z"
    sunday = parse_spec({"cron": "0 0 29 2 */7"})
    assert iso(next_after(sunday, {}, us("2026-01-01T00:00:00Z"))) == "2032-02-29T00:00:00Z"
    assert iso(next_after(sunday, {}, us("2088-03-01T00:00:00Z"))) == "2128-02-29T00:00:00Z", (
        "40 years: 2100 has no such day"
    )


def test_a_schedule_that_can_never_fire_again_says_so() -> None:
    assert next_after(parse_spec({"cron": "* * * * *", "calendars": "nothing"}), CALENDARS, NOW) is None
    assert next_after(parse_spec({"every": "1s", "calendars": "nothing"}), CALENDARS, NOW) is None
    assert next_after(parse_spec({"cron": "@daily"}), {}, us("2199-12-31T12:00:00Z")) is None


@pytest.mark.parametrize("after", [-(10**18), -1, 10**18])
def test_moments_outside_of_the_supported_years_are_no_trouble(after: int) -> None:
    found = next_after(parse_spec({"cron": "@daily", "tz": "Asia/Tokyo"}), {}, after)
    assert (found is None) == (after > 0)
    if found is not None:
        assert found == 15 * HOUR_US


def test_a_calendar_that_is_not_there_is_named() -> None:
    for key in ("calendars", "exclude"):
        spec = parse_spec({"cron": "@daily", key: "sumer"})
        with pytest.raises(InvalidInput, match="no calendar 'sumer'; did you mean 'summer'"):
            next_after(spec, CALENDARS, NOW)
        with pytest.raises(InvalidInput, match="create it"):
            due(spec, {}, NOW, NOW, 1)


def test_calendars_are_any_of_and_exclusions_none_of() -> None:
    value = {"cron": "0 8 * * *", "tz": "Europe/Paris", "calendars": ["summer", "work"], "exclude": "nothing"}
    assert coming(value, "2026-06-26T12:00:00Z", 3) == [
        "2026-06-29T06:00:00Z",
        "2026-06-30T06:00:00Z",
        "2026-07-01T06:00:00Z",
    ]
    assert coming(value, "2026-07-03T12:00:00Z", 1) == ["2026-07-04T06:00:00Z"], "a Saturday, but in summer"
    assert coming({"cron": "0 8 * * *", "exclude": "work"}, "2026-12-24T12:00:00Z", 1) == ["2026-12-25T08:00:00Z"]


def test_a_spec_built_by_hand_is_refused_where_it_is_used() -> None:
    with pytest.raises(InvalidInput, match="minute"):
        next_after(ScheduleSpec(cron=("61 * * * *",)), {}, NOW)
    with pytest.raises(InvalidInput, match="time zone"):
        next_after(ScheduleSpec(cron=("1 * * * *",), tz="Mars/Olympus"), {}, NOW)


# -- laws --------------------------------------------------------------------------------------------------------------

zones = st.sampled_from([*ZONES, "America/Havana", "Asia/Gaza", "America/Santiago"])
values = st.fixed_dictionaries(
    {"cron": st.lists(st.sampled_from([*FIXED, *REPEATING]), max_size=3), "tz": zones},
    optional={
        "every": st.sampled_from(["61s", "17m", "1h", "25h", "9d"]),
        "at": st.lists(
            st.integers(0, 400).map(lambda n: (datetime(2026, 1, 1, 2, 30) + timedelta(hours=n)).isoformat()),
            max_size=4,
        ),
        "calendars": st.lists(st.sampled_from(["work", "summer"]), max_size=2),
        "start": st.just("2026-02-01"),
        "end": st.just("2027-03-01"),
        "jitter": st.sampled_from(["0s", "10s", "1h"]),
    },
).filter(lambda v: v["cron"] or v.get("every") or v.get("at"))
since = st.integers(us("2026-01-01T00:00:00+00:00"), us("2027-02-01T00:00:00+00:00"))


@given(values, since)
def test_the_next_time_is_always_later(value: dict[str, Any], after: int) -> None:
    spec = parse_spec(value)
    for _ in range(20):
        found = next_after(spec, CALENDARS, after)
        if found is None:
            return
        assert found > after
        assert found >= spec.start_us
        assert found < spec.end_us or not spec.end_us
        assert next_after(spec, CALENDARS, found - 1) == found, "what is next is a nominal time"
        after = found


@given(values, since, st.integers(0, 40 * DAY_US), st.integers(0, 30))
def test_a_list_is_what_looking_one_by_one_finds(value: dict[str, Any], begin: int, length: int, limit: int) -> None:
    spec, want = parse_spec(value), list[int]()
    at = next_after(spec, CALENDARS, begin - 1)
    while at is not None and at < begin + length and len(want) < limit:
        want.append(at)
        at = next_after(spec, CALENDARS, at)
    assert between(spec, CALENDARS, begin, begin + length, limit) == want


@given(values, since, st.text(min_size=1, max_size=10))
def test_jitter_is_bounded_and_always_the_same(value: dict[str, Any], nominal: int, name: str) -> None:
    spec = parse_spec(value)
    at = fire_at(spec, name, nominal)
    assert nominal <= at <= nominal + spec.jitter_us
    assert fire_at(spec, name, nominal) == at


def test_jitter_spreads_over_its_whole_width_and_differs_between_schedules() -> None:
    spec = parse_spec({"every": "1m", "jitter": "10s"})
    defer = [fire_at(spec, "a", n * 60 * SECOND_US) - n * 60 * SECOND_US for n in range(1000)]
    assert [sum(1 for p in defer if p * 10 // (spec.jitter_us + 1) == tenth) > 60 for tenth in range(10)] == [True] * 10
    assert len({fire_at(spec, name, NOW) for name in map(str, range(50))}) == 50


def test_jitter_reaches_its_bound() -> None:
    spec = msgspec.structs.replace(parse_spec({"every": "1m", "jitter": "1s"}), jitter_us=1)
    assert {fire_at(spec, str(n), NOW) - NOW for n in range(50)} == {0, 1}


# -- what is due -------------------------------------------------------------------------------------------------------


def due_of(value: dict[str, Any], late_us: int, now: int = NOW, limit: int = 100) -> tuple[list[int], int, int | None]:
    """Fired (as how late they are), missed, and how far away the next one is, in seconds."""
    spec = parse_spec(value)
    found = due(spec, CALENDARS, now - late_us, now, limit)
    return (
        [(now - f) // SECOND_US for f in found.fire],
        found.missed,
        None if found.next_us is None else (found.next_us - now) // SECOND_US,
    )


def test_what_is_on_time_fires_whatever_the_policy() -> None:
    for missed in ("none", "last", "all"):
        assert due_of({"every": "1h", "missed": missed}, 0) == ([0], 0, 3600)
        now = NOW + ON_TIME_US
        assert due_of({"every": "1h", "missed": missed, "window": "0s"}, ON_TIME_US, now) == ([60], 0, 3540)


def test_after_an_outage_each_policy_does_what_it_says() -> None:
    now, late = NOW + 90 * SECOND_US, 5 * HOUR_US + 90 * SECOND_US
    hours = [h * 3600 + 90 for h in range(5, -1, -1)]
    assert due_of({"every": "1h", "missed": "none"}, late, now) == ([], 6, 3510)
    assert due_of({"every": "1h", "missed": "last"}, late, now) == ([90], 5, 3510)
    assert due_of({"every": "1h", "missed": "last", "window": "61s"}, late, now) == ([], 6, 3510)
    assert due_of({"every": "1h", "missed": "all", "window": "10h"}, late, now) == (hours, 0, 3510)
    assert due_of({"every": "1h", "missed": "all", "window": "3h"}, late, now) == (hours[3:], 3, 3510)
    assert due_of({"every": "1h", "missed": "all", "window": "10h"}, late, now, 2) == (hours[:2], 0, -(3 * 3600 + 90))


def test_a_short_delay_of_a_frequent_schedule_is_not_an_outage() -> None:
    assert due_of({"every": "1s", "missed": "last"}, 3 * SECOND_US) == ([3, 2, 1, 0], 0, 1)
    assert due_of({"every": "1s", "missed": "none"}, 3 * SECOND_US, limit=2) == ([3, 2], 0, -1)
    assert due_of({"every": "10s", "missed": "last"}, 600 * SECOND_US) == ([0], 60, 10), "ten minutes are"


def test_an_outage_begins_a_moment_after_what_counts_as_on_time() -> None:
    """With `last`, times that are all on time fire one by one; with one that is a microsecond older, only the newest does."""
    now = NOW + ON_TIME_US
    assert due_of({"every": "30s", "missed": "last"}, ON_TIME_US, now) == ([60, 30, 0], 0, 30)
    assert due_of({"every": "30s", "missed": "last"}, ON_TIME_US + 1, now + 1) == ([0], 2, 29)


def test_jitter_counts_as_on_time() -> None:
    now, late = NOW + 30 * 60 * SECOND_US, 30 * 60 * SECOND_US
    assert due_of({"cron": "0 12 * * *", "missed": "none", "jitter": "30m"}, late, now)[0] == [1800]
    assert due_of({"cron": "0 12 * * *", "missed": "none", "jitter": "10m"}, late, now)[0] == []


def test_times_whose_own_jitter_is_not_over_are_left_for_later() -> None:
    spec = parse_spec({"every": "1m", "jitter": "10m", "missed": "none"})
    nominal, fired = NOW, dict[int, int]()
    for now in range(NOW, NOW + 200 * 60 * SECOND_US, 5 * SECOND_US):
        found = due(spec, {}, nominal, now, 100, "reports")
        assert found.missed == 0
        for at in found.fire:
            fired[at] = now
        assert found.next_us is not None
        nominal = found.next_us
    assert sorted(fired) == [NOW + n * 60 * SECOND_US for n in range(len(fired))]
    assert len(fired) >= 189, "all but those of the last ten minutes"
    for at, now in fired.items():
        assert fire_at(spec, "reports", at) <= now <= at + spec.jitter_us + 5 * SECOND_US


def test_a_day_that_was_excluded_since_does_not_fire() -> None:
    spec = parse_spec({"cron": "0 8 * * *", "exclude": "holidays"})
    today = us("2026-12-25T08:00:00+00:00")
    holidays = {"holidays": parse_calendar({"dates": ["2026-12-25"]})}
    assert due(spec, holidays, today, today, 10) == DueTimes((), 0, today + DAY_US)


def test_nothing_due_leaves_everything_as_it_is() -> None:
    assert due(parse_spec({"every": "1h"}), {}, NOW + HOUR_US, NOW, 10) == DueTimes((), 0, NOW + HOUR_US)
    assert due(parse_spec({"at": "2026-11-15T12:00:00Z"}), {}, NOW, NOW, 10) == DueTimes((NOW,), 0, None)


def test_a_year_away_is_dealt_with_at_once() -> None:
    """31 million times of a second each: the newest is found, the missed are counted as far as they are counted."""
    spec = parse_spec({"every": "1s", "missed": "last", "window": "10000d"})
    assert due(spec, {}, NOW - 365 * DAY_US, NOW, 10) == DueTimes((NOW,), MISSED_COUNTED_MAX, NOW + SECOND_US)
    spec = parse_spec({"cron": "* * * * * *", "missed": "all", "window": "1h"})
    found = due(spec, {}, NOW - 365 * DAY_US, NOW, 10)
    assert found.fire[0] == NOW - HOUR_US
    assert found.next_us == found.fire[-1] + SECOND_US


@given(
    values,
    since,
    st.integers(0, 3 * DAY_US),
    st.sampled_from(["none", "last", "all"]),
    st.sampled_from(["0s", "30s", "1h", "2d"]),
    st.integers(1, 40),
)
def test_what_is_due_is_parted_exactly(
    value: dict[str, Any], begin: int, late: int, missed: str, window: str, limit: int
) -> None:
    spec = parse_spec({**value, "missed": missed, "window": window})
    now = begin + late
    first = next_after(spec, CALENDARS, begin - 1)
    if first is None or first > now:
        return
    found = due(spec, CALENDARS, first, now, limit)
    nominal = between(spec, CALENDARS, first, now + 1, 10**6)
    left = [t for t in nominal if found.next_us is not None and t >= found.next_us]
    assert list(found.fire) == sorted(set(found.fire) & set(nominal))
    assert len(found.fire) <= limit
    assert len(found.fire) + found.missed + len(left) == len(nominal)
    if not left:
        assert found.next_us == next_after(spec, CALENDARS, now)
    else:
        assert len(found.fire) == limit
        assert found.fire[-1] < left[0]
    slack = ON_TIME_US + spec.jitter_us
    oldest_allowed = now - (slack if missed == "none" else max(slack, spec.window_us))
    assert all(t >= oldest_allowed for t in found.fire)
    if nominal[-1] >= oldest_allowed and not left:
        assert found.fire[-1] == nominal[-1], "the newest fires if it may"
    if missed == "all":
        assert found.missed == sum(1 for t in nominal if t < oldest_allowed)


@given(values, since, st.integers(0, 2 * DAY_US), st.integers(1, 5))
def test_taking_a_few_at_a_time_fires_the_same(value: dict[str, Any], begin: int, late: int, limit: int) -> None:
    spec = parse_spec({**value, "missed": "all", "window": "3d"})
    now = begin + late
    at = next_after(spec, CALENDARS, begin - 1)
    want = [] if at is None else between(spec, CALENDARS, at, now + 1, 60)
    fired: list[int] = []
    while at is not None and at <= now and len(fired) < len(want):
        found = due(spec, CALENDARS, at, now, limit)
        assert found.fire
        fired += found.fire
        at = found.next_us
    assert fired[: len(want)] == want
