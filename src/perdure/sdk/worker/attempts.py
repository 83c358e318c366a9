"""What a running task may know about itself, `perdure.attempt()`, and what it may raise to say how it goes on."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, Protocol

from perdure.core import ids
from perdure.core.durations import Duration, to_us
from perdure.core.errors import PayloadMismatch, PayloadTooLarge, PerdureError
from perdure.core.limits import DETAILS_BYTES_MAX
from perdure.core.progress import TaskProgress, checked_progress, with_progress
from perdure.core.work import Assignment, Beat
from perdure.sdk.captured_output import OutputBuffer, OutputSink
from perdure.sdk.payloads.converters import _ENCODER as JSON
from perdure.sdk.secrets.known import redacted, redacted_data

CLEANUP_S = 30.0
"""Clean-up time of an attempt that was asked to stop, before it is interrupted again."""
STOPS_MAX = 10
"""Times it is interrupted."""
BEAT_EVERY_S = 0.25
"""Heartbeats of one attempt are forwarded this often at most; details given in between are sent with the next one."""


class RetryLater(Exception):
    """Raised by a task that should be retried after the given delay instead of the one of its retry policy.

    The attempt counts as failed: where no attempt is left the task fails. Any exception with an attribute `retry_after`, in seconds or
    a timedelta, works the same way.
    """

    __module__ = "perdure.errors"

    def __init__(self, after: Duration, message: str = "") -> None:
        self.retry_after = to_us(after) / 1e6
        super().__init__(message or f"try again in {self.retry_after:g} s")


class FinalError(Exception):
    """Raised by a task that must not be retried: it fails at once, however many attempts are left."""

    __module__ = "perdure.errors"


connection: ContextVar[Any] = ContextVar("perdure_task_connection")
"""Of the transactional task that runs here."""


class AttemptCancelled(asyncio.CancelledError):
    """Raised inside a task in a thread or a process when it is cancelled or its time is over.

    An async task gets its base class at its `await`, so `except asyncio.CancelledError` and `finally` work the same everywhere.
    `except Exception` does not catch it.
    """

    __module__ = "perdure.errors"


class AttemptHost(Protocol):
    """Executes attempts and takes their heartbeats and output. Called from any thread."""

    @property
    def sink(self) -> OutputSink | None:
        """None: output is not captured."""

    def beat(self, attempt: Attempt, details: bytes) -> None: ...
    def secret(self, attempt: Attempt, name: str) -> str:
        """The value of a secret. Blocks while a provider is asked."""
        ...


class Attempt:
    """One execution of a task. `number` counts from 1; (task_id, number, epoch) is unique among executions."""

    __slots__ = (
        "_assignment",
        "_details",
        "_host",
        "_output",
        "_over",
        "_progress",
        "_pulse",
        "_runner",
        "_secrets",
        "cancelled",
    )

    def __init__(self, assignment: Assignment, host: AttemptHost, runner: Any = None) -> None:
        self._assignment, self._host = assignment, host
        self._runner = runner
        """What executes it: an asyncio task, a thread held for it, a process; a lane while it looks for one, None while it waits."""
        # Made by the first line and by the first heartbeat; most attempts say nothing.
        self._output: OutputBuffer | None = None
        self._pulse: Pulse | None = None
        self._secrets: dict[str, str] | None = None
        """Names of the secrets it has read, by value."""
        self._progress: TaskProgress | None = None
        self._details = b""
        """Both as they were said last."""
        self._over = False
        """Its code has ended, one way or another."""
        self.cancelled = False
        """Set when the result is no longer needed: the task was cancelled, or its time is over. Plain functions may look at it, or
        call `raise_if_cancelled`, where stopping is convenient; a moment later they are interrupted wherever they are."""

    @property
    def run_id(self) -> str:
        return ids.text(self._assignment.run_id)

    @property
    def task_id(self) -> str:
        return ids.text(ids.derive(self._assignment.run_id, ids.TASK, self._assignment.seq))

    @property
    def seq(self) -> int:
        return self._assignment.seq

    @property
    def task(self) -> str:
        return self._assignment.name

    @property
    def number(self) -> int:
        return self._assignment.attempt

    @property
    def epoch(self) -> int:
        return self._assignment.epoch

    @property
    def connection(self) -> Any:
        """Of a task with `transactional=True`: a connection in a transaction, whose commit also records the task's result. In an async task
        one of asyncpg, in a plain function one of psycopg."""
        found = connection.get(None)
        if found is None:
            raise PerdureError("attempt().connection is there in tasks with @task(transactional=True) only")
        return found

    def raise_if_cancelled(self) -> None:
        """Stop here if the task is to stop."""
        if self.cancelled:
            raise AttemptCancelled

    def heartbeat(self, details: Any = None) -> None:
        """Say that this attempt is alive, and how far it is: `details` is any JSON-able value, shown to people.

        Needed only for tasks declared with `heartbeat=`. Call it as often as you like: a few beats per second are sent,
        with the details given last.
        """
        if details is not None:
            self._details = redacted_data(encode_details(details))
        self._host.beat(self, b"" if details is None else self._said())

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Say how far this attempt is: shown as a bar by `perdure watch`, and by the API as `progress` of the task.

            attempt().progress(n, len(files), f"reading {file}")

        It is a heartbeat as well. Call it as often as you like: a few are sent per second, with what was said last. The text is cut
        after PROGRESS_TEXT_CHARS_MAX characters. Raises InvalidInput for numbers below 0.
        """
        self._progress = checked_progress(done, total, redacted(text))
        self._host.beat(self, self._said())

    def _said(self) -> bytes:
        return self._details if self._progress is None else with_progress(self._progress, self._details)


