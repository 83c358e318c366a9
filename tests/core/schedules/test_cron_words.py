"""Cron expressions in words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import date, timedelta
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.schedules import between, cron_words, parse_spec, spec_words
from perdure.core.schedules.cron import ALIASES, read_cron
from perdure.core.schedules.cron_words import REPEATING

DAYS = [date(2024, 1, 1) + timedelta(days=n) for n in range(3 * 366)]


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("0 8 * * 1-5", "at 08:00, Monday to Friday"),
        ("0 8 * * MON,WED,FRI", "at 08:00, Monday, Wednesday and Friday"),
        ("30 2 * * *", "at 02:30, every day"),
        ("0,30 8,9 * * *", "at 08:00, 08:30, 09:00 and 09:30, every day"),
        ("15,45 30 2 * * *", "at 02:30:15 and 02:30:45, every day"),
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("*/15 9-17 * * MON-FRI", "every 15 minutes from 09:00 to 17:59, Monday to Friday"),
        ("*/20 */12 * * *", "every 20 minutes from 00:00 to 00:59 and 12:00 to 12:59"),
        ("0 * * * *", "every hour"),
        ("5 * * * *", "every hour at minute 5"),
        ("0,30 * * * *", "every hour at minutes 0 and 30"),
        ("0 */2 * * *", "every 2 hours"),
        ("5 */2 * * *", "every 2 hours at minute 5"),
        ("* * * * * *", "every second"),
        ("*/10 * * * * *", "every 10 seconds"),
        ("*/10 * 8 * * *", "every 10 seconds from 08:00 to 08:59"),
        ("5 * * * * *", "every minute at second 5"),
        ("* 3 * * * *", "every hour at minute 3 and each second"),
        ("1-5 */30 * * * *", "every 30 minutes at seconds 1 to 5"),
        ("0 9-17 * * *", "at minute 0 of hours 9 to 17, every day"),
        ("1/2 8 * * *", "at minutes 1 to 59 in steps of 2 of hour 8, every day"),
        ("*/7 2 * * *", "at minutes 0 to 56 in steps of 7 of hour 2, every day, each time the clock shows it"),
        ("*/40 2 * * *", "at 02:00 and 02:40, every day, each time the clock shows it"),
        ("0,40 2 * * *", "at 02:00 and 02:40, every day"),
        ("0 0 1 * *", "at 00:00, on day 1 of the month"),
        ("0 9 1,15 1,6-8 *", "at 09:00, on days 1 and 15 of the month, in January and June to August"),
        ("0 0 L * *", "at 00:00, on the last day of the month"),
        ("30 12 LW * *", "at 12:30, on the last Monday-to-Friday day of the month"),
        ("0 9 * * 5L", "at 09:00, the last Friday of the month"),
        ("0 9 * * FRI#2", "at 09:00, the second Friday of the month"),
        ("0 9 13 * FRI", "at 09:00, on day 13 of the month or Friday"),
        ("0 9 */2 * MON", "at 09:00, on days 1 to 31 in steps of 2 of the month if it is Monday"),
        ("0 9 1-31 * FRI", "at 09:00, every day"),
        ("@weekly", "at 00:00, Sunday"),
        ("@yearly", "at 00:00, on day 1 of the month, in January"),
    ],
)
def test_a_cron_expression_in_words(cron: str, words: str) -> None:
    assert cron_words(cron) == words


def test_the_examples_of_the_reference_are_true() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "schedules.md").read_text()
    part = page[page.index("## In words") : page.index("## Missed times")]
    found = re.findall(r"^\| `(.+?)` \| (.+?) \|$", part, re.MULTILINE)
    assert len(found) == 5
    for cron, words in found:
        assert cron_words(cron) == words


def test_a_wrong_expression_has_no_words() -> None:
    with pytest.raises(InvalidInput, match="the hour '25' cannot be read"):
        cron_words("0 25 * * *")


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_has_the_words_of_what_it_stands_for(alias: str) -> None:
    assert cron_words(alias) == cron_words(ALIASES[alias])


SECONDS = ["0", "*", "*/10", "*/60", "*/7", "0-59", "0,10,20,30,40,50", "5", "0,30", "30-59"]
MINUTES = [
    *("*", "*/1", "*/15", "0/15", "0,15,30,45", "*/7", "0-56/7", "*/60", "0", "*/30", "0,30", "*,5"),
    *("0-59", "*/20,5", "0,5,20,40", "1/2", "*/40", "0,40"),
]
HOURS = [
    "*",
    "*/1",
    "0-23",
    "*/2",
    "0/2",
    "*/5",
    "0/5",
    "8",
    "0",
    "*/24",
    "8-17",
    "9-17",
    "*/8",
    "0,8,16",
    "*/7",
    "1-23",
]
DATES = ["*", "1-31", "*/2", "1/2", "1", "*/31", "13", "L", "LW", "L,LW", "1,L", "1-3", "31", "30,31"]
WEEKDAYS = [
    *("*", "0-6", "1-7", "0-7", "*/2", "0/2", "0,2,4,6", "1/2", "MON", "1", "0", "7", "SUN", "5L", "7L", "0L"),
    *("FRI#2", "0#1", "7#1", "1-5", "MON-FRI", "1,5L", "*/7", "0,7", "0/7"),
]
MONTHS = ["*", "1-12", "*/1", "*/2", "1/2", "2", "FEB", "1,2", "1-2", "*/12", "1"]


def by_words(crons: Iterable[str]) -> list[list[str]]:
    found: defaultdict[str, list[str]] = defaultdict(list)
    for cron in crons:
        found[cron_words(cron)].append(cron)
    return [group for group in found.values() if len(group) > 1]


def times_of_day(cron: str) -> object:
    read = read_cron(cron)
    return read.seconds, read.minutes, read.hours, read.fixed


def days(cron: str) -> list[date]:
    read = read_cron(cron)
    return [day for day in DAYS if day.month in read.months and read.day(day)]


def test_expressions_with_the_same_words_have_the_same_times_of_the_day() -> None:
    groups = by_words(f"{s} {m} {h} * * *" for s, m, h in product(SECONDS, MINUTES, HOURS))
    assert len(groups) > 100, "there is something to compare"
    for first, *rest in groups:
        assert all(times_of_day(other) == times_of_day(first) for other in rest), (first, rest)


def test_expressions_with_the_same_words_have_the_same_days() -> None:
    groups = by_words(f"0 8 {d} {m} {w}" for d, m, w in product(DATES, ["*", "1"], WEEKDAYS))
    groups += by_words(f"0 8 {d} {m} {w}" for d, m, w in product(["*", "1-3"], MONTHS, ["*", "1-5"]))
    assert len(groups) > 30, "there is something to compare"
    for first, *rest in groups:
        expected = days(first)
        assert all(days(other) == expected for other in rest), (first, rest)


field = st.sampled_from
crons = st.builds(
    lambda *parts: " ".join(parts),
    *(field(tokens) for tokens in (SECONDS, MINUTES, HOURS, ["*", "1-3", "L"], ["*", "2"], ["*", "1-5", "7"])),
)


@given(crons, st.lists(crons, min_size=1, max_size=50), st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe"]))
def test_expressions_with_the_same_words_fire_at_the_same_times(cron: str, others: list[str], tz: str) -> None:
    since, until = 1_774_700_000_000_000, 1_774_900_000_000_000  # The clock is put forward in Paris.
    for other in others:
        if cron_words(other) == cron_words(cron):
            first, second = (between(parse_spec({"cron": c, "tz": tz}), {}, since, until, 100) for c in (cron, other))
            assert first == second


@given(crons)
def test_a_repeating_expression_says_so(cron: str) -> None:
    time = cron_words(cron).removesuffix(f", {REPEATING}").partition(", on ")[0].replace(", every day", "")
    assert read_cron(cron).fixed == ("every" not in time and REPEATING not in cron_words(cron))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"cron": "0 8 * * 1-5", "tz": "Europe/Paris"}, "at 08:00, Monday to Friday (Europe/Paris)"),
        ({"cron": ["0 8 * * *", "0 20 * * *"]}, "at 20:00, every day; at 08:00, every day (UTC)"),
        ({"every": "15m"}, "every 15 minutes"),
        ({"every": "1h"}, "every hour"),
        ({"every": "1h30m"}, "every 1 hour 30 minutes"),
        ({"at": "2026-12-24T18:00:00Z"}, "at 2026-12-24 18:00:00 UTC"),
        ({"at": [f"2026-12-{d}T18:00:00Z" for d in range(10, 20)]}, "at 10 moments"),
        (
            {"cron": "0 8 * * *", "calendars": ["work"], "exclude": ["off", "more"]},
            "at 08:00, every day (UTC); only work; not more, off",
        ),
    ],
)
def test_a_schedule_in_words(spec: dict[str, object], words: str) -> None:
    assert spec_words(parse_spec(spec)) == words
