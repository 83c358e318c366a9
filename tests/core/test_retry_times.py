"""When a task may begin and must have ended, and what an error says about when to try again."""

from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.durations import datetime_of
from perdure.core.errors import Failure, PerdureError
from perdure.core.flow_control.admission import QueueReason
from perdure.core.lifecycle import TaskStatus
from perdure.core.limits import RETRY_AFTER_S_MAX
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import (
    End,
    Fail,
    Requeue,
    TaskOptions,
    backoff_us,
    expired,
    left_us,
    settle,
    waits_until_us,
)
from perdure.core.work import Assignment, Report
from perdure.engine.ports import LostTask
from perdure.engine.services.start_deadlines import ExpiredTask, fails
from perdure.engine.tasks.lost_workers import settle_lost
from perdure.errors import FinalError, RetryLater
from perdure.sdk.worker.reports import error_report
from perdure.wire.codec import decode_message, encode_options
from perdure.wire.protocol import Up, decode_up, encode_up
from tests.sdk.test_builtin_tasks import Bench, web

TASK = bytes(16)
BOOM = Failure("task_failed", "boom", "ValueError")
SECOND = 1_000_000
moments = st.integers(0, 10**12)


def later(seconds: float) -> Failure:
    return Failure("task_failed", "busy", "RetryLater", "", int(seconds * SECOND))


# -- settle --------------------------------------------------------------------------------------------------------


def test_an_error_that_names_a_delay_gets_it_and_still_counts_as_an_attempt() -> None:
    o = TaskOptions(max_attempts=2, initial_us=60 * SECOND)
    assert settle(o, TASK, 1, 0, End.ERROR, later(7)) == Requeue(2, 0, 7 * SECOND, later(7))
    assert settle(o, TASK, 2, 0, End.ERROR, later(7)) == Fail(later(7))


def test_nobody_is_put_off_for_longer_than_the_limit() -> None:
    verdict = settle(TaskOptions(), TASK, 1, 0, End.ERROR, later(10 * RETRY_AFTER_S_MAX))
    assert isinstance(verdict, Requeue) and verdict.delay_us == RETRY_AFTER_S_MAX * SECOND


def test_a_final_error_is_final_whatever_delay_it_names() -> None:
    assert settle(TaskOptions(), TASK, 1, 0, End.FINAL_ERROR, later(7)) == Fail(later(7))


@pytest.mark.parametrize("end", [End.ERROR, End.TIMEOUT, End.HEARTBEAT, End.LOST, End.RETURNED])
def test_a_retry_that_could_not_begin_in_time_is_none(end: End) -> None:
    o = TaskOptions(max_attempts=5, initial_us=10 * SECOND, jitter=False, to_close_us=15 * SECOND)
    failure = None if end in (End.LOST, End.RETURNED) else BOOM
    delay = 0 if failure is None else 10 * SECOND
    assert isinstance(settle(o, TASK, 1, 0, end, failure, delay + 1), Requeue)
    verdict = settle(o, TASK, 1, 0, end, failure, delay)
    assert (
        isinstance(verdict, Fail) and "finish_within" in verdict.failure.message and "15 s" in verdict.failure.message
    )
    if failure is not None:
        assert verdict.failure.message.startswith("boom\n") and verdict.failure.type == "ValueError"


@given(st.integers(1, 10), st.integers(-(10**9), 10**9))
def test_no_attempt_ever_begins_after_the_task_must_have_ended(attempt: int, left: int) -> None:
    o = TaskOptions(max_attempts=100, to_close_us=10 * SECOND)
    verdict = settle(o, TASK, attempt, 0, End.ERROR, BOOM, left)
    fits = backoff_us(o, TASK, attempt) < left
    assert isinstance(verdict, Requeue) == fits


def test_what_is_over_is_not_tried_again() -> None:
    assert settle(TaskOptions(max_attempts=9), TASK, 1, 0, End.EXPIRED, BOOM) == Fail(BOOM)


# -- moments -------------------------------------------------------------------------------------------------------


def test_a_task_without_limits_may_wait_for_ever() -> None:
    assert waits_until_us(TaskOptions(), 5, 7) is None and left_us(TaskOptions(), 5, 7) is None