class Pulse:
    """Lets a few beats per second through and keeps the latest details for the next one."""

    __slots__ = ("_every_s", "_sent", "details", "waiting")

    def __init__(self, heartbeat_us: int) -> None:
        self._every_s = min(BEAT_EVERY_S, heartbeat_us / 3e6) if heartbeat_us else BEAT_EVERY_S
        self._sent = float("-inf")
        self.details = b""
        self.waiting = False
        """A beat is held back and will be sent when its time has come."""

    def wait_s(self, now_s: float, details: bytes) -> float:
        """How long a beat has to wait until it may go. Its details are kept for the next one that goes."""
        if details:
            self.details = details
        return max(0.0, self._sent + self._every_s - now_s)

    def take(self, now_s: float) -> bytes:
        """A beat goes, with these details."""
        details, self.details = self.details, b""
        self._sent, self.waiting = now_s, False
        return details


def pulse_of(attempt: Attempt) -> Pulse:
    pulse = attempt._pulse
    if pulse is None:
        pulse = attempt._pulse = Pulse(attempt._assignment.options.heartbeat_us)
    return pulse


def beat_of(attempt: Attempt, details: bytes = b"", blocked: str = "") -> Beat:
    a = attempt._assignment
    return Beat(a.run_id, a.seq, a.attempt, details, blocked)


def encode_details(details: Any) -> bytes:
    """As JSON. They are never decoded to their type again, so unlike a result they need not survive a round trip."""
    try:
        data = JSON.encode(details)
    except Exception as error:
        raise PayloadMismatch(
            f"the details of a heartbeat cannot be written as JSON: {error}. Give plain data: numbers, strings, lists, dicts."
        ) from error
    if len(data) > DETAILS_BYTES_MAX:
        raise PayloadTooLarge(
            f"the details of a heartbeat take {len(data):,} bytes as JSON, over the limit DETAILS_BYTES_MAX="
            f"{DETAILS_BYTES_MAX:,}. They are for people to see progress; keep data in the task's result instead."
        )
    return data


class Slot:
    """Where a runner keeps the attempt it is executing. The variable is set once per runner, not once per task."""

    __slots__ = ("attempt",)

    def __init__(self, attempt: Attempt | None = None) -> None:
        self.attempt = attempt


current_slot: ContextVar[Slot] = ContextVar("perdure_slot")


def attempt() -> Attempt:
    """The attempt that the calling task is."""
    slot: Any = current_slot.get(None)
    if slot is None or slot.attempt is None:
        raise PerdureError("perdure.attempt() works inside a running task only")
    found: Attempt = slot.attempt
    return found
