"""Calendars: which days they hold, what is refused, and that writing one back loses nothing."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.limits import CALENDAR_DAYS_MAX
from perdure.core.schedules import Calendar, calendar_json, parse_calendar
from perdure.core.schedules.calendars import WEEKDAYS


def held(value: dict[str, Any], *days: str) -> list[bool]:
    calendar = parse_calendar(value)
    return [calendar.holds(date.fromisoformat(d)) for d in days]


def test_each_way_to_name_days() -> None:
    assert held({"dates": ["2026-12-25"]}, "2026-12-25", "2026-12-24", "2027-12-25") == [True, False, False]
    assert held({"yearly": ["12-25", "02-29"]}, "2026-12-25", "2027-12-25", "2028-02-29", "2026-02-28") == [
        True,
        True,
        True,
        False,
    ]
    assert held({"weekdays": ["sat", "Sunday"]}, "2026-11-14", "2026-11-15", "2026-11-16") == [True, True, False]
    assert held({"ranges": [["2026-08-01", "2026-08-15"]]}, "2026-07-31", "2026-08-01", "2026-08-15", "2026-08-16") == [
        False,
        True,
        True,
        False,
    ]


def test_ways_to_name_days_add_up_and_not_takes_away() -> None:
    value = {"weekdays": ["mon"], "dates": ["2026-11-17"], "not": {"dates": ["2026-11-23", "2026-11-17"]}}
    assert held(value, "2026-11-16", "2026-11-17", "2026-11-18", "2026-11-23") == [True, False, False, False]


def test_a_calendar_with_only_not_holds_all_other_days() -> None:
    assert held({"not": {"weekdays": ["sat", "sun"]}}, "2026-11-13", "2026-11-14") == [True, False]


def test_not_within_not_puts_days_back() -> None:
    value = {"not": {"weekdays": ["sat", "sun"], "not": {"dates": ["2026-11-14"]}}}
    assert held(value, "2026-11-13", "2026-11-14", "2026-11-15") == [True, True, False]


def test_dates_that_a_yaml_reader_has_already_made_are_taken() -> None:
    assert parse_calendar({"dates": [date(2026, 12, 25)]}) == parse_calendar({"dates": ["2026-12-25"]})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, ["names no days"]),
        ({"dates": []}, ["names no days"]),
        ({"not": {}}, ["not", "names no days"]),
        ({"days": ["2026-01-01"]}, ["days", "no such key"]),
        ({"weekday": ["mon"]}, ["weekday", "did you mean 'weekdays'"]),
        ({"dates": "2026-01-01"}, ["dates", "list"]),
        ({"dates": ["2026-13-01"]}, ["dates", "2026-13-01", "2026-12-25"]),
        ({"dates": [20260101]}, ["dates", "20260101"]),
        ({"dates": [datetime(2026, 1, 1)]}, ["dates", "no day"]),
        ({"yearly": ["02-30"]}, ["yearly", "02-30"]),
        ({"yearly": ["25.12."]}, ["yearly", "25.12.", "12-25"]),
        ({"yearly": [12]}, ["yearly", "12"]),
        ({"weekdays": ["mo"]}, ["weekdays", "'mo'"]),
        ({"weekdays": ["Wendsday"]}, ["weekdays", "did you mean 'wednesday'"]),
        ({"weekdays": [1]}, ["weekdays", "1"]),
        ({"ranges": [["2026-01-01"]]}, ["ranges", "first and last"]),
        ({"ranges": ["2026-01-01"]}, ["ranges", "first and last"]),
        ({"ranges": [["2026-01-02", "2026-01-01"]]}, ["ranges", "before it begins", "swap"]),
        ({"not": ["2026-01-01"]}, ["not", "mapping"]),
        ({"not": {"date": ["2026-01-01"]}}, ["not.date", "did you mean 'dates'"]),
        ({"not": {"not": {"not": {"dates": ["2026-01-01"]}}}}, ["not.not.not", "3 levels"]),
    ],
)
def test_what_is_wrong_is_said_with_its_key(value: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidInput) as e:
        parse_calendar(value)
    for word in words:
        assert word in str(e.value), str(e.value)


def test_a_calendar_has_a_size_and_what_it_takes_away_counts() -> None:
    days = [(date(2000, 1, 1) + timedelta(n)).isoformat() for n in range(CALENDAR_DAYS_MAX)]
    assert len(parse_calendar({"dates": days}).dates) == CALENDAR_DAYS_MAX
    with pytest.raises(InvalidInput, match="5,000 dates"):
        parse_calendar({"dates": days, "not": {"yearly": ["12-25"]}})


days = st.dates(date(1990, 1, 1), date(2100, 1, 1))
plain = {
    "dates": st.lists(days.map(date.isoformat), max_size=4),
    "yearly": st.lists(st.dates(date(2000, 1, 1), date(2000, 12, 31)).map(lambda d: f"{d:%m-%d}"), max_size=3),
    "weekdays": st.lists(st.sampled_from(WEEKDAYS), max_size=3),
    "ranges": st.lists(st.tuples(days, days).map(lambda r: [d.isoformat() for d in sorted(r)]), max_size=3),
}
calendars = st.fixed_dictionaries({}, optional={**plain, "not": st.fixed_dictionaries({}, optional=plain)})


@given(calendars, days)
def test_a_calendar_read_back_holds_the_same_days(value: dict[str, Any], day: date) -> None:
    try:
        calendar = parse_calendar(value)
    except InvalidInput as e:
        assert "names no days" in str(e)
        return
    again = parse_calendar(calendar_json(calendar))
    assert again == calendar
    assert again.holds(day) == calendar.holds(day)


@given(calendars, days)
def test_not_is_the_opposite(value: dict[str, Any], day: date) -> None:
    try:
        calendar = parse_calendar(value)
    except InvalidInput:
        return
    assert Calendar(without=calendar).holds(day) is not calendar.holds(day)
