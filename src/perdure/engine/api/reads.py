"""What people ask about runs, and the little they change beside them: the ports behind REST, command line and pages.

Laws:

1. Nothing here decides anything about a run. Reads are answered from one snapshot of the database.
2. Every list is paged by key. A page looks at no more than SCAN_ROWS_MAX rows of a source, however few of them match: then it is short,
   and its cursor says where to go on.
3. A namespace is a parameter of everything that belongs to one.

Moments are Unix microseconds, ids 16 bytes, payloads JSON bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Protocol

import msgspec

from perdure.core.events import Recorded
from perdure.core.wait_reasons import Wait
from perdure.core.work import LogLine
from perdure.flows.scheduled import ScheduleRequest

SCAN_ROWS_MAX: Final = 5_000
"""Rows of one source that a page may look at to find matches."""
TASKS_COUNTED_MAX: Final = 100_000
"""Tasks of a run that are counted by status."""
OUTSTANDING_EVENTS_MAX: Final = 5_000
"""Events of an active run up to which its outstanding work is rebuilt from its history for a reader."""
OUTSTANDING_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of history up to which that is done."""
QUEUE_COUNT_MAX: Final = 10_000
"""Waiting tasks of one kind that are counted."""
RUNS_COUNTED_MAX: Final = 1_000
"""Active runs of one workflow that are counted."""
QUEUES_MAX: Final = 500
"""Kinds of waiting tasks in one answer."""
NAMES_MAX: Final = 10_000
"""Workflow names looked at for a suggestion."""
CANDIDATES_MAX: Final = 5
"""Runs named when a prefix fits several."""


# -- runs ----------------------------------------------------------------------------------------------------------


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
    """One of why.CODES: active runs that wait for this. Goes with a workflow and times, not with the other filters."""


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
    wake_us: int | None
    owned: bool
    epoch: int
    events: int | None
    parent_id: bytes | None
    successor: bytes | None
    waits: list[Wait] = []
    """What it waits for, where a list was asked for that."""


class RunPage(msgspec.Struct, frozen=True):
    """`next` continues below this id; None at the end."""

    items: list[RunItem]
    next: bytes | None


