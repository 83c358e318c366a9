"""The ports of the engine. The store and the workers implement these; tests may too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from perdure.core.events import PromiseCreated
from perdure.core.flow_control.admission import LimitUse
from perdure.core.flow_control.groups import FlowControlGroup, FlowControlRules
from perdure.core.messages import Message
from perdure.core.payload_port import Place
from perdure.core.versions import VersionChoice
from perdure.core.work import (
    Activation,
    Assignment,
    Decided,
    Outcome,
    QueryAnswer,
    QueryCall,
    RunView,
    ServedCode,
    Upstream,
)
from perdure.engine.commits.store import CommitStore

Named = tuple[int, str]
"""(namespace, workflow)"""
CodeKey = tuple[int, str, str]
"""(namespace, workflow, version)"""
Pin = tuple[int, str, str]
"""(namespace, workflow, version that its runs are pinned to; empty: runs that are pinned to none)"""
Kind = tuple[int, str, str]
"""(namespace, queue, task name)"""


class OpenedSession(msgspec.Struct, frozen=True):
    id: int
    clock_us: int


class Renewed(msgspec.Struct, frozen=True):
    clock_us: int
    others: int
    others_free: int
    expired: int


class ClaimedRun(msgspec.Struct, frozen=True):
    run_id: bytes
    ns: int
    workflow: str
    version: str
    epoch: int
    keys: tuple[str, ...] = ()
    """Keys of the slots that it holds."""
    pin: str = ""
    """The version that it is pinned to; empty: none."""
    full: tuple[str, ...] = ()
    """Signals of which its code had left too many unread, as the run's row has them."""
    is_late: bool = False
    """It had ended, and is decided once more with messages that had come (core/late_messages.py)."""


class ClaimedTask(msgspec.Struct, frozen=True):
    id: bytes
    ns: int
    run_id: bytes
    seq: int
    name: str
    queue: str
    attempt: int
    lost: int
    scheduled_us: int
    options: bytes
    input: bytes
    trace: str | None = None
    keys: tuple[tuple[int, str], ...] = ()
    """(namespace, key) of the slots that it holds."""


class AdmittedTasks(msgspec.Struct, frozen=True):
    """Tasks that flow control admitted, and when to poll again."""

    tasks: list[ClaimedTask]
    next_us: int | None


class AdmittedRuns(msgspec.Struct, frozen=True):
    """Runs that were admitted, and runs that are cancelled in exchange."""

    runs: int
    cancelled: int
    next_us: int | None


class HistoryRow(msgspec.Struct, frozen=True):
    run_id: bytes
    seq: int
    last: int
    at_us: int
    body: bytes
    hash: bytes = b""
    """Only where it was requested."""


class InboxRow(msgspec.Struct, frozen=True):
    id: int
    run_id: bytes
    body: bytes


DeletedRun = Literal["deleted", "unknown", "active", "continued", "awaited"]
"""What became of the deletion of a run. `continued`: a later run of its chain is active. `awaited`: its parent, which may not know of its end
yet or may be retried, would execute it again."""
SendRow = tuple[bytes, int, bytes, str | None, bytes, str, str | None]
"""(run, namespace, body, the sender's key, the run as the sender calls it, kind and name of the message)"""


class Adopted(msgspec.Struct, frozen=True):
    """Running tasks that a worker brought along from another engine."""

    tasks: list[ClaimedTask]
    """Tasks that now belong to this session."""
    known: set[bytes]
    """Tasks that have a row, adopted or not. One that has none may still be waited for by its run."""


class Loaded(msgspec.Struct, frozen=True):
    """All that is known about some runs, read so that nothing can fall between two reads."""

    queued: set[tuple[bytes, int]]
    history: dict[bytes, list[HistoryRow]]
    messages: list[InboxRow]


class Due(msgspec.Struct, frozen=True):
    clock_us: int
    run_at_us: int | None
    task_at_us: int | None
    has_messages: bool
    task_group_at_us: int | None = None
    run_group_at_us: int | None = None
    rules_us: int | None = None
    """When the rules of flow control last changed."""
    task_group_priority: int | None = None
    """The highest priority among the groups that are due."""
    suspects: bool = False
    """There are suspect runs: engines died while they had them."""


class LostTask(msgspec.Struct, frozen=True):
    id: bytes
    run_id: bytes
    seq: int
    attempt: int
    lost: int
    options: bytes
    scheduled_us: int = 0
    started_us: int | None = None
    clock_us: int = 0
    worker: str = ""


class QueuedTask(msgspec.Struct, frozen=True):
    """A task that is to wait in task_queue, unstarted."""

    id: bytes
    seq: int
    name: str
    queue: str
    options: bytes
    input: bytes
    wait_us: int | None = None
    """It fails if it has not begun within this time; None: no limit."""
    group: FlowControlGroup | None = None
    node: str | None = None