@given(moments, moments, st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_earlier_of_two_limits_counts(scheduled: int, due: int, start: int, close: int) -> None:
    found = waits_until_us(TaskOptions(to_start_us=start, to_close_us=close), scheduled, due)
    limits = [due + start] * bool(start) + [scheduled + close] * bool(close)
    assert found == (min(limits) if limits else None)


def test_the_failure_names_the_limit_that_was_met() -> None:
    both = TaskOptions(to_start_us=SECOND, to_close_us=60 * SECOND)
    first = expired(both, 2 * SECOND, 1, "")
    assert first == Failure("task_timeout", "the task did not begin within 1 s (start_within)", "TimeoutError")
    assert expired(both, 2 * SECOND, 3, "So.").message == "attempt 3 did not begin within 1 s (start_within). So."
    assert "60 s after it was scheduled (finish_within)" in expired(both, 60 * SECOND, 2, "").message


# -- expiry --------------------------------------------------------------------------------------------------------


def waiting(**given: Any) -> ExpiredTask:
    fields: dict[str, Any] = {
        "id": TASK,
        "run_id": b"r" * 16,
        "seq": 4,
        "queue": "default",
        "attempt": 1,
        "lost": 0,
        "scheduled_us": 10,
        "error": None,
        "options": encode_options(TaskOptions(to_start_us=SECOND)),
        "clock_us": 2 * SECOND,
        "reason": None,
    }
    return ExpiredTask(**(fields | given))


def message_of(w: ExpiredTask) -> TaskEndedMessage:
    (failed,) = fails([w])
    assert (failed.id, failed.run_id) == (w.id, w.run_id)
    message = decode_message(failed.body)
    assert isinstance(message, TaskEndedMessage) and message.failure is not None
    return message


def test_a_task_that_expired_ends_as_failed_with_as_many_attempts_as_it_had() -> None:
    message = message_of(waiting(attempt=3, lost=1, error="no answer"))
    assert (message.seq, message.status, message.attempts, message.lost) == (4, TaskStatus.FAILED, 2, 1)
    assert (message.scheduled_us, message.started_us, message.finished_us) == (10, 0, 2 * SECOND)
    assert message.failure is not None and "The attempt before it ended with: no answer" in message.failure.message


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            QueueReason(code="limit", key="task:x", max=3),
            "It waited for flow control: the limit task:x (3 at a time) was reached",
        ),
        (QueueReason(code="paused", key="queue:q", by="ada", text="lunch"), "queue:q is paused by ada (lunch)"),
        (QueueReason(code="rate", key="task:x"), "the rate task:x admitted nothing"),
        (None, "No worker took it from the queue 'default'"),
    ],
)
def test_a_task_that_expired_says_what_it_waited_for(reason: QueueReason | None, words: str) -> None:
    import msgspec

    message = message_of(waiting(reason=msgspec.json.encode(reason).decode() if reason else None))
    assert message.failure is not None and words in message.failure.message


def test_a_task_of_a_dead_engine_waits_anew_and_not_longer_than_it_may() -> None:
    o = encode_options(TaskOptions(to_start_us=1, to_close_us=2))
    plain = encode_options(TaskOptions())
    again, failed = settle_lost([LostTask(TASK, TASK, 0, 1, 0, o), LostTask(TASK, TASK, 0, 1, 0, plain)])
    assert [a[:5] for a in again] == [(TASK, 2, 1, 1, 2), (TASK, 2, 1, None, None)] and failed == []


# -- what errors say -----------------------------------------------------------------------------------------------


def report_of(error: BaseException, **options: Any) -> Report:
    return error_report(Assignment(TASK, 0, 1, 1, "t", b"", TaskOptions(**options)), error, 0, 1)


def with_attribute(value: object) -> Exception:
    error = ConnectionError("busy")
    error.retry_after = value  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "us"),
    [
        (RetryLater("90s"), 90 * SECOND),
        (RetryLater(timedelta(minutes=2), "full"), 120 * SECOND),
        (with_attribute(1.5), 1_500_000),
        (with_attribute(timedelta(seconds=3)), 3 * SECOND),
        (with_attribute(10**12), RETRY_AFTER_S_MAX * SECOND),
        (with_attribute("soon"), 0),
        (with_attribute(True), 0),
        (with_attribute(-5), 0),
        (with_attribute(float("nan")), 0),
        (with_attribute(float("inf")), 0),
        (ValueError("no"), 0),
    ],
)
def test_how_long_an_error_asks_to_be_left_alone(error: Exception, us: int) -> None:
    report = report_of(error)
    assert report.end is End.ERROR and report.failure is not None and report.failure.retry_after_us == us
    travelled = decode_up(encode_up(Up(reports=[report]))).reports[0]
    assert travelled == report, "over the wire as well"


def test_what_an_error_is_about_is_in_its_words() -> None:
    assert str(RetryLater("90s")) == "try again in 90 s" and str(RetryLater("90s", "full")) == "full"


def test_errors_that_are_final_by_themselves() -> None:
    assert report_of(FinalError("no")).end is End.FINAL_ERROR
    assert report_of(PerdureError("no")).end is End.FINAL_ERROR
    assert report_of(RetryLater("1s"), never=("RetryLater",)).end is End.FINAL_ERROR


# -- http ----------------------------------------------------------------------------------------------------------

NOW = datetime_of(1_800_000_000 * SECOND)


@pytest.mark.parametrize(
    ("status", "headers", "us"),
    [
        (429, {"Retry-After": "7"}, 7 * SECOND),
        (
            503,
            {
                "Retry-After": format_datetime(NOW + timedelta(seconds=30), usegmt=True),
                "Date": format_datetime(NOW, usegmt=True),
            },
            30 * SECOND,
        ),
        (
            503,
            {
                "Retry-After": format_datetime(NOW - timedelta(seconds=30), usegmt=True),
                "Date": format_datetime(NOW, usegmt=True),
            },
            0,
        ),
        (503, {"Retry-After": "tomorrow"}, 0),
        (503, {}, 0),
        (500, {"Retry-After": "7"}, 0),
    ],
)
async def test_a_server_that_says_when_is_heard(status: int, headers: dict[str, str], us: int) -> None:
    async with web(lambda *_: (status, headers, b"busy")) as w, Bench(http_allow=["127.0.0.1"]) as b:
        report = await b.report("perdure.http", url=w.url)
        assert report.end is End.ERROR and report.failure is not None and report.failure.retry_after_us == us
