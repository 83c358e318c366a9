"""What the API needs of the database beyond an engine's own store.

Laws:

1. Nothing here decides anything about a run. Reads are answered from one snapshot of the database.
2. Every list is paged by key. A page looks at no more than SCAN_ROWS_MAX rows of a source, however few of them match: then it is short,
   and its cursor says where to continue.
3. A namespace is a parameter of everything that belongs to one.

Moments are Unix microseconds, ids 16 bytes, payloads JSON bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal, Protocol

import msgspec

from perdure.core.access import KeyView, NewKey, Principal
from perdure.core.api.admin import AuditFilter, AuditPage, NamespaceItem
from perdure.core.api.approvals import ApprovalPage, ApprovalPosition
from perdure.core.api.attempts import AttemptPage, AttemptPosition
from perdure.core.api.bulk_jobs import BulkJob, BulkOutcome, BulkRun, StartBulkJob
from perdure.core.api.cluster import QueueItem, WorkerDetail, WorkerItem
from perdure.core.api.dead_letters import DeadLetterFilter, DeadLetterPage, DeadLetterPosition
from perdure.core.api.definitions import Definition, VersionItem, WorkflowItem
from perdure.core.api.flow_control import LimitUsage, RateRule, RulePosition, RuleView
from perdure.core.api.retention import PolicyView
from perdure.core.api.run_paths import FindPaths
from perdure.core.api.runs import ListTasks, LogPage, LogPosition, RunCount, RunDetail, RunItem, RunPage, TaskPage
from perdure.core.api.saved_views import SavedView
from perdure.core.api.schedules import ScheduleRequest
from perdure.core.api.services import CallEnd, InstanceItem, RegisterInstance
from perdure.core.api.statistics import NamespaceCounts, RunHistogram, WorkflowDurations, WorkflowStats
from perdure.core.api.versions import WorkflowVersions
from perdure.core.api.workflow_runs import RecentInput
from perdure.core.approvals import Standing, Vote
from perdure.core.error_causes import FailedRun
from perdure.core.events import Recorded
from perdure.core.messages import SignalMessage
from perdure.core.run_counts import Bins
from perdure.core.run_query import Node
from perdure.core.timeline.rows import TimelineRows
from perdure.engine.retention_port import RetentionJob

SCAN_ROWS_MAX: Final = 5_000
"""Rows of one source that a page may look at to find matches."""
UNREAD_SHOWN_MAX: Final = 100
"""Pending messages, and messages set aside, that are shown with a run."""
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
RUN_COUNT_ROWS_MAX: Final = 20_000
"""Active, and ended, runs that are looked at to count those that match a query."""
QUEUES_MAX: Final = 500
"""Kinds of waiting tasks in one answer."""
NAMES_MAX: Final = 10_000
"""Workflow names looked at for a suggestion."""
CANDIDATES_MAX: Final = 5
"""Runs named when a prefix fits several."""

AuditDetail = dict[str, str | int | float | bool | None]
"""Ids and names about an act. Flat, so that it cannot hold a payload."""
AuditRow = tuple[int | None, str, str, str, AuditDetail | None]
"""(namespace, actor, action, target, detail)"""


class PathRun(msgspec.Struct, frozen=True):
    """A run whose path is wanted."""

    run_id: bytes
    workflow: str
    version: str
    kind: str
    waits: tuple[str, ...]
    """Signals and updates that its code waits for, as `signal:name`."""
    pinned: bool = False
    """Only workers with its version of the code execute it."""


class HistoryRows(msgspec.Struct, frozen=True):
    """The beginning of a history as it is stored: (first number, moment, events)."""

    rows: list[tuple[int, int, bytes]]
    size: int
    """Bytes of the whole history."""


class NodeCounts(msgspec.Struct):
    """Tasks of one node of a run by status."""

    node: str
    counts: dict[int, int]
    attempts: int
    """The most of one task."""


class Reads(Protocol):
    async def runs(
        self, ns: int, query: Node, below: bytes | None, limit: int, waiting_on: str = "", *, with_waits: bool = False
    ) -> RunPage:
        """Newest first. `waiting_on`: only active runs with this wait reason. `with_waits`: with what they wait for, and attempts."""
        ...

    async def count_runs(self, ns: int, query: Node, waiting_on: str = "") -> RunCount:
        """Among the newest RUN_COUNT_ROWS_MAX of each source."""
        ...

    async def matching(self, ns: int, query: Node, run_ids: Sequence[bytes]) -> list[RunItem]:
        """Those of the runs that match."""
        ...

    async def children(self, ns: int, run_id: bytes, below: bytes | None, limit: int) -> RunPage: ...
    async def find(self, ns: int, low: bytes, high: bytes, limit: int) -> list[bytes]: ...
    async def newest(self, ns: int) -> bytes | None: ...
    async def detail(self, ns: int, run_id: bytes) -> RunDetail | None: ...
    async def history(self, ns: int, run_id: bytes, after: int, limit: int, bytes_max: int) -> list[Recorded]: ...
    async def path_runs(self, ns: int, wanted: FindPaths, limit: int) -> tuple[list[PathRun], bytes | None]:
        """A page of runs, newest first, and where to continue."""
        ...

    async def histories(self, ns: int, run_ids: Sequence[bytes], bytes_max: int) -> dict[bytes, HistoryRows]:
        """The first rows of each history, those that begin within `bytes_max`."""
        ...

    async def tasks(
        self, ns: int, run_id: bytes, statuses: frozenset[int], after: int, limit: int
    ) -> TaskPage | None: ...
    async def tasks_of_node(self, ns: int, run_id: bytes, wanted: ListTasks, limit: int) -> TaskPage | None:
        """Of one node, or of all; in the order of their numbers, or of what is notable about them."""
        ...

    async def tasks_named(self, ns: int, run_id: bytes, name: str, limit: int) -> list[int]: ...
    async def logs(
        self, ns: int, run_id: bytes, after: LogPosition | None, limit: int, newest: bool = False
    ) -> LogPage: ...
    async def task_logs(
        self,
        ns: int,
        run_id: bytes,
        seqs: Sequence[int],
        attempt: int | None,
        after: LogPosition | None,
        limit: int,
        newest: bool = False,
    ) -> LogPage: ...
    async def attempts(
        self,
        ns: int,
        run_id: bytes,
        seqs: Sequence[int] | None,
        unsuccessful: bool,
        after: AttemptPosition | None,
        limit: int,
    ) -> AttemptPage: ...
    async def timeline(self, ns: int, run_id: bytes) -> TimelineRows | None: ...
    async def expected_us(self, ns: int, workflow: str, below: bytes) -> dict[str, int]: ...
    async def latest_runs(self, ns: int, workflow: str, limit: int) -> list[RunItem]: ...
    async def node_counts(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, list[NodeCounts]]: ...
    async def failed_runs(self, ns: int, workflow: str, since_us: int) -> tuple[list[FailedRun], int, bool]: ...
    async def recent_inputs(self, ns: int, workflow: str) -> list[RecentInput]: ...
    async def workflows(self, ns: int, q: str, after: str, limit: int) -> list[WorkflowItem]: ...
    async def workflow(self, ns: int, name: str) -> WorkflowItem | None: ...
    async def workflow_names(self, ns: int) -> list[str]: ...
    async def versions(self, ns: int, name: str, limit: int) -> list[VersionItem]: ...
    async def definition(self, ns: int, name: str, version: str) -> Definition | None: ...
    async def subscriptions(self, ns: int, name: str, version: str) -> str:
        """Named events that start runs of a version, as JSON; empty: none."""
        ...

    async def workers(self, ns: int, after: bytes, limit: int) -> list[WorkerItem]: ...
    async def worker(self, ns: int, id: bytes) -> WorkerDetail | None: ...
    async def queues(self, ns: int) -> list[QueueItem]: ...
    async def namespaces(self, after: str, limit: int) -> list[NamespaceItem]: ...
    async def created_since(self, ns: int, above: bytes, limit: int) -> list[RunItem]: ...
    async def ended_since(self, ns: int, from_us: int, above: bytes, limit: int) -> list[RunItem]: ...
    async def clock_us(self) -> int: ...
    async def histogram(self, ns: int, workflow: str, bins: Bins) -> RunHistogram:
        """Of all workflows when none is named."""
        ...

    async def workflow_stats(self, ns: int, workflow: str, days: Bins) -> WorkflowStats:
        """Bins of a day. Without the versions."""
        ...

    async def durations(self, ns: int, since_us: int) -> list[WorkflowDurations]: ...
    async def counts(self, ns: int) -> NamespaceCounts:
        """Without what an engine measures."""
        ...


class Remembered(msgspec.Struct, frozen=True):
    """The request that an idempotency key stands for."""

    first: bool
    """It is this one."""
    held: bytes
    """Its digest."""


class SentOnce(msgspec.Struct, frozen=True):
    """The outcome of a message that carries an idempotency key."""

    active: bool
    """The run takes messages."""
    sent: bool
    """This very call put it into the inbox."""
    held: bytes | None
    """The digest under which the key was used before, or is now."""


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A declarative version to be written, and with `activate` the pointer to it and its schedules."""

    name: str
    version: str
    kind: str
    description: str | None
    document: bytes
    source: str
    control: bytes | None = None
    timeout_us: int = 0
    triggers: Sequence[ScheduleRequest] = ()
    hooks: Mapping[str, str] = {}
    """Status in which a run ends -> workflow of which a run starts then."""
    subscriptions: bytes = b""
    """Named events that start runs of it, as JSON; empty: none."""
    activate: bool = True
    by: str = ""


