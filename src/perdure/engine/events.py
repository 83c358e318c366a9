"""Events between the parts of one engine.

A part publishes to a topic and knows none of its subscribers; engine.py subscribes them, in one place. Subscribers are called at once and
in order, on the event loop, and must not raise: what takes time they begin in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, ParamSpec

import msgspec

from perdure.core.messages import TaskEndedMessage
from perdure.core.work import Outcome

P = ParamSpec("P")


class Topic(Generic[P]):
    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: tuple[Callable[P, object], ...] = ()

    def subscribe(self, subscriber: Callable[P, object]) -> None:
        self._subscribers = (*self._subscribers, subscriber)

    def publish(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for subscriber in self._subscribers:
            subscriber(*args, **kwargs)


class RunEnd(msgspec.Struct, frozen=True, gc=False):
    """A run that ended here, durably."""

    run_id: bytes
    ns: int
    workflow: str
    version: str
    events: int
    trace: str
    """Traceparent that it was started with."""
    outcome: Outcome
    successor: bytes | None


Answers = list[tuple[str, bytes, bytes | None]]
"""Answers to updates: (id, value, failure)"""


class EngineEvents:
    __slots__ = (
        "answers_recorded",
        "bulk_job_started",
        "cancel_sent",
        "event_wait_made",
        "message_sent",
        "orphaned_task_ended",
        "other_engines_concerned",
        "outbox_changed",
        "run_ended",
        "runs_begun",
        "session_lost",
        "slot_freed",
        "start_deadline_set",
        "task_signatures_received",
        "work_due",
    )

    def __init__(self) -> None:
        self.run_ended = Topic[[RunEnd]]()
        self.runs_begun = Topic[[int]]()
        """So many runs were created that no engine owns yet."""
        self.message_sent = Topic[[bytes]]()
        """A run has a message in its inbox."""
        self.event_wait_made = Topic[[]]()
        """A run waits for a named event, durably. The event may have come before."""
        self.cancel_sent = Topic[[]]()
        """A run has a cancel message in its inbox."""
        self.answers_recorded = Topic[[int, bytes, Answers]]()
        """Answers of a run (namespace, run) to updates are durable."""
        self.bulk_job_started = Topic[[]]()
        """A bulk job waits for an engine."""
        self.outbox_changed = Topic[[]]()
        """A notification rule was changed, or notifications are to be tried again."""
        self.work_due = Topic[[int]]()
        """Something can be claimed in this many microseconds."""
        self.slot_freed = Topic[[]]()
        """Attempts ended on workers of this engine."""
        self.start_deadline_set = Topic[[int]]()
        """A task that waits in task_queue must have begun by this moment."""
        self.orphaned_task_ended = Topic[[bytes, int, TaskEndedMessage]]()
        """An attempt that a worker brought along succeeded, and has no row: (run, namespace, its end)."""
        self.task_signatures_received = Topic[[int, Mapping[str, bytes]]]()
        """A worker connected: its namespace, and JSON Schemas of the calls of its tasks by name. Many workers send the same."""
        self.other_engines_concerned = Topic[[str]]()
        """Other engines may have something to do, by the topic of the notification."""
        self.session_lost = Topic[[]]()
        """The session is lost: everything in memory is void."""
