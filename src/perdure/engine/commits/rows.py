"""The rows of one commit, one type for each kind.

The fields of a row stand in the order of the columns in store/sql/commits.sql, where `:tasks.queue` is the column `queue` of the
rows in `Batch.tasks`. Rows are named tuples: the store transposes them into columns in one step, which is the cheapest way to
an array. A test holds the fields against the statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from perdure.core.errors import Failure, clip
from perdure.core.lifecycle import RunStatus, TaskStatus
from perdure.core.limits import ERROR_WORD_CHARS_MAX, TRACEBACK_CHARS_MAX
from perdure.core.message_life import ROWS as FATES
from perdure.core.payloads import held_by

RUN_WORDS: Final = tuple(status.word for status in RunStatus)
TASK_WORDS: Final = tuple(status.word for status in TaskStatus)
"""Statuses as the database spells them, by their number."""


class StartRow(NamedTuple):
    """A run to be created. `own`: by an engine that keeps it in memory."""

    run_id: bytes
    ns: int
    workflow: str
    version: str
    kind: str
    key: str | None
    input_hash: bytes
    """Of a run with a key; empty: the key belongs to the run that this commit ends, and moves on to it."""
    parent_id: bytes | None
    parent_seq: int | None
    own: bool
    body: bytes
    attributes: str | None
    group_id: bytes | None
    deadline_at: int | None
    hash: bytes
    start_at: int | None = None
    expires_at: int | None = None
    pin: str = ""
    give_up_at: int | None = None
    """From then on its caller does not wait any more, and it is not created."""


class AppendRow(NamedTuple):
    """Events `seq` to `last` of a run."""

    run_id: bytes
    seq: int
    last: int
    ns: int
    epoch: int
    body: bytes
    hash: bytes


class CloseRow(NamedTuple):
    run_id: bytes
    status: str
    events: int
    error_code: str | None
    error: str | None
    successor: bytes | None
    head: bytes
    has_messages: bool
    """Its engine knows of messages: `EndedRow` says what becomes of them. Otherwise the commit is refused if there are any."""


class ReleaseRow(NamedTuple):
    """A run that leaves memory: it sleeps until `wake_at`, or is stuck with a reason."""

    run_id: bytes
    wake_at: int
    stuck: str | None
    waiting_on: str | None
    wait_reasons: str | None
    deadline_at: int | None
    events: int
    head: bytes


Spent = tuple[int, int | None, int, str | None, int | None]
"""When a task was scheduled, when its last attempt began and ended, on which worker, and its CPU time; all in microseconds. A plain
tuple: every task has one."""
Errors = tuple[str | None, str | None, str | None, str | None]
"""Message, code, type and traceback of a failure, as columns."""
NO_ERROR: Final[Errors] = (None, None, None, None)


def error_columns(failure: Failure) -> Errors:
    """The message as the history has it. The other texts may come from a worker of any language, so they are made fit to be stored."""
    return (
        failure.message,
        clip(failure.code, ERROR_WORD_CHARS_MAX),
        clip(failure.type, ERROR_WORD_CHARS_MAX) or None,
        clip(failure.traceback, TRACEBACK_CHARS_MAX) or None,
    )


class TaskRow(NamedTuple):
    """A task that ended, and its last attempt."""

    id: bytes
    ns: int
    run_id: bytes
    seq: int
    name: str
    queue: str
    status: str
    attempts: int
    lost: int
    epoch: int
    scheduled_at: int
    started_at: int | None
    finished_at: int
    worker: str | None
    cpu_us: int | None
    error: str | None
    error_code: str | None
    error_type: str | None
    traceback: str | None
    node: str | None


class AttemptRow(NamedTuple):
    """An attempt that ended and is not the last of its task."""

    id: bytes
    epoch: int
    attempt: int
    ns: int
    run_id: bytes
    seq: int
    name: str
    node: str | None
    outcome: str
    started_at: int | None
    finished_at: int
    worker: str | None
    cpu_us: int | None
    error: str | None
    error_code: str | None
    error_type: str | None
    traceback: str | None


class RecoveredRow(NamedTuple):
    """An attempt that counted as lost and has succeeded after all. `since`: when the run was last retried."""

    id: bytes
    attempt: int
    since: int


class QueuedRow(NamedTuple):
    """A task in the queue that all engines share."""

    id: bytes
    ns: int
    run_id: bytes
    seq: int
    name: str
    queue: str
    status: str
    attempt: int
    lost: int
    delay_us: int
    scheduled_at: int
    options: bytes
    input: bytes
    error: str | None
    trace: str | None
    node: str | None
    group_id: bytes | None
    start_deadline_at: int | None
    started_at: int | None


class DequeuedRow(NamedTuple):
    """A task that leaves the queue. `attempt` is the one with which it ended; any other that is under way is void."""

    id: bytes
    attempt: int


class ReportRow(NamedTuple):
    """The result of a task whose run belongs to another engine."""

    id: bytes
    attempt: int
    body: bytes


class RequeuedRow(NamedTuple):
    """Another attempt of a task whose run belongs to another engine."""

    id: bytes
    attempt: int
    lost: int
    delay_us: int
    start_deadline_at: int | None
    ended: int
    """The attempt that ended; the same number: it goes on, and has no record."""
    outcome: str
    started_at: int | None
    finished_at: int
    worker: str | None
    cpu_us: int | None
    error: str | None
    error_code: str | None
    error_type: str | None
    traceback: str | None
    run_id: bytes
    """The other engine's run, which sealed texts are bound to."""


