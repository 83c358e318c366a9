"""Where messages are put that came when the code had ended."""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core.late_messages import put_in_order

TIMER = ev.TimerFired(0)


def signal(value: int) -> ev.SignalReceived:
    return ev.SignalReceived("word", b"%d" % value)


def ordered(*events: ev.Event, first: int) -> list[int]:
    """The numbers of the events, in the order in which the code is given them."""
    seen = [ev.Recorded(n, n, e) for n, e in enumerate(events, 1)]
    once = put_in_order(seen, ev.EndWithdrawn(first))
    assert [r.event for r in sorted(once, key=lambda r: r.seq)] == list(events)
    return [r.seq for r in once]


def test_they_come_before_the_facts_on_which_it_ended() -> None:
    assert ordered(ev.TimerStarted(0, 9), TIMER, signal(1), signal(2), first=3) == [1, 3, 4, 2]
    assert ordered(signal(0), ev.TimerStarted(0, 9), TIMER, signal(1), first=4) == [1, 2, 4, 3]


def test_they_have_the_time_of_the_fact_that_they_precede() -> None:
    """Code that reads the clock sees it go forward."""
    seen = [ev.Recorded(n, 10 * n, e) for n, e in enumerate((ev.TimerStarted(0, 9), TIMER, signal(1), signal(2)), 1)]
    assert [(r.seq, r.at_us) for r in put_in_order(seen, ev.EndWithdrawn(3))] == [(1, 10), (3, 20), (4, 20), (2, 20)]


def test_each_kind_of_message_is_moved_and_nothing_else() -> None:
    messages = [signal(1), ev.PromiseResolved("p", b"1"), ev.UpdateReceived("u", "u", b"1"), ev.CancelRequested()]
    assert ordered(TIMER, *messages, ev.TimerFired(1), first=2) == [2, 3, 4, 5, 1, 6]


def test_they_do_not_overtake_another_message() -> None:
    assert ordered(ev.TimerStarted(0, 9), signal(0), TIMER, signal(1), first=4) == [1, 2, 4, 3]
    assert ordered(ev.TimerStarted(0, 9), signal(0), signal(1), first=3) == [1, 2, 3]


def test_code_that_ended_on_a_side_effect_gets_them_where_they_are() -> None:
    assert ordered(TIMER, ev.OperationRecorded(0, "roll", b"1"), signal(1), first=3) == [1, 2, 3]
    assert ordered(TIMER, signal(1), ev.OperationRecorded(0, "roll", b"1"), first=2) == [1, 2, 3]
    assert ordered(TIMER, signal(1), ev.OperationRecorded(0, "roll", b"1"), ev.TimerFired(1), first=2) == [1, 2, 3, 4]
