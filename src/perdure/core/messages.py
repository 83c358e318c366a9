"""Facts on their way into a run, as they lie in the inbox. The run's owner turns each into an event in its own commit."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.core.errors import Failure
from perdure.core.message_life import InboxKind


class _Message(msgspec.Struct, frozen=True, array_like=True, tag_field="type", gc=False):
    pass


class SignalMessage(_Message, frozen=True, gc=False, tag=1):
    name: str
    value: bytes
    starts: bool = False
    """As in the event."""


class CancelMessage(_Message, frozen=True, gc=False, tag=2):
    reason: str = ""
    deadline: bool = False
    """As in the event."""


class PromiseMessage(_Message, frozen=True, gc=False, tag=3):
    name: str
    value: bytes
    authorized: bool = False
    """It is the result of votes, or the caller may override them. A restricted approval (assignees or a quorum) takes nothing else."""
    question: bytes = b""
    """As in the event. With one, the message is an answer: it is for this run and that question alone."""
    event_id: int = 0
    """The named event that it is; 0: it is none."""


class ChildEndedMessage(_Message, frozen=True, gc=False, tag=4):
    """`status` is the child's RunStatus; `value` its result on success."""

    seq: int
    status: int
    value: bytes
    failure: Failure | None = None
    child: bytes = b""
    """The run that the parent started under this number. A parent that was retried may have started another since."""


class TaskEndedMessage(_Message, frozen=True, gc=False, tag=5):
    """A task of this run ended on another engine. `status` is its TaskStatus; times are Unix microseconds."""

    seq: int
    status: int
    value: bytes
    failure: Failure | None
    attempts: int
    lost: int
    scheduled_us: int
    started_us: int
    finished_us: int
    worker: str = ""
    cpu_us: int | None = None
    orphaned: bool = False
    """Its engine was gone when it succeeded, so that it may count as lost already."""

    def spent(self, now_us: int) -> tuple[int, int | None, int, str | None, int | None]:
        """As `Spent` of the engine. The end of a task that was taken from a dead engine may have no times."""
        times = (self.scheduled_us or now_us, self.started_us or None, self.finished_us or now_us)
        return (*times, self.worker or None, self.cpu_us)


class UpdateMessage(_Message, frozen=True, gc=False, tag=6):
    """`id` is the asker's: asking again under it is asking once."""

    id: str
    name: str
    value: bytes


class TerminateMessage(_Message, frozen=True, gc=False, tag=7):
    """The run is to end at once, without its code."""

    reason: str = ""
    by: str = ""


class PauseMessage(_Message, frozen=True, gc=False, tag=8):
    """The engine that owns the run is to release it, and nothing of it is to start until it is resumed."""

    by: str
    reason: str = ""


Message = (
    SignalMessage
    | CancelMessage
    | PromiseMessage
    | ChildEndedMessage
    | TaskEndedMessage
    | UpdateMessage
    | TerminateMessage
    | PauseMessage
)

_KINDS: Final[dict[type, InboxKind]] = {
    SignalMessage: InboxKind.SIGNAL,
    CancelMessage: InboxKind.CANCEL,
    PromiseMessage: InboxKind.PROMISE,
    ChildEndedMessage: InboxKind.CHILD,
    TaskEndedMessage: InboxKind.TASK,
    UpdateMessage: InboxKind.UPDATE,
    TerminateMessage: InboxKind.TERMINATE,
    PauseMessage: InboxKind.PAUSE,
}


def kind_of(message: Message) -> InboxKind:
    """`inbox.kind`, from which follows what becomes of the message (core/message_life.py)."""
    if isinstance(message, PromiseMessage) and message.question:
        return InboxKind.ANSWER
    return _KINDS[type(message)]


def name_of(message: Message) -> str | None:
    """`inbox.name`: what the sender addressed within the run."""
    return message.name if isinstance(message, SignalMessage | PromiseMessage | UpdateMessage) else None
