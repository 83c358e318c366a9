"""The laws of core/waits.py, one test each. The waiters are plain strings."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core import events as ev
from perdure.core.approvals import Spec, encode_spec
from perdure.core.named_events import wait_spec
from perdure.core.questions import asked_by
from perdure.core.waits import MessageWaits, PromiseWaits, event_promise_name

RUN = bytes(16)


def asked(name: str, seq: int = 0, spec: bytes = b"", kind: ev.PromiseKind = ev.PromiseKind.PLAIN) -> ev.PromiseCreated:
    return ev.PromiseCreated(seq, name, spec, kind)


def waits_event(name: str, seq: int, spec: bytes) -> ev.PromiseCreated:
    return asked(name, seq, spec, ev.PromiseKind.EVENT)


def value(created: ev.PromiseCreated, data: bytes) -> ev.PromiseResolved:
    """An answer to what is asked."""
    return ev.PromiseResolved(created.name, data, True, asked_by(created))


def approval(name: str, **spec: Any) -> ev.PromiseCreated:
    return asked(name, 0, encode_spec(Spec(title=name, quorum=1, reject_quorum=1, **spec)), ev.PromiseKind.APPROVAL)


def test_the_first_value_of_a_promise_stands_and_is_kept_for_later_waits() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    waits.created(asked("p"))
    waits.wait("p", "first")
    waits.wait("p", "second")
    assert list(waits.resolve(ev.PromiseResolved("p", b"1"))) == ["first", "second"]
    assert list(waits.resolve(ev.PromiseResolved("p", b"2"))) == []
    assert waits.value("p") == b"1"


def test_each_approval_of_a_name_has_a_promise_of_its_own() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    assert [waits.approval_name("ok") for _ in range(3)] == ["ok", "ok#2", "ok#3"]
    assert waits.approval_name("other") == "other"


def test_an_unauthorized_early_answer_does_not_resolve_a_restricted_approval() -> None:
    for authorized, restricted, is_resolved in ((False, True, False), (True, True, True), (False, False, True)):
        waits: PromiseWaits[str] = PromiseWaits(RUN)
        waits.resolve(ev.PromiseResolved("ok", b"true", authorized))
        waits.created(approval("ok", assignees=["ada"] if restricted else []))
        assert (waits.value("ok") is not None) is is_resolved


def test_a_wait_for_an_event_that_was_given_up_is_taken_up_by_the_next_of_the_same_spec() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    a, b = wait_spec("paid", "event == 1", {}), wait_spec("paid", "event == 2", {})
    name, seq = waits.event_wait("paid", a)
    assert (name, seq) == (event_promise_name("paid", 1, RUN), -1)
    waits.created(waits_event(name, 7, a))
    waits.give_up_event(a, name)
    assert waits.event_wait("paid", b) == (event_promise_name("paid", 2, RUN), -1)
    waits.resolve(value(waits_event(name, 7, a), b"1"))  # between the two waits
    assert waits.event_wait("paid", a) == (name, 7)
    assert waits.value(name) == b"1"


@pytest.mark.parametrize(
    ("given_up", "next_one", "is_taken_up"),
    [(5, 5, True), (5, 6, True), (5, 0, True), (0, 0, True), (6, 5, False), (0, 5, False)],
)
def test_wait_that_looks_further_back_is_a_new_one(given_up: int, next_one: int, is_taken_up: bool) -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    first, second = (wait_spec("paid", "event.id == id", {"id": 1}, us) for us in (given_up, next_one))
    name, _ = waits.event_wait("paid", first)
    waits.created(waits_event(name, 7, first))
    waits.give_up_event(first, name)
    assert (waits.event_wait("paid", second) == (name, 7)) is is_taken_up
    assert is_taken_up or waits.event_wait("paid", first) == (name, 7)


def test_a_successor_gets_the_values_that_were_never_asked_for_and_no_events() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    waits.created(asked("asked"))
    for name in ("asked", "early"):
        waits.resolve(ev.PromiseResolved(name, b"1"))
    late = waits_event(event_promise_name("paid", 1, bytes(15) + b"\x01"), 0, wait_spec("paid", "", {}))
    waits.resolve(value(late, b"1"))
    assert waits.unclaimed() == [("early", b"1")]


def test_answer_counts_only_for_its_own_question() -> None:
    refund, pay = approval("deal", details="refund 5?"), approval("deal", details="pay 1,000,000?")
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    waits.resolve(value(refund, b"yes"))
    waits.created(pay)
    waits.wait("deal", "code")
    assert waits.value("deal") is None
    assert list(waits.resolve(value(refund, b"yes"))) == []
    assert list(waits.resolve(value(pay, b"no"))) == ["code"]
    assert waits.value("deal") == b"no"


def test_same_question_asked_later_keeps_its_answer() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    waits.resolve(value(approval("deal", details=5, deadline_us=1), b"yes"))
    waits.created(approval("deal", details=5, deadline_us=2))
    assert waits.value("deal") == b"yes"


def test_a_message_goes_to_the_one_that_has_waited_longest_and_is_buffered_without_one() -> None:
    waits: MessageWaits[bytes, str] = MessageWaits()
    for waiter in ("first", "second", "third"):
        waits.wait("go", waiter)
    waits.stop_waiting("go", "second")
    assert [waits.next_waiter("go") for _ in range(3)] == ["first", "third", None]
    assert [waits.buffer("go", value) for value in (b"1", b"2")] == [1, 2]
    assert waits.buffer("other", b"3") == 1
    assert (waits.buffered, waits.unclaimed()) == (3, [("go", b"1"), ("go", b"2"), ("other", b"3")])
    assert [waits.take("go") for _ in range(3)] == [b"1", b"2", None]
    assert (list(waits.take_all("other")), list(waits.take_all("other")), waits.buffered) == ([b"3"], [], 0)


def test_waiters_that_gave_up_are_forgotten() -> None:
    waits: MessageWaits[bytes, str] = MessageWaits()
    for name, waiter in (("a", "gone"), ("a", "live"), ("b", "gone")):
        waits.wait(name, waiter)
    waits.forget_if(lambda waiter: waiter == "gone")
    assert waits.waiting_names() == ["a"]
    assert waits.next_waiter("a") == "live"


def test_a_name_is_full_until_half_of_its_messages_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.core.waits.SIGNALS_BUFFERED_MAX", 4)
    waits: MessageWaits[bytes, str] = MessageWaits()
    assert [(waits.buffer("go", b"x"), set(waits.full)) for _ in range(5)] == [
        (1, set()),
        (2, set()),
        (3, set()),
        (4, {"go"}),
        (5, {"go"}),
    ]
    waits.buffer("other", b"x")
    assert [(waits.take("go"), set(waits.full)) for _ in range(3)] == [(b"x", {"go"}), (b"x", {"go"}), (b"x", set())]
