"""Runs: start, read, cancel, terminate, pause, resume, retry, delete."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from perdure.core.access import Permission
from perdure.core.api.act import Act, RunRef
from perdure.core.api.timeline import Segment
from perdure.core.events import Recorded
from perdure.core.progress import TaskProgress
from perdure.core.undo import UndoableTask
from perdure.core.wait_reasons import WaitReason
from perdure.core.work import LogLine, Outcome, RunView, StartRequest

RESULT_WAIT_S_MAX: Final = 60.0
"""How long one call waits for a run to end; the client asks again."""
HISTORY_EVENTS_DEFAULT: Final = 1_000
CONTROL_WAIT_S: Final = 10.0
"""How long a call waits until a run is terminated or paused."""


class StartedRun(msgspec.Struct, frozen=True):
    run_id: bytes
    is_new: bool = True
    """False: the run existed before, and the start was attached to it."""
    due_us: int | None = None
    """When a deferred run begins; None: it has begun."""


class GetRun(msgspec.Struct, frozen=True):
    run: RunRef


class AwaitRun(msgspec.Struct, frozen=True):
    run: RunRef
    wait_s: float = RESULT_WAIT_S_MAX


class RunResult(msgspec.Struct, frozen=True):
    run_id: bytes
    outcome: Outcome | None = None
    """None: the run has not ended yet."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs. Empty means all. `since_us` is inclusive, `until_us` exclusive; both are about creation."""

    statuses: frozenset[int] = frozenset()
    workflow: str = ""
    since_us: int | None = None
    until_us: int | None = None
    attributes: tuple[bytes, ...] = ()
    """JSON objects; the run's attributes must contain one of them."""
    text: str = ""
    """Part of the key, the workflow's name or the error, or the beginning of the id; case does not matter."""
    waiting_on: str = ""
    """One of wait_reasons.CODES: active runs that wait for this."""
    query: str = ""
    """A query text, see core/run_query. It must match too."""
    view: str = ""
    """A saved view, whose query must match too."""


class ListRuns(msgspec.Struct, frozen=True):
    filter: RunFilter = RunFilter()
    below: bytes | None = None
    """Continue below this id."""
    limit: int = 50
    waits: bool = False
    """With what each active run waits for, and the most attempts that a task of each run took."""


class CountRuns(msgspec.Struct, frozen=True):
    filter: RunFilter = RunFilter()


class RunCount(msgspec.Struct, frozen=True):
    count: int
    exact: bool
    """False: there are at least so many."""


class ListChildren(msgspec.Struct, frozen=True):
    """The runs that a run has started, newest first, with detached ones."""

    run: RunRef
    below: bytes | None = None
    """Continue below this id."""
    limit: int = 50


class RunItem(msgspec.Struct, frozen=True, kw_only=True):
    run_id: bytes
    workflow: str
    version: str
    key: str | None
    status: int
    created_us: int
    finished_us: int | None
    attributes: bytes
    """A JSON object; empty for none."""
    error_code: str | None
    error: str | None
    stuck: str | None
    paused_us: int | None = None
    wake_us: int | None
    owned: bool
    epoch: int
    events: int | None
    parent_id: bytes | None
    successor: bytes | None
    waits: list[WaitReason] = []
    """What it waits for, where the list was filtered by that or asks for it."""
    attempts: int | None = None
    """The most executions of one task, where the list asks for it."""


class RunPage(msgspec.Struct, frozen=True):
    """`next` continues below this id; None at the end."""

    items: list[RunItem]
    next: bytes | None


class Outstanding(msgspec.Struct, frozen=True, kw_only=True):
    """What an active run has asked for and not yet received, folded from its history."""

    tasks: dict[int, tuple[str, str, int, str]]
    """Sequence number -> (name, queue, scheduled_us, node)."""
    timer_us: int | None
    children: int
    promises: list[str]
    cancel_requested: bool
    waits: list[WaitReason] = []


class UnreadMessage(msgspec.Struct, frozen=True):
    """A message that was acknowledged and is not recorded in the history."""

    kind: str
    """`inbox.kind`: core/message_life.py."""
    name: str
    """Of the signal, promise, approval or update; empty for a request to stop or to pause."""
    sent_us: int
    reason: str = ""
    """How the run ended before its code got the message, which is set aside; empty: the message is pending."""


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    item: RunItem
    started: bytes
    """The first row of the history: StartedRun, encoded."""
    last: bytes
    """The last row of the history, encoded; of an ended run its last event is the outcome."""
    events: int
    tasks: dict[int, int]
    """TaskStatus -> how many, up to TASKS_COUNTED_MAX in all."""
    outstanding: Outstanding | None
    """None for an ended run and for one whose history is too large to fold for a reader."""
    waits: list[WaitReason] = []
    """What an active run waits for, the most telling first."""
    undo: list[UndoableTask] | None = None
    """The undo stack, for runs with a short history."""
    retry_refused: str | None = None
    """Why a failed run cannot be retried."""
    unread: list[UnreadMessage] = []
    """Messages that its history does not have, up to UNREAD_SHOWN_MAX of each kind of place."""


class NotablePosition(msgspec.Struct, frozen=True, array_like=True):
    """After this task, among those that are ordered by what is notable about them."""

    rank: Annotated[int, msgspec.Meta(ge=0, lt=1 << 15)]
    """0: it failed; 1: it began; 2: it did not."""
    took_us: Annotated[int, msgspec.Meta(ge=0, lt=1 << 56)]
    seq: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
    now_us: Annotated[int, msgspec.Meta(ge=0, lt=1 << 56)]
    """When the first page was read: how long running tasks have taken is compared as of then."""


