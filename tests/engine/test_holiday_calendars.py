"""Calendars of public holidays, from the package to days."""

from __future__ import annotations

import sys
from datetime import date

import pytest

from perdure.core.errors import InvalidInput
from perdure.core.limits import CALENDAR_DAYS_MAX, HOLIDAYS_YEAR_FIRST, HOLIDAYS_YEAR_LAST
from perdure.core.schedules import calendar_json, next_after, parse_calendar, parse_spec
from perdure.core.schedules.holidays import HolidayPlace, holiday_place
from perdure.engine.holiday_calendars import holiday_calendar


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("holidays:DE", HolidayPlace("DE", None)),
        ("holidays:DE-BY", HolidayPlace("DE", "BY")),
        ("holidays:US-CA", HolidayPlace("US", "CA")),
        ("holidays:FR-Alsace-Moselle", HolidayPlace("FR", "Alsace-Moselle")),
    ],
)
def test_a_name_says_country_and_part(name: str, place: HolidayPlace) -> None:
    assert holiday_place(name) == place


@pytest.mark.parametrize(
    "wrong", ["holidays:", "holidays:de", "holidays:DEU", "holidays:DE-", "holidays:DE/BY", "holidays: DE", "DE"]
)
def test_any_other_name_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="names no public holidays: write holidays: and the code"):
        holiday_place(wrong)


def test_a_schedule_with_a_wrong_name_is_refused_when_it_is_read() -> None:
    with pytest.raises(InvalidInput, match="exclude: 'holidays:Germany' names no public holidays"):
        parse_spec({"cron": "0 8 * * *", "exclude": ["holidays:Germany"]})


def test_days_of_a_country_and_of_a_part_of_it() -> None:
    germany, bavaria = holiday_calendar("holidays:DE"), holiday_calendar("holidays:DE-BY")
    unity, epiphany, ordinary = date(2026, 10, 3), date(2026, 1, 6), date(2026, 1, 7)
    assert germany.holds(unity) and bavaria.holds(unity)
    assert bavaria.holds(epiphany) and not germany.holds(epiphany)
    assert not bavaria.holds(ordinary)
    assert holiday_calendar("holidays:US-CA").holds(date(2026, 7, 4))


def test_years_are_bounded_and_a_calendar_can_be_stored() -> None:
    calendar = holiday_calendar("holidays:DE")
    years = {day.year for day in calendar.dates}
    assert (min(years), max(years)) == (HOLIDAYS_YEAR_FIRST, HOLIDAYS_YEAR_LAST)
    assert len(calendar.dates) < CALENDAR_DAYS_MAX
    assert parse_calendar(calendar_json(calendar)) == calendar


def test_a_schedule_leaves_out_public_holidays() -> None:
    spec = parse_spec({"cron": "0 8 * * *", "exclude": ["holidays:DE-BY"]})
    eve_of_epiphany_us = 1_767_657_600_000_000  # 2026-01-06T00:00Z
    found = next_after(spec, {"holidays:DE-BY": holiday_calendar("holidays:DE-BY")}, eve_of_epiphany_us)
    assert found == eve_of_epiphany_us + 32 * 3_600_000_000, "the day after, at 08:00"


def test_unknown_places_are_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidInput, match="knows no country XX"):
        holiday_calendar("holidays:XX")
    with pytest.raises(InvalidInput, match="knows no part ZZ of DE; it knows BB, BE, BW"):
        holiday_calendar("holidays:DE-ZZ")


def test_a_missing_package_is_refused_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "holidays", None)
    with pytest.raises(InvalidInput, match=r"needs a package on the server: pip install 'perdure\[holidays\]'"):
        holiday_calendar("holidays:DE")
