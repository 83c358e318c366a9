"""Durations as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.durations import DURATION_US_MAX, datetime_of, human, to_us, us_of
from perdure.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1us", 1),
        ("500ms", 500_000),
        ("30s", 30_000_000),
        ("1.5s", 1_500_000),
        ("1m", 60_000_000),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("2d", 172_800_000_000),
        ("1w", 604_800_000_000),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, us: int) -> None:
    assert to_us(text) == us


@pytest.mark.parametrize("wrong", ["", "5", "s", "-5s", "5 seconds", "1d2", "1,5s", "5S", "1e3s", "ten minutes"])
def test_other_text_is_refused_with_examples(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        to_us(wrong)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("PT1H30M", 5_400_000_000),
        ("P1D", 86_400_000_000),
        ("P2W", 1_209_600_000_000),
        ("P1W2DT3H4M5.5S", 788_645_500_000),
        ("PT0,25S", 250_000),
        ("PT0.000001S", 1),
        ("PT1.5H", 5_400_000_000),
        ("PT90S", 90_000_000),
        ("PT0S", 0),
    ],
)
def test_a_duration_may_be_written_in_iso_8601(text: str, us: int) -> None:
    assert to_us(text) == us


@pytest.mark.parametrize(
    "wrong",
    ["P", "PT", "P1DT", "P1", "PT5", "PT1M1H", "P1H", "PT1D", "P1D12H", "P-1D", "-P1D", "PT1.S", "pt5m", "P 1D"],
)
def test_a_wrong_duration_in_iso_8601_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="is not a duration"):
        to_us(wrong)


def test_only_the_last_number_of_iso_8601_has_a_fraction() -> None:
    with pytest.raises(InvalidInput, match="only its last number may have a fraction"):
        to_us("PT1.5H30M")


@pytest.mark.parametrize(("wrong", "unit"), [("P1Y", "years"), ("P2M", "months"), ("P1Y2M3DT4H", "years")])
def test_years_and_months_are_refused_because_they_differ_in_length(wrong: str, unit: str) -> None:
    with pytest.raises(InvalidInput, match=f"{unit}, which differ in length.*PT5M"):
        to_us(wrong)


@given(st.integers(0, 5_000), st.integers(0, 100), st.integers(0, 100), st.integers(0, 59_999_999))
def test_iso_8601_and_units_say_the_same(days: int, hours: int, minutes: int, us: int) -> None:
    iso = f"P{days}DT{hours}H{minutes}M{us // 1_000_000}.{us % 1_000_000:06d}S"
    assert to_us(iso) == to_us(f"{days}d{hours}h{minutes}m{us}us")


@pytest.mark.parametrize("wrong", [timedelta(days=-1), timedelta(days=40_000), "101w 36500d", -0.5])
def test_a_duration_lies_between_zero_and_a_hundred_years(wrong: timedelta | str | float) -> None:
    with pytest.raises(InvalidInput, match="100 years"):
        to_us(wrong)


@given(st.timedeltas(timedelta(0), timedelta(days=36_600)))
def test_a_timedelta_is_exact_to_the_microsecond(delta: timedelta) -> None:
    assert to_us(delta) == delta // timedelta(microseconds=1)


@given(st.integers(0, 10**9))
def test_a_number_is_seconds(seconds: int) -> None:
    assert to_us(seconds) == seconds * 1_000_000


@given(
    st.datetimes(
        datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))])
    )
)
def test_a_moment_survives_as_microseconds(moment: datetime) -> None:
    assert datetime_of(us_of(moment)) == moment


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no time zone"):
        us_of(datetime(2026, 1, 1))


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0ms"),
        (450_000, "450ms"),
        (1_000_000, "1s"),
        (200_000_000, "3m20s"),
        (93_600_000_000, "1d2h"),
        (86_461_000_000, "1d1m"),
    ],
)
def test_people_read_at_most_two_units(us: int, text: str) -> None:
    assert human(us) == text


@given(st.integers(0, DURATION_US_MAX))
def test_what_people_read_is_a_duration_never_longer_than_the_real_one(us: int) -> None:
    assert 0 <= to_us(human(us)) <= us + 1