class Outstanding(msgspec.Struct, frozen=True, kw_only=True):
    """What an active run has asked for and not yet got, folded from its history."""

    tasks: dict[int, tuple[str, str, int, str]]
    """Sequence number -> (name, queue, scheduled_us, node)."""
    timer_us: int | None
    children: int
    promises: list[str]
    cancel_requested: bool
    waits: list[Wait] = []


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    item: RunItem
    started: bytes
    """The first row of the history: RunStarted, encoded."""
    last: bytes
    """The last row of the history, encoded; of an ended run it ends in how it ended."""
    events: int
    tasks: dict[int, int]
    """TaskStatus -> how many, up to TASKS_COUNTED_MAX in all."""
    outstanding: Outstanding | None
    """None for an ended run and for one whose history is too large to fold for a reader."""
    waits: list[Wait] = []
    """What an active run waits for, the most telling first."""


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
    blocked: str | None = None
    node: str | None = None
    """The node of a flow that it belongs to, with its place in a spread."""


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a declarative workflow. Both texts are empty for code."""

    version: str
    kind: str
    document: bytes
    source: str
    registered_us: int


class TaskPage(msgspec.Struct, frozen=True):
    items: list[TaskItem]
    next: int | None


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """After the `line`-th line of a chunk. Chunks of a run are ordered by arrival, then by name."""

    at_us: Annotated[int, msgspec.Meta(ge=0, lt=1 << 56)]
    seq: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    n: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    line: Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]


class LogItem(msgspec.Struct, frozen=True):
    seq: int
    task: str
    attempt: int
    position: LogPosition
    line: LogLine


class LogPage(msgspec.Struct, frozen=True):
    items: list[LogItem]
    next: LogPosition | None
    """Where to go on; None when there was nothing further."""


# -- the rest ------------------------------------------------------------------------------------------------------


class WorkflowItem(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    current: str
    description: str | None
    versions: int
    created_us: int
    deleted_us: int | None
    runs_active: int


class VersionItem(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    kind: str
    registered_us: int
    current: bool


class WorkerItem(msgspec.Struct, frozen=True, kw_only=True):
    id: bytes
    name: str
    host: str
    pid: int
    sdk: str
    queues: list[str]
    tasks: list[str]
    workflows: list[str]
    slots: int
    slots_used: int
    runs_held: int
    draining: bool
    connected_us: int
    seen_us: int
    blocked: str | None
    engine: str | None


class QueueItem(msgspec.Struct, frozen=True, kw_only=True):
    queue: str
    task: str
    pending: int
    running: int
    oldest_age_s: float | None
    workers: int


class NamespaceItem(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created_us: int


class Reads(Protocol):
    # runs
    async def runs(self, ns: int, wanted: RunFilter, below: bytes | None, limit: int) -> RunPage: ...
    async def find(self, ns: int, low: bytes, high: bytes, limit: int) -> list[bytes]: ...
    async def newest(self, ns: int) -> bytes | None: ...
    async def detail(self, ns: int, run_id: bytes) -> RunDetail | None: ...
    async def history(self, ns: int, run_id: bytes, after: int, limit: int, bytes_max: int) -> list[Recorded]: ...
    async def tasks(
        self, ns: int, run_id: bytes, statuses: frozenset[int], after: int, limit: int
    ) -> TaskPage | None: ...
    async def tasks_named(self, ns: int, run_id: bytes, name: str, limit: int) -> list[int]: ...
    async def logs(self, ns: int, run_id: bytes, after: LogPosition | None, limit: int) -> LogPage: ...
    async def task_logs(
        self, ns: int, run_id: bytes, seqs: Sequence[int], attempt: int | None, after: LogPosition | None, limit: int
    ) -> LogPage: ...
    # the rest
    async def workflows(self, ns: int, q: str, after: str, limit: int) -> list[WorkflowItem]: ...
    async def workflow(self, ns: int, name: str) -> WorkflowItem | None: ...
    async def workflow_names(self, ns: int) -> list[str]: ...
    async def versions(self, ns: int, name: str, limit: int) -> list[VersionItem]: ...
    async def definition(self, ns: int, name: str, version: str) -> Definition | None: ...
    async def workers(self, ns: int, after: bytes, limit: int) -> list[WorkerItem]: ...
    async def queues(self, ns: int) -> list[QueueItem]: ...
    async def namespaces(self, after: str, limit: int) -> list[NamespaceItem]: ...
    # following
    async def created_since(self, ns: int, above: bytes, limit: int) -> list[RunItem]: ...
    async def ended_since(self, ns: int, from_us: int, above: bytes, limit: int) -> list[RunItem]: ...
    async def clock_us(self) -> int: ...


class Remembered(msgspec.Struct, frozen=True):
    """The request that an idempotency key stands for."""

    first: bool
    """It is this one."""
    held: bytes
    """Its digest."""


class Posted(msgspec.Struct, frozen=True):
    """What became of a message that carries an idempotency key."""

    active: bool
    """The run takes messages."""
    sent: bool
    """This very call put it into the inbox."""
    held: bytes | None
    """The digest under which the key was used before, or is now."""


class Registry(Protocol):
    """Changes that belong to no run: workflows and namespaces by name, requests by idempotency key."""

    async def register(self, ns: int, name: str, version: str, kind: str, description: str | None) -> bool:
        """True when the version is new."""
        ...

    async def deploy(
        self,
        ns: int,
        name: str,
        version: str,
        kind: str,
        description: str | None,
        document: bytes,
        source: str,
        *,
        activate: bool = True,
        triggers: Sequence[ScheduleRequest] = (),
        by: str = "",
        control: bytes | None = None,
        timeout_us: int = 0,
    ) -> bool:
        """A declarative version, and with `activate` the pointer to it and its schedules. True when the version is new."""
        ...

    async def move(
        self, ns: int, name: str, version: str, *, triggers: Sequence[ScheduleRequest] = (), by: str = ""
    ) -> bool:
        """Point a workflow at another of its versions, with the schedules of that one. False when it has none such."""
        ...

    async def save_task_types(self, ns: int, signatures: dict[str, bytes]) -> None: ...
    async def task_types(self, ns: int) -> dict[str, bytes]:
        """Arguments of tasks as JSON Schema, by name."""
        ...

    async def delete(self, ns: int, name: str) -> bool: ...
    async def create_namespace(self, name: str) -> bool:
        """True when it is new, or was deleted before."""
        ...

    async def delete_namespace(self, name: str) -> bool:
        """Its rows stay; nobody gets in any more. False when there is none."""
        ...

    async def remember(self, ns: int, key: str, digest: bytes) -> Remembered: ...

    async def post_once(self, ns: int, key: str, digest: bytes, run_id: bytes, body: bytes) -> Posted: ...