class AskedPromise(msgspec.Struct, frozen=True):
    """A promise of a run as its history has it."""

    name: str
    created: PromiseCreated | None
    """None: it has a value, and nothing has asked for it."""
    question: bytes
    is_resolved: bool
    is_authorized: bool
    """Its value may resolve anything that is asked under its name."""
    event_id: int | None = None
    """The named event that it is resolved with."""


class RetryChanges(msgspec.Struct, frozen=True):
    """The retry of a failed run: all its changes, in one transaction."""

    run_id: bytes
    ns: int
    events: int
    """Events it has; another number means that it was retried or changed meanwhile."""
    body: bytes
    """The record of the retry."""
    added: int
    """Events in it."""
    stale: list[bytes]
    """Tasks whose rows go, because they have not ended any more."""
    stale_seqs: list[int]
    queued: list[QueuedTask]
    promises: list[AskedPromise]
    states: dict[str, bytes | None]
    """State values that differ from what is stored."""
    orphans: list[bytes]
    """Children that no longer belong to this run; their ids may be reused."""
    group: FlowControlGroup | None = None
    """The group in which the run waits for admission."""
    attributes: str | None = None
    """Its search attributes, without those that the part which is retried had set."""
    pinned: bool = False
    """Only workers that serve its version execute it."""
    key: str = ""
    """The key that the run takes back; empty: none."""
    input_hash: bytes = b""


class ForkedRow(msgspec.Struct, frozen=True):
    """A row of the history of a fork. `at_us` None: of the moment of the fork."""

    seq: int
    last: int
    at_us: int | None
    body: bytes
    hash: bytes


CopiedRow = tuple[bytes, bytes, int, str, str, str, int | None, int, int | None, str | None, str | None]
"""(id, id in the other run, seq, name, queue, status, attempts, scheduled, finished, error, node) of a task that ended before a fork"""


class ForkedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A fork: all its rows, in one transaction."""

    run_id: bytes
    ns: int
    workflow: str
    version: str
    kind: str
    pin: str = ""
    """The version that alone may execute it; empty: any."""
    key: str
    input_hash: bytes
    attributes: str | None
    deadline_us: int
    group: FlowControlGroup | None
    rows: list[ForkedRow]
    copies: list[CopiedRow]
    queued: list[QueuedTask]
    promises: list[AskedPromise]
    states: dict[str, bytes]
    uses: list[Place]
    """Stored content that its events refer to."""


Again = tuple[bytes, int, int, int | None, int | None, str, str]
"""(id, attempt, lost, how long it may wait from now on, and from its scheduling on, code and message of the attempt that is lost)"""
Settle = Callable[[list[LostTask]], tuple[list[Again], list[tuple[bytes, bytes]]]]
"""Lost tasks -> those to queue again, and (id, message) of those that fail."""


ServiceRoutes = tuple[frozenset[str], frozenset[str]]
"""Names that instances of HTTP services have registered, and names of Python tasks."""


class PublishedVersion(msgspec.Struct, frozen=True):
    """What the workers of a version of a Python workflow last said about it; nothing where none has."""

    parameters: bytes | None = None
    """As JSON of core/parameters.py."""
    messages: bytes | None = None
    """As JSON of core/published_messages.py."""
    pinned: bool = False


class Store(CommitStore, Protocol):
    # ownership
    async def register(self, engine: str, lease_s: float, slots: int) -> OpenedSession: ...
    async def renew(self, session: int, lease_s: float, slots: int, slots_free: int) -> Renewed | None: ...
    async def reap(self, settle: Settle) -> int: ...
    async def leave(self, session: int, settle: Settle) -> None: ...
    # writing
    async def send(self, run_id: bytes, ns: int, message: Message) -> int | None: ...
    async def send_many(self, rows: Sequence[SendRow]) -> list[int]: ...
    async def remember_message(self, run_id: bytes, key: str) -> None: ...
    async def resolve_promise(
        self, run_id: bytes, ns: int, name: str, body: bytes, *, authorized: bool, question: bytes = b""
    ) -> tuple[bool, bool]:
        """(is the run active, did this call win). `authorized`: it may resolve an approval past its assignees."""
        ...

    async def forget_key(self, ns: int, key: str, run_id: bytes) -> None: ...
    async def pause(self, run_id: bytes, ns: int, by: str, reason: str, body: bytes) -> bool | None: ...
    async def delete_run(self, run_id: bytes, ns: int) -> DeletedRun: ...
    async def resume(self, run_id: bytes, ns: int, group: FlowControlGroup | None) -> bool: ...
    async def retry_run(self, r: RetryChanges) -> bool: ...
    async def fork_run(self, r: ForkedRun) -> bool: ...
    async def save_task_options(self, ns: int, options: Mapping[str, bytes | None]) -> None:
        """Declared options of tasks as JSON; None: it declares none (any more)."""
        ...

    async def task_options(self, ns: int) -> dict[str, bytes]: ...
    async def service_routes(self, ns: int) -> ServiceRoutes: ...
    async def register_versions(self, ns: int, code: Sequence[tuple[str, ServedCode]]) -> list[tuple[str, str]]:
        """(workflow, version) of those that are registered with other code, and are refused."""
        ...

    async def published(self, ns: int, workflow: str, version: str) -> PublishedVersion: ...

    async def current_versions(self, ns: int, names: Sequence[str]) -> dict[str, VersionChoice]: ...
    async def document(self, ns: int, workflow: str, version: str) -> bytes | None: ...
    # claiming
    async def next_due(self, workflows: Sequence[Pin], served: Sequence[Kind], *, flows: bool) -> Due: ...
    async def claim_runs(
        self, session: int, workflows: Sequence[Pin], limit: int, *, with_messages: bool, flows: bool
    ) -> list[ClaimedRun]: ...
    async def claim_suspect(self, session: int, workflows: Sequence[Pin], *, flows: bool) -> list[ClaimedRun]: ...
    async def claim_tasks(self, session: int, served: Sequence[tuple[Kind, int]], limit: int) -> list[ClaimedTask]: ...
    async def claim_from_lines(
        self, session: int, served: Sequence[tuple[Kind, int]], limit: int, rules: FlowControlRules
    ) -> AdmittedTasks: ...
    async def admit_runs(self, session: int, rules: FlowControlRules) -> AdmittedRuns: ...
    async def wake_lines(self, keys: Iterable[tuple[int, str]]) -> None: ...
    async def held_by(self, ns: int, key: str) -> LimitUse: ...
    async def rules(self) -> FlowControlRules: ...
    async def controls(self, ns: int, workflows: Sequence[tuple[str, str]]) -> dict[tuple[str, str], bytes]: ...
    async def adopt_tasks(self, session: int, ns: int, tokens: Sequence[tuple[bytes, int]]) -> Adopted: ...
    async def still_mine(self, session: int, ids: Sequence[bytes]) -> set[bytes]: ...
    async def load(self, run_ids: Sequence[bytes]) -> Loaded: ...
    async def owned_messages(self, session: int, limit: int) -> list[InboxRow]: ...
    async def existing(self, ns: int, run_ids: Sequence[bytes]) -> set[bytes]: ...
    # reading
    async def namespace(self, name: str) -> int: ...
    async def find_namespace(self, name: str) -> int | None: ...
    async def run_by_key(self, ns: int, key: str) -> tuple[bytes, bytes] | None: ...
    async def describe(self, run_id: bytes, ns: int) -> RunView | None: ...
    async def ended(self, ns: int, run_ids: Sequence[bytes]) -> dict[bytes, Outcome]: ...
    async def history_after(self, run_id: bytes, ns: int, after: int, limit: int) -> list[HistoryRow]: ...
    async def read_state(self, run_id: bytes, ns: int, name: str) -> bytes | None: ...
    # upkeep
    async def sweep(self) -> int: ...
    async def merge_counts(self) -> int: ...
    async def create_partitions(self, ahead_days: int) -> int: ...
    async def trim_commit_log(self, session: int, below: int) -> None: ...
    async def notify(self, topics: str) -> None: ...
    async def listen(self, heard: Callable[[str], None]) -> None: ...


class WorkerPort(Protocol):
    """The worker in this process, or all workers that are connected to it."""

    @property
    def ns(self) -> int:
        """The engine's own namespace, once open."""
        ...

    @property
    def code(self) -> dict[CodeKey, ServedCode]:
        """Versions of workflows that runs can be given to."""
        ...

    @property
    def task_options(self) -> dict[str, bytes | None]:
        """Declared options of the tasks of this process, as JSON. Remote workers send theirs when they connect."""
        ...

    @property
    def served(self) -> list[Kind]: ...
    @property
    def slots(self) -> int: ...
    @property
    def slots_free(self) -> int: ...
    def free_for(self, kind: Kind) -> int: ...
    def name_of(self, run_id: bytes, seq: int) -> str: ...
    @property
    def outlives_engine(self) -> bool:
        """Whether attempts continue when this engine closes, and can move to another one."""
        ...

    def open(self, upstream: Upstream) -> None: ...
    def assign(self, batch: list[Assignment]) -> None: ...
    def cancel(self, run_id: bytes, seq: int, attempt: int) -> None: ...
    def activate(self, batch: list[Activation]) -> list[Decided]: ...
    def query(self, code: CodeKey, call: QueryCall) -> asyncio.Future[QueryAnswer] | None:
        """Ask a worker that serves this version; None when there is none. An answer `worker_lost` may be asked for again."""
        ...

    def forget(self, run_id: bytes) -> None: ...
    def forget_all(self) -> None: ...
    async def close(self) -> None: ...
