"""The rows of one commit, one type for each kind.

The fields of a row stand in the order of the columns in store/sql/commits.sql, where `:tasks.queue` is the column `queue` of the
rows in `Batch.tasks`. Rows are named tuples: the store transposes them into columns in one step, which is the cheapest way to
an array. A test holds the fields against the statements.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final, NamedTuple

from perdure.core.lifecycle import RunStatus, TaskStatus
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
    parent_id: bytes | None
    parent_seq: int | None
    own: bool
    body: bytes
    attributes: str | None
    group_id: bytes | None
    deadline_at: int | None
    hash: bytes


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


class TaskRow(NamedTuple):
    """A task that ended."""

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
    error: str | None
    node: str | None


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
    error: str | None
    start_deadline_at: int | None


class MessageRow(NamedTuple):
    """A message for another run. `is_cancel`: it asks the run to stop."""

    run_id: bytes
    body: bytes
    is_cancel: bool


class EndedRow(NamedTuple):
    """A run whose messages and promises go with it, or move on to its successor."""

    run_id: bytes
    successor: bytes | None


"""`promise.kind` by the number of a `PromiseCreated` event."""


class PromiseRow(NamedTuple):
    run_id: bytes
    name: str
    ns: int
    kind: str
    spec: str | None


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


class WaitRow(NamedTuple):
    """What a run that stays in memory waits for."""

    run_id: bytes
    waiting_on: str | None
    wait_reasons: str | None


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


class VersionRow(NamedTuple):
    """A run that begins with other code than it was started with."""

    run_id: bytes
    version: str


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
    "dequeued": bytes,
    "reports": ReportRow,
    "messages": MessageRow,
    "consumed": int,
    "ended": EndedRow,
    "promises": PromiseRow,
    "states": StateRow,
    "requeued": RequeuedRow,
    "groups": GroupRow,
    "waits": WaitRow,
    "answers": AnswerRow,
    "cancelling": bytes,
    "versions": VersionRow,
    "uses": UseRow,
}
"""The rarer ones, by their parameter of commit_batch_rest."""
_main, _rest = attrgetter(*MAIN), attrgetter(*REST)

make_row: Final = tuple.__new__
"""`make_row(TaskRow, (...))` is `TaskRow(...)` without a call of Python, for the rows that every task and every run writes."""


class Batch:
    """The rows of one transaction."""

    __slots__ = (*MAIN, *REST)

    def __init__(self) -> None:
        self.starts: list[StartRow] = []
        self.appends: list[AppendRow] = []
        self.closes: list[CloseRow] = []
        self.releases: list[ReleaseRow] = []
        self.tasks: list[TaskRow] = []
        self.queued: list[QueuedRow] = []
        self.dequeued: list[bytes] = []
        """Ids of tasks whose rows leave the queue."""
        self.reports: list[ReportRow] = []
        self.messages: list[MessageRow] = []
        self.consumed: list[int] = []
        """Ids of inbox rows that the history now holds."""
        self.ended: list[EndedRow] = []
        self.promises: list[PromiseRow] = []
        self.states: list[StateRow] = []
        self.requeued: list[RequeuedRow] = []
        self.groups: list[GroupRow] = []
        self.waits: list[WaitRow] = []
        self.answers: list[AnswerRow] = []
        self.cancelling: list[bytes] = []
        """Runs whose history holds a cancel request since this commit."""
        self.versions: list[VersionRow] = []
        self.uses: list[UseRow] = []

    def use(self, run_id: bytes, ns: int, payloads: Iterable[bytes]) -> None:
        """The run keeps what these payloads refer to."""
        self.uses.extend(UseRow(run_id, ns, *place) for place in held_by(payloads))

    def main(self) -> dict[str, list[Any]]:
        return dict(zip(MAIN, _main(self), strict=True))

    def rest(self) -> dict[str, list[Any]]:
        return dict(zip(REST, _rest(self), strict=True))

    @property
    def has_rest(self) -> bool:
        return any(_rest(self))

    def count(self) -> int:
        return sum(map(len, _main(self))) + sum(map(len, _rest(self)))
