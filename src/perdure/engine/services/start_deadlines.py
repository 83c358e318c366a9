"""Tasks that wait in task_queue and whose time is over: any engine ends them.

Laws:

1. Only the database's clock decides. A row is taken under a lock that no claim can share, so a task is claimed or expired, never both.
2. The row goes and the failure is in its run's inbox in one transaction. An engine that dies in the middle has done nothing.
3. Where nothing expires, it costs one look at an empty index per poll. The engine that writes such a row polls at its moment; another
   one finds it by polling if that engine is gone.

    wake_at(moment), or poll -> upcoming -> due? -> expire a batch -> messages to the runs -> again while there is more
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from perdure.core.flow_control.admission import QueueReason
from perdure.core.lifecycle import TaskStatus
from perdure.core.messages import TaskEndedMessage
from perdure.core.retry import End, Fail, expired, settle
from perdure.engine.context import EngineContext
from perdure.engine.services.service import Service
from perdure.wire.codec import decode_options, encode_message

EXPIRE_ROWS_MAX: Final = 500
"""Tasks ended in one transaction."""
AGAIN_US: Final = 50_000
"""Before another look at rows that are due and that another engine has locked."""
ERROR_CHARS: Final = 500
"""Characters of the previous attempt's error that are kept in the message."""


class Upcoming(msgspec.Struct, frozen=True):
    clock_us: int
    at_us: int | None
    """The earliest moment by which a waiting task must have begun."""


class ExpiredTask(msgspec.Struct, frozen=True):
    """A task whose time is over."""

    id: bytes
    run_id: bytes
    seq: int
    queue: str
    attempt: int
    lost: int
    scheduled_us: int
    options: bytes
    error: str | None
    clock_us: int
    reason: str | None
    """What flow control said when it last passed it over."""


class Failed(msgspec.Struct, frozen=True):
    id: bytes
    run_id: bytes
    body: bytes
    """Message to the run."""


Fails = Callable[[list[ExpiredTask]], list[Failed]]


class StartDeadlineStore(Protocol):
    async def upcoming(self) -> Upcoming: ...
    async def expire(self, session: int, limit: int, fails: Fails) -> list[Failed]: ...


class StartDeadlines(Service):
    name = "failing tasks that did not start in time"
    poll_s = 2.0

    def __init__(self, context: EngineContext, store: StartDeadlineStore) -> None:
        super().__init__()
        self._store, self._session, self._now_us = store, context.session, context.now_us
        self._counters, self._events = context.counters, context.events
        self.next_us: int | None = None
        """The earliest moment that is known here; those of other engines' rows may lie before it."""

    def wake_at(self, at_us: int) -> None:
        """A row is being written that must have begun by then."""
        if self.next_us is None or at_us < self.next_us:
            self.next_us = at_us
            self.wake_in(max(at_us - self._now_us(), AGAIN_US))

    async def poll_once(self) -> None:
        found = await self._store.upcoming()
        while found.at_us is not None and found.at_us <= found.clock_us:
            gone = await self._store.expire(self._session.id, EXPIRE_ROWS_MAX, fails)
            self._counters.tasks_start_deadline_missed += len(gone)
            for run_id in {f.run_id for f in gone}:
                self._events.message_sent.publish(run_id)
            if not gone:
                break
            found = await self._store.upcoming()
        if self.next_us is not None and self.next_us <= found.clock_us:
            self.next_us = None  # else it is of a row that may not be committed yet
        if found.at_us is not None:
            self.wake_at(found.at_us)


def fails(tasks: list[ExpiredTask]) -> list[Failed]:
    """What becomes of them, by the one function that decides about ends."""
    failed: list[Failed] = []
    for t in tasks:
        options = decode_options(t.options)
        failure = expired(options, t.clock_us - t.scheduled_us, t.attempt, _why(t))
        verdict = settle(options, t.id, t.attempt, t.lost, End.EXPIRED, failure)
        assert isinstance(verdict, Fail)
        executed = t.attempt - 1
        message = TaskEndedMessage(
            t.seq, TaskStatus.FAILED, b"", verdict.failure, executed, t.lost, t.scheduled_us, 0, t.clock_us
        )
        failed.append(Failed(t.id, t.run_id, encode_message(message)))
    return failed


def _why(t: ExpiredTask) -> str:
    if t.reason:
        return f"It waited for flow control: {_queue_reason_text(_reason(t.reason))}"
    before = f". The attempt before it ended with: {t.error[:ERROR_CHARS]}" if t.error else ""
    return f"No worker took it from the queue {t.queue!r}{before}"


def _queue_reason_text(r: QueueReason) -> str:
    match r.code:
        case "paused":
            return f"{r.key} is paused by {r.by}{f' ({r.text})' if r.text else ''}"
        case "limit":
            return f"the limit {r.key} ({r.max} at a time) was reached"
        case _:
            return f"the {r.code} {r.key} admitted nothing"


_reason = msgspec.json.Decoder(QueueReason).decode
