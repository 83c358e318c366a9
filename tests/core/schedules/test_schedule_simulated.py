"""The simulated calendar: 400 days on the wall, minute by minute, against what schedules compute.

A routine run takes a quarter of the pairs of zone and expression over all 400 days, and the expressions that daylight saving bites for every
zone that has it. PERDURE_CALENDAR_FULL=1 takes all pairs, converts every single minute, and lists the dense expressions in full as well.
"""

from __future__ import annotations

from datetime import date
from zoneinfo import ZoneInfo

import pytest

from perdure.core.schedules import Calendar, between, next_after, parse_calendar, parse_spec
from tests.core.schedules.wall import DAYS, DENSE, FIXED, FULL, MINUTES, REPEATING, ZONES, Rule, wall

EXPRESSIONS = FIXED + REPEATING
SENSITIVE = {
    "0 0 * * *",
    "30 2 * * *",
    "0-59/7 1-3 * * *",
    "5/15 0-23 * * *",
    "30 23 * * *",
    "30 0 * * *",
    "*/20 1-3 * * *",
    "0 * * * *",
    "15,45 30 2 * * *",
    "*/15 * 2 * * SUN",
}
SECOND_US = 1_000_000
ALL = 10**9


def computed(expression: str, zone: str, since: int, until: int) -> list[int]:
    spec = parse_spec({"cron": expression, "tz": zone})
    return [us // SECOND_US for us in between(spec, {}, since * SECOND_US, until * SECOND_US, ALL)]


def told(zone: str, seconds: list[int]) -> list[str]:
    from datetime import datetime

    return [datetime.fromtimestamp(s, ZoneInfo(zone)).isoformat() for s in seconds[:5]]


def chosen(zone: str) -> list[str]:
    at = list(ZONES).index(zone)
    changes = bool(wall(zone).gaps or wall(zone).backs)
    return [e for i, e in enumerate(EXPRESSIONS) if FULL or (i + at) % 4 == 0 or (changes and e in SENSITIVE)]


@pytest.mark.parametrize("zone", ZONES)
def test_every_time_of_400_days_is_the_one_on_the_wall(zone: str) -> None:
    w = wall(zone)
    for expression in chosen(zone):
        want, got = w.fires(Rule(expression)), computed(expression, zone, w.base, w.base + DAYS * 86_400)
        assert got == want, f"{expression} in {zone}: {told(zone, sorted({*got} ^ {*want}))}"


@pytest.mark.parametrize("zone", ZONES)
def test_dense_expressions_are_the_ones_on_the_wall_where_the_clock_changes(zone: str) -> None:
    w = wall(zone)
    for expression in DENSE:
        minutes_only = len(expression.split()) == 5
        for since, until in [(w.base, w.base + MINUTES * 60)] if FULL and minutes_only else w.windows(1):
            want, got = w.fires(Rule(expression), (since, until)), computed(expression, zone, since, until)
            assert got == want, f"{expression} in {zone}: {told(zone, sorted({*got} ^ {*want}))}"


def test_every_zone_and_every_expression_has_its_turn() -> None:
    assert {e for zone in ZONES for e in chosen(zone)} == {*EXPRESSIONS}
    assert all(chosen(zone) for zone in ZONES)


def test_the_tables_hold_what_they_are_there_for() -> None:
    """Gaps and repeats of all the kinds that were looked for, so that no comparison passes for lack of them."""
    assert [len(never) for _, never in wall("Australia/Lord_Howe").gaps] == [30]
    assert [len(never) for _, never in wall("Pacific/Apia").gaps] == [60, 1440]
    assert [len(never) for _, never in wall("Antarctica/Troll").gaps] == [120]
    assert len(wall("Africa/Casablanca").backs) == 2
    assert not wall("Asia/Kathmandu").gaps
    assert not wall("UTC").backs
    midnight = wall("America/Sao_Paulo").gaps[0][1]
    assert midnight[0] % 1440 == 0, "the gap begins at midnight"


@pytest.mark.parametrize(
    "zone", ["Europe/Paris", "America/Sao_Paulo", "Pacific/Apia", "Africa/Cairo", "Asia/Kathmandu"]
)
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 0 * * *", "*/20 0,23 * * *", "15,45 30 12 */2 * *"])
def test_calendars_are_asked_about_the_day_on_the_wall(zone: str, expression: str) -> None:
    w = wall(zone)
    only = {"work": {"weekdays": ["mon", "tue", "wed", "thu", "fri"]}, "odd": {"yearly": ["12-31", "01-01", "03-29"]}}
    never = {
        "holidays": {
            "yearly": ["12-30", "12-25"],
            "ranges": [["2026-08-01", "2026-08-15"], ["2017-10-10", "2017-10-15"]],
        }
    }
    calendars: dict[str, Calendar] = {name: parse_calendar(c) for name, c in {**only, **never}.items()}

    def on(day: date) -> bool:
        work = day.isoweekday() <= 5 or (day.month, day.day) in {(12, 31), (1, 1), (3, 29)}
        away = (day.month, day.day) in {(12, 30), (12, 25)}
        away |= date(2026, 8, 1) <= day <= date(2026, 8, 15) or date(2017, 10, 10) <= day <= date(2017, 10, 15)
        return work and not away

    spec = parse_spec({"cron": expression, "tz": zone, "calendars": list(only), "exclude": list(never)})
    got = between(spec, calendars, w.base * SECOND_US, (w.base + DAYS * 86_400) * SECOND_US, ALL)
    want = w.fires(Rule(expression), on=on)
    assert [us // SECOND_US for us in got] == want, told(zone, sorted({us // SECOND_US for us in got} ^ {*want}))


@pytest.mark.parametrize("zone", ["Europe/Paris", "Pacific/Apia", "America/St_Johns"])
def test_intervals_keep_absolute_time_and_leave_out_the_days_of_calendars(zone: str) -> None:
    w = wall(zone)
    calendars = {"weekend": parse_calendar({"weekdays": ["sat", "sun"]})}
    spec = parse_spec({"every": "37m", "tz": zone, "exclude": "weekend"})
    got = between(spec, calendars, w.base * SECOND_US, (w.base + DAYS * 86_400) * SECOND_US, ALL)
    step = 37 * 60
    want = [
        at
        for at in range(-(-w.base // step) * step, w.base + MINUTES * 60, step)
        if (w.shown[(at - w.base) // 60] // 1440 + 3) % 7 < 5  # 1 January 1970 was a Thursday
    ]
    assert [us // SECOND_US for us in got] == want


@pytest.mark.parametrize(
    "zone", ["Europe/Paris", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia", "Antarctica/Troll"]
)
def test_the_next_time_is_the_same_from_wherever_one_looks(zone: str) -> None:
    """Also from within a repeated hour and from the edge of a gap, where a search that walks the wall loses its way."""
    w = wall(zone)
    for expression in ("30 2 * * *", "0-59/7 1-3 * * *", "*/20 1-3 * * *", "30 23 * * *", "0 0 * * *"):
        spec, times = parse_spec({"cron": expression, "tz": zone}), w.fires(Rule(expression))
        for since, until in w.windows(1)[:3]:
            for at in range(since, until - 86_400 // 2, 7 * 60):
                want = next((t for t in times if t > at), None)
                got = next_after(spec, {}, at * SECOND_US)
                assert want is not None
                assert got == want * SECOND_US, f"{expression} in {zone} after {told(zone, [at])}"