class ListTasks(msgspec.Struct, frozen=True):
    run: RunRef
    statuses: frozenset[int] = frozenset()
    after: int = -1
    limit: int = 50
    node: str = ""
    """Of this node, without its place in a foreach, or tasks of code of this name. Empty: all."""
    notable: bool = False
    """Failed ones first, then the slowest. `after` has no meaning then."""
    below: NotablePosition | None = None
    """Where to continue a list of notable ones."""


class TaskItem(msgspec.Struct, frozen=True, kw_only=True):
    id: bytes
    seq: int
    name: str
    queue: str
    status: int
    attempts: int
    lost: int
    scheduled_us: int | None
    started_us: int | None = None
    finished_us: int | None = None
    run_at_us: int | None = None
    """When the next attempt may begin, of a task that waits for one."""
    error: str | None = None
    worker: str | None = None
    details: bytes = b""
    progress: TaskProgress | None = None
    """How far the task said that it is."""
    blocked: str | None = None
    node: str | None = None
    """The node of a flow that it belongs to, with its place in a spread."""
    copied: bool = False
    """It ended in the run that this one is a fork of."""
    segments: list[Segment] = []
    """What it was doing, in order."""


class TaskPage(msgspec.Struct, frozen=True):
    items: list[TaskItem]
    next: int | None
    next_notable: NotablePosition | None = None


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """After the `line`-th line of a chunk. Chunks of a run are ordered by arrival, then by name."""

    at_us: Annotated[int, msgspec.Meta(ge=0, lt=1 << 56)]
    seq: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    n: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    line: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]


class ListLogs(msgspec.Struct, frozen=True):
    run: RunRef
    task: str = ""
    """A task's number or name; `-1` is the workflow's own code. Empty: everything in the run."""
    attempt: int | None = None
    after: LogPosition | None = None
    limit: int = 50
    newest: bool = False
    """The last lines first; `after` is then the last one of the page before."""


class LogItem(msgspec.Struct, frozen=True):
    seq: int
    task: str
    attempt: int
    position: LogPosition
    line: LogLine
    node: str = ""
    """The node of a flow that the task belongs to, with its place in a foreach."""


class LogPage(msgspec.Struct, frozen=True):
    items: list[LogItem]
    next: LogPosition | None
    """Where to continue; None at the end."""


class ListHistory(msgspec.Struct, frozen=True):
    run: RunRef
    after: int = 0
    limit: int = HISTORY_EVENTS_DEFAULT


class HistoryPage(msgspec.Struct, frozen=True):
    items: list[Recorded]
    has_more: bool


class CancelRun(msgspec.Struct, frozen=True):
    run: RunRef
    reason: str = ""


class TerminateRun(msgspec.Struct, frozen=True):
    run: RunRef
    reason: str = ""


class PauseRun(msgspec.Struct, frozen=True):
    run: RunRef
    reason: str = ""


class ChangeRun(msgspec.Struct, frozen=True):
    """For acts that need nothing but the run."""

    run: RunRef


START: Act[StartRequest, StartedRun] = Act(
    "run.start", StartRequest, StartedRun, Permission.START, ("run.start",), once_by="idempotency_key"
)
RUN: Act[StartRequest, RunResult] = Act(
    "run.run", StartRequest, RunResult, Permission.START, ("run.start",), wait_s_max=RESULT_WAIT_S_MAX
)
LIST: Act[ListRuns, RunPage] = Act("run.list", ListRuns, RunPage, Permission.READ)
COUNT: Act[CountRuns, RunCount] = Act("run.count", CountRuns, RunCount, Permission.READ)
CHILDREN: Act[ListChildren, RunPage] = Act("run.children", ListChildren, RunPage, Permission.READ)
STATUS: Act[GetRun, RunView] = Act("run.status", GetRun, RunView, Permission.READ)
GET: Act[GetRun, RunDetail] = Act("run.get", GetRun, RunDetail, Permission.READ)
RESULT: Act[AwaitRun, RunResult] = Act("run.result", AwaitRun, RunResult, Permission.READ, wait_s_max=RESULT_WAIT_S_MAX)
TASKS: Act[ListTasks, TaskPage] = Act("run.tasks", ListTasks, TaskPage, Permission.READ)
LOGS: Act[ListLogs, LogPage] = Act("run.logs", ListLogs, LogPage, Permission.READ)
HISTORY: Act[ListHistory, HistoryPage] = Act("run.history", ListHistory, HistoryPage, Permission.READ)
CANCEL: Act[CancelRun, None] = Act("run.cancel", CancelRun, None, Permission.OPERATE, ("run.cancel",), True)
TERMINATE: Act[TerminateRun, None] = Act(
    "run.terminate", TerminateRun, None, Permission.OPERATE, ("run.terminate",), True
)
PAUSE: Act[PauseRun, None] = Act("run.pause", PauseRun, None, Permission.OPERATE, ("run.pause",), True)
DELETE: Act[ChangeRun, None] = Act("run.delete", ChangeRun, None, Permission.OPERATE, ("run.delete",))
RETRY: Act[ChangeRun, None] = Act("run.retry", ChangeRun, None, Permission.OPERATE, ("run.retry",))
RESUME: Act[ChangeRun, None] = Act("run.resume", ChangeRun, None, Permission.OPERATE, ("run.resume",))

ACTS = (
    START,
    RUN,
    LIST,
    COUNT,
    CHILDREN,
    STATUS,
    GET,
    RESULT,
    TASKS,
    LOGS,
    HISTORY,
    CANCEL,
    TERMINATE,
    PAUSE,
    RESUME,
    RETRY,
    DELETE,
)