class MessageRow(NamedTuple):
    """A message for another run. Kind and name are those of core/messages.py."""

    run_id: bytes
    body: bytes
    kind: str
    name: str | None


class EndedRow(NamedTuple):
    """A run that ends, and has messages or promises, or a successor. What becomes of them is said by core/message_life.py."""

    run_id: bytes
    ns: int
    ending: str
    gives_way: bool
    """The end is not written if there are messages that the code may still read."""
    successor: bytes | None
    first: bytes | None
    """The first run of the chain, where there is an heir."""
    heir: bytes | None
    """The run that gets its key: the successor, or the next run under the key, which gets the unread signals."""


class PromiseRow(NamedTuple):
    """A promise that a run asks for."""

    run_id: bytes
    name: str
    ns: int
    kind: str
    spec: str | None
    question: bytes
    """core/questions.py"""
    is_resolved: bool
    """The history has its value already."""


class StateRow(NamedTuple):
    run_id: bytes
    name: str
    ns: int
    value: bytes | None


class GroupRow(NamedTuple):
    """A flow-control group that a task or a run joins."""

    id: bytes
    ns: int
    kind: str
    queue: str
    name: str
    workflow: str
    fair: str
    weight: float
    priority: int
    needs: str
    delay_us: int


class ChangeRow(NamedTuple):
    """A change of a run's row that is neither its end nor its release."""

    run_id: bytes
    is_released: bool
    """The same commit releases it."""
    has_waits: bool
    """`waiting_on` and `wait_reasons` are those of a run that stays in memory; else they stay as they are."""
    waiting_on: str | None
    wait_reasons: str | None
    is_cancelled: bool
    """Its history holds a cancel request since this commit."""
    is_settled: bool
    """A suspect was decided, and this engine is alive."""
    version: str | None
    """Of the code that executes it from now on; None: as before."""
    paused_by: str | None = None
    """The operator who paused it; null: it is not paused by this commit."""
    pause_reason: str | None = None
    pin: str | None = None
    """What it is pinned to from now on."""
    full_signals: str | None = None
    """Signals of which it takes no more, as JSON; null: as before."""


class AnswerRow(NamedTuple):
    """The answer to an update."""

    run_id: bytes
    id: str
    ns: int
    value: bytes | None
    failure: bytes | None


