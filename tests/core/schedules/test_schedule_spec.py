"""What a schedule may say, what is refused and in which words, and that writing it back loses nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.errors import InvalidInput
from perdure.core.limits import (
    CALENDAR_DAYS_MAX,
    CRON_CHARS_MAX,
    CRON_SEARCH_YEARS,
    HOLIDAYS_YEAR_FIRST,
    HOLIDAYS_YEAR_LAST,
    MISSED_COUNTED_MAX,
    SCHEDULE_CALENDARS_MAX,
    SCHEDULE_CRONS_MAX,
    SCHEDULE_EVERY_US_MAX,
    SCHEDULE_EVERY_US_MIN,
    SCHEDULE_JITTER_US_MAX,
    SCHEDULE_TIMES_MAX,
    SCHEDULE_YEAR_MAX,
)
from perdure.core.schedules import (
    MISSED,
    ON_TIME_US,
    OVERLAPS,
    ScheduleSpec,
    between,
    parse_calendar,
    parse_spec,
    spec_hash,
    spec_json,
)
from perdure.core.schedules import spec as spec_module
from perdure.core.schedules.zones import zone_names
from tests.core.schedules.wall import ALIASES, DENSE, FIXED, REPEATING, ZONES
from tests.docs.pages import DOCS, blocks_of

HOUR_US = 3_600_000_000


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1_000_000)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_everything_a_schedule_may_say() -> None:
    spec = parse_spec(
        {
            "cron": ["0 8 * * *", "@hourly"],
            "every": "15m",
            "anchor": "2026-01-01T00:05:00Z",
            "at": ["2026-12-24T18:00", "2026-01-01T00:00:00+01:00"],
            "tz": "Europe/Paris",
            "calendars": ["working-days"],
            "exclude": "holidays",
            "start": "2026-01-01",
            "end": "2027-01-01",
            "jitter": "30s",
            "overlap": "queue",
            "missed": "all",
            "window": "2h",
        }
    )
    assert spec == ScheduleSpec(
        cron=("0 8 * * *", "@hourly"),
        every_us=15 * 60_000_000,
        anchor_us=us("2026-01-01T00:05:00+00:00"),
        at_us=(us("2025-12-31T23:00:00+00:00"), us("2026-12-24T17:00:00+00:00")),
        tz="Europe/Paris",
        calendars=("working-days",),
        exclude=("holidays",),
        start_us=us("2025-12-31T23:00:00+00:00"),
        end_us=us("2026-12-31T23:00:00+00:00"),
        jitter_us=30_000_000,
        overlap="queue",
        missed="all",
        window_us=2 * HOUR_US,
    )
    assert parse_spec(spec_json(spec)) == spec


def test_what_is_left_out_is_as_by_default() -> None:
    spec = parse_spec({"cron": "@daily"})
    assert spec == ScheduleSpec(cron=("@daily",))
    assert (spec.tz, spec.overlap, spec.missed, spec.window_us) == ("UTC", "skip", "last", HOUR_US)
    assert spec_json(spec) == {"cron": "@daily"}
    assert parse_spec({"cron": "@daily", "tz": None, "at": None}) == spec, "null is nothing"


def test_values_that_a_yaml_reader_or_python_code_has_already_made_are_taken() -> None:
    spec = parse_spec(
        {"every": timedelta(minutes=5), "at": [date(2026, 5, 1), datetime(2026, 5, 2, tzinfo=UTC)], "window": 90}
    )
    assert spec.every_us == 300_000_000
    assert spec.at_us == (us("2026-05-01T00:00:00+00:00"), us("2026-05-02T00:00:00+00:00"))
    assert spec.window_us == 90_000_000


@pytest.mark.parametrize(
    ("at", "moment"),
    [
        ("2026-07-01T12:00", "2026-07-01T10:00:00+00:00"),
        ("2026-03-29T02:30", "2026-03-29T01:00:00+00:00"),  # never came: the end of the gap
        ("2026-10-25T02:30", "2026-10-25T00:30:00+00:00"),  # came twice: the first
        ("2026-10-25T02:30:00+01:00", "2026-10-25T01:30:00+00:00"),
        ("2026-10-25T02:30:00.250", "2026-10-25T00:30:00.250+00:00"),
    ],
)
def test_a_moment_without_an_offset_is_local_time(at: str, moment: str) -> None:
    assert parse_spec({"at": at, "tz": "Europe/Paris"}).at_us == (us(moment),)


def test_ways_to_write_the_same_are_one_spec_with_one_hash() -> None:
    a = parse_spec({"cron": ["0  8 * * *", "0 9 * * *", "0 8 * * *"], "window": "60m", "exclude": ["b", "a"]})
    b = parse_spec({"exclude": ["a", "b"], "cron": ["0 9 * * *", " 0 8 * * * "], "missed": "last"})
    assert a == b
    assert spec_hash(a) == spec_hash(b)
    assert len(spec_hash(a)) == 32


@pytest.mark.parametrize(
    "change",
    [
        {"cron": "1 8 * * *"},
        {"every": "1h"},
        {"at": "2026-01-01"},
        {"tz": "Europe/Paris"},
        {"calendars": "x"},
        {"exclude": "x"},
        {"start": "2026-01-01"},
        {"end": "2026-01-01"},
        {"jitter": "1s"},
        {"overlap": "allow"},
        {"missed": "all"},
        {"window": "0s"},
        {"every": "1h", "anchor": "2026-01-01T00:01"},
    ],
)
def test_a_change_of_any_key_changes_the_hash(change: dict[str, Any]) -> None:
    base = {"cron": "0 8 * * *"}
    spec = parse_spec({**base, **change})
    assert spec_hash(spec) != spec_hash(parse_spec(base))
    assert parse_spec(spec_json(spec)) == spec


def test_the_hash_stays_what_it_was() -> None:
    """It is stored, and a redeploy that computes another one would lose the next time of every schedule."""
    spec = parse_spec({"cron": "0 8 * * *", "tz": "Europe/Paris", "jitter": "90s"})
    assert spec_hash(spec).hex() == "3a7a3f95f21be3955cb792ef2b0727e26bda13518a875adba424c70c82dd511a"


@pytest.mark.parametrize("expression", [*FIXED, *REPEATING, *DENSE])
def test_every_form_of_cron_is_read_and_written_back(expression: str) -> None:
    spec = parse_spec({"cron": expression})
    assert spec_json(spec) == {"cron": expression}


moments = st.datetimes(datetime(1970, 1, 2), datetime(SCHEDULE_YEAR_MAX, 12, 30), timezones=st.just(UTC))
specs = st.fixed_dictionaries(
    {"cron": st.lists(st.sampled_from([*FIXED, *REPEATING]), min_size=1, max_size=4)},
    optional={
        "every": st.integers(SCHEDULE_EVERY_US_MIN, SCHEDULE_EVERY_US_MAX).map(lambda n: timedelta(microseconds=n)),
        "at": st.lists(moments, max_size=5),
        "tz": st.sampled_from(["UTC", "Europe/Paris", "Asia/Kathmandu", "Australia/Lord_Howe"]),
        "calendars": st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
        "exclude": st.lists(st.sampled_from(["d", "e f", "ü"]), max_size=3),
        "start": moments,
        "jitter": st.integers(0, SCHEDULE_JITTER_US_MAX).map(lambda n: timedelta(microseconds=n)),
        "overlap": st.sampled_from(OVERLAPS),
        "missed": st.sampled_from(MISSED),
        "window": st.integers(0, 10**15).map(lambda n: timedelta(microseconds=n)),
    },
)


@given(specs)
def test_writing_and_reading_gives_the_same_spec(value: dict[str, Any]) -> None:
    spec = parse_spec(value)
    again = parse_spec(spec_json(spec))
    assert again == spec
    assert spec_hash(again) == spec_hash(spec)


def test_the_examples_and_numbers_of_the_reference_hold() -> None:
    page = DOCS / "reference" / "schedules.md"
    schedule, calendar, bavarian = (yaml.safe_load(b.text) for b in blocks_of(page) if b.language == "yaml")
    assert parse_spec(schedule).exclude == ("holidays",)
    assert parse_calendar(calendar).without is not None
    assert parse_spec(bavarian).exclude == ("company-days", "holidays:DE-BY")
    text = page.read_text()
    for key in spec_module.SPEC_KEYS:
        assert f"| `{key}` |" in text
    for number in (
        f"up to {SCHEDULE_CRONS_MAX}",
        f"up to {SCHEDULE_TIMES_MAX:,}",
        f"{CRON_SEARCH_YEARS} years",
        f"{ON_TIME_US // 1_000_000} seconds",
        f"{CALENDAR_DAYS_MAX:,} dates",
        f"{HOLIDAYS_YEAR_FIRST} to {HOLIDAYS_YEAR_LAST}",
        f"most {MISSED_COUNTED_MAX:,}",
        str(SCHEDULE_YEAR_MAX),
        f"{len(ZONES)} zones",
        f"{len(FIXED + REPEATING)} expressions",
    ):
        assert number in text, number
    for alias, meaning in ALIASES.items():
        assert f"`{alias}`" in text
        assert f"| `{meaning}` |" in text


@pytest.mark.parametrize(
    ("expression", "march", "october"),
    [
        ("30 2 * * *", ["03:00+02:00"], ["02:30+02:00"]),
        ("0,30 2 * * *", ["03:00+02:00"], ["02:00+02:00", "02:30+02:00"]),
        ("*/30 2 * * *", [], ["02:00+02:00", "02:30+02:00", "02:00+01:00", "02:30+01:00"]),
    ],
)
def test_the_table_of_daylight_saving_holds(expression: str, march: list[str], october: list[str]) -> None:
    spec, paris = parse_spec({"cron": expression, "tz": "Europe/Paris"}), ZoneInfo("Europe/Paris")
    text = (DOCS / "reference" / "schedules.md").read_text()
    assert f"| `{expression}` | {', '.join(march) or 'does not fire'} | {', '.join(october)} |" in text
    for day, want in ((date(2026, 3, 29), march), (date(2026, 10, 25), october)):
        begin, end = (us(datetime(d.year, d.month, d.day, tzinfo=paris).isoformat()) for d in (day, day + timedelta(1)))
        found = [datetime.fromtimestamp(t // 1_000_000, paris) for t in between(spec, {}, begin, end, 100)]
        assert [f"{t:%H:%M}{t.isoformat()[-6:]}" for t in found] == want


# -- refusing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({}, ["does not say when", "cron, every or at"]),
        ({"crom": "* * * * *"}, ["crom", "did you mean 'cron'"]),
        ({"cron": "@daily", "timezone": "UTC"}, ["timezone", "no such key"]),
        ({"cron": "@daily", 7: 1}, ["7", "no such key"]),
        ({"cron": 5}, ["cron", "5", "0 8 * * *"]),
        ({"cron": [["* * * * *"]]}, ["cron", "expression"]),
        ({"cron": ""}, ["cron", "0 fields"]),
        ({"cron": "* * * *"}, ["cron", "4 fields", "5"]),
        ({"cron": "0 0 8 * * * 2026"}, ["cron", "7 fields"]),
        ({"cron": "@dayly"}, ["@dayly", "did you mean '@daily'"]),
        ({"cron": "@reboot"}, ["@reboot", "@hourly"]),
        ({"cron": "60 * * * *"}, ["minute", "'60'", "0-59"]),
        ({"cron": "60 0 0 * * *"}, ["second", "'60'", "0-59"]),
        ({"cron": "0 24 * * *"}, ["hour", "'24'", "0-23"]),
        ({"cron": "0 0 0 * *"}, ["day-of-month", "'0'", "1-31"]),
        ({"cron": "0 0 * 13 *"}, ["month", "'13'", "JAN-DEC"]),
        ({"cron": "0 0 * * 8"}, ["day-of-week", "'8'", "SUN-SAT"]),
        ({"cron": "0 0 * * MON#6"}, ["day-of-week", "'MON#6'"]),
        ({"cron": "0 0 15W * *"}, ["day-of-month", "'15W'"]),
        ({"cron": "*/0 * * * *"}, ["minute", "'*/0'"]),
        ({"cron": "0 22-3 * * *"}, ["hour", "22-3", "upwards", "22-23,0-3"]),
        ({"cron": "0 0 ? * 1"}, ["day-of-month", "write * for any"]),
        ({"cron": "0 0 30 2 *"}, ["no month", "30"]),
        ({"cron": "0 0 31 2,4,6 *"}, ["no month", "31"]),
        ({"cron": "٣ * * * *"}, ["minute"]),
        ({"cron": "1," * CRON_CHARS_MAX + "1 * * * *"}, ["at most", str(CRON_CHARS_MAX)]),
        ({"cron": ["@daily"] * (SCHEDULE_CRONS_MAX + 1)}, ["cron", "at most", str(SCHEDULE_CRONS_MAX)]),
        ({"every": "15 minutes"}, ["every", "15 minutes", "not a duration"]),
        ({"every": True}, ["every", "True"]),
        ({"every": [1]}, ["every", "[1]"]),
        ({"every": float("nan")}, ["every", "nan"]),
        ({"every": float("inf")}, ["every", "inf"]),
        ({"every": "100ms"}, ["every", "100ms", "at least 1s"]),
        ({"every": "0s"}, ["every", "at least 1s"]),
        ({"every": "20w", "window": -1}, ["window", "-1"]),
        ({"every": "4000d"}, ["every", "4000d", "at most 3660d"]),
        ({"cron": "@daily", "jitter": "25h"}, ["jitter", "25h", "at most 1d"]),
        ({"cron": "@daily", "anchor": "2026-01-01"}, ["anchor", "every"]),
        ({"at": "tomorrow"}, ["at", "tomorrow", "2026-12-24T18:00"]),
        ({"at": 1794700800}, ["at", "1794700800", "no moment"]),
        ({"at": "1969-12-31T23:59:59Z"}, ["at", "1970"]),
        ({"at": "1970-01-01T00:00:00Z"}, ["at", "1970"]),
        ({"at": "2200-01-01"}, ["at", str(SCHEDULE_YEAR_MAX)]),
        ({"at": "2199-12-31T23:59:59-10:00"}, ["at", str(SCHEDULE_YEAR_MAX)]),
        ({"at": ["2026-01-01"] * (SCHEDULE_TIMES_MAX + 1)}, ["at", "1,000"]),
        ({"cron": "@daily", "start": "2026-01-02", "end": "2026-01-02"}, ["end", "never fire"]),
        ({"cron": "@daily", "tz": "europe/paris"}, ["tz", "did you mean 'Europe/Paris'"]),
        ({"cron": "@daily", "tz": "Europe/Pari"}, ["tz", "did you mean 'Europe/Paris'"]),
        ({"cron": "@daily", "tz": "../etc/passwd"}, ["tz", "IANA"]),
        ({"cron": "@daily", "tz": ""}, ["tz", "IANA"]),
        ({"cron": "@daily", "tz": "localtime"}, ["tz", "localtime"]),
        ({"cron": "@daily", "tz": "Europe"}, ["tz", "'Europe'"]),
        ({"cron": "@daily", "tz": 2}, ["tz", "2"]),
        ({"cron": "@daily", "overlap": "skp"}, ["overlap", "did you mean 'skip'"]),
        ({"cron": "@daily", "overlap": ["skip"]}, ["overlap", "no policy"]),
        ({"cron": "@daily", "missed": "first"}, ["missed", "none, last, all"]),
        ({"cron": "@daily", "calendars": [""]}, ["calendars", "''"]),
        ({"cron": "@daily", "calendars": {"a": 1}}, ["calendars", "names"]),
        ({"cron": "@daily", "exclude": ["x" * 201]}, ["exclude", "200"]),
        ({"cron": "@daily", "calendars": "a", "exclude": ["a", "b"]}, ["exclude", "'a'", "both"]),
        ({"cron": "@daily", "exclude": ["x"] * (SCHEDULE_CALENDARS_MAX + 1)}, ["exclude", "at most 20"]),
    ],
)
def test_what_is_wrong_is_said_with_its_key_and_what_to_write(value: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidInput) as e:
        parse_spec(value)
    for word in words:
        assert word in str(e.value), str(e.value)


@pytest.mark.parametrize("value", ["0 8 * * *", ["@daily"], None, 5])
def test_what_is_not_a_mapping_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="mapping"):
        parse_spec(value)


@given(st.text("0123456789*/,-#LWJANMONFRI@? dailyhourly", max_size=30))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        spec = parse_spec({"cron": text})
    except InvalidInput as e:
        assert str(e).startswith("cron: ")
    else:
        assert parse_spec(spec_json(spec)) == spec


def test_the_zones_people_use_are_known() -> None:
    assert {"UTC", "Europe/Paris", "America/New_York", "Asia/Kolkata", "Etc/GMT+3"} <= zone_names()
