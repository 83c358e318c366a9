"""Which run an event starts, decided from the subscriptions and the payload alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure import Dedup, NamedEvent, On, workflow
from perdure.core import event_starts
from perdure.core import subscriptions as codec
from perdure.core.deferred_starts import DedupSpec
from perdure.core.errors import InvalidInput
from perdure.core.event_starts import PlannedStart, planned
from perdure.core.limits import SUBSCRIPTIONS_MAX
from perdure.core.subscriptions import Subscription


def start(payload: Any, *subscriptions: Subscription) -> PlannedStart | None:
    return planned(subscriptions, "paid", payload)


def test_an_event_of_the_name_starts_a_run_and_another_does_not() -> None:
    assert start({}, Subscription(event="paid")) is not None
    assert start({}, Subscription(event="other")) is None
    assert start({}) is None


def test_only_an_event_that_matches_starts_a_run() -> None:
    s = Subscription(event="paid", match="event.total > 10")
    assert start({"total": 11}, s) is not None
    for payload in ({"total": 10}, {}, None, {"total": None}):
        assert start(payload, s) is None
    assert start({"ok": "yes"}, Subscription(event="paid", match="event.ok")) is None, "only true matches"


def test_of_several_subscriptions_the_first_that_matches_counts() -> None:
    large = Subscription(event="paid", match="event.total > 10", key="event.id")
    rest = Subscription(event="paid", input={"small": "${ event.id }"})
    assert start({"total": 11, "id": 7}, large, rest) == PlannedStart(b'{"**":{"total":11,"id":7}}', "7")
    assert start({"total": 1, "id": 7}, large, rest) == PlannedStart(b'{"small":7}')


@pytest.mark.parametrize(
    ("payload", "more", "wanted"),
    [
        ({"a": 1}, {}, b'{"**":{"a":1}}'),
        (None, {}, b"{}"),
        ([1], {"argument": "items"}, b'{"items":[1]}'),
        (None, {"argument": "payment"}, b'{"payment":null}'),
        (
            {"a": 1},
            {"input": {"x": "${ event.a }", "y": "a is ${ event.a }", "z": [2]}},
            b'{"x":1,"y":"a is 1","z":[2]}',
        ),
    ],
)
def test_the_payload_is_the_input_or_is_mapped_to_it(payload: Any, more: dict[str, Any], wanted: bytes) -> None:
    assert start(payload, Subscription(event="paid", **more)) == PlannedStart(wanted)


def test_a_dedup_has_a_key_and_a_time() -> None:
    found = start({"id": "a"}, Subscription(event="paid", dedup="event.id", within_us=5))
    assert found is not None and found.dedup == DedupSpec("a", 5)


@pytest.mark.parametrize(
    ("more", "payload"),
    [
        ({"match": "event.n / 0 > 1"}, {"n": 1}),
        ({"key": "event.id"}, {}),
        ({"key": "event.id"}, {"id": ""}),
        ({"key": "event"}, {}),
        ({"key": "event.id"}, {"id": True}),
        ({"key": "event.id"}, {"id": "a\nb"}),
        ({"dedup": "event.id"}, {"id": None}),
        ({"input": {"a": "${ 1 / event.n }"}}, {"n": 0}),
        ({}, [1]),
        ({}, 7),
    ],
)
def test_what_cannot_be_told_for_an_event_is_an_error_of_that_event(more: dict[str, Any], payload: Any) -> None:
    with pytest.raises(InvalidInput):
        start(payload, Subscription(event="paid", **more))


@pytest.mark.parametrize(
    "more",
    [
        {"event": ""},
        {"event": "a\nb"},
        {"event": "x" * 500},
        {"match": "event."},
        {"match": "input.a"},
        {"key": "evnt.id"},
        {"dedup": "1 +"},
        {"input": {"a": "${ input.x }"}},
        {"input": {"a": "${ event."}},
        {"key": "event.id", "dedup": "event.id"},
        {"within_us": 5},
    ],
)
def test_a_subscription_that_can_never_work_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        event_starts.check(Subscription(**{"event": "paid", **more}))


def test_subscriptions_are_bounded_and_read_again() -> None:
    some = [Subscription(event="b", match="true"), Subscription(event="a"), Subscription(event="b")]
    data = codec.encode(some)
    assert codec.decode(data) == some and codec.events_of(data) == ["a", "b"]
    assert codec.encode([]) == b"" and codec.events_of(b"") is None
    assert codec.decode(b'[{"event": 1}]') == [], "of a newer worker"
    with pytest.raises(InvalidInput, match="SUBSCRIPTIONS_MAX"):
        codec.encode([Subscription(event="a")] * (SUBSCRIPTIONS_MAX + 1))
    with pytest.raises(InvalidInput, match="SUBSCRIPTIONS_BYTES_MAX"):
        codec.encode([Subscription(event="a", input={"a": "x" * 70_000})])


# -- as users write them -----------------------------------------------------------------------------------------------------


def declared(data: bytes) -> Any:
    return msgspec.json.decode(data)


def test_a_workflow_with_one_parameter_takes_the_payload_as_it_is() -> None:
    paid = NamedEvent("paid", dict[str, Any])

    @workflow(name="unit_on_one", on=On(paid, match="event.total > 10", dedup=Dedup("event.id", within="10m")))
    async def one(payment: dict[str, Any]) -> None: ...

    wanted = {"event": "paid", "match": "event.total > 10", "dedup": "event.id", "within_us": 600_000_000}
    assert declared(one.subscriptions) == [{**wanted, "argument": "payment"}]


def test_one_with_several_takes_its_fields_by_name() -> None:
    @workflow(name="unit_on_two", on=[On("paid", key="event.id"), On("sent", input={"a": "${ event.x }", "b": 2})])
    async def two(a: int, b: int) -> None: ...

    assert declared(two.subscriptions) == [
        {"event": "paid", "key": "event.id"},
        {"event": "sent", "input": {"a": "${ event.x }", "b": 2}},
    ]

    @workflow(name="unit_on_none", on=On("paid"))
    async def none() -> None: ...

    assert declared(none.subscriptions) == [{"event": "paid"}]

    @workflow(name="unit_on_nothing")
    async def nothing() -> None: ...

    assert nothing.subscriptions == b""


@pytest.mark.parametrize("options", [{"match": "event."}, {"key": "event.a", "dedup": "event.a"}, {"match": "x > 1"}])
def test_what_can_never_work_is_refused_where_it_is_written(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"On\('paid'\)"):
        On("paid", **options)
