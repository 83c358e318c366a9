"""The laws of core/waits.py, one test each. The waiters are plain strings."""

from __future__ import annotations

from perdure.core.waits import MessageWaits, PromiseWaits, event_promise_name

RUN = bytes(16)


def test_the_first_value_of_a_promise_stands_and_is_kept_for_later_waits() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    waits.created("p", 0)
    waits.wait("p", "first")
    waits.wait("p", "second")
    assert list(waits.resolve("p", b"1", authorized=True)) == ["first", "second"]
    assert list(waits.resolve("p", b"2", authorized=True)) == []
    assert waits.value("p") == b"1"


def test_each_approval_of_a_name_has_a_promise_of_its_own() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    assert [waits.approval_name("ok") for _ in range(3)] == ["ok", "ok#2", "ok#3"]
    assert waits.approval_name("other") == "other"


def test_an_unauthorized_early_answer_does_not_resolve_a_restricted_approval() -> None:
    for authorized, restricted, is_resolved in ((False, True, False), (True, True, True), (False, False, True)):
        waits: PromiseWaits[str] = PromiseWaits(RUN)
        waits.resolve("ok", b"true", authorized=authorized)
        waits.created("ok", 0, restricted=restricted)
        assert (waits.value("ok") is not None) is is_resolved


def test_a_wait_for_an_event_that_was_given_up_is_taken_up_by_the_next_of_the_same_spec() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    name, seq = waits.event_wait("paid", b"a")
    assert (name, seq) == (event_promise_name("paid", 1, RUN), -1)
    waits.created(name, 7)
    waits.give_up_event(b"a", name)
    assert waits.event_wait("paid", b"b") == (event_promise_name("paid", 2, RUN), -1)
    waits.resolve(name, b"1", authorized=True)  # between the two waits
    assert waits.event_wait("paid", b"a") == (name, 7)
    assert waits.value(name) == b"1"


def test_a_successor_gets_the_values_that_were_never_asked_for_and_no_events() -> None:
    waits: PromiseWaits[str] = PromiseWaits(RUN)
    waits.created("asked", 0)
    for name in ("asked", "early", event_promise_name("paid", 1, bytes(15) + b"\x01")):
        waits.resolve(name, b"1", authorized=True)
    assert waits.unclaimed() == [("early", b"1")]


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
