"""`on:` of a flow's document."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.subscriptions import Subscription
from perdure.flows.draft import draft_text
from perdure.flows.problems import FlowError

TASKS = "\ntasks:\n  a: {value: 1}\n"


def read(text: str) -> tuple[Subscription, ...]:
    return draft_text(f"flow: f\n{text}{TASKS}").flow.subscriptions


def test_one_event_or_several_start_a_flow() -> None:
    assert read("on: {event: order.paid}") == (Subscription(event="order.paid"),)
    found = read(
        """
on:
  - event: order.paid
    match: event.total > 10
    key: event.id
    input: {order: "${ event.id }", note: paid}
  - event: github.push
    dedup: {key: event.after, within: 1h}
  - {event: order.sent, dedup: "${ event.id }"}
"""
    )
    assert found == (
        Subscription(
            event="order.paid",
            match="event.total > 10",
            key="event.id",
            input={"order": "${ event.id }", "note": "paid"},
        ),
        Subscription(event="github.push", dedup="event.after", within_us=3_600_000_000),
        Subscription(event="order.sent", dedup="event.id"),
    )
    assert read("on: []") == read("on:") == ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("on: order.paid", "on"),
        ("on: [order.paid]", "an event of on"),
        ("on: {match: 'true'}", "no name"),
        ("on: {event: 7}", "event"),
        ("on: {event: ''}", "invalid event name"),
        ("on: {event: e, when: x}", "when"),
        ("on: {event: e, match: 'event.'}", "match"),
        ("on: {event: e, match: input.a}", "input"),
        ("on: {event: e, key: '1 +'}", "key"),
        ("on: {event: e, key: event.a, dedup: event.a}", "keep one"),
        ("on: {event: e, dedup: {within: 1h}}", "dedup has no key"),
        ("on: {event: e, dedup: {key: event.a, within: soon}}", "within"),
        ("on: {event: e, dedup: {key: event.a, window: 1h}}", "window"),
        ("on: {event: e, input: [1]}", "input"),
        ("on: {event: e, input: {a: '${ tasks.b }'}}", "tasks"),
        ("on: [" + ", ".join(["{event: e}"] * 51) + "]", "SUBSCRIPTIONS_MAX"),
    ],
)
def test_what_can_never_work_is_a_problem_of_the_document(text: str, word: str) -> None:
    with pytest.raises(FlowError) as raised:
        read(text)
    assert any(word in str(p) for p in raised.value.problems), raised.value


def test_the_schema_for_editors_knows_it() -> None:
    import jsonschema_rs

    from perdure.flows.schema import document_schema

    validator = jsonschema_rs.validator_for(document_schema({}))
    tasks: dict[str, Any] = {"a": {"value": 1}}
    for on in ({"event": "e"}, [{"event": "e", "match": "event.a", "dedup": {"key": "event.a", "within": "1h"}}], None):
        assert validator.is_valid({"flow": "f", "tasks": tasks, "on": on}), on
    for on in ("e", {"match": "x"}, {"event": "e", "when": "x"}):
        assert not validator.is_valid({"flow": "f", "tasks": tasks, "on": on}), on