class Definitions(Protocol):
    """Changes that belong to no run: workflows and namespaces by name, requests by idempotency key."""

    async def register(self, ns: int, name: str, version: str, description: str | None) -> bool:
        """True when the version is new."""
        ...

    async def deploy(self, ns: int, deployment: Deployment) -> bool:
        """True when the version is new."""
        ...

    async def set_current(
        self,
        ns: int,
        name: str,
        version: str,
        *,
        triggers: Sequence[ScheduleRequest] = (),
        by: str = "",
        rollback: bool = False,
        automatic: bool = False,
    ) -> bool:
        """All new runs get this version, and the schedules are those of it. False when the workflow has no such version. `rollback`: the
        one before is not kept; `automatic`: the next one that a worker registers becomes current."""
        ...

    async def set_ramp(self, ns: int, name: str, version: str | None, percent: float) -> bool: ...
    async def newest_served(self, ns: int, name: str) -> str | None:
        """The newest version that a worker serves, else the newest."""
        ...

    async def versions(self, ns: int, name: str, limit: int, count_max: int) -> WorkflowVersions | None: ...
    async def move_runs(self, ns: int, name: str, version: str, to: str, limit: int) -> int:
        """How many were moved of those that no engine holds."""
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
        """Its rows stay, but no credential reaches them. False when there is none."""
        ...

    async def remember(self, ns: int, key: str, digest: bytes) -> Remembered: ...
    async def send_once(self, ns: int, key: str, digest: bytes, run_id: bytes, message: SignalMessage) -> SentOnce: ...


