"""What a wait for an event keeps, and which events fit it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure.core.durations import us_of
from perdure.core.errors import InvalidInput
from perdure.core.named_events import EventWait, Since, fits, read_spec, since_us, wait_spec
from perdure.core.waits import event_promise_name

ORDER = {"order_id": 7, "paid": {"amount": 12.5, "currency": "EUR"}, "items": [1, 2, 3]}


@pytest.mark.parametrize(
    ("match", "values", "fit"),
    [
        ("", {}, True),
        ("event.order_id == id", {"id": 7}, True),
        ("event.order_id == id", {"id": 8}, False),
        ("event.order_id == '7'", {}, False),
        ("event.paid.amount > least and event.paid.currency == 'EUR'", {"least": 10}, True),
        ("input.wanted in event.items", {"input": {"wanted": 3}}, True),
        ("${ event.order_id == 7 }", {}, True),
        ("event.nothing.at.all == null", {}, True),
        ("event.order_id", {}, False),  # not true, though it is something
        ("event.order_id > 'a'", {}, None),
        ("event.order_id / 0 == 1", {}, None),
    ],
)
def test_whether_an_event_fits(match: str, values: dict[str, object], fit: bool | None) -> None:
    assert fits(wait_spec("order.paid", match, values), ORDER) is fit


def test_an_event_of_any_form_can_come() -> None:
    spec = wait_spec("tick", "event == 5 or event[0] == 5", {})
    assert [fits(spec, payload) for payload in (5, [5], None, {"a": 1}, "x", True)] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]


def test_a_spec_keeps_what_its_expression_reads_and_no_more() -> None:
    values = {"input": {"order": {"id": 1, "secret": "x"}, "big": "y" * 100_000}, "unused": "z" * 100_000}
    spec = wait_spec("order.paid", "event.id == input.order.id", values, 5)
    kept = EventWait(
        "order.paid", "event.id == input.order.id", {"input": {"order": {"id": 1}}}, 5, read_spec(spec).key
    )
    assert read_spec(spec) == kept
    whole = wait_spec("e", "size(input) > 0 and event.x == input.a", {"input": {"a": 1, "b": 2}})
    assert read_spec(whole).bound == {"input": {"a": 1, "b": 2}}
    assert read_spec(wait_spec("e", "event.x == items[1]", {"items": [4, 5]})).bound == {"items": [4, 5]}


def test_what_is_not_there_is_null_as_everywhere_in_expressions() -> None:
    spec = wait_spec("e", "event.x == input.missing", {"input": {}})
    assert fits(spec, {}) is True
    assert fits(spec, {"x": 1}) is False


@pytest.mark.parametrize(
    ("event", "match", "values", "said"),
    [
        ("", "", {}, "invalid event name"),
        ("x" * 161, "", {}, "use 1 to 160 characters"),
        ("a\x00b", "", {}, "invalid event name"),
        ("e", "event.id ==", {}, "match of the wait for event 'e'"),
        ("e", "event.id == oder_id", {"order_id": 1}, "did you mean 'order_id'"),
        ("e", "event.id == x", {}, "it can read event"),
        ("e", "event.id == x", {"x": "y" * 20_000}, "EVENT_SPEC_BYTES_MAX=16384"),
    ],
)
def test_a_wait_that_can_never_work_is_refused(event: str, match: str, values: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        wait_spec(event, match, values)


def test_a_spec_that_cannot_be_read_fits_nothing() -> None:
    assert fits("{", 1) is None
    assert fits('{"event": "e", "match": "event.", "bound": {}}', 1) is None
    assert fits('{"event": "e", "match": "event.a == gone", "bound": {}}', {"a": 1}) is None


def test_an_expression_cannot_reach_beyond_its_scope_or_run_for_long() -> None:
    assert fits('{"event": "e", "match": "event.__class__ == null"}', {"a": 1}) is True  # a key like any other
    long = wait_spec("e", " and ".join(["size(event.items) > 0"] * 100), {})
    assert fits(long, {"items": list(range(10_000))}) in (True, None)


def test_key_of_a_wait_depends_on_its_question_and_not_on_times() -> None:
    def key(event: str, match: str, since: int = 0, **values: object) -> str:
        return read_spec(wait_spec(event, match, values, since)).key

    one = key("e", "event.id == x.id", 1, x={"id": {"a": 1, "b": 2}})
    assert one == key("e", "event.id == x.id", 2, x={"more": 1, "id": {"b": 2, "a": 1}})
    others = {key("f", "event.id == x.id", x={"id": 1}), key("e", "event.id == x.id", x={"id": 2}), key("e", "")}
    assert len(others | {one}) == 4


MOMENT = datetime(2027, 1, 31, 12, tzinfo=UTC)
AT = us_of(MOMENT)


@pytest.mark.parametrize(
    ("since", "us"),
    [
        (None, AT - 60_000_000),
        ("now", 0),
        ("1s", AT - 1_000_000),
        ("PT1S", AT - 1_000_000),
        (timedelta(seconds=1), AT - 1_000_000),
        (1.5, AT - 1_500_000),
        (MOMENT - timedelta(days=1), AT - 86_400_000_000),
        ("2027-01-30T12:00:00Z", AT - 86_400_000_000),
        ("2027-01-30T13:00:00+01:00", AT - 86_400_000_000),
        ("90 w", AT - 90 * 7 * 86_400_000_000),
        ("4900 w", 1),  # before there was a time
    ],
)
def test_since_is_a_moment_of_the_clock_of_the_run(since: Since, us: int) -> None:
    assert since_us(since, started_us=AT - 60_000_000, now_us=AT) == us


@pytest.mark.parametrize(
    ("since", "said"),
    [
        ("yesterday", "invalid since: 'yesterday'. Use a duration"),
        ("-5m", "invalid since"),
        ("2027-01-31T12:00:00", "no time zone"),
        (datetime(2027, 1, 31), "no time zone"),
        (-1, "not a duration"),
    ],
)
def test_since_that_names_no_moment_is_refused(since: Since, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        since_us(since, started_us=0, now_us=AT)


def test_promises_of_one_run_mean_nothing_to_another() -> None:
    names = {event_promise_name("order.paid", n, run) for n in (1, 2) for run in (bytes(16), bytes(15) + b"\x01")}
    assert len(names) == 4
    assert len(event_promise_name("x" * 160, 1_000_000, bytes(16))) <= 200