class UseRow(NamedTuple):
    """Stored content that a run refers to."""

    run_id: bytes
    ns: int
    store: str
    sha256: bytes


class AttributesRow(NamedTuple):
    """The search attributes of a run after a change, all of them."""

    run_id: bytes
    attributes: str


FIRST: Final = {"attributes": AttributesRow}
"""Rows that are written before the others, while the run is still in run_queue, by their parameter of commit_attributes."""
MAIN: Final = {
    "starts": StartRow,
    "appends": AppendRow,
    "closes": CloseRow,
    "releases": ReleaseRow,
    "tasks": TaskRow,
}
"""Rows that nearly every commit has, by their parameter of commit_batch."""
REST: Final = {
    "queued": QueuedRow,
    "dequeued": DequeuedRow,
    "reports": ReportRow,
    "messages": MessageRow,
    "consumed": int,
    "ended": EndedRow,
    "promises": PromiseRow,
    "states": StateRow,
    "requeued": RequeuedRow,
    "groups": GroupRow,
    "changes": ChangeRow,
    "answers": AnswerRow,
    "uses": UseRow,
    "attempts": AttemptRow,
    "recovered": RecoveredRow,
}
"""The rarer ones, by their parameter of commit_batch_rest."""
_main, _rest = attrgetter(*MAIN), attrgetter(*REST)

make_row: Final = tuple.__new__
"""`make_row(TaskRow, (...))` is `TaskRow(...)` without a call of Python, for the rows that every task and every run writes."""


Seal = Callable[[bytes, bytes], bytes]
"""(run id, encoded events): as the history stores them."""


def unsealed(_: bytes, body: bytes) -> bytes:
    return body


class Batch:
    """The rows of one transaction."""

    __slots__ = (*FIRST, *MAIN, *REST, "seal")

    def __init__(self, seal: Seal = unsealed) -> None:
        self.seal = seal
        """Rows of the history are sealed where they are made, because the hash chain covers what is stored."""
        self.attributes: list[AttributesRow] = []
        self.starts: list[StartRow] = []
        self.appends: list[AppendRow] = []
        self.closes: list[CloseRow] = []
        self.releases: list[ReleaseRow] = []
        self.tasks: list[TaskRow] = []
        self.queued: list[QueuedRow] = []
        self.dequeued: list[DequeuedRow] = []
        self.reports: list[ReportRow] = []
        self.messages: list[MessageRow] = []
        self.consumed: list[int] = []
        """Ids of inbox rows that the history now holds."""
        self.ended: list[EndedRow] = []
        self.promises: list[PromiseRow] = []
        self.states: list[StateRow] = []
        self.requeued: list[RequeuedRow] = []
        self.groups: list[GroupRow] = []
        self.changes: list[ChangeRow] = []
        self.answers: list[AnswerRow] = []
        self.uses: list[UseRow] = []
        self.attempts: list[AttemptRow] = []
        self.recovered: list[RecoveredRow] = []

    def use(self, run_id: bytes, ns: int, payloads: Iterable[bytes]) -> None:
        """The run keeps what these payloads refer to."""
        self.uses.extend(UseRow(run_id, ns, *place) for place in held_by(payloads))

    def main(self) -> dict[str, list[Any]]:
        return dict(zip(MAIN, _main(self), strict=True))

    def rest(self) -> dict[str, list[Any]]:
        rows: dict[str, Any] = dict(zip(REST, _rest(self), strict=True))
        return {**rows, "fates": list(FATES) if self.ended else []}

    @property
    def has_rest(self) -> bool:
        return any(_rest(self))

    @property
    def is_plain(self) -> bool:
        """One statement writes it."""
        return not self.attributes and not self.has_rest

    def count(self) -> int:
        return len(self.attributes) + sum(map(len, _main(self))) + sum(map(len, _rest(self)))