class HeldApproval(Protocol):
    """An approval locked until the end of the transaction. An exception undoes everything."""

    standing: Standing | None
    """None: there is no such promise, or it is no approval."""
    is_active: bool
    """Whether the run is."""
    now_us: int

    async def cast(self, vote: Vote) -> None: ...
    async def decide(self, message: bytes) -> None: ...
    async def resolve(self, message: bytes) -> bool:
        """A plain promise; False when it has its value already."""
        ...

    async def reassign(self, assignees: list[str], escalate_to: list[str]) -> None: ...
    async def use_link(self, id: bytes, expires_us: int) -> bool:
        """False when it was used before."""
        ...

    async def audit(self, actor: str, action: str, detail: AuditDetail) -> None: ...


class ApprovalStore(Protocol):
    def hold(self, ns: int, run_id: bytes, name: str) -> AbstractAsyncContextManager[HeldApproval]: ...
    async def find(self, ns: int, run_id: bytes, name: str) -> Standing | None: ...
    async def of_run(self, ns: int, run_id: bytes, limit: int) -> list[Standing]: ...
    async def page(
        self, ns: int, names: Sequence[str] | None, workflow: str | None, after: ApprovalPosition | None, limit: int
    ) -> ApprovalPage: ...
    async def decided(
        self, ns: int, names: Sequence[str] | None, workflow: str | None, after: ApprovalPosition | None, limit: int
    ) -> ApprovalPage:
        """Decided or expired within DECIDED_APPROVALS_KEPT_DAYS, latest first; `names`: one of these has answered."""
        ...

    async def secret(self) -> bytes:
        """What links are signed with; made at first use."""
        ...

    async def now_us(self) -> int: ...
    async def was_used(self, link: bytes) -> bool: ...
    async def key_name(self, ident: str) -> str | None: ...


