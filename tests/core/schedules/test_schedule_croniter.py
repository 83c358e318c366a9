"""Where croniter says something else, and why. Every single moment that only one of the two names has to fall into one of the classes below,
which docs/reference/schedules.md lists; one that does not fails the test.

A routine run compares two months of UTC and the days around each change of the clock; PERDURE_CALENDAR_FULL=1 all 400 days.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from croniter import CroniterBadDateError, CroniterNotAlphaError, croniter

from tests.core.schedules.test_schedule_simulated import EXPRESSIONS, computed
from tests.core.schedules.wall import ALIASES, DAYS, EPOCH, FULL, ZONES, Rule, Wall, wall
from tests.docs.pages import DOCS

CLASSES = {
    "last weekday": "croniter does not read LW",
    "never": "croniter finds no time at all: day-of-month and FRI#2 must both hold for it",
    "both day fields": "croniter takes either day field where one of them begins with */",
    "counted weekday": "croniter wants both day fields where the weekday is counted (5L, FRI#2)",
    "weekday steps": "croniter does not count 7 as Sunday in a step such as 1/2",
    "fires twice": "croniter fires fixed times again where the clock is put back",
    "repeat left out": "croniter leaves out repeated times of repeating expressions where the clock is put back by less than an hour, or not at a full one",
    "gap made up": "croniter fires at the end of the gap for repeating expressions too",
    "gap lost": "croniter leaves out swallowed times if the hours are 0-23",
    "gap second": "croniter keeps the second when it fires after the gap",
}


def theirs(expression: str, w: Wall, since: int, until: int) -> list[int]:
    """croniter writes the last Friday as L5 and wants to be told where the seconds stand."""
    text = re.sub(r"\b([0-7])L\b", r"L\1", ALIASES.get(expression, expression))
    found = croniter(text, datetime.fromtimestamp(since - 1, w.zone), ret_type=datetime, second_at_beginning=True)
    out: list[int] = []
    while (at := int(found.get_next().timestamp())) < until:
        out.append(at)
    return out


def why(rule: Rule, w: Wall, at: int, mine: bool) -> str | None:
    """The class of a moment that only one names."""
    i = (at - w.base) // 60
    day = EPOCH + timedelta(w.shown[i] // 1440)
    one = rule.in_month_days(day) != rule.in_weekdays(day)
    restricted = rule.dom != "*" and rule.dow != "*"
    after_gap = any(i == g for g, _ in w.gaps)
    again = not w.first >> 8 * (len(w.shown) - 1 - i) & 1
    if after_gap and rule.fixed and rule.seconds != {0}:
        return "gap second" if not mine or at % 60 not in rule.seconds else None
    if after_gap and mine and rule.fixed:
        return "gap lost"
    if after_gap and not mine and not rule.fixed:
        return "gap made up"
    if again and not mine and rule.fixed:
        return "fires twice"
    if again and mine and not rule.fixed:
        return "repeat left out"
    if restricted and rule.both and one and not mine:
        return "both day fields"
    if restricted and not rule.both and one and mine and re.search("#|L", rule.dow):
        return "counted weekday"
    if mine and re.search(r"\d/", rule.dow) and day.isoweekday() == 7:
        return "weekday steps"
    return None


def differences(zone: str, expression: str) -> dict[str, tuple[str, str]]:
    """Classes that occur, each with one moment."""
    w, rule, out = wall(zone), Rule(expression), dict[str, tuple[str, str]]()
    for since, until in spans(zone):
        try:
            a = theirs(expression, w, since, until)
        except CroniterNotAlphaError:
            assert "LW" in expression
            return {"last weekday": (expression, "")}
        except CroniterBadDateError:
            assert re.search("#", rule.dow) and rule.dom != "*"
            return {"never": (expression, "")}
        b = computed(expression, zone, since, until)
        assert a == sorted(set(a)), "croniter is in order"
        for at in sorted({*a} ^ {*b}):
            found = why(rule, w, at, at in b)
            told = datetime.fromtimestamp(at, w.zone).isoformat()
            assert found, f"{expression} in {zone}: only {'here' if at in b else 'in croniter'}: {told}"
            out.setdefault(found, (expression, f"{zone} {told}"))
    return out


def spans(zone: str) -> list[tuple[int, int]]:
    w = wall(zone)
    if FULL:
        return [(w.base, w.base + DAYS * 86_400)]
    return [(w.base, w.base + 62 * 86_400)] if zone == "UTC" else w.windows(1)


def test_each_difference_from_croniter_is_explained() -> None:
    found: dict[str, tuple[str, str]] = {}
    changing = [z for z in ZONES if z == "UTC" or FULL or wall(z).gaps or wall(z).backs]
    for z, zone in enumerate(changing):
        for e, expression in enumerate(EXPRESSIONS):
            if FULL or zone == "UTC" or (z + e) % 3 == 0 or zone in ("Europe/Paris", "Pacific/Chatham"):
                for name, example in differences(zone, expression).items():
                    found.setdefault(name, example)
    print("\n".join(f"{name}: {example}" for name, example in found.items()))
    assert {*found} == {*CLASSES}, "a class without an example is an excuse"


def test_the_reference_lists_the_classes() -> None:
    page = (DOCS / "reference" / "schedules.md").read_text()
    listed = page[page.index("## Where croniter differs") :]
    for name in CLASSES:
        assert f"| {name} |" in listed, f"{name} is not in docs/reference/schedules.md"


@pytest.mark.parametrize(
    ("zone", "expression", "only_there", "only_here"),
    [
        ("Europe/Paris", "30 2 * * *", ["2026-10-25T02:30:00+01:00"], []),
        ("Europe/Paris", "*/30 2 * * *", ["2026-03-29T03:00:00+02:00"], []),
        ("Europe/Paris", "5/15 0-23 * * *", None, ["2026-03-29T03:00:00+02:00"]),
        ("Australia/Lord_Howe", "*/20 1-3 * * *", None, ["2026-04-05T01:40:00+10:30"]),
        ("Europe/Paris", "15,45 30 2 * * *", None, ["2026-03-29T03:00:00+02:00"]),
    ],
)
def test_the_examples_of_the_reference_hold(
    zone: str, expression: str, only_there: list[str] | None, only_here: list[str]
) -> None:
    w = wall(zone)
    a: set[int] = set()
    b: set[int] = set()
    for since, until in w.windows(1):
        a |= {*theirs(expression, w, since, until)}
        b |= {*computed(expression, zone, since, until)}
    assert [datetime.fromtimestamp(t, w.zone).isoformat() for t in sorted(b - a)] == only_here
    if only_there is not None:
        assert [datetime.fromtimestamp(t, w.zone).isoformat() for t in sorted(a - b)] == only_there


def test_a_repeated_minute_is_told_from_a_first_one() -> None:
    """The classifier's own sense of the wall: half past two comes twice in Paris on 25 October 2026."""
    w = wall("Europe/Paris")
    rule = Rule("30 2 * * *")
    first = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp())
    assert why(rule, w, first, False) is None
    assert why(rule, w, first + 3600, False) == "fires twice"
    assert EPOCH + timedelta(w.shown[(first - w.base) // 60] // 1440) == date(2026, 10, 25)
