"""Messages become events once, and only those that the run can take."""

from __future__ import annotations

from perdure.core import events as ev
from perdure.core.lifecycle import RunStatus
from perdure.core.messages import CancelMessage, ChildEndedMessage, PromiseMessage, SignalMessage
from perdure.engine.ports import InboxRow
from perdure.engine.runs.run import ActiveRun
from perdure.engine.runs.transitions import RELEASED
from perdure.wire.codec import encode_message
from tests.engine.test_segments import world
from tests.fakes.engine_parts import RUN, EngineParts


def deliver_row(made: EngineParts, run: ActiveRun, row: InboxRow) -> None:
    message = made.delivery.read(run, row)
    if message is not None:
        made.delivery.deliver(run, message, row.id)


def events_of(run: ActiveRun) -> list[ev.Event]:
    return [e for changes in run.pending for e in changes.events]


def test_a_row_that_is_read_twice_is_one_fact() -> None:
    made, run, _ = world()
    row = InboxRow(5, RUN, encode_message(SignalMessage("s", b"1")))
    deliver_row(made, run, row)
    deliver_row(made, run, row)
    made.delivery.pending.discard(5)
    made.delivery.done.add(5)
    deliver_row(made, run, row)
    assert events_of(run) == [ev.SignalReceived("s", b"1")]


def test_a_second_cancel_counts_only_while_children_are_waited_for() -> None:
    made, run, _ = world()
    for _ in range(2):
        made.delivery.deliver(run, CancelMessage("why"))
    assert events_of(run).count(ev.CancelRequested("why")) == 1
    run.state.apply(ev.ChildCancelRequested(0, True))
    made.delivery.deliver(run, CancelMessage("again"))
    assert ev.CancelRequested("again") in events_of(run)


def test_the_end_of_a_child_counts_if_it_is_the_child_that_is_there_now() -> None:
    """A retried parent may have started another child under the same number."""
    made, run, _ = world()
    made.delivery.deliver(run, ChildEndedMessage(0, RunStatus.SUCCESS, b"1", None, b"another child's"))
    assert events_of(run) == []
    made.delivery.deliver(run, ChildEndedMessage(0, RunStatus.SUCCESS, b"2", None, bytes(16)))
    assert events_of(run) == [ev.ChildSucceeded(0, b"2")]


def test_an_approval_of_certain_people_is_not_resolved_by_mail_from_anybody() -> None:
    made, run, _ = world()
    guarded = b'{"title":"t","quorum":2,"reject_quorum":1}'
    run.state.apply(ev.PromiseCreated(0, "p", guarded, ev.PromiseKind.APPROVAL))
    run.state.apply(ev.PromiseCreated(1, "plain", b""))
    for name in ("p", "plain"):
        made.delivery.deliver(run, PromiseMessage(name, b"1", authorized=False))
    assert [e.name for e in events_of(run) if isinstance(e, ev.PromiseResolved)] == ["plain"]
    made.delivery.deliver(run, PromiseMessage("p", b"1", authorized=True))
    made.delivery.deliver(run, PromiseMessage("p", b"2", authorized=True))
    assert [e.value for e in events_of(run) if isinstance(e, ev.PromiseResolved) and e.name == "p"] == [b"1"]


def test_a_run_that_is_leaving_takes_no_messages() -> None:
    made, run, _ = world()
    run.phase = RELEASED[run.phase](0, None)
    deliver_row(made, run, InboxRow(5, RUN, encode_message(SignalMessage("s", b"1"))))
    made.delivery.deliver(run, SignalMessage("s", b"1"))
    assert events_of(run) == []
    assert not made.delivery.pending


def test_messages_of_changes_that_are_dropped_count_as_unread() -> None:
    made, run, _ = world()
    deliver_row(made, run, InboxRow(5, RUN, encode_message(SignalMessage("s", b"1"))))
    assert made.delivery.pending == {5}
    made.delivery.drop_pending(run)
    assert not made.delivery.pending
    assert not run.pending


def test_what_goes_along_with_a_run_that_continues_is_kept_until_its_code_has_it() -> None:
    """An answer stays behind, with its question."""
    made, run, _ = world()
    value = PromiseMessage("plain", b"1")
    answer = PromiseMessage("asked", b"2", authorized=True, question=b"q")
    for number, message in enumerate((SignalMessage("s", b"1"), value, answer, CancelMessage("why")), 5):
        deliver_row(made, run, InboxRow(number, RUN, encode_message(message)))
    assert run.unseen == [SignalMessage("s", b"1"), value, CancelMessage("why")]
    assert [n for s in run.pending if s.has_extras for n in s.extras.consumed] == [5, 6, 7, 8]
    assert run.inbox_used


def test_a_value_for_another_question_does_not_take_the_place_of_an_answer() -> None:
    made, run, _ = world()
    for question, value in ((b"refund?", b"1"), (b"refund?", b"2"), (b"pay?", b"3")):
        made.delivery.deliver(run, PromiseMessage("p", value, authorized=True, question=question))
    taken = [(e.question, e.value) for e in events_of(run) if isinstance(e, ev.PromiseResolved)]
    assert taken == [(b"refund?", b"1"), (b"pay?", b"3")]