class RetentionAdmin(Protocol):
    async def policies(self, ns: int) -> list[PolicyView]: ...
    async def set_policy(self, ns: int, workflow: str, days: float | None, by: str) -> PolicyView | None:
        """`ns` 0: all namespaces. None: the namespace has as many as it may have."""
        ...

    async def remove_policy(self, ns: int, workflow: str) -> bool: ...
    async def jobs(self, limit: int) -> list[RetentionJob]: ...
    async def export_address(self) -> str: ...


class RuleStore(Protocol):
    async def set(
        self, ns: int, scope: str, name: str, concurrency: int | None, rate: RateRule | None, by: str
    ) -> None: ...
    async def clear(self, ns: int, scope: str, name: str, by: str) -> bool: ...
    async def pause(self, ns: int, scope: str, name: str, reason: str | None, by: str) -> None: ...
    async def unpause(self, ns: int, scope: str, name: str, by: str) -> bool: ...
    async def page(self, ns: int, after: RulePosition, limit: int) -> list[RuleView]:
        """With their use."""
        ...

    async def in_use(self, ns: int) -> list[LimitUsage]:
        """Limits and rates that something holds or waits for, rules or declared in code, by key."""
        ...

    async def get(self, ns: int, scope: str, name: str) -> RuleView | None: ...


class SavedViews(Protocol):
    async def save(self, ns: int, name: str, query: str, by: str) -> SavedView:
        """InvalidInput beyond VIEWS_MAX."""
        ...

    async def page(self, ns: int, after: str, limit: int) -> list[SavedView]: ...
    async def get(self, ns: int, name: str) -> SavedView | None: ...
    async def delete(self, ns: int, name: str) -> bool: ...


class ClaimedJob(msgspec.Struct, frozen=True):
    """A bulk job that an engine works on."""

    job: BulkJob
    ns: int
    below: bytes | None
    """Where its runs are looked for next, while it is pending."""


class TakenRun(msgspec.Struct, frozen=True):
    run_id: bytes
    tries: int
    """This one included; above 1, an engine may have acted on the run before it was killed."""


class BulkJobs(Protocol):
    async def start(self, ns: int, id: bytes, request: StartBulkJob, by: str) -> tuple[BulkJob, bool]:
        """The job, and whether it is new. Conflict for a key that was used for something else, and at BULK_JOBS_MAX."""
        ...

    async def get(self, ns: int, id: bytes) -> BulkJob | None: ...
    async def page(self, ns: int, below: bytes | None, limit: int) -> list[BulkJob]: ...
    async def runs(
        self, ns: int, id: bytes, outcome: BulkOutcome | None, after: bytes | None, limit: int
    ) -> list[BulkRun]: ...
    async def cancel(self, ns: int, id: bytes) -> BulkJob | None:
        """None: there is no unfinished one."""
        ...

    # What follows is for the engine of this session, and does nothing when the job is no longer its own.
    async def claim(self, session: int) -> ClaimedJob | None: ...
    async def add(
        self, session: int, claimed: ClaimedJob, runs: Sequence[tuple[bytes, str]], below: bytes | None
    ) -> bool:
        """Runs that match, each with why it is skipped; `below` is where to continue, None at the end. False: not its own."""
        ...

    async def take(self, session: int, id: bytes, limit: int) -> list[TakenRun]: ...
    async def record(self, session: int, id: bytes, runs: Sequence[BulkRun]) -> bool: ...
    async def end(self, session: int, id: bytes, error: str | None) -> None: ...
    async def sent(self, run_ids: Sequence[bytes], key: str) -> set[bytes]:
        """Runs that have had a message of this key."""
        ...

    async def trim(self, older_s: float, limit: int) -> None: ...


CallbackPhase = Literal["waiting", "ended", "closed"]


class ServiceStore(Protocol):
    """Instances of HTTP services, and jobs whose end a service reports later."""

    async def register(self, ns: int, new: RegisterInstance) -> tuple[InstanceItem, bool]:
        """The instance, and whether it is new or changed. Conflict at SERVICE_INSTANCES_MAX."""
        ...

    async def heartbeat(self, ns: int, id: str, url: str, load: float | None) -> str | None:
        """The id of the instance; None: there is none of this id or URL."""
        ...

    async def instances(
        self, ns: int, service: str, ttl_s: float, *, only_online: bool, after: str = "", limit: int
    ) -> list[InstanceItem]: ...
    async def callback(self, ns: int, job: str) -> tuple[CallbackPhase, CallEnd | None] | None: ...
    async def accept(self, ns: int, jobs: Sequence[str]) -> None: ...
    async def end(self, ns: int, end: CallEnd) -> tuple[CallbackPhase | None, bool]:
        """The phase of the job before, and whether this report was recorded."""
        ...

    async def ended(self, ns: int, jobs: Sequence[str]) -> list[CallEnd]: ...
    async def close_callbacks(self, ns: int, jobs: Sequence[str]) -> None: ...


class DeadLetters(Protocol):
    async def page(
        self, ns: int, wanted: DeadLetterFilter, below: DeadLetterPosition | None, limit: int
    ) -> DeadLetterPage: ...
    async def roots(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """Failed runs -> the outermost failed run that each belongs to, itself if none."""
        ...


class KeyAdmin(Protocol):
    async def create(self, new: NewKey) -> tuple[KeyView, str]:
        """The key as it is stored, and its secret. NotFound for an unknown namespace."""
        ...

    async def list(self, namespace: str | None, after: str | None, limit: int) -> list[KeyView]:
        """By id. A namespace's own keys, or all of them for None; `after` is the last id of the page before."""
        ...

    async def revoke(self, ident: str, namespace: str | None) -> KeyView:
        """Idempotent. NotFound for a key that does not exist or is not that namespace's."""
        ...


class AuditStore(Protocol):
    async def append_all(self, lines: Sequence[AuditRow]) -> None:
        """In their order, all or none."""
        ...

    async def page(self, namespace: str | None, before: int | None, limit: int, wanted: AuditFilter) -> AuditPage: ...


class AuditLog(Protocol):
    async def record(
        self, principal: Principal, action: str, target: str, ns: int | None, detail: AuditDetail | None = None
    ) -> None: ...
    async def page(
        self, namespace: str | None, before: int | None = None, limit: int = 50, wanted: AuditFilter = ...
    ) -> AuditPage: ...


class SecretSealer(Protocol):
    """Seals secrets that must be read again, for storage in the database."""

    def seal(self, secret: bytes, owner: str) -> bytes: ...
    def open(self, sealed: bytes, owner: str) -> bytes: ...
